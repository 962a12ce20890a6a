"""Real-time evaluation: a clock by hand, a learner by hand, and costs counted by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualcba import Dataset, load_dataset
from dualcba.experiments import Hardware, Result, Run, Spec, make_learner
from dualcba.experiments.matching import matches
from dualcba.experiments.real_time import events, trained_batches
from dualcba.experiments.relative_cost import count_relative_cost, step_flops

CPU = Hardware(device="cpu")
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def spec(**options: Any) -> Spec:
    """Tasks of two classes on digits, nine steps each."""
    given = {"method": "er", "batch_size": 32, "eval_every": 4, "real_time": True, "lr": 0.1}
    return Spec(**given | options)


def finished(spec: Spec, data: Dataset) -> tuple[Run, dict[str, Any]]:
    run = Run(spec, data, CPU)
    assert list(run.steps()) == list(range(1, run.total + 1))
    return run, run.result()


def shown(lengths: list[int], cost: float) -> str:
    signs = {"begin": "b", "arrive": "a", "train": "s", "end": "e", "tick": "|"}
    return " ".join(f"{signs[e.kind]}{e.number}" for e in events(lengths, cost))


# ---------------------------------------------------------------- the clock


@pytest.mark.parametrize(
    ("lengths", "cost", "want"),
    [
        # no slower than the stream: each batch is trained on before the next one arrives
        ([2, 1], 1, "b0 a0 s0 |0 a1 s1 e0 |1 b1 a2 s2 e1 |2"),
        # every second batch; the step on batch 0 ends at time 2, that on batch 2 at time 4
        ([4], 2, "b0 a0 |0 a1 s0 |1 a2 |2 a3 s2 e0 |3"),
        # the step on batch 2 begins at 2.5 and ends at 5, after task 1 began at 3
        ([3, 3], 2.5, "b0 a0 |0 a1 |1 a2 s0 |2 a3 |3 a4 s2 |4 b1 a5 e1 |5"),
        # the only step takes the whole of task 1, which is announced late and together with task 2
        ([1, 2, 2], 4, "b0 a0 |0 a1 |1 a2 |2 a3 s0 |3 b1 b2 a4 e2 |4"),
        # no step ends in time
        ([1, 1], 3, "b0 a0 e0 |0 b1 a1 e1 |1"),
        # the step on batch 1 ends in the last batch's time: task 1 is announced at the end
        ([2, 1], 2.5, "b0 a0 |0 a1 |1 a2 s0 b1 e1 |2"),
        # or, if there is a next batch, with task 2 when it arrives, which is the end of task 0
        ([2, 1, 1], 2.5, "b0 a0 |0 a1 |1 a2 s0 |2 b1 b2 a3 e2 |3"),
    ],
)
def test_what_happens_by_hand(lengths: list[int], cost: float, want: str) -> None:
    """b: a task begins, a: a batch arrives, s: its step ends, e: a task ends, |: tick."""
    assert shown(lengths, cost) == want


@pytest.mark.parametrize(
    ("count", "cost", "want"),
    [
        (10, 1, list(range(10))),
        (10, 2, [0, 2, 4, 6, 8]),
        (10, 2.3, [0, 2, 4, 6]),  # steps end at 2.3, 4.6, 6.9, 9.2, and the next at 11.5
        (12, 2.3, [0, 2, 4, 6, 9]),
        (22, 1.1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]),
        (3, 5, []),
    ],
)
def test_which_batches_are_trained_on(count: int, cost: float, want: list[int]) -> None:
    assert trained_batches(count, cost) == want


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    cost=st.integers(100, 900).map(lambda c: c / 100),
)
def test_debt_is_paid_in_full(lengths: list[int], cost: float) -> None:
    """An independent clock: a step adds its cost to a debt, of which each batch's time pays 1.

    A new step begins during the time of the batch in which the debt runs out.
    """
    total, debt, taken = sum(lengths), Fraction(0), []
    for n in range(total):
        if debt < 1:
            debt += Fraction(str(cost))
            taken.append((n, n + debt))  # it ends when what is owed is paid
        debt -= 1
    want = {batch: end for batch, end in taken if end <= total}
    now, trained, arrived, told = 0, [], [], []
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for event in events(lengths, cost):
        if event.kind == "arrive":
            assert (event.number, told[-1] <= owner[event.number]) == (now, True)
            arrived.append(event.number)
            assert trained == [b for b, end in taken if end <= now]  # none that is in progress
        elif event.kind == "train":
            assert now < want[event.number] <= now + 1
            assert told[-1] == owner[event.number]  # the learner knows the task of the batch
            trained.append(event.number)
        elif event.kind == "begin":
            told.append(event.number)
        elif event.kind == "tick":
            now += 1
    assert trained == list(want)
    assert arrived == list(range(total))
    assert told == list(range(len(told)))


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "derpp-dual-cba", "setting": "blurry-10"},
        {"method": "er-cba", "setting": "gaussian+semi-0.5"},
        {"method": "er-dual-cba", "boundaries": "inferred"},
        {"seen_only": True},
    ],
)
def test_at_a_relative_cost_of_1_it_is_an_ordinary_run(
    options: dict[str, Any], digits: Dataset
) -> None:
    given = {"record": ["prequential", "predictions", "transitions"], "tasks": [2, 2], **options}
    _, slow = finished(spec(relative_cost=1, **given), digits)
    _, want = finished(spec(real_time=False, **given), digits)
    for name in ("scores", "accuracy_matrix", "anytime", "recordings"):
        assert slow[name] == want[name]
    assert slow["cost"] == want["cost"] | {"relative_cost": 1.0}


def by_hand(run: Run, ends: dict[int, float]) -> tuple[list[bool], list[list[float]]]:
    """Step through the stream with a learner; predictions on arrival, accuracies at task ends.

    `ends` are the times at which the steps on batches end.
    """
    data, learner = run.data, make_learner(run.spec, run.data, CPU)
    learner._statistics = "bn"
    passes = [p for (p,) in run.schedule]
    rows = np.concatenate([p.rows for p in passes])
    owner = np.repeat(np.arange(len(passes)), [len(p) for p in passes])
    right: list[bool] = []
    matrix = []
    waiting = sorted(ends)
    for n in range(len(rows) + 1):
        while waiting and ends[waiting[0]] <= n:
            batch = rows[waiting[0]]
            while learner.task < owner[waiting[0]]:
                learner.new_task(run.stream[learner.task + 1].classes)
            learner.observe(data.train_x[batch], data.train_y[batch])
            waiting.pop(0)
        if n and (n == len(rows) or owner[n] != owner[n - 1]):
            hits = (learner.predict(data.test_x) == data.test_y).numpy()
            matrix.append([100 * hits[t.test].mean() for t in run.stream])
        if n < len(rows):
            answer = learner.predict(data.train_x[rows[n]]) == data.train_y[rows[n]]
            right += answer.tolist()
    return right, matrix


@pytest.mark.parametrize("method", ["er", "derpp-dual-cba"])
@pytest.mark.parametrize("cost", [2, 2.3, 7.5])
def test_a_run_against_a_learner_by_hand(method: str, cost: float, digits: Dataset) -> None:
    given = spec(method=method, relative_cost=cost, record=["prequential"], tasks=[2, 2, 4])
    run, result = finished(given, digits)
    k = Fraction(str(cost))
    ends = {int(i * k): float((i + 1) * k) for i in range(int(run.total / k))}
    assert run.learner.step == len(ends) == int(run.total / k)
    right, matrix = by_hand(run, ends)
    assert np.allclose(result["accuracy_matrix"]["bn"], matrix)
    assert result["scores"]["bn"]["acc"] == pytest.approx(np.mean(matrix[-1]))
    assert result["scores"]["bn"]["prequential"] == pytest.approx(100 * np.mean(right))
    assert result["anytime"]["step"] == list(range(4, run.total + 1, 4))
    assert result["task_ends"] == np.cumsum([len(passes[0]) for passes in run.schedule]).tolist()
    assert result["cost"]["relative_cost"] == cost


def test_batches_that_are_read_ahead_are_the_same(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = spec(relative_cost=2.3, record=["prequential"], tasks=[2, 2])
    want = finished(given, digits)[1]
    monkeypatch.setattr("dualcba.experiments.run.fits_on_device", lambda data, device: False)
    assert finished(given, digits)[1]["scores"] == want["scores"]


def test_on_the_path_of_a_gpu_it_is_the_same(digits: Dataset) -> None:
    given = spec(relative_cost=2.3, method="er-dual-cba", record=["prequential"], tasks=[2, 2, 2])
    want = finished(given, digits)[1]
    run = Run(given, digits, CPU)
    run.learner.parts.training_step.stay_on_device()
    list(run.steps())
    assert run.result()["scores"] == want["scores"]


def test_a_slower_method_learns_less(digits: Dataset) -> None:
    found = [
        finished(spec(relative_cost=c, record=["prequential"], eval_every=0), digits)[1]["scores"]
        for c in (1, 4)
    ]
    for score in ("acc", "prequential"):
        assert found[0]["bn"][score] > found[1]["bn"][score]


@pytest.mark.parametrize("setting", ["semi-0.5", "longtail-0.5", "i-blurry-50-10"])
def test_it_composes_with_settings(setting: str, digits: Dataset) -> None:
    given = spec(setting=setting, relative_cost=1.7, eval_every=0, method="er-dual-cba")
    run, result = finished(given, digits)
    assert run.learner.step == int(run.total / Fraction("1.7"))
    assert result["scores"]["bn"]["acc"] > 11


def test_cycled_batches_and_a_task_that_no_step_ends_in(digits: Dataset) -> None:
    given = spec(setting="semi-0.5", labelled_batches="cycled", relative_cost=11, eval_every=0)
    run, result = finished(given, digits)
    assert run.learner.step == run.total // 11
    assert np.shape(result["accuracy_matrix"]["bn"]) == (5, 5)


# ---------------------------------------------------------------- costs


def linear_flops(batch: int) -> tuple[int, int]:
    """Multiplications and additions of the MLP for digits: forward, and backward."""
    network = make_learner(spec(), load_dataset("digits"), CPU).network
    sizes = [m.weight.numel() for m in network.modules() if isinstance(m, torch.nn.Linear)]
    return 2 * batch * sum(sizes), 2 * batch * (2 * sum(sizes) - sizes[0])


def test_flops_of_a_step_by_hand(digits: Dataset) -> None:
    """32 new samples and 32 of the memory; the images need no gradient."""
    forward, backward = linear_flops(64)
    assert step_flops(spec(), digits, CPU) == forward + backward
    forward, backward = linear_flops(96)
    assert step_flops(spec(method="derpp"), digits, CPU) == forward + backward
    trained, more = sum(linear_flops(64)), 2 * linear_flops(32)[0]
    assert (
        step_flops(spec(method="clser"), digits, CPU) == trained + more
    )  # two copies, memory draw


def test_the_relative_cost_is_counted_against_er(digits: Dataset) -> None:
    assert count_relative_cost(spec(), digits, CPU) == 1
    assert count_relative_cost(spec(method="derpp"), digits, CPU) == 1.5
    assert count_relative_cost(spec(method="rar", method_options={"repeats": 2}), digits, CPU) == 3
    one, two, four = (
        step_flops(spec(method="er-dual-cba", outer_every=k), digits, CPU) for k in (1, 2, 4)
    )
    assert one - two == 2 * (two - four) > 0  # an outer step every k steps: a k-th part of one
    warm = spec(method="er-dual-cba", outer_every=4, outer_warmup=20)
    assert step_flops(warm, digits, CPU) == four  # of the steps after the start of a task
    often = count_relative_cost(spec(method="er-dual-cba", outer_every=1), digits, CPU)
    assert 1 < often == round(one / step_flops(spec(), digits, CPU), 3) < 3
    run, result = finished(spec(method="derpp", eval_every=0), digits)
    assert result["cost"]["relative_cost"] == 1.5
    assert run.learner.step == int(run.total / Fraction("1.5"))


def test_a_relative_cost_is_rounded_and_at_least_1(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    flops, module = {"er": 3.0, "derpp": 4.0, "er-ace": 2.0}, "dualcba.experiments.relative_cost"
    monkeypatch.setattr(f"{module}.step_flops", lambda spec, *rest: flops[spec.method])
    monkeypatch.setattr(f"{module}._known", {})
    found = [count_relative_cost(spec(method=m), digits, CPU) for m in ("derpp", "er-ace")]
    assert found == [1.333, 1.0]


def test_operations_are_counted_with_a_memory_that_has_whole_draws(digits: Dataset) -> None:
    small, even = {"batch_size": 4, "memory_batch": 64}, {"batch_size": 34}  # 68 samples in a step
    own = step_flops(spec(**small), digits, CPU)
    assert own == step_flops(spec(**even), digits, CPU)
    of_derpp = step_flops(spec(method="derpp", **small), digits, CPU)
    assert of_derpp == pytest.approx(own * (4 + 2 * 64) / 68)
    assert count_relative_cost(spec(method="gsa", **small), digits, CPU) < 3


@pytest.mark.parametrize("method", ["derpp", "er+mkd"])
def test_the_relative_cost_of_one_task_is_that_of_several(method: str, digits: Dataset) -> None:
    """The memory is filled there, too: nothing is drawn from an empty one."""
    given = {"method": method, "protocol": "p10", "augmentation": "none"}
    one, five = (count_relative_cost(spec(tasks=n, **given), digits, CPU) for n in (1, 5))
    assert one == five > 1


def test_a_loaded_part_is_counted_by_itself(digits: Dataset) -> None:
    trained = spec(method="er-dual-cba", specific="single", outer_every=1)
    loaded = spec(
        method="er-dual-cba", specific="single", outer_every=1, agnostic_from="pretrained"
    )
    found = [count_relative_cost(one, digits, CPU) for one in (trained, loaded)]
    er = step_flops(spec(), digits, CPU)
    assert found == [round(step_flops(one, digits, CPU) / er, 3) for one in (trained, loaded)]


def test_counting_does_not_change_a_run(digits: Dataset) -> None:
    results = []
    for cost in (None, 1.5):
        torch.manual_seed(0)
        results.append(finished(spec(method="derpp", relative_cost=cost, eval_every=0), digits)[1])
    assert results[0]["accuracy_matrix"] == results[1]["accuracy_matrix"]


# ---------------------------------------------------------------- options and results


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relative_cost": 0.5}, "relative_cost is 0.5, expected a number of at least 1"),
        ({"relative_cost": float("nan")}, "relative_cost is nan, expected a number of at least 1"),
        ({"relative_cost": "2"}, "relative_cost is '2', expected a number of at least 1"),
        ({"relative_cost": 2, "real_time": False}, "expected no value unless real_time is on"),
        ({"epochs": 2}, "epochs is 2, expected 1 in real time"),
        ({"setting": "offline"}, "epochs is 50, expected 1 in real time"),
        ({"method": "icarl"}, "real_time does not fit the method 'icarl', expected a method that"),
        ({"record": ["alignment"]}, "record is ['alignment'], expected no 'alignment' in real"),
    ],
)
def test_what_does_not_fit_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        spec(**options)


def test_from_the_command_line(dualcba: Command) -> None:
    args = ["--method", "er,derpp", "--eval-every", 0, "--batch-size", 32, "--device", "cpu"]
    got = dualcba("run", *args, "--real-time", "--record", "prequential", "--json", "--out", "x")
    assert (got.code, got.err) == (0, "")
    found = json.loads(got.out)
    assert [r["cost"]["relative_cost"] for r in found] == [1.0, 1.5]
    assert all(r["spec"]["real_time"] and r["spec"]["relative_cost"] is None for r in found)
    table = dualcba("resume", "x", "--device", "cpu")
    assert "digits, online, buffer 100, real time" in table.out
    assert "relative cost" in table.out
    assert dualcba("report", "x").code == 0
    page = (table.folder / "x" / "report.html").read_text("utf-8")
    assert "Digits, online, M = 100, real time: further scores" in page
    bad = dualcba("run", "--real-time", "--relative-cost", "0.5")
    assert (bad.code, len(bad.lines)) == (2, 1)
    assert "relative_cost is 0.5, expected a number of at least 1" in bad.err


def test_an_ordinary_result_does_not_serve_real_time(digits: Dataset) -> None:
    usual, slow = spec(real_time=False), spec(relative_cost=2)
    result = Result(usual, 0, {"bn": {"acc": 50.0}})
    assert matches(result, usual)
    assert not matches(result, slow)
    assert result.value("bn", "relative_cost") is None
    old = {k: v for k, v in usual.to_dict().items() if k not in ("real_time", "relative_cost")}
    content = result.to_dict() | {"spec": old}
    assert matches(Result.from_dict(content), usual)
