"""Time methods in turns, several seeds on one device, and whole runs (`dualcba run --abreast`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.learners import Ready
from dualcba.bench.timing import time_in_turns
from dualcba.data import Dataset
from dualcba.experiments import Hardware, Spec, run_all

ROUNDS = 5
TURNS = 24


def in_turns(
    specs: Sequence[Spec],
    hardware: Sequence[Hardware],
    data: Dataset,
    steps: int,
    turns: int | None = None,
) -> list[dict[str, Any]]:
    """Return milliseconds per step of each spec on each hardware, and the ratio to the first.

    They are timed in turns.
    """
    cases = [(spec, where) for spec in specs for where in hardware]
    ready = [Ready(*case, data) for case in cases]
    work = {k: partial(one.steps, steps) for k, one in enumerate(ready)}
    watches = time_in_turns(work, turns or TURNS, ready[0].device, units=steps)
    rows = []
    for (spec, where), own in zip(cases, watches.values(), strict=True):
        low, middle, high = np.quantile(own.ratios(watches[0]), (0.25, 0.5, 0.75))
        rows.append({
            "method": spec.method,
            "precision": where.precision,
            "ms_per_step": round(1e3 * own.median, 4),
            "ratio_to_first": round(float(middle), 4),
            "quartiles": f"{low:.4f} to {high:.4f}",
        })  # fmt: skip
    return rows


def steps_abreast(
    spec: Spec, hardware: Hardware, data: Dataset, seeds: int, steps: int
) -> dict[str, Any]:
    """Return milliseconds per step and seed of several learners in turn, and of one alone."""
    ready = [Ready(replace(spec, seed=seed), hardware, data) for seed in range(seeds)]

    def together() -> None:
        for _ in range(steps):
            for one in ready:
                one.step()

    work = {"alone": partial(ready[0].steps, steps), "together": together}
    watches = time_in_turns(work, ROUNDS, ready[0].device, units=steps)
    alone, all_of_them = watches["alone"], watches["together"]
    return {
        "method": spec.method,
        "seeds": seeds,
        "ms_per_step_alone": round(1e3 * alone.median, 4),
        "ms_per_step_and_seed": round(1e3 * all_of_them.median / seeds, 4),
        "ratio_to_alone": round(all_of_them.ratio(alone) / seeds, 3),
    }


def whole_run(
    spec: Spec, hardware: Hardware, data: Dataset, *, every: int, seeds: int
) -> dict[str, Any]:
    """Return the seconds of complete runs of all seeds, `abreast` on one device."""
    specs = [replace(spec, seed=seed, eval_every=every) for seed in range(seeds)]
    start = time.perf_counter()
    steps = 0
    for run, done in run_all(specs, lambda _: data, hardware, abreast=seeds):
        steps += not done
        if done:
            run.result()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return {
        "method": spec.method,
        "eval_every": every,
        "seeds": seeds,
        "steps_per_seed": steps // seeds,
        "seconds": round(seconds, 3),
        "seconds_per_seed": round(seconds / seeds, 3),
    }
