"""From a spec to a result, in this process and in two."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dualcba import Dataset, load_dataset
from dualcba.data import validation_split
from dualcba.experiments import Hardware, Run, Spec, make_learner, run_all
from dualcba.experiments.making import make_label_mask, make_stream
from dualcba.experiments.run import cost
from dualcba.methods import METHODS
from dualcba.methods.er import ER

CPU = Hardware(device="cpu")
SCORES = ["acc", "fm", "fm_paper", "acc_auc", "acc_auc_last", "min_acc", "wc_acc", "bwt"]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def spec(**options: Any) -> Spec:
    return Spec(**{"method": "er-dual-cba", "eval_every": 10, "batch_size": 32} | options)


def run(spec: Spec, data: Dataset) -> tuple[Run, dict[str, Any]]:
    one = Run(spec, data, CPU)
    assert len(list(one.steps())) == one.total
    return one, one.result()


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k != "seconds"}


@pytest.fixture(scope="module")
def done(digits: Dataset) -> tuple[Run, dict[str, Any]]:
    return run(spec(), digits)


def test_strays_and_labels_are_the_seeds(digits: Dataset) -> None:
    streams = [make_stream(spec(setting="blurry-30", seed=k), digits) for k in (0, 0, 1)]
    first = [np.sort(stream[0].train).tolist() for stream in streams]
    assert first[0] == first[1] != first[2]
    known = [make_label_mask(spec(setting="semi-0.2", seed=k), digits) for k in (0, 0, 1)]
    assert np.array_equal(known[0], known[1])  # type: ignore[arg-type]
    assert not np.array_equal(known[0], known[2])  # type: ignore[arg-type]


def test_a_validation_run_sees_no_test_sample(digits: Dataset) -> None:
    blank = torch.zeros_like(digits.test_x)
    split = spec(method="er", validation=0.2)
    results = [run(split, d)[1] for d in (digits, replace(digits, test_x=blank))]
    for one in results:
        assert one["spec"]["validation"] == 0.2
    assert results[0]["scores"] == results[1]["scores"]
    given = validation_split(digits, 0.2)
    assert run(split, given)[1]["scores"] == results[0]["scores"]
    with pytest.raises(ValueError, match="is already a split"):
        Run(spec(method="er"), given, CPU)


class Previewing(ER):
    """A method that has seen the samples of a task before its first step."""

    previews_task = True
    seen: list[tuple[int, set[int], Tensor]] = []  # noqa: RUF012

    def preview_task(self, x: Tensor, y: Tensor) -> None:
        assert x.shape[0] == len(y)
        classes = set(self.context.sets.new.nonzero().flatten().tolist())
        self.seen.append((self.context.sets.task, classes, y))


@pytest.mark.parametrize(
    ("method", "options"),
    [("previewing", {}), ("previewing+mkd-cba", {}), ("previewing", {"setting": "semi-0.5"})],
)
def test_a_method_can_preview_each_task(
    method: str, options: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of its samples, of which only those with a label if the setting hides labels."""
    monkeypatch.setitem(METHODS, "previewing", Previewing)
    monkeypatch.setattr(Previewing, "seen", [])
    given = {"tasks": 3, "batch_size": 8, "network": "mlp", "eval_every": 0}
    one, _ = run(spec(method=method, **given | options), images)
    assert [task for task, _, _ in Previewing.seen] == [0, 1, 2]
    for task, classes, y in Previewing.seen:
        assert set(y.tolist()) == classes == {2 * task, 2 * task + 1}
        assert len(y) == (24 if "setting" in options else 48)
    assert one.learner.method.previews_task


def test_the_last_losses_are_looked_at_too(digits: Dataset, monkeypatch: Any) -> None:
    one = Run(spec(method="er", lr=1e30, eval_every=0), digits, CPU)
    monkeypatch.setattr(one.learner.parts.loss_monitor, "due", lambda step: False)
    one.learner.parts.training_step.stay_on_device()
    with pytest.raises(FloatingPointError):
        list(one.steps())


