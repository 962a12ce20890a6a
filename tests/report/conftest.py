"""Small real runs on digits, shared by the tests of reports, and recordings made up for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualcba.data import load_dataset
from dualcba.experiments import Hardware, Result, Run, make_specs, run_all, write_result
from dualcba.experiments.paper.catalogue import Entry, Experiment
from dualcba.report import write_report

METHODS = ["er", "er-dual-cba"]


@pytest.fixture(scope="session")
def runs() -> list[tuple[Any, Result]]:
    """ER and ER-Dual-CBA on digits, two seeds: specs and results."""
    data = load_dataset("digits")
    specs = make_specs({"dataset": "digits", "method": METHODS, "seeds": 2, "eval_every": 10})
    done: list[Run] = []
    for run, complete in run_all(specs, lambda _: data, Hardware(device="cpu")):
        done += [run] if complete else []
    return [(run.spec, Result.from_dict(run.result())) for run in done]


@pytest.fixture(scope="session")
def results(runs: list[tuple[Any, Result]]) -> list[Result]:
    return [result for _, result in runs]


@pytest.fixture(scope="session")
def recorded(results: list[Result]) -> list[Result]:
    """The same results with recordings of the agreed shape."""
    return [replace(r, recordings=recordings(r)) for r in results]


def recordings(result: Result, classes: int = 10) -> dict[str, Any]:
    """Made up: only their shape is meant."""
    rng = np.random.default_rng(result.seed)
    steps = list(range(-3, 6))
    counts = {s: rng.integers(0, 9, (classes, classes)).tolist() for s in ("bn", "ibn")}

    def mass() -> dict[str, list[float]]:
        old = rng.random(len(steps))
        return {"p_old": old.tolist(), "p_new": (1 - old).tolist()}

    def posterior() -> list[float]:
        return list(rng.dirichlet(np.ones(classes)))

    moments = [
        {
            "task": t, "step": steps, "old": mass(), "new": mass(),
            "classes": {"class": 2 * t - 3, "before": posterior(), "after": posterior()},
        }
        for t in range(2, 6)
    ]  # fmt: skip
    lines = {part: rng.random(60).tolist() for part in ("with", "without", "bound")}
    alignment = {"step": list(range(60)), **lines}
    return {"predictions": counts, "transitions": moments, "alignment": alignment}


@pytest.fixture(scope="session")
def report(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[Any, Result]],
    recorded: list[Result],
) -> Path:
    """The report of a folder of runs with recordings."""
    out = tmp_path_factory.mktemp("report") / "runs"
    for (spec, _), result in zip(runs, recorded, strict=True):
        write_result(out, spec, result.to_dict())
    return write_report(out)


@pytest.fixture
def experiment() -> Callable[..., Experiment]:
    """A table of the two methods, beside values that a paper might give."""

    def make(**given: Any) -> Experiment:
        spec = {"dataset": "digits", "eval_every": 10}
        entries = (
            Entry("ER", "Digits, M = 100", spec | {"method": "er"}, "bn", {"acc": 70.0, "fm": 1.0}),
            Entry(
                "ER-Dual-CBA", "Digits, M = 100", spec | {"method": "er-dual-cba"}, "ibn",
                {"acc": 75.0, "fm": None},
            ),
            Entry("ER, M = 50", "Digits, M = 50", spec | {"method": "er", "buffer": 50}, "bn", {}),
        )  # fmt: skip
        fields = {
            "name": "small", "title": "Small & simple", "kind": "table", "figures": (),
            "scores": ("acc", "fm"), "entries": entries, "note": "A note of 5 %.",
        }  # fmt: skip
        return Experiment(**{**fields, **given})

    return make
