"""Groups of runs that differ only by seed, their names, and the command that repeats them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualcba.data.dataset import DataOrigin
from dualcba.experiments import Result, Spec
from dualcba.experiments.result import ForeignSpec, make_spec
from dualcba.experiments.store import distinct
from dualcba.options import CBA
from dualcba.report.commands import command, repeat
from dualcba.report.names import method_title
from dualcba.report.results import collections, task_classes
from dualcba.report.tables.summary import summary_layouts

NOTHING: Mapping[str, Mapping[str, None]] = {"bn": {}, "ibn": {}}
DONOR = {"dataset": "cifar10", "tasks": 5, "buffer": 200}


def made(**given: Any) -> Result:
    spec = Spec(**given)
    return Result(spec, spec.seed, NOTHING)


def test_groups_of_one_method_are_named_by_what_differs() -> None:
    results = [
        made(method="er-dual-cba", specific="none"), made(method="er-dual-cba"),
        made(method="er", seed=1), made(method="er"), made(method="er", buffer=50),
    ]  # fmt: skip
    second, first = collections(results)  # the smaller buffer first
    assert (first.title, second.title) == ("Digits, online, M = 100", "Digits, online, M = 50")
    assert [s.entry.row for s in first.served] == [
        "ER",
        "ER-Dual-CBA",
        "ER-Dual-CBA, specific none",
    ]
    assert [r.seed for r in first.served[0].results] == [0, 1]


def rows(*specs: dict[str, Any]) -> list[list[str]]:
    """Return the rows of each collection."""
    found = collections([made(**spec) for spec in specs])
    return [[s.entry.row for s in group.served] for group in found]


def test_options_that_every_method_has_are_compared_between_methods() -> None:
    er, dual = {"method": "er", "lr": 0.3}, {"method": "er-dual-cba"}
    assert rows(er, dual) == [["ER, lr 0.3", "ER-Dual-CBA"]]
    assert rows(er, dual | {"lr": 0.3}) == [["ER", "ER-Dual-CBA"]]
    assert rows(er, dual | {"lr": 0.3, "width": 8}) == [["ER", "ER-Dual-CBA"]]


def test_an_optimiser_is_named_beside_a_learning_rate_that_it_sets() -> None:
    adam = {"method": "er", "optimizer": "adam"}
    assert rows(adam | {"lr": 0.03}, adam) == [
        ["ER, optimizer adam, lr 0.03", "ER, optimizer adam"]
    ]
    assert rows({"method": "er"}, adam) == [["ER", "ER, optimizer adam"]]
    assert rows(adam, adam | {"method": "derpp"}) == [["ER", "DER++"]]


def test_rows_with_different_options_are_told_apart_between_buffers() -> None:
    er, dual = {"method": "er"}, {"method": "er-dual-cba"}
    found = rows(er, dual, er | {"buffer": 50, "lr": 0.3}, dual | {"buffer": 50, "width": 8})
    assert found == [["ER, lr 0.3", "ER-Dual-CBA, width 8"], ["ER", "ER-Dual-CBA"]]


@pytest.mark.parametrize("dataset", ["digits", "cifar10", "cifar100"])
@pytest.mark.parametrize("protocol", ["paper", "p10"])
@pytest.mark.parametrize("setting", ["online", "offline"])
def test_plain_runs_are_named_by_their_methods(dataset: str, protocol: str, setting: str) -> None:
    methods = ["er", "derpp", "lucir", *(f"er-{kind}" for kind in CBA), "derpp-dual-cba"]
    place = {"dataset": dataset, "protocol": protocol, "setting": setting}
    specs = [{"method": m, "buffer": b, **place} for m in methods for b in (50, 70)]
    if protocol != "paper":
        specs = [spec for spec in specs if spec["method"] != "lucir"]  # it stores at task ends
    wanted = {method_title(str(spec["method"])) for spec in specs}
    *found, last = rows(*specs, {"method": "er", "buffer": 90, "lr": 0.3, **place})
    assert [set(names) for names in found] == [wanted, wanted]
    assert last == ["ER, lr 0.3"]


def test_a_recipe_is_named_in_the_place_of_its_options() -> None:
    best: dict[str, Any] = {"method": "best", "dataset": "cifar100"}
    written = {"method": "er+mkd", "method_options": {"share": 0.5, "alpha": 0.02}}
    written |= {"protocol": "p10", "readout": "debiased", "ibn_augment": False, "test_flip": True}
    (found,) = rows(
        best, {**best, "lr": 0.001}, {**best, "readout": "head"}, {**written, "dataset": "cifar100"}
    )
    assert found == [
        "best (ER + MKD)",
        "best (ER + MKD), lr 0.001",
        "ER + MKD, share=0.5",
        "best (ER + MKD), alpha=0.02",
    ]
    assert rows({"method": "best", "dataset": "digits"}) == [["best (ER + MKD)"]]


def test_the_terminal_names_a_recipe_with_its_method() -> None:
    (table,) = summary_layouts([made(method="best", dataset="cifar100", lr=0.001)])
    assert next(table)[0].rows[0][0] == "best (er+mkd), lr 0.001"


def test_groups_that_differ_in_how_they_were_scored_alone_are_named_by_that() -> None:
    (group,) = collections([made(method="er"), made(method="er", eval_every=0)])
    assert [s.entry.row for s in group.served] == ["ER", "ER, eval every 0"]


def test_results_on_validation_data_are_in_a_table_of_their_own() -> None:
    results = [made(method="er", seed=k, validation=v) for k in (0, 1) for v in (0.0, 0.1, 0.2)]
    titles = [c.title.removeprefix("Digits, online, M = 100") for c in collections(results)]
    note = ", {} % validation split"
    assert titles == ["", note.format(10), note.format(20)]
    for c, v in zip(collections(results), (0.0, 0.1, 0.2), strict=True):
        (group,) = c.served
        assert [(r.seed, r.validation) for r in group.results] == [(0, v), (1, v)]
        assert ("--validation" in repeat(group)) == bool(v)


def on(digest: str | None, **given: Any) -> Result:
    """Return a result on data of a digest."""
    data = None if digest is None else DataOrigin("own", None, digest * 64)
    return replace(made(method="er", **given), data=data)


def test_results_on_different_data_of_one_name_are_in_tables_of_their_own() -> None:
    results = [on("a", seed=0), on("b", seed=0), on("b", seed=1), on(None, seed=2)]
    for ordered in (results, results[::-1]):
        found = collections(distinct(ordered))
        assert [c.title for c in found] == [
            "Digits, online, M = 100",  # an earlier version, which does not name its data
            f"Digits (digest {'a' * 12}), online, M = 100",
            f"Digits (digest {'b' * 12}), online, M = 100",
        ]
        seeds = [[r.seed for s in c.served for r in s.results] for c in found]
        assert seeds == [[2], [0], [0, 1]]


def test_results_that_do_not_name_their_data_are_of_one_group_with_the_others() -> None:
    results = [on("a", seed=0), on(None, seed=0), on(None, seed=1)]
    (group,) = collections(distinct(results))
    assert group.title == "Digits, online, M = 100"
    assert [r.seed for r in group.served[0].results] == [0, 1]
    assert len(distinct(results)) == 2


def test_two_files_of_one_name_have_their_paths_in_the_titles() -> None:
    fields = made(method="er").fields
    specs = [make_spec({**fields, "dataset": path}) for path in ("/a/own.npz", "/b/own.npz")]
    titles = [c.title for c in collections([Result(spec, 0, NOTHING) for spec in specs])]
    assert titles == ["/a/own.npz, online, M = 100", "/b/own.npz, online, M = 100"]


def test_a_part_of_a_report_names_its_data_as_the_whole_does() -> None:
    first, second = on("a"), on("b")
    (group,) = collections([first], among=[first, second])
    assert group.title == f"Digits (digest {'a' * 12}), online, M = 100"


def test_seeds_are_in_the_order_of_numbers() -> None:
    (group,) = collections([made(method="er", seed=k) for k in (10, 2)])
    assert [r.seed for r in group.served[0].results] == [2, 10]


def test_a_single_seed_is_named_in_the_command() -> None:
    assert command({"method": "er", "dataset": "digits"}, [3]).endswith(" --seed 3")


def loading(path: str, own: int, **origin: Any) -> Result:
    """Return a run that has loaded a class-agnostic part."""
    result = made(method="er-dual-cba", agnostic_from=path, seed=own)
    return replace(result, agnostic_provenance=origin)


def test_parts_from_a_run_of_the_same_seed_are_of_one_group() -> None:
    results = [loading(f"part-{k}", k, **DONOR, seed=k) for k in (0, 1)]
    (group,) = collections([made(method="er-dual-cba"), *results])
    dual, loaded = group.served
    assert loaded.entry.row == "ER-Dual-CBA, specific none, agnostic from cifar10"
    assert [r.seed for r in loaded.results] == [0, 1]
    assert "--agnostic-from cifar10-sSEED.safetensors" in repeat(loaded)
    assert "--agnostic-from" not in repeat(dual)


def test_a_part_that_several_seeds_load_is_one_file() -> None:
    """Its run has the seed of one of them, and yet all are of one group."""
    results = [loading("runs/part", k, **DONOR, seed=0) for k in (0, 1)]
    (group,) = collections(results)
    (loaded,) = group.served
    assert [r.seed for r in loaded.results] == [0, 1]
    assert "--agnostic-from runs/part" in repeat(loaded)


def test_parts_from_different_runs_are_told_apart() -> None:
    """Those of a small `transfer-inter`: all on digits."""
    size = {"dataset": "digits", "buffer": 50}
    results = [loading(f"part-{n}", 0, **size, tasks=n, seed=0) for n in (5, 10)]
    (group,) = collections(results)
    assert [s.entry.row for s in group.served] == [
        f"ER-Dual-CBA, agnostic from digits in {n} tasks with M = 50" for n in (5, 10)
    ]


@pytest.mark.parametrize("other", [{"validation": 0.1}, {"protocol": "p10"}, {"buffer": 7}])
def test_parts_of_runs_that_differ_in_more_than_the_seed_are_not_of_one_group(other: Any) -> None:
    parts = [DONOR, {**DONOR, **other}]
    (group,) = collections([loading(f"p-{k}", k, **part, seed=k) for k, part in enumerate(parts)])
    assert [[r.seed for r in served.results] for served in group.served] == [[0], [1]]


def test_several_parts_of_one_seed_are_told_apart_by_their_files() -> None:
    """Their runs differ in options that a part does not record, such as the adaptor's rate."""
    results = [
        replace(loading(f"{name}/run-s{k}/part", k, **DONOR, seed=k), scores={"bn": {"acc": acc}})
        for name, acc in (("a", 1.0), ("b", 2.0))
        for k in (0, 1)
    ]
    for ordered in (results, results[::-1]):
        (group,) = collections(ordered)
        found = {s.entry.row: s for s in group.served}
        row = "ER-Dual-CBA, agnostic from {}/run-sSEED/part"
        assert set(found) == {row.format("a"), row.format("b")}
        for name, acc in (("a", 1.0), ("b", 2.0)):
            served = found[row.format(name)]
            values = [(r.seed, r.value("bn", "acc")) for r in served.results]
            assert values == [(0, acc), (1, acc)]
            assert f"--agnostic-from {name}/run-sSEED/part" in repeat(served)


