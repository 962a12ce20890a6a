"""Steps and answers that are recorded and replayed, as in CUDA graphs, are those of a CPU.

The tests marked `gpu` show it of the graphs themselves, where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tape import CaptureError, Tape, Taped, replay_on_cpu
from test_backbones import BACKBONES, NEW, teach
from torch import Tensor

from dualcba import Dataset, Learner
from dualcba.losses import Batch, Term, scaled
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.registry import METHODS
from dualcba.nets import MLP
from dualcba.training.unannounced import unannounced_options

Make = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
P10: dict[str, Any] = {"protocol": "p10", "batch_size": 8, "memory_batch": 12, "lr": 0.005}
EVERYTHING: dict[str, Any] = {
    "outer_draw": "balanced", "outer_loss": "adjusted", "targets": "raw", "strength": True,
    "prior": True, "counts": True, "outer_warmup": 3,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    *[(f"{name}-dual-cba" if m.adaptable else name, {}) for name, m in METHODS.items()],
    *[(name, P10) for name, m in METHODS.items() if m.stores_in_steps],
    ("best", {**P10, "ibn": True}),
    ("er+mkd-dual-cba", {"optimizer": "adamw", "weight_decay": 0.01}),
    ("er+mkd", {"method_options": {"second": "cutmix"}, "memory_batch": 1}),
    ("gsa+mkd", {**P10, "method_options": {"own_draw": True, "mild": True, "base_mirror": False}}),
    ("er+ccl-dc-balanced-cba", {"forward": "sources"}),
    ("gsa+ccl-dc", {**P10, "method_options": {"peers": 1}}),
    ("clser", {"batch_size": 8, "memory_batch": 1, "tracking": "memory"}),
    ("clser", {"method_options": {"draws": 2, "second_pass": True}}),
    ("derpp-balanced-cba", {**EVERYTHING, "optimizer": "adam", "lr": 0.005}),
    ("rar-dual-cba", {"momentum": 0.9, "nesterov": True, "specific": "individual"}),
    ("er-cba", {"space": "probability", "update_order": "network-first"}),
    ("er-cba", {"virtual": "sgd", "virtual_lr": 0.1, "precision": "bf16"}),
    ("er-dual-cba", {"head": "cosine", "learn_scale": True, "freeze_after": 2}),
    ("er-dual-cba", {"levels": "joint", "readout": "adapted"}),
    ("er-dual-cba", {"augmentation": "full"}),
    ("er-dual-cba", {"momentum": 0.9, "weight_decay": 0.001}),
    ("er-dual-cba", {"optimizer": "adam", "lr": 0.01}),
    ("er-dual-cba", {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01}),
    ("er-dual-cba", {"levels": "buffer", "ibn_refresh": "full", "ibn": True}),
    *[(name, {}) for name in ("er", "er-cba", "er-balanced-cba", "er-ace+ccl-dc-dual-cba")],
    *[(f"{name}+mkd-dual-cba", {}) for name in ("er", "derpp", "gsa")],
    *[(f"er-{kind}", {"space": "probability"}) for kind in ("cba", "dual-cba", "balanced-cba")],
    ("derpp-dual-cba", {"space": "probability"}),
    *[(name, {**EVERYTHING, "outer_draw": draw})
      for name in ("er-balanced-cba", "derpp-dual-cba", "rar-dual-cba")
      for draw in ("memory", "balanced")],
    *[("er-cba", {**EVERYTHING, "outer_draw": draw, "counts": None})
      for draw in ("memory", "balanced")],
    *[(name, {"levels": levels})
      for name in ("er-cba", "derpp-dual-cba") for levels in ("joint", "buffer")],
    *[(name, {"update_order": "network-first", "outer_every": 1})
      for name in ("er-cba", "derpp-dual-cba")],
    ("er", {"readout": "both-lda", "ibn": True}),
    ("er", {"readout": "lda", "test_flip": True}),
    ("icarl", {"method_options": {"merge": True, "negatives": True}}),
    ("lucir", {"method_options": {"released": True, "frozen": True, "drop": 3}}),
    ("bic", {"method_options": {"released": True, "merge": True}}),
]  # fmt: skip


def learn(learner: Learner, tasks: Any, images: Dataset) -> list[Tensor]:
    """Teach a learner, and return what it has answered."""
    answers = []
    for k, batches in enumerate(tasks):
        learner.new_task([2 * k, 2 * k + 1])
        for i, (x, y) in enumerate(batches):
            learner.observe(x, y)
            if i % 2:
                answers.append(learner.predict_proba(images.test_x[:10]))
    learner.end_task()
    return answers


Both = Callable[[Callable[[], Learner], Callable[[Learner], list[Tensor]]], list[str]]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, differ: Differ) -> Both:
    """Let a learner learn as on a CPU and one by replays; return the names of what differs."""

    def run(make: Callable[[], Learner], play: Callable[[Learner], list[Tensor]]) -> list[str]:
        ends, taped = [], Taped()
        for replays in (False, True):
            with monkeypatch.context() as patch:
                of = replay_on_cpu(patch) if replays else None
                learner = make()
                if replays:
                    learner.parts.training_step.stay_on_device()
                ends.append((play(learner), learner.state_dict()))
                taped = taped if of is None else of(learner.parts.engine)
        assert sum(n for key, n in taped.replayed.items() if key[0] == "step") >= 5  # type: ignore[index]
        answers, states = zip(*ends, strict=True)
        same = all(map(torch.equal, *answers))
        return [*differ(*states), *([] if same else ["answers"])]

    return run


@pytest.mark.parametrize(("method", "options"), CASES)
def test_replays_are_the_same_steps(
    method: str, options: dict[str, Any], both: Both, make_learner: Make, make_batches: Any,
    images: Dataset,
) -> None:  # fmt: skip
    tasks = make_batches(3, steps=9)[:2]
    assert both(lambda: make_learner(method, **options), lambda x: learn(x, tasks, images)) == []


@pytest.mark.parametrize("method", ["er", "derpp-dual-cba", "er-balanced-cba"])
@pytest.mark.parametrize("name", NEW)
def test_other_samples(name: str, method: str, both: Both) -> None:
    def watch(learner: Learner) -> list[Tensor]:
        return [learner.predict_proba(teach(learner)[0])]

    assert both(lambda: BACKBONES[name].learner(method), watch) == []
    trunk = BACKBONES[name].learner(method).parts.trunk
    if trunk is not None:
        x = torch.zeros(3, 3, 5, 5, dtype=torch.uint8)
        with Tape():
            trunk(x)


@pytest.mark.parametrize("labelled", [0, 3])
def test_samples_without_labels(
    labelled: int, both: Both, make_learner: Make, make_batches: Any, images: Dataset
) -> None:
    tasks = make_batches(3, steps=9)[:2]
    for _, y in (batch for task in tasks for batch in task):
        y[3:] = -1
    method = {"labelled": labelled, "every": bool(labelled), "threshold": 0.3}

    def make() -> Learner:
        return make_learner(FixMatch(ER(), **method), adaptor="dual-cba")

    assert both(make, lambda learner: learn(learner, tasks, images)) == []


@pytest.mark.parametrize("method", ["er-dual-cba", "obc", "er+mkd", "bic"])
@pytest.mark.parametrize("on_outlier", ["skip", "clip"])
def test_refused_steps(method: str, on_outlier: Any, both: Both, vectors: Make) -> None:
    options = {"outer_every": 2} if method.endswith("cba") else {}

    def play(learner: Learner) -> list[Tensor]:
        learner.parts.training_step.stay_on_device()  # a refused step has made its draws there
        rng = np.random.default_rng(0)
        for k in range(2):
            learner.new_task([2 * k, 2 * k + 1])
            for i in range(16):
                x = rng.normal(size=(4, 5)).astype(np.float32)
                x[0] *= 1e20 if i in (9, 13) else 1
                learner.observe(x, rng.integers(2 * k, 2 * k + 2, 4))
        assert learner.outliers == 4
        return []

    make = lambda: vectors(method=method, on_outlier=on_outlier, standardise=True, **options)  # noqa: E731
    assert both(make, play) == []


@pytest.mark.parametrize("method", ["er-dual-cba", "er+mkd", "obc"])
def test_classes_that_nobody_announces(method: str, both: Both) -> None:
    def make() -> Learner:
        torch.manual_seed(0)
        return Learner(
            MLP((5,), 2, width=8), (5,), method=method, buffer=8, batch_size=4, lr=0.1,
            dtype=torch.float32, device="cpu", **unannounced_options(method),
        )  # fmt: skip

    def play(learner: Learner) -> list[Tensor]:
        rng, answers = np.random.default_rng(0), []
        for i in range(40):
            x = rng.normal(size=(4, 5)).astype(np.float32)
            learner.observe(x, rng.integers(0, 2 + i // 16, 4))
            answers.append(learner.predict_proba(x)[:, :2])
        return answers

    assert both(make, play) == []


# ---------------------------------------------------------------- what the recording shows


class Counts(ER):
    """Counts on the host what is counted once in a graph."""

    number = 0

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        self.number += 1
        return [scaled(term, 1 / self.number) for term in super().terms(new, mem)]


class Replaces(ER):
    """Puts a new tensor in the place of one that a graph goes on reading."""

    total: Tensor

    def bind(self, context: Any) -> None:
        super().bind(context)
        self.register_buffer("total", torch.zeros(()))

    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        self.total = self.total + 1


class Branches(ER):
    """Branches by a value without reading it in the step."""

    def begin_task(self) -> None:
        self.first = not bool(self.context.sets.old.any())

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        return super().terms(new, mem if self.first else [])


@pytest.mark.parametrize("method", [Counts, Replaces, Branches])
def test_a_method_that_a_graph_would_break(
    method: Any, both: Both, make_learner: Make, make_batches: Any, images: Dataset
) -> None:
    tasks = make_batches(3, steps=9)[:2]
    assert both(lambda: make_learner(method()), lambda learner: learn(learner, tasks, images))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: float(x[0]),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[x > 0],
        lambda x: x[[0, 1]],
        lambda x: x[np.array([0, 1])],
        lambda x: x.nonzero(),
        lambda x: x.masked_select(x > 0),
        lambda x: x * torch.tensor(2.0),
        lambda x: x * x.new_tensor(2.0),
        lambda x: x * torch.from_numpy(np.ones(3)),
        lambda x: x + torch.ones(3),
        lambda x: x.index_select(0, torch.arange(2)),
        lambda x: x.__setitem__(0, 2.0),
        torch.rand_like,
    ],
)  # fmt: skip
def test_what_cannot_be_captured(call: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError), Tape():
        call(torch.tensor([1.0, 2.0, 3.0]))
    assert issubclass(CaptureError, RuntimeError)


def test_a_tape_writes_to_the_same_places() -> None:
    x, total = torch.arange(3.0), torch.zeros(3)
    with Tape() as tape:
        y = (x * 2).view(3, 1)
        total.add_(y[:, 0])
        total[:1].fill_(-1)
    x += 1
    tape.replay()
    assert y.flatten().tolist() == [2, 4, 6]
    assert total.tolist() == [-1, 6, 10]
