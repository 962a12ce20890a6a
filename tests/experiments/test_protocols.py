"""Protocols: what they set, what overrides them, and that tables never mix them silently."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from dualcba import Dataset
from dualcba.experiments import Hardware, Result, Spec, make_specs, read_toml
from dualcba.experiments.making import make_learner
from dualcba.experiments.paper.catalogue import make_experiment
from dualcba.options import PROTOCOLS, definitions, overridden
from dualcba.report.commands import command
from dualcba.report.gains import gains
from dualcba.report.results import collections
from dualcba.report.tables.summary import summary_layouts

P10 = {
    "batch_size": 10,
    "memory_batch": 64,
    "forward": "concat",
    "loss_mean": "samples",
    "while_empty": "store",
    "pixels": "unit",
    "optimizer": "adam",
    "lr": 5e-4,
    "seen_only": False,
}


def made(**given: Any) -> Result:
    spec = Spec(**{"method": "er", **given})
    return Result(spec, spec.seed, {"bn": {"acc": 30.0}, "ibn": {"acc": 31.0}})


def test_what_p10_sets() -> None:
    for dataset in ("cifar100", "digits"):
        spec = Spec(method="er", dataset=dataset, protocol="p10")
        assert {name: getattr(spec, name) for name in P10} == P10
        assert spec.to_dict()["protocol"] == "p10"
    assert Spec(dataset="cifar100", protocol="p10").network == "resnet18"


def test_a_protocol_sets_options_that_exist() -> None:
    known = {*definitions(Spec), "augmentation"}
    for preset in PROTOCOLS.values():
        assert set(preset) <= known


def test_the_paper_is_the_default() -> None:
    assert Spec() == Spec(protocol="paper")
    assert Spec().to_dict()["protocol"] == "paper"
    assert PROTOCOLS["paper"] == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 20), ("memory_batch", 10), ("forward", "split"), ("lr", 0.1),
     ("pixels", "normalised"), ("while_empty", "train"), ("loss_mean", "batches")],
)  # fmt: skip
def test_a_given_option_overrides_the_protocol(name: str, value: Any) -> None:
    spec = Spec(**{"protocol": "p10", name: value})
    assert {k: getattr(spec, k) for k in P10} == {**P10, name: value}
    assert overridden(spec.to_dict()) == [name]


def test_the_learning_rate_follows_the_optimizer() -> None:
    assert Spec(protocol="p10", optimizer="sgd").lr == 0.03
    assert Spec(protocol="p10", optimizer="adamw", weight_decay=1e-4).lr == 5e-4
    assert Spec(protocol="p10", optimizer="sgd", lr=0.001, momentum=0.9).lr == 0.001


def test_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('protocol = "p10"\nmemory_batch = 32\noptimizer = "adamw"\n')
    (spec,) = make_specs(read_toml(path))
    assert (spec.batch_size, spec.memory_batch, spec.optimizer, spec.lr) == (10, 32, "adamw", 5e-4)
    assert Spec(**spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"protocol": "p1"}, "protocol is 'p1', expected 'paper' or 'p10' \\(did you mean"),
        ({"protocol": ["p10"]}, "protocol is \\['p10'\\], expected 'paper' or 'p10'"),
        ({"protocol": "p10", "method": "icarl"}, "while_empty is 'store', expected 'train': the "),
        ({"protocol": "p10", "tracking": "memory"}, "tracking is 'memory', expected 'all' if for"),
        ({"memory_batch": 0}, "memory_batch is 0, expected a whole number of at least 1"),
        ({"pixels": "raw"}, "pixels is 'raw', expected 'normalised' or 'unit'"),
    ],
)
def test_a_protocol_that_does_not_fit_is_one_line(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
        Spec(**given)


def test_pixels(images: Dataset) -> None:
    pixel = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    for pixels in ("normalised", "unit"):
        spec = Spec(method="er", network="mlp", pixels=pixels)
        transform = make_learner(spec, images, Hardware(device="cpu")).parts.context.transform
        assert bool((transform(pixel) == 1).all()) == (pixels == "unit")
        assert (transform.pad, transform.flip) == (images.pad, images.flip)


# ---------------------------------------------------------------- on the command line


def test_a_run_by_p10_says_so(dualcba: Any) -> None:
    short = ("--tasks", "2,2", "--eval-every", 0, "--out", "x")
    got = dualcba("run", "--method", "er", "--protocol", "p10", *short)
    assert (got.code, got.files) == (2, [])  # digits have no colours
    assert "augmentation is 'full' for torch.uint8 samples of shape (1, 8, 8)" in got.err
    short = ("--augmentation", "partial", *short)
    done = dualcba("run", "--method", "er", "--protocol", "p10", *short)
    assert done.code == 0
    assert "protocol p10" in done.out
    folder = next((Path.cwd() / "x").glob("digits-online-er-*"))
    assert '"protocol": "p10"' in (folder / "result.json").read_text()


def test_a_wrong_protocol_is_one_line(dualcba: Any) -> None:
    done = dualcba("run", "--method", "er", "--protocol", "p11", "--out", "x")
    assert done.code == 2
    assert len(done.lines) == 1
    assert "'p10'" in done.err


# ---------------------------------------------------------------- in tables


def test_protocols_have_tables_of_their_own() -> None:
    results = [made(protocol=p, seed=k) for p in ("p10", "paper") for k in (0, 1)]
    titles = [c.title for c in collections(results)]
    assert titles == ["Digits, online, M = 100", "Digits, online, M = 100, protocol p10"]
    tables = [table.title for layouts in summary_layouts(results) for table in next(layouts)]
    assert tables == ["digits, online, buffer 100", "digits, online, buffer 100, protocol p10"]


def test_a_row_names_what_departs_from_its_protocol() -> None:
    results = [
        made(protocol="p10", method="derpp"),
        made(protocol="p10", optimizer="sgd", lr=0.001, momentum=0.9),
    ]
    (group,) = collections(results[1:])
    assert [s.entry.row for s in group.served] == ["ER, optimizer sgd, lr 0.001"]
    (group,) = collections(results)  # momentum is an option of both
    whole = "ER, optimizer sgd, lr 0.001, momentum 0.9"
    assert [s.entry.row for s in group.served] == [whole, "DER++"]
    results.append(made(protocol="p10"))
    rows = [s.entry.row for s in collections(results)[0].served]
    assert rows == ["ER", whole, "DER++"]
    (group,) = collections([made(protocol="p10", optimizer="sgd")])
    assert [s.entry.row for s in group.served] == ["ER, optimizer sgd, lr 0.03"]


def test_runs_by_two_protocols_are_not_compared() -> None:
    results = [made(protocol="p10"), made(method="er-dual-cba")]
    found = [g for c in collections(results) for g in gains(c.served)]
    assert found == []


def test_an_experiment_with_two_protocols_names_them_in_its_rows() -> None:
    text = """
title = "Two"
note = ""
scores = ["acc"]
[columns]
"M = 50" = { buffer = 50 }
[rows]
"ER" = { method = "er" }
"ER again" = { method = "er", protocol = "p10" }
"""
    assert [e.row for e in make_experiment("two", tomllib.loads(text)).entries] == [
        "ER, paper",
        "ER again, p10",
    ]
    one = text.replace(', protocol = "p10"', ", lr = 0.1")
    assert [e.row for e in make_experiment("one", tomllib.loads(one)).entries] == ["ER", "ER again"]


@pytest.mark.parametrize(
    "given", [{}, {"memory_batch": 20}, {"optimizer": "adamw", "weight_decay": 0.001}]
)
def test_the_command_repeats_the_run(given: dict[str, Any]) -> None:
    spec = Spec(method="er", protocol="p10", setting="blurry-10", **given)
    words = command(spec.to_dict(), [0]).split()
    assert words[:8] == ["dualcba", "run", "--method", "er", "--dataset", "digits", "--setting",
                         "blurry-10"]  # fmt: skip
    options = {w[2:].replace("-", "_"): v for w, v in zip(words[2::2], words[3::2], strict=True)}
    assert options.keys() == {"method", "dataset", "setting", "protocol", *given}