def test_the_learner_has_the_options_of_the_spec(digits: Dataset) -> None:
    given: dict[str, Any] = {
        "seen_only": True, "ibn_average": "ema", "ibn_augment": False, "forward": "concat",
        "freeze_after": 3, "outer_every": 7, "levels": "buffer", "boundaries": "inferred",
    }  # fmt: skip
    learner = make_learner(spec(**given), digits, CPU)
    predictor, loop = learner._predictor, learner.parts.outer_loop
    memory_pass = predictor.ibn.memory_pass
    assert (predictor.seen_only, memory_pass.average, memory_pass.augment) == (True, "ema", False)
    assert (loop.freeze_after, loop.every, loop.levels) == (3, 7, "buffer")
    assert learner.parts.forward_pass.concat
    assert learner.parts.tasks.detector is not None


def test_the_adaptors_parameters_are_among_the_cost(digits: Dataset) -> None:
    plain, dual = (cost(make_learner(spec(method=m), digits, CPU)) for m in ("er", "er-dual-cba"))
    more = (10 + 1) * 256 + (256 + 1) * 10 + (2 + 1) * 256 + (256 + 1) * 2  # ω and ν
    assert dual["parameters"] == (plain["parameters"] or 0) + more


@pytest.mark.parametrize("method", ["er-dual-cba", "clser-cba", "derpp", "icarl", "bic"])
def test_nothing_of_a_run_outlives_it(method: str, digits: Dataset) -> None:
    """Not even until the collector comes, which does not know how full a GPU is."""

    def tensors() -> int:
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = tensors()
        run(spec(method=method, tasks=2, eval_every=0), digits)
        assert tensors() == before
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_runs_memory_is_its_own(digits: Dataset) -> None:
    """Equal for the second and the third but for the workspaces that torch gives a new stream."""
    taken = []
    for _ in range(3):
        one = Run(spec(network="resnet18-slim", tasks=2), digits, Hardware(device="cuda"))
        list(one.steps())
        taken.append(one.result()["cost"]["gpu_memory"])
        del one
    assert max(taken[1:]) - min(taken[1:]) < 80e6
    assert 0 < taken[2] < taken[0] + 80e6
    assert Run(spec(), digits, Hardware(device="cuda"), alone=False).held is None


def test_the_result_has_the_form_of_the_design(done: tuple[Run, dict[str, Any]]) -> None:
    result = json.loads(json.dumps(done[1], allow_nan=False))
    head = {k: result[k] for k in ("method", "dataset", "setting", "seed", "status")}
    assert head == {
        "method": "er-dual-cba", "dataset": "digits", "setting": "online", "seed": 0,
        "status": "complete",
    }  # fmt: skip
    assert result["buffer"] == result["spec"]["buffer"]
    for norm in ("bn", "ibn"):
        assert set(SCORES) <= set(result["scores"][norm])
        assert all(isinstance(result["scores"][norm][s], float) for s in SCORES)
        assert np.shape(result["accuracy_matrix"][norm]) == (5, 5)
        assert np.min(result["accuracy_matrix"][norm]) >= 0
        assert np.max(result["accuracy_matrix"][norm]) <= 100
    seconds = result["seconds"]
    assert seconds["total"] == pytest.approx(seconds["train"] + seconds["evaluate"])
    assert min(seconds.values()) > 0
    assert result["spec"] == spec().to_dict()
    assert {"dualcba", "python", "torch", "numpy"} <= set(result["versions"])


def test_it_learns_more_than_chance(done: tuple[Run, dict[str, Any]]) -> None:
    result = done[1]
    assert result["scores"]["bn"]["acc"] > 20
    assert all(row[t] > 60 for t, row in enumerate(result["accuracy_matrix"]["bn"]))


