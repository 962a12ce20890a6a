"""Reading a folder of runs, telling groups apart, and the command that repeats a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Spec
from dualcba.report.groups import collections, command, read_runs, task_classes

Result = dict[str, Any]


def made(**given: Any) -> Result:
    spec = Spec(**given).to_dict()
    top = {k: spec[k] for k in ("method", "dataset", "setting", "buffer", "seed")}
    return {**top, "status": "complete", "spec": spec, "scores": {"bn": {}, "ibn": {}}}


def write(out: Path, name: str, content: object) -> Path:
    path = out / name / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_runs_are_read_however_deep_and_each_once(tmp_path: Path) -> None:
    write(tmp_path, "a", made(method="er"))
    write(tmp_path, "main/b", made(method="er", seed=1))
    write(tmp_path, "other/b", made(method="er", seed=1))
    write(tmp_path, "c", {**made(method="er-cba"), "status": "stopped"})
    assert [r["seed"] for r in read_runs(tmp_path)] == [0, 1]


def test_a_folder_that_is_missing_or_empty_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere is missing, expected a folder of runs$"):
        read_runs(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no complete run, expected") as error:
        read_runs(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("content", "says"), [("{", "is not JSON"), ("{}", "lacks 'method'")])
def test_a_broken_result_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = write(tmp_path, "a", content)
    with pytest.raises(ValueError, match=says) as error:
        read_runs(tmp_path)
    assert str(path) in str(error.value)


def test_groups_of_one_method_are_named_by_what_differs() -> None:
    results = [
        made(method="er-dual-cba", specific="none"), made(method="er-dual-cba"),
        made(method="er", seed=1), made(method="er"), made(method="er", buffer=50),
    ]  # fmt: skip
    second, first = collections(results)  # the smaller buffer first
    assert (first.title, second.title) == ("Digits, online, M = 100", "Digits, online, M = 50")
    assert [s.entry.row for s in first.served] == [
        "ER",
        "ER-Dual-CBA, specific none",
        "ER-Dual-CBA",
    ]
    assert [r["seed"] for r in first.served[0].results] == [0, 1]


def test_an_older_run_that_names_fewer_fields_is_of_the_group() -> None:
    older, newer = made(method="er", seed=0), made(method="er", seed=1)
    del older["spec"]["anytime"]
    (group,) = collections([older, newer])
    assert [len(s.results) for s in group.served] == [2]


def test_groups_that_differ_in_how_they_were_scored_alone_are_named_by_that() -> None:
    (group,) = collections([made(method="er"), made(method="er", eval_every=0)])
    assert [s.entry.row for s in group.served] == ["ER", "ER, eval every 0"]


def test_seeds_are_in_the_order_of_numbers() -> None:
    (group,) = collections([made(method="er", seed=k) for k in (10, 2)])
    assert [r["seed"] for r in group.served[0].results] == [2, 10]


def test_a_single_seed_is_named_in_the_command() -> None:
    assert command({"method": "er", "dataset": "digits"}, [3]).endswith(" --seed 3")


def test_parts_learnt_elsewhere_by_the_same_seed_are_of_one_group() -> None:
    results = [made(method="er-dual-cba", specific="none", seed=k) for k in (0, 1)]
    for k, result in enumerate(results):
        result["spec"]["adaptor"] = f"runs/adaptors/cifar10-s{k}.safetensors"
    (group,) = collections([made(method="er-dual-cba"), *results])
    assert [s.entry.row for s in group.served][1] == (
        "ER-Dual-CBA, specific none, adaptor from cifar10"
    )
    assert [r["seed"] for r in group.served[1].results] == [0, 1]
    assert "--adaptor cifar10-sSEED.safetensors" in command(group.served[1].entry.spec, [0, 1])


def test_a_dataset_of_ones_own_and_an_unknown_method_are_no_obstacle() -> None:
    result = made(method="er")
    for part in (result, result["spec"]):
        part.update(method="mine-dual-cba", dataset="/gone/birds.npz")
    (group,) = collections([result])
    assert group.title == "birds.npz, online, M = 100"
    assert group.served[0].entry.row == "mine-Dual-CBA"
    text = command(group.served[0].entry.spec, [0])
    assert text.startswith("dualcba run --method mine-dual-cba --dataset /gone/birds.npz")


@pytest.mark.parametrize(
    ("order", "tasks"),
    [("natural", [[0, 1], [2, 3]]), ([3, 0, 1, 2], [[3, 0], [1, 2]])],
)
def test_the_classes_of_tasks(order: object, tasks: list[list[int]]) -> None:
    spec = {"seed": 0, "tasks": 2, "class_order": order}
    assert task_classes({"spec": spec}, 4) == tasks


def test_a_shuffled_order_is_the_runs_own() -> None:
    from dualcba.data import load_dataset
    from dualcba.experiments.run import make_stream

    spec = Spec(class_order="shuffled", seed=3)
    stream = make_stream(spec, load_dataset("digits"))
    assert task_classes({"spec": spec.to_dict()}, 10) == [list(t.classes) for t in stream]


@pytest.mark.parametrize(
    "given",
    [
        {"method": "er"},
        {"method": "er-dual-cba", "agnostic": True, "specific": "none", "ibn_augment": False},
        {"method": "er", "tasks": [2, 3, 5], "lr": 0.1, "class_order": list(range(9, -1, -1))},
        {"method": "lucir", "options": {"scale": 10}, "buffer": 50},
    ],
)
def test_the_command_makes_the_same_specs(given: dict[str, Any], monkeypatch: Any) -> None:
    """What the command line makes of the command is the spec that the command was made of."""
    from typer.testing import CliRunner

    from dualcba.cli import app as cli

    made: list[Spec] = []

    def stop(_: Path, specs: list[Spec]) -> None:
        made.extend(specs)
        raise ValueError("far enough")

    monkeypatch.setattr(cli, "check_free", stop)
    wanted = [Spec(**given, seed=s) for s in (2, 3)]
    words = shlex.split(command(wanted[0].to_dict(), [2, 3]))
    CliRunner().invoke(cli.app, words[1:])
    assert made == wanted


def test_seeds_that_do_not_follow_each_other_are_named() -> None:
    assert command({"method": "er", "dataset": "digits"}, [0, 2]).endswith("# and seeds 2")