def test_the_same_part_from_two_folders_counts_once() -> None:
    results = [loading(f"{name}/part-s0", 0, **DONOR, seed=0) for name in "ab"]
    (group,) = collections(results)
    assert [len(s.results) for s in group.served] == [1]


def test_the_shipped_part_is_one_for_all_seeds() -> None:
    results = [loading("pretrained", k, dataset="cifar100", seed=0) for k in (0, 1)]
    (group,) = collections(results)
    assert [len(s.results) for s in group.served] == [2]


def test_an_unknown_method_and_a_dataset_that_is_gone() -> None:
    fields = made(method="er").fields | {"method": "mine-dual-cba", "dataset": "/gone/birds.npz"}
    spec = make_spec(fields)
    assert isinstance(spec, ForeignSpec)
    (group,) = collections([Result(spec, seed, NOTHING) for seed in (0, 1)])
    assert group.title == "birds.npz, online, M = 100"
    (served,) = group.served
    assert served.entry.row == "mine-Dual-CBA"
    assert repeat(served).startswith("dualcba run --method mine-dual-cba --dataset /gone/birds.npz")


@pytest.mark.parametrize(
    ("order", "tasks"),
    [("natural", [[0, 1], [2, 3]]), ([3, 0, 1, 2], [[3, 0], [1, 2]])],
)
def test_the_classes_of_tasks(order: object, tasks: list[list[int]]) -> None:
    assert task_classes(made(tasks=2, class_order=order), 4) == tasks