def test_the_stream_is_a_single_pass_in_label_order(done: tuple[Run, dict[str, Any]]) -> None:
    one = done[0]
    assert one.learner.task_starts == [0, 9, 18, 27, 36]
    sizes = [len(task.train) for task in one.stream]
    assert one.total == sum(size // 32 for size in sizes)  # incomplete batches are dropped
    assert one.learner.memory.seen == one.total * 32
    assert done[1]["anytime"]["step"] == list(range(10, one.total + 1, 10))
    assert done[1]["task_ends"] == [*one.learner.task_starts[1:], one.total]


def test_the_same_again(digits: Dataset, done: tuple[Run, dict[str, Any]], differ: Any) -> None:
    other, result = run(spec(), digits)
    assert untimed(result) == untimed(done[1])
    assert differ(other.learner.state_dict(), done[0].learner.state_dict()) == []


def test_the_global_generators_do_not_matter(digits: Dataset, differ: Any) -> None:
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        states.append(make_learner(spec(), digits, CPU).state_dict())
    assert differ(*states) == []


def test_how_often_it_is_scored_does_not_matter(
    digits: Dataset, done: tuple[Run, dict[str, Any]], differ: Any
) -> None:
    rare, result = run(spec(eval_every=0), digits)
    assert differ(rare.learner.state_dict(), done[0].learner.state_dict()) == []
    assert result["accuracy_matrix"] == done[1]["accuracy_matrix"]
    assert result["scores"]["bn"]["acc_auc"] is None


def test_another_seed_is_another_run(digits: Dataset, done: tuple[Run, dict[str, Any]]) -> None:
    one = Run(spec(seed=1), digits, CPU)
    assert not all(
        np.array_equal(a, b)
        for a, b in zip(_flat(one.schedule), _flat(done[0].schedule), strict=True)
    )
    mine, other = (r.learner.network.state_dict() for r in (one, Run(spec(), digits, CPU)))
    assert not torch.equal(mine["module.fc.weight"], other["module.fc.weight"])


def _flat(schedule: Any) -> list[np.ndarray]:
    return [one.rows for task in schedule for one in task]


@pytest.mark.parametrize("eval_every", [7, 20, 30, 33, 44, 1000])
def test_any_distance_between_scores_gives_a_result(eval_every: int, digits: Dataset) -> None:
    """Tasks have nine steps; with few points some tasks have none."""
    _, result = run(spec(method="er", eval_every=eval_every, batch_size=32), digits)
    json.dumps(result, allow_nan=False)


def test_it_is_scored_after_every_few_steps_also_where_a_task_ends(images: Dataset) -> None:
    """Three tasks of six steps: a task end is a point of the any-time curve if its step is."""
    for every, steps in ((3, [3, 6, 9, 12, 15, 18]), (4, [4, 8, 12, 16])):
        given = {"dataset": "digits", "tasks": 3, "batch_size": 8, "buffer": 20}
        run = Run(Spec(method="er", eval_every=every, **given), images, CPU)
        list(run.steps())
        result = run.result()
        assert result["anytime"]["step"] == steps
        assert result["task_ends"] == [6, 12, 18]


def test_two_epochs_are_twice_the_steps(digits: Dataset) -> None:
    once, twice = (Run(spec(epochs=e), digits, CPU) for e in (1, 2))
    assert twice.total == 2 * once.total


@pytest.mark.parametrize("tasks", [1, 2, 10])
def test_other_numbers_of_tasks(tasks: int, digits: Dataset) -> None:
    _, result = run(spec(method="er", tasks=tasks, eval_every=0), digits)
    assert np.shape(result["accuracy_matrix"]["bn"]) == (tasks, tasks)


@pytest.mark.parametrize("options", [{"batch_size": 300}, {"tasks": 3}, {"tasks": 11}])
def test_what_does_not_fit_the_data_is_said_at_once(options: Any, digits: Dataset) -> None:
    field, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{field} is {value}, expected"):
        Run(spec(**options), digits, CPU)


@pytest.mark.parametrize("options", [{"buffer": 1}, {"buffer": 2}, {"batch_size": 2, "tasks": 10}])
def test_the_smallest_memories_and_batches(options: Any, images: Dataset) -> None:
    """What a spec allows, a run can do."""
    given = {"method": "er-dual-cba", "dataset": "digits", "tasks": 6, "batch_size": 8} | options
    given["tasks"] = 6
    one = Run(Spec(**given, network="mlp", eval_every=0), images, CPU)
    for _ in one.steps():
        pass
    json.dumps(one.result(), allow_nan=False)


def test_a_nan_loss_stops_the_run(digits: Dataset) -> None:
    one = Run(spec(lr=1e30), digits, CPU)
    with pytest.raises(FloatingPointError, match="step 1 in task 1; the last finite loss was un"):
        list(one.steps())


@pytest.mark.parametrize("options", [{"network": "resnet18-slim"}, {"forward": "concat"}])
def test_other_networks_and_forwards(options: Any, images: Dataset) -> None:
    one = Run(Spec(dataset="digits", tasks=3, eval_every=0, batch_size=16, **options), images, CPU)
    list(one.steps())
    assert one.result()["status"] == "complete"


# ---------------------------------------------------------------- side by side


def test_side_by_side_is_as_one_by_one(digits: Dataset) -> None:
    specs = [spec(method=m, seed=s, eval_every=0) for m in ("er", "er-dual-cba") for s in (0, 1)]
    results: list[dict[str, Any]] = []
    for abreast in (1, 3):
        finished = {}
        for one, complete in run_all(specs, lambda _: digits, CPU, abreast=abreast):
            if complete:
                finished[one.spec.name] = untimed(one.result())
        results.append(finished)
    assert len(results[0]) == 4
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="abreast is 0, expected"):
        next(run_all(specs, lambda _: digits, CPU, abreast=0))


