"""Settings: their names, their schedules, and every one of them from the command line and TOML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dualcba import Dataset, load_dataset
from dualcba.data import batches
from dualcba.experiments import SETTINGS, Hardware, Run, Spec, make_specs
from dualcba.experiments.making import make_stream
from dualcba.experiments.settings import (
    OFFLINE_EPOCHS,
    Setting,
    learning_rate,
    parse_setting,
    parse_settings,
)
from dualcba.randomness import generator

Command = Callable[..., Any]
CPU = Hardware(device="cpu")
METHODS = ["er", "er-cba", "er-dual-cba", "derpp-dual-cba"]
KINDS = [
    "online", "blurry-10", "blurry-30", "i-blurry-50-10", "gaussian", "longtail-0.01", "semi-0.2",
    "semi-0.1", "offline",
]  # fmt: skip
FROM_A_FILE = [k for k in KINDS if k not in ("blurry-10", "i-blurry-50-10", "longtail-0.01")]
COMBINED = ["blurry-30+semi-0.2", "gaussian+longtail-0.1+semi-0.5"]


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("online", Setting("online")),
        ("offline", Setting("offline")),
        ("blurry-10", Setting("blurry", 10.0)),
        ("blurry-0.5", Setting("blurry", 0.5)),
        ("blurry-99.9", Setting("blurry", 99.9)),
        ("semi-0.2", Setting("semi", 0.2)),
        ("semi-1", Setting("semi", 1.0)),
        ("semi-1e-2", Setting("semi", 0.01)),
        ("semi-1e+0", Setting("semi", 1.0)),
        ("i-blurry-50-10", Setting("i-blurry", 50.0, 10.0)),
        ("i-blurry-0-0.5", Setting("i-blurry", 0.0, 0.5)),
        ("gaussian", Setting("gaussian", 0.5)),
        ("gaussian-2", Setting("gaussian", 2.0)),
        ("longtail-0.01", Setting("longtail", 0.01)),
        ("longtail-1", Setting("longtail", 1.0)),
    ],
)
def test_names(name: str, want: Setting) -> None:
    assert parse_setting(name) == want
    assert parse_settings(name) == {want.kind: want}


def test_every_listed_setting_has_a_meaning() -> None:
    assert set(KINDS) == set(SETTINGS)
    assert len({parse_setting(name) for name in SETTINGS}) == len(SETTINGS)


def test_combined_names() -> None:
    found = parse_settings("gaussian-2+longtail-0.1+semi-0.5")
    want = [Setting("gaussian", 2.0), Setting("longtail", 0.1), Setting("semi", 0.5)]
    assert list(found.values()) == want
    assert list(parse_settings("longtail-0.1+semi-1e-1")) == ["longtail", "semi"]


BLURRY = "expected blurry-K with K percent between 0 and 100"
SEMI = "expected semi-R with a label ratio R above 0 and at most 1"
I_BLURRY = "expected i-blurry-N-M with N percent of disjoint classes, from 0 to below 100, and M"
GAUSSIAN = "expected gaussian-W with a width W above 0, in tasks"
TAIL = "expected longtail-R with a ratio R of the rarest to the commonest class, above 0"
ORDER = "expected at most one of offline, blurry-K, i-blurry-N-M and gaussian-W, then longtail-R"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "unknown setting ''"),
        ("onlin", "unknown setting 'onlin', did you mean 'online'?"),
        ("online-5", "unknown setting 'online-5'"),
        ("blurry", "unknown setting 'blurry'"),
        ("blurry-", "unknown setting 'blurry-'"),
        ("semi", "unknown setting 'semi'"),
        ("fuzzy-10", "unknown setting 'fuzzy-10'"),
        ("blurry-0", f"setting is 'blurry-0', {BLURRY}"),
        ("blurry-100", f"setting is 'blurry-100', {BLURRY}"),
        ("blurry--3", f"setting is 'blurry--3', {BLURRY}"),
        ("blurry-x", f"setting is 'blurry-x', {BLURRY}"),
        ("blurry-nan", f"setting is 'blurry-nan', {BLURRY}"),
        ("blurry-inf", f"setting is 'blurry-inf', {BLURRY}"),
        ("semi-0", f"setting is 'semi-0', {SEMI}"),
        ("semi-1.1", f"setting is 'semi-1.1', {SEMI}"),
        ("semi-half", f"setting is 'semi-half', {SEMI}"),
        ("i-blurry", "unknown setting 'i-blurry'"),
        ("i-blurry-50", f"setting is 'i-blurry-50', {I_BLURRY}"),
        ("i-blurry-150-10", f"setting is 'i-blurry-150-10', {I_BLURRY}"),
        ("i-blurry-100-10", f"setting is 'i-blurry-100-10', {I_BLURRY}"),
        ("i-blurry-50-0", f"setting is 'i-blurry-50-0', {I_BLURRY}"),
        ("i-blurry-50-10-5", f"setting is 'i-blurry-50-10-5', {I_BLURRY}"),
        ("i-blurry-a-b", f"setting is 'i-blurry-a-b', {I_BLURRY}"),
        ("i-blurry-nan-10", f"setting is 'i-blurry-nan-10', {I_BLURRY}"),
        ("gaussian-", "unknown setting 'gaussian-'"),
        ("gaussian-0", f"setting is 'gaussian-0', {GAUSSIAN}"),
        ("gaussian-inf", f"setting is 'gaussian-inf', {GAUSSIAN}"),
        ("gausian", "unknown setting 'gausian', did you mean 'gaussian'?"),
        ("longtail", "unknown setting 'longtail'"),
        ("longtail-2", f"setting is 'longtail-2', {TAIL}"),
        ("longtail-0", f"setting is 'longtail-0', {TAIL}"),
        ("gaussian+blurry-10", f"setting is 'gaussian+blurry-10', {ORDER}"),
        ("semi-0.2+longtail-0.1", f"setting is 'semi-0.2+longtail-0.1', {ORDER}"),
        ("online+semi-0.2", f"setting is 'online+semi-0.2', {ORDER}"),
        ("semi-0.2+semi-0.2", f"setting is 'semi-0.2+semi-0.2', {ORDER}"),
        ("gaussian+fuzzy", "unknown setting 'fuzzy'"),
    ],
)
def test_bad_names_are_refused_with_what_was_expected(name: str, message: str) -> None:
    for refuse in (parse_settings, lambda n: Spec(setting=n)):
        with pytest.raises(ValueError, match=re.escape(message)):
            refuse(name)


def test_epochs_of_a_setting() -> None:
    assert (Spec(setting="online").epochs, Spec(setting="blurry-10").epochs) == (1, 1)
    assert Spec(setting="offline").epochs == OFFLINE_EPOCHS == 50
    assert Spec(setting="offline", epochs=3).epochs == 3


@pytest.mark.parametrize("base", ["er", "derpp", "clser", "rar"])
@pytest.mark.parametrize("adaptor", ["cba", "dual-cba"])
def test_the_adaptors_rate_offline_is_the_protocols(base: str, adaptor: str) -> None:
    """On CIFAR-100 1e-2 beside ER, 1e-4 beside the others; elsewhere as ever."""
    given = {"method": f"{base}-{adaptor}", "setting": "offline"}
    assert Spec(dataset="cifar100", **given).adaptor_lr == (0.01 if base == "er" else 0.0001)
    assert Spec(dataset="cifar100", **given, adaptor_lr=0.5).adaptor_lr == 0.5
    assert Spec(dataset="cifar100", method=given["method"]).adaptor_lr == 0.01
    assert Spec(dataset="cifar10", **given).adaptor_lr == 0.001
    assert Spec(dataset="cifar100", method=base, setting="offline").adaptor_lr is None


# ---------------------------------------------------------------- schedule


def test_offline_drops_at_35_and_45_of_50() -> None:
    rates = [learning_rate(0.03, e, 50, drops=Spec(setting="offline").lr_drops) for e in range(50)]
    want = [0.03] * 35 + [0.003] * 10 + [0.0003] * 5
    assert rates == pytest.approx(want)


@pytest.mark.parametrize("name", ["online", "blurry-10", "semi-0.2"])
def test_other_settings_keep_the_rate(name: str) -> None:
    drops = Spec(setting=name, method="er").lr_drops
    assert {learning_rate(0.03, e, 50, drops=drops) for e in range(50)} == {0.03}
    assert Spec(setting=name, method="er", epochs=2, lr_drops=True).lr_drops


def test_a_constant_rate_offline_is_another_run() -> None:
    usual, constant = (Spec(setting="offline", method="er", lr_drops=d) for d in (None, False))
    assert usual.name != constant.name
    assert Spec(setting="offline", method="er", lr=0.05).name.endswith("-7f5478814f")
    assert Spec(method="er", lr=0.05).name.endswith("-cf9a7a7f46")  # as before the option
    with pytest.raises(ValueError, match="lr_drops is True, expected false: the learning rate"):
        Spec(lr_drops=True)


@pytest.mark.parametrize("method", ["er", "er-dual-cba"])
def test_the_rate_falls_in_the_learner_and_comes_back_at_each_task(
    method: str, digits: Dataset
) -> None:
    run = Run(
        Spec(method=method, setting="offline", epochs=10, batch_size=64, eval_every=0), digits, CPU
    )
    seen: list[tuple[float, float]] = []
    for _ in run.steps():
        group = run.learner.parts.optimizer.param_groups[0]
        seen.append((float(run.learner.parts.context.lr), float(group["lr"])))
    per_epoch = [len(epochs[0]) for epochs in run.schedule]
    factor = [1.0] * 7 + [0.1] * 2 + [0.01]
    want = [0.03 * f for steps in per_epoch for f in factor for _ in range(steps)]
    assert [lr for lr, _ in seen] == pytest.approx(want)
    assert [lr for _, lr in seen] == pytest.approx(want)


def test_a_lower_rate_moves_less(digits: Dataset) -> None:
    """The optimiser follows the learning rate: the last epochs barely move the network."""
    run = Run(
        Spec(method="er", setting="offline", epochs=10, batch_size=64, eval_every=0, tasks=[2]),
        digits,
        CPU,
    )
    moved, last = [], None
    for _ in run.steps():
        now = np.concatenate([p.detach().numpy().ravel() for p in run.learner.network.parameters()])
        moved.append(0.0 if last is None else float(np.abs(now - last).max()))
        last = now.copy()
    assert max(moved[-3:]) < 0.05 * max(moved[4:20])


# ---------------------------------------------------------------- every setting, every method


def finite(result: dict[str, Any]) -> None:
    scores = [v for norm in result["scores"].values() for v in norm.values() if v is not None]
    assert result["status"] == "complete"
    assert scores
    assert all(math.isfinite(v) for v in scores)
    assert result["scores"]["bn"]["acc"] > 11  # more than chance


def quick(setting: str) -> dict[str, Any]:
    tail = "longtail" in setting  # a task may have few samples
    return {
        "setting": setting,
        "epochs": 3 if "offline" in setting else 1,
        "batch_size": 10 if tail else 32,
        "eval_every": 0,
    } | ({"tasks": 2} if tail else {})


@pytest.mark.parametrize("setting", [*KINDS, *COMBINED])
def test_every_method_in_every_setting(setting: str, digits: Dataset) -> None:
    for spec in make_specs({"method": METHODS, **quick(setting)}):
        run = Run(spec, digits, CPU)
        assert len(list(run.steps())) == run.total
        result = json.loads(json.dumps(run.result(), allow_nan=False))
        assert (result["method"], result["setting"]) == (spec.method, setting)
        finite(result)


def toml(path: Path, options: dict[str, Any]) -> Path:
    """JSON's numbers, strings and lists are TOML's."""
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in options.items()))
    return path


@pytest.mark.parametrize("setting", FROM_A_FILE)
def test_from_a_file_through_the_command_line(
    setting: str, dualcba: Command, tmp_path: Path
) -> None:
    file = toml(tmp_path / "experiment.toml", {"method": METHODS, **quick(setting)})
    got = dualcba("run", file, "--device", "cpu", "--json", "--out", "x")
    assert (got.code, got.err) == (0, "")
    results = json.loads(got.out)
    assert [r["method"] for r in results] == METHODS
    for result in results:
        finite(result)
    assert len(list((got.folder / "x").glob("*/result.json"))) == len(METHODS)


def test_the_file_and_the_options_say_the_same(dualcba: Command, tmp_path: Path) -> None:
    options = {"method": ["er-cba"], **quick("blurry-30"), "tasks": [4, 4], "seed": 3}
    file = toml(tmp_path / "experiment.toml", options)
    found = []
    ways: dict[str, list[Any]] = {
        "a": [file],
        "b": ["--method", "er-cba", "--setting", "blurry-30", "--batch-size", 32,
              "--epochs", 1, "--eval-every", 0, "--tasks", "4,4", "--seed", 3],
    }  # fmt: skip
    for name, args in ways.items():
        got = dualcba("run", *args, "--device", "cpu", "--json", "--out", name)
        assert got.code == 0, got.err
        (result,) = json.loads(got.out)
        found.append({k: v for k, v in result.items() if k != "seconds"})
    assert found[0] == found[1]


def test_what_makes_no_sense_says_why(dualcba: Command) -> None:
    got = dualcba("run", "--method", "icarl", "--setting", "semi-0.2", "--out", "x")
    assert got.code == 2
    assert len(got.lines) == 1
    assert "'semi-0.2' does not fit the method 'icarl', expected a method" in got.err
    assert got.files == []


# ---------------------------------------------------------------- what a setting does to a run


def test_a_blurry_run_keeps_the_tasks_classes_and_tests(digits: Dataset) -> None:
    plain, mixed = (make_stream(Spec(setting=s), digits) for s in ("online", "blurry-30"))
    y = digits.train_y.numpy()
    for one, two in zip(plain, mixed, strict=True):
        assert one.classes == two.classes
        assert np.array_equal(one.test, two.test)
        own = np.isin(y[two.train], two.classes).sum()
        assert own == len(one.train) - round(0.3 * len(one.train))
    rows = np.concatenate([t.train for t in mixed])
    assert sorted(rows.tolist()) == list(range(len(y)))


def test_a_blurry_run_calls_strays_old(digits: Dataset) -> None:
    run = Run(Spec(method="er-dual-cba", setting="blurry-30", eval_every=0), digits, CPU)
    for _ in run.steps():
        new = run.learner.class_sets.new.nonzero().flatten().tolist()
        assert new == list(run.stream[run.learner.task].classes)
        if run.learner.step == 20:
            assert run.learner.class_sets.old.any()


@pytest.mark.parametrize("setting", ["i-blurry-50-30", "gaussian"])
def test_other_streams_announce_a_tasks_own_classes_as_new(setting: str, digits: Dataset) -> None:
    run = Run(Spec(method="er-dual-cba", setting=setting, eval_every=0), digits, CPU)
    strays = 0
    for _ in run.steps():
        sets, task = run.learner.class_sets, run.stream[run.learner.task]
        assert sets.new.nonzero().flatten().tolist() == sorted(task.classes)
        later = {c for t in run.stream[run.learner.task + 1 :] for c in t.classes}
        strays += bool(later & set(sets.old.nonzero().flatten().tolist()))
    assert strays  # of classes whose task has not begun


@pytest.mark.parametrize("setting", ["i-blurry-50-10", "gaussian", "longtail-0.1"])
def test_boundaries_of_other_streams_can_be_inferred(setting: str, digits: Dataset) -> None:
    spec = Spec(method="er-dual-cba", setting=setting, boundaries="inferred", eval_every=0)
    run = Run(spec, digits, CPU)
    assert len(list(run.steps())) == run.total
    assert run.learner.task >= 1


def test_a_gaussian_run_learns_in_the_order_of_time(digits: Dataset) -> None:
    run = Run(Spec(method="er", setting="gaussian", epochs=2), digits, CPU)
    for task, epochs in zip(run.stream, run.schedule, strict=True):
        for one in epochs:
            assert np.array_equal(one.rows.ravel(), task.train[: one.rows.size])
    y = digits.train_y.numpy()
    when = np.concatenate([e[0].rows.ravel() for e in run.schedule])
    mean = [np.flatnonzero(y[when] == c).mean() for c in range(10)]
    assert mean == sorted(mean)


@pytest.mark.parametrize("setting", ["longtail-0.1", "gaussian", "i-blurry-50-10"])
def test_streams_are_a_function_of_the_seed(setting: str, digits: Dataset) -> None:
    streams = [make_stream(Spec(setting=setting, seed=k), digits) for k in (0, 0, 1)]
    first = [np.concatenate([t.train for t in s]).tolist() for s in streams]
    assert first[0] == first[1] != first[2]


def test_a_long_tail_has_a_label_of_every_class(digits: Dataset) -> None:
    spec = Spec(method="er", setting="longtail-0.1+semi-0.2", tasks=2)
    run = Run(spec, digits, CPU)
    rows = np.concatenate([t.train for t in run.stream])
    y, mask = digits.train_y.numpy(), run.has_label
    assert mask is not None
    assert not np.delete(mask, rows).any()
    for c in range(10):
        own = rows[y[rows] == c]
        assert mask[own].sum() == max(1, round(0.2 * len(own)))


def test_a_task_of_a_rare_class_must_fill_a_batch_for_every_seed(dualcba: Command) -> None:
    got = dualcba("run", "--setting", "longtail-0.01", "--seeds", 5, "--method", "er", "--out", "x")
    assert (got.code, len(got.lines)) == (2, 1), got.err
    assert "batch_size is 10, expected at most the" in got.err
    assert got.files == []


def test_a_method_that_shuffles_a_task_does_not_fit_an_ordered_stream(dualcba: Command) -> None:
    got = dualcba("run", "--method", "icarl", "--option", "merge=true", "--setting", "gaussian")
    assert (got.code, len(got.lines)) == (2, 1), got.err
    assert "the setting 'gaussian' does not fit the method 'icarl' with merge" in got.err


def test_a_long_tail_can_be_learnt_offline(digits: Dataset) -> None:
    spec = Spec(method="er", setting="offline+longtail-0.1", tasks=2, batch_size=64, eval_every=0)
    run = Run(spec, digits, CPU)
    assert spec.epochs == OFFLINE_EPOCHS
    assert sum(len(t.train) for t in run.stream) < len(digits.train_y) / 2


def test_a_combined_setting_resumes(dualcba: Command) -> None:
    setting = "i-blurry-50-10+longtail-0.5"
    args = ["--setting", setting, "--method", "er", "--seeds", 2, "--eval-every", 0]
    got = dualcba("run", *args, "--device", "cpu", "--json", "--out", "x")
    assert got.code == 0, got.err
    folders = sorted((got.folder / "x").glob("*/result.json"))
    assert len(folders) == 2
    folders[0].unlink()
    again = dualcba("resume", "x", "--device", "cpu", "--json")
    assert again.code == 0, again.err
    one, two = (json.loads(g.out) for g in (got, again))
    assert [r["scores"] for r in one] == [r["scores"] for r in two]
    assert {r["setting"] for r in two} == {setting}


def test_offline_goes_through_each_task_in_every_epoch(digits: Dataset) -> None:
    run = Run(Spec(method="er", setting="offline", epochs=4, batch_size=32), digits, CPU)
    for task, epochs in zip(run.stream, run.schedule, strict=True):
        assert len(epochs) == 4
        for rows in (one.rows for one in epochs):
            assert len(set(rows.ravel())) == rows.size == len(task.train) // 32 * 32
        assert not np.array_equal(epochs[0].rows, epochs[1].rows)


# ---------------------------------------------------------------- classes and tasks


def classes(spec: Spec, data: Dataset) -> list[list[int]]:
    return [list(t.classes) for t in make_stream(spec, data)]


def test_class_orders(digits: Dataset) -> None:
    natural = classes(Spec(), digits)
    assert natural == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    shuffled = [classes(Spec(class_order="shuffled", seed=s), digits) for s in (0, 0, 1)]
    assert shuffled[0] == shuffled[1]
    assert len({json.dumps(c) for c in (natural, *shuffled)}) == 3
    assert sorted(c for t in shuffled[2] for c in t) == list(range(10))
    given = [9, 1, 7, 3, 5, 0, 2, 4, 6, 8]
    assert classes(Spec(class_order=given), digits) == np.reshape(given, (5, 2)).tolist()


SHAPES: list[tuple[Any, Any, list[list[int]]]] = [
    (2, "natural", [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
    ([2, 3], "natural", [[0, 1], [2, 3, 4]]),
    ([[3, 1], [7], [0, 9]], "natural", [[3, 1], [7], [0, 9]]),
    ([4, 1], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [[9, 8, 7, 6], [5]]),
]


@pytest.mark.parametrize(("tasks", "order", "want"), SHAPES, ids=lambda v: str(v)[:20])
def test_tasks_from_a_file(
    tasks: Any, order: Any, want: list[list[int]], dualcba: Command, tmp_path: Path, digits: Dataset
) -> None:
    options = {"method": "er", "tasks": tasks, "class_order": order, "eval_every": 0}
    got = dualcba("run", toml(tmp_path / "x.toml", options), "--json", "--device", "cpu")
    assert got.code == 0, got.err
    (result,) = json.loads(got.out)
    assert result["spec"]["tasks"] == tasks
    assert result["spec"]["class_order"] == order
    assert classes(Spec(**result["spec"]), digits) == want
    assert np.shape(result["accuracy_matrix"]["bn"]) == (len(want), len(want))


@pytest.mark.parametrize(
    ("args", "want"),
    [
        (["--tasks", "3,2,5"], [[0, 1, 2], [3, 4], [5, 6, 7, 8, 9]]),
        (["--tasks", "2", "--class-order", "9,8,7,6,5,4,3,2,1,0"],
         [[9, 8, 7, 6, 5], [4, 3, 2, 1, 0]]),
        (["--tasks", "1"], [list(range(10))]),
    ],
)  # fmt: skip
def test_tasks_from_the_command_line(
    args: list[str], want: list[list[int]], dualcba: Command, digits: Dataset
) -> None:
    got = dualcba("run", "--method", "er", *args, "--eval-every", 0, "--json", "--device", "cpu")
    assert got.code == 0, got.err
    (result,) = json.loads(got.out)
    assert classes(Spec(**result["spec"]), digits) == want


def test_shuffled_classes_from_the_command_line(dualcba: Command, digits: Dataset) -> None:
    got = dualcba("run", "--method", "er", "--class-order", "shuffled", "--seeds", 2,
                  "--eval-every", 0, "--json", "--device", "cpu")  # fmt: skip
    assert got.code == 0, got.err
    one, two = (classes(Spec(**r["spec"]), digits) for r in json.loads(got.out))
    assert one != two


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tasks", "3,9"], ["tasks", "[3, 9]", "sum to at most 10"]),
        (["--tasks", "two"], ["tasks", "'two'", "sizes"]),
        (["--class-order", "0,1,2"], ["class order", "[0, 1, 2]", "each of 0 to 9 once"]),
        (["--class-order", "random"], ["class_order", "'random'", "'shuffled'"]),
        (["--class-order", "3"], ["class_order", "3", "'shuffled'"]),
        (["--setting", "blurry-10", "--tasks", "1"], ["blurry"]),
    ],
)
def test_tasks_and_orders_that_are_refused(
    args: list[str], words: list[str], dualcba: Command
) -> None:
    got = dualcba("run", "--method", "er", *args, "--out", "x")
    assert (got.code, len(got.lines)) == (2, 1), got.err
    assert all(word in got.err for word in words), got.err
    assert got.files == []


def test_the_seed_orders_each_run(digits: Dataset) -> None:
    run = Run(Spec(seed=4), digits, CPU)
    order = generator(4, "order")
    for task, (one,) in zip(run.stream, run.schedule, strict=True):
        assert np.array_equal(one.rows, batches(task, 10, order))


# ---------------------------------------------------------------- a user's own images


def make_folder(root: Path, per_class: int = 100) -> Path:
    """Ten classes of PNGs of 12×12: noise around one picture per class."""
    rng = np.random.default_rng(0)
    for c in range(10):
        folder = root / f"class-{c}"
        folder.mkdir(parents=True)
        picture = rng.uniform(40, 215, (12, 12, 3))
        for i in range(per_class):
            image = (picture + rng.normal(0, 20, picture.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(image).save(folder / f"{i:03d}.png")
    return root


@pytest.mark.parametrize("network", ["mlp", "resnet18-slim"])
def test_a_thousand_images_to_a_table_with_one_command(
    network: str, dualcba: Command, tmp_path: Path
) -> None:
    root = make_folder(tmp_path / "birds")
    assert len(list(root.rglob("*.png"))) == 1000
    methods = "er,er-dual-cba" if network == "mlp" else "er"
    got = dualcba("run", "--dataset", root, "--method", methods, "--network", network,
                  "--buffer", 50, "--batch-size", 10, "--eval-every", 0, "--device", "cpu",
                  "--out", "results")  # fmt: skip
    assert got.code == 0, got.err
    for method in methods.split(","):
        assert method in got.out
    paths = list((got.folder / "results").glob("*/result.json"))
    assert f"{len(paths)} result{'s' * (len(paths) > 1)} in results" in got.out
    assert len(paths) == len(methods.split(","))
    for path in paths:
        result = json.loads(path.read_text())
        finite(result)
        assert result["dataset"] == str(root)
        assert np.shape(result["accuracy_matrix"]["bn"]) == (5, 5)
        assert result["accuracy_matrix"]["bn"][0][0] > 60  # the first task is easy


def test_a_folder_in_every_setting_from_one_file(dualcba: Command, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "own", per_class=30)
    for setting in ("blurry-10", "semi-0.2", "offline"):
        options = quick(setting) | {"dataset": str(root), "network": "mlp", "batch_size": 10}
        file = toml(tmp_path / "own.toml", options | {"method": ["er-dual-cba"]})
        got = dualcba("run", file, "--json", "--device", "cpu", "--out", setting)
        assert got.code == 0, got.err
        finite(json.loads(got.out)[0])


def test_cycled_batches_need_samples_without_a_label(digits: Dataset) -> None:
    with pytest.raises(ValueError, match="labelled_batches is 'cycled', expected 'mixed' unless"):
        Spec(labelled_batches="cycled")
    spec = Spec(method="er", setting="semi-1", labelled_batches="cycled")
    with pytest.raises(ValueError, match="batch_size of cycled batches is 10, expected at most"):
        Run(spec, digits, CPU)


@pytest.mark.parametrize("norm", ["bn", "ibn"])
def test_any_time_under_one_normalisation_only(norm: str, digits: Dataset) -> None:
    options = {"method": "er", "buffer": 40, "tasks": [2, 2], "eval_every": 20}
    both, one = (Run(Spec(**options, anytime=a), digits, CPU) for a in ("both", norm))
    for run in (both, one):
        list(run.steps())
    want, got = both.result(), one.result()
    other = "ibn" if norm == "bn" else "bn"
    assert got["accuracy_matrix"] == want["accuracy_matrix"]
    assert got["scores"][norm] == want["scores"][norm]
    assert got["anytime"][norm] == want["anytime"][norm]
    assert got["anytime"][other] == []
    assert got["scores"][other]["acc_auc"] is None
    assert got["scores"][other]["acc"] == want["scores"][other]["acc"]