def test_a_shuffled_order_is_the_runs_own() -> None:
    from dualcba.data import load_dataset
    from dualcba.experiments.making import make_stream

    spec = Spec(class_order="shuffled", seed=3)
    stream = make_stream(spec, load_dataset("digits"))
    assert task_classes(Result(spec, 3, NOTHING), 10) == [list(t.classes) for t in stream]


@pytest.mark.parametrize(
    "given",
    [
        {"method": "er"},
        {"method": "er-dual-cba", "agnostic": True, "specific": "none", "ibn_augment": False},
        {"method": "er", "tasks": [2, 3, 5], "lr": 0.1, "class_order": list(range(9, -1, -1))},
        {"method": "lucir", "method_options": {"scale": 10}, "buffer": 50},
        {"method": "er", "optimizer": "adam", "lr": 0.03},  # not the rate of Adam
        {"method": "er", "optimizer": "adam"},
        {"method": "er-dual-cba", "agnostic_from": "pretrained", "specific": "single"},
        {"method": "er", "record": ["prequential", "predictions"]},
        {"method": "er", "tasks": [[0, 1], [2, 3]]},
        {"method": "er", "tasks": [10]},
        {"method": "er", "head": "cosine", "head_scale": 5.0},
        {"method": "er-cba", "protocol": "p10", "augmentation": "partial", "optimizer": "sgd"},
        {"method": "best", "augmentation": "strong"},
    ],
)
def test_the_command_makes_the_same_specs(given: dict[str, Any], monkeypatch: Any) -> None:
    """What the command line makes of the command is the spec that the command was made of."""
    from typer.testing import CliRunner

    from dualcba.cli import app as cli
    from dualcba.cli import run

    made: list[Spec] = []

    def stop(_: Path, specs: list[Spec]) -> None:
        made.extend(specs)
        raise ValueError("far enough")

    monkeypatch.setattr(run, "check_free", stop)
    wanted = [Spec(**given, seed=s) for s in (2, 3)]
    words = shlex.split(command(wanted[0].to_dict(), [2, 3]))
    CliRunner().invoke(cli.app, words[1:])
    assert made == wanted


def test_the_command_names_the_network_for_data_of_ones_own(tmp_path: Path) -> None:
    """`dualcba run` may choose another one than the default there."""
    spec = Spec(method="er", dataset=str(tmp_path))
    assert command(spec.to_dict(), [0]).endswith(f"--dataset {tmp_path} --network resnet18-slim")


def test_the_command_of_a_method_that_is_not_known_here_has_no_empty_lists() -> None:
    fields = made(method="er", record=[]).fields | {"method": "mine", "imports": {"m.py": "c0"}}
    text = command(fields, [0])
    assert "[]" not in text
    assert text.endswith("--import m.py")


def test_seeds_that_do_not_follow_each_other_are_named() -> None:
    assert command({"method": "er", "dataset": "digits"}, [0, 2]).endswith("# and seeds 2")
