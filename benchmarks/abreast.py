"""Several seeds in turn on one device, and whole runs, as `dualcba run --abreast` does them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.learners import Ready
from dualcba.data import Dataset
from dualcba.experiments import Hardware, Spec, run_all

ROUNDS = 5


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
