"""Methods and seeds in turn on one device, and whole runs, as `dualcba run --abreast` does them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.learners import Ready
from dualcba.data import Dataset
from dualcba.experiments import Hardware, Spec, run_all

ROUNDS = 5


TURNS = 24


def in_turns(
    specs: Sequence[Spec], hardware: Hardware, data: Dataset, steps: int
) -> list[dict[str, Any]]:
    """Milliseconds per step of each spec, in turns, A B C C B A …, and the ratio to the first."""
    ready = [Ready(spec, hardware, data) for spec in specs]
    times: list[list[float]] = [[] for _ in ready]
    for turn in range(TURNS):
        order = list(range(len(ready)))
        for k in order if turn % 2 == 0 else order[::-1]:
            one = ready[k]
            took = one.seconds(lambda one=one: [one.step() for _ in range(steps)])
            times[k].append(1e3 * took / steps)
    rows = []
    for spec, own in zip(specs, np.array(times), strict=True):
        low, middle, high = np.quantile(own / np.array(times[0]), (0.25, 0.5, 0.75))
        rows.append({
            "method": spec.method,
            "ms_per_step": round(float(np.median(own)), 4),
            "ratio_to_first": round(float(middle), 4),
            "quartiles": f"{low:.4f} to {high:.4f}",
        })  # fmt: skip
    return rows


def steps_abreast(
    spec: Spec, hardware: Hardware, data: Dataset, seeds: int, steps: int
) -> dict[str, Any]:
    """Milliseconds per step and seed with so many learners in turn, and beside one alone."""
    ready = [Ready(replace(spec, seed=seed), hardware, data) for seed in range(seeds)]

    def turns(learners: list[Ready]) -> float:
        def work() -> None:
            for _ in range(steps):
                for one in learners:
                    one.step()

        return 1e3 * ready[0].seconds(work) / (steps * len(learners))

    pairs = np.array([(turns(ready[:1]), turns(ready)) for _ in range(ROUNDS)])
    alone, together = np.median(pairs, 0)
    ratio = float(np.median(pairs[:, 1] / pairs[:, 0]))
    return {
        "method": spec.method,
        "seeds": seeds,
        "ms_per_step_alone": round(float(alone), 4),
        "ms_per_step_and_seed": round(float(together), 4),
        "ratio_to_alone": round(ratio, 3),
    }


def whole_run(
    spec: Spec, hardware: Hardware, data: Dataset, *, every: int, seeds: int
) -> dict[str, Any]:
    """Seconds from nothing to the results of so many seeds, all abreast."""
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
