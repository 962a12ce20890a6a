"""`dualcba bench`: the contenders do the same work, and what is counted and printed is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dualcba import Learner, Transform
from dualcba.bench import Setup, bench, contenders, forward_flops, side_by_side, step_flops
from dualcba.bench.alone import ask, measure
from dualcba.bench.bare import BareDual, BareER
from dualcba.bench.ours import Ours
from dualcba.bench.setup import MEAN, STD
from dualcba.bench.table import table
from dualcba.bench.timing import Stopwatch, seconds, time_in_turns
from dualcba.bench.usual import UsualDual, UsualER
from dualcba.nets import make_network

SMALL: dict[str, Any] = {"size": 8, "channels": 1, "classes": 10, "samples": 640, "pad": 1}


def learner(setup: Setup, method: str) -> Learner:
    """Ours, without augmentation."""
    return Learner(
        setup.make_network(), setup.shape, setup.classes, method=method, buffer=setup.buffer,
        batch_size=setup.batch, lr=setup.lr, device="cpu",
        transform=Transform([MEAN], [STD]),
    )  # fmt: skip


def close(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_the_bare_loop_has_the_arithmetic_of_er() -> None:
    """A draw of 32 from a memory of 32 is all of it, in whatever order: no step is random."""
    setup = Setup(**SMALL)
    ours, bare = learner(setup, "er"), BareER(setup)
    bare.view = bare.normalise  # type: ignore[method-assign]
    ours.new_task(setup.halves[0])
    for k in range(2):
        ours.observe(*setup.data(k))
        bare.step(k)
    close(ours.network.module, bare.net)


def test_the_bare_loop_has_the_arithmetic_of_dual_cba() -> None:
    setup = Setup(**SMALL, first=1)
    ours, bare = learner(setup, "er-dual-cba"), BareDual(setup)
    bare.view = bare.normalise  # type: ignore[method-assign]
    for k in range(2):  # the second step is the first of the second task: an outer one
        ours.new_task(setup.halves[k])
        if k == 1:
            mine = [p for p in ours.adaptor.parameters() if p.requires_grad]  # type: ignore[union-attr]
            assert [p.shape for p in mine] == [p.shape for p in bare.phi]
            for p, q in zip(bare.phi, mine, strict=True):
                p.data.copy_(q)
            before = [p.detach().clone() for p in bare.phi]
        ours.observe(*setup.data(k))
        bare.step(k)
    assert all(not torch.equal(p, q) for p, q in zip(bare.phi, before, strict=True))
    for p, q in zip(bare.phi, mine, strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-9)
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)
    close(ours.network.module, bare.net)


@pytest.mark.parametrize("make", [BareER, BareDual, UsualER, UsualDual, lambda s: Ours(s, "er")])
def test_every_contender_learns_and_answers(make: Callable[[Setup], Any]) -> None:
    setup = Setup(**SMALL, first=2)
    one = make(setup)
    for k in range(4):
        one.step(k)
    assert 0 <= one.evaluate(300) <= 300


def test_others_have_ordinary_layers() -> None:
    plain = Setup(network="resnet18-slim", **SMALL).make_ordinary()
    norms = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all(type(m) is not nn.BatchNorm2d for m in norms)


@pytest.mark.parametrize("name", ["mlp", "resnet18-slim"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    shape, n = (3, 16, 16), 4
    network = make_network(name, shape, 10)
    with FlopCounterMode(display=False) as counter:
        z = network(torch.randn(n, *shape))
    assert n * forward_flops(network, shape) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        z = network(torch.randn(n, *shape))
        F.cross_entropy(z, torch.arange(n)).backward()
    assert step_flops(network, shape, n) == counter.get_total_flops()
    more = step_flops(network, shape, n, forwarded=2) - step_flops(network, shape, n)
    assert more == 2 * forward_flops(network, shape)


def test_side_by_side_gives_a_row_each_and_our_ratio_is_one() -> None:
    made = contenders(["er"], ["bare"])
    *turns, rows = side_by_side(made, Setup(**SMALL), steps=2, rounds=2)
    assert turns == [None] * 6
    assert rows is not None
    assert [(r["method"], r["contender"]) for r in rows] == [("er", "dualcba"), ("er", "bare")]
    assert rows[0]["ratio_to_dualcba"] == 1.0
    assert all(r["samples_per_second"] > 0 and r["us_per_evaluated_image"] > 0 for r in rows)


def test_a_slow_contender_takes_fewer_steps_and_one_may_be_spared_evaluation() -> None:
    made = contenders(["er"], ["bare"])
    turns = side_by_side(
        made, Setup(**SMALL), steps=20, rounds=1, slow=("bare",), unscored=("bare",)
    )
    rows = list(turns)[-1]
    assert rows is not None
    assert "us_per_evaluated_image" not in rows[1]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown contender 'bear', did you mean 'bare'"):
        contenders(["er"], ["bear"])
    with pytest.raises(ValueError, match="unknown method 'err'"):
        contenders(["err"])
    with pytest.raises(ValueError, match="unknown network 'lenet'"):
        bench(network="lenet", show=False)
    with pytest.raises(ValueError, match="rounds is 0"):
        bench(rounds=0, show=False)


def test_a_method_that_others_lack_stands_alone() -> None:
    assert list(contenders(["derpp"])) == [("derpp", "dualcba")]


def test_alone_it_tells_memory_and_first_step() -> None:
    found = measure(contenders(["er"])["er", "bare"], Setup(**SMALL))
    assert found["first_step_s"] > 0  # type: ignore[operator]
    assert "peak_gpu_mib" not in found
    assert ask("dualcba.bench", ("er", "nobody"), Setup(**SMALL)) == {}


def test_the_table_of_a_cpu_has_no_bare_times() -> None:
    row = {"method": "er", "contender": "bare", "ms_per_step": 7.5, "ratio_to_dualcba": 1.25}

    def text(cuda: bool) -> str:
        out = StringIO()
        Console(file=out, width=120).print(table([row], "here", cuda=cuda))
        return out.getvalue()

    assert "ms/step" not in text(False)
    assert "7.50" not in text(False)
    assert "1.25" in text(False)
    assert "7.50" in text(True)
    assert "–" in text(True)


def test_seconds() -> None:
    done: list[int] = []
    assert seconds(lambda: done.append(1), "cpu") >= 0
    assert done == [1]


def test_each_function_runs_once_per_round_in_alternating_order() -> None:
    calls: list[str] = []
    work = {name: lambda name=name: calls.append(name) for name in "ABC"}
    watches = time_in_turns(work, rounds=3, units=2)
    assert "".join(calls) == "ABCCBAABC"
    assert list(watches) == ["A", "B", "C"]
    assert all(len(watch.times) == 3 for watch in watches.values())


def test_times_are_per_unit_and_ratios_within_a_round() -> None:
    first, second = Stopwatch(lambda: None, units=10), Stopwatch(lambda: None)
    first.run()
    assert 0 <= first.times[0] < 0.1
    first.times, second.times = [1.0, 10.0, 2.0], [2.0, 30.0, 2.0]
    assert (first.median, first.quartiles.tolist()) == (2.0, [1.5, 6.0])
    assert second.ratios(first).tolist() == [2.0, 3.0, 1.0]
    assert second.ratio(first) == 2.0


def test_the_command(dualcba: Callable[..., Any]) -> None:
    options = ("--device", "cpu", "--method", "er", "--against", "bare", "--no-memory")
    done = dualcba("bench", *options, "--steps", 1, "--rounds", 1, "--out", "out/b.json")
    assert (done.code, done.files) == (0, ["out", "out/b.json"])
    assert "bare" in done.out
    entry = json.loads((done.folder / "out" / "b.json").read_text())
    assert entry["command"] == f"dualcba bench {' '.join(options)} --steps 1 --rounds 1"
    assert [r["contender"] for r in entry["rows"]] == ["dualcba", "bare"]
    assert {"machine", "device", "threads", "versions"} <= set(entry)
    wrong = dualcba("bench", "--against", "nobody")
    assert (wrong.code, len(wrong.lines)) == (2, 1)
