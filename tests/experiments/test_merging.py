"""Tasks whose samples are mixed with exemplars: what each pass holds, and what a run learns."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from dualcba import Dataset
from dualcba.experiments import Hardware, Run, Spec
from dualcba.memory import Herding, Memory
from dualcba.methods import METHODS
from dualcba.methods.er import ER

CPU = Hardware(device="cpu")


def merged(images: Dataset, method: str, **options: Any) -> Run:
    given = {"tasks": 3, "buffer": 10, "batch_size": 8, "eval_every": 0, "network": "mlp"} | options
    return Run(Spec(method=method, dataset="digits", method_options={"merge": True}, **given),
               images, CPU)  # fmt: skip


def pixels(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(x.flatten().tolist())


@pytest.mark.parametrize("method", ["icarl", "lucir", "bic"])
def test_each_sample_and_exemplar_occurs_once(images: Dataset, method: str) -> None:
    one, seen, filled, n = merged(images, method), [], [], len(images.train_y)
    known = [(pixels(x), int(y)) for x, y in zip(images.train_x, images.train_y, strict=True)]
    observe = one.learner.observe_on_device

    def watch(x: Any, y: Any, storable: Any = None, **more: Any) -> None:
        seen.append((one.learner.task, x.clone(), y.clone(), storable))
        filled.append(one.learner.memory.filled)
        observe(x, y, storable, **more)

    one.learner.observe_on_device = watch  # type: ignore[method-assign]
    assert len(list(one.steps())) == one.total == 6 + 7 + 7  # 48 samples; 10 or 9 exemplars
    assert filled[-1] == 10
    for task, passes in enumerate(one.schedule):
        rows = np.concatenate([p.rows.ravel() for p in passes])
        assert len(np.unique(rows)) == len(rows)
        y = torch.cat([y for t, _, y, _ in seen if t == task])
        fresh = np.concatenate([s for t, _, _, s in seen if t == task])
        assert (fresh == (rows < n)).all()
        assert set(y[fresh].tolist()) == {2 * task, 2 * task + 1}
        assert set(y[~fresh].tolist()) <= set(range(2 * task))
        assert (~fresh).any() == (task > 0)
        x = torch.cat([x for t, x, _, _ in seen if t == task])
        arrived = [(pixels(sample), int(label)) for sample, label in zip(x, y, strict=True)]
        assert len({*arrived}) == len(arrived)
        assert {*arrived} <= {*known}


def test_held_out_exemplars_are_not_merged(images: Dataset) -> None:
    for task, passes in enumerate(merged(images, "bic").schedule):
        exemplars = passes[0].rows[passes[0].rows >= len(images.train_y)] - len(images.train_y)
        assert 9 not in exemplars
        assert (len(exemplars) > 0) == (task > 0)


def test_several_passes_select_exemplars_once(images: Dataset) -> None:
    one = merged(images, "icarl", setting="offline", epochs=2)
    list(one.steps())
    memory = one.learner.memory
    counts = torch.bincount(memory.y[: memory.filled], minlength=6)
    assert counts.tolist() == [2, 2, 2, 2, 1, 1]
    rows = {pixels(x) for x in memory.x[: memory.filled]}
    assert len(rows) == memory.filled  # an exemplar that was trained on again is not stored twice


class Merging(ER):
    """A method of a user that merges, without a teacher: the first samples are exemplars."""

    rereads_task, stores_in_steps, merge, draws = True, False, True, 0

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: Any, C: int) -> Memory:
        return Herding(size, shape, dtype)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        cast(Herding, self.context.memory).fill(x, y)


@pytest.mark.parametrize("method", ["merging", "merging+mkd"])
def test_any_method_can_merge(
    method: str, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "merging", Merging)
    given = {"tasks": 3, "buffer": 10, "batch_size": 8, "eval_every": 0, "network": "mlp"}
    one = Run(Spec(method=method, dataset="digits", **given), images, CPU)  # type: ignore[arg-type]
    assert len(list(one.steps())) == one.total == 6 + 7 + 7
    assert (one.schedule[2][0].rows >= len(images.train_y)).any()


def test_released_exemplars_are_those_that_the_schedule_expects(images: Dataset) -> None:
    """Also with fewer rows than tasks, and with samples of other tasks."""
    for buffer in (2, 5, 17, 400):
        options = {"method_options": {"merge": True, "released": True}, "network": "mlp"}
        given = {"tasks": 6, "buffer": buffer, "batch_size": 5, "eval_every": 0} | options
        one = Run(Spec(method="bic", setting="blurry-20", **given), images, CPU)  # type: ignore[arg-type]
        filled: list[int] = []
        after = one.learner.method.exemplar_counter(buffer, 6)
        for step in one.steps():
            if step - 1 in one.learner.task_starts:
                filled.append(one.learner.memory.filled)
        firsts = [passes[0].rows.ravel() for passes in one.schedule]
        counts = [after(images.train_y.numpy()[r[r < len(images.train_y)]]) for r in firsts]
        assert filled == [0, *counts[:-1]]
        assert one.learner.memory.filled == counts[-1]


def test_inferred_boundaries_are_refused(images: Dataset) -> None:
    with pytest.raises(ValueError, match="boundaries is 'inferred', expected 'given'"):
        merged(images, "icarl", boundaries="inferred")