# ---------------------------------------------------------------- two processes

COMMAND = "from dualcba.cli.app import main; main()"


def start(out: Path) -> subprocess.Popen[str]:
    args = ["run", "--method", "er,er-cba,er-dual-cba", "--seeds", "2", "--eval-every", "9"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *args, "--quiet", "--device", "cpu", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = [json.loads(p.read_text()) for p in sorted(out.glob("*/result.json"))]
    return {(r["method"], r["seed"]): untimed(r) for r in found}


def test_same_seed_same_result_in_two_processes_and_another_seed_another(tmp_path: Path) -> None:
    processes = [start(tmp_path / name) for name in "ab"]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, "", "")
    a, b = results(tmp_path / "a"), results(tmp_path / "b")
    assert len(a) == 6
    assert a == b
    assert [p.read_text() for p in (tmp_path / "a").glob("*/.*")] == []
    for method in ("er", "er-cba", "er-dual-cba"):
        one, two = (a[method, seed]["accuracy_matrix"] for seed in (0, 1))
        assert one != two


def test_rows_reach_the_device_by_the_engine(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream may lag behind, and whatever it reads must be its own until then."""
    one = Run(spec(method="er", epochs=2, eval_every=0, tasks=2), digits, CPU)
    receive, given = one.learner.parts.engine.receive, []
    monkeypatch.setattr(
        one.learner.parts.engine, "receive", lambda t: given.append(t.numpy()) or receive(t)
    )
    list(one.steps())
    passes = [each.rows for epochs in one.schedule for each in epochs]
    assert all(map(np.array_equal, given, passes))
    assert len(given) == len(passes) == 4


def test_later_epochs_are_not_read_again():
    from dualcba import load_dataset

    spec = Spec(method="icarl", epochs=3, eval_every=0, tasks=[[0, 1]])
    run = Run(spec, load_dataset("digits"), Hardware(device="cpu"))
    sizes = []
    for _ in run.steps():
        sizes.append(sum(len(y) for _, y in run.learner.parts.tasks.data))
    assert max(sizes) == len(run.schedule[0][0]) * 10


@pytest.mark.parametrize(
    "spec",
    [Spec(method="er"), Spec(method="er-dual-cba"), Spec(agnostic_from="pretrained")],
    ids=["er", "trained", "pretrained"],
)
def test_building_a_learner_leaves_the_global_generator_alone(spec):
    from dualcba import load_dataset
    from dualcba.experiments import make_learner

    torch.manual_seed(3)
    before = torch.get_rng_state()
    make_learner(spec, load_dataset("digits"), Hardware(device="cpu"))
    assert torch.equal(torch.get_rng_state(), before)
