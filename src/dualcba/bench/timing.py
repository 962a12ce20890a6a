"""Contenders take turns (A B C C B A …), so that whatever else the machine does hits all of them.

Times are medians over the rounds, ratios are medians of each round's own ratio to dualcba.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dualcba.bench.setup import Make, Setup

OURS = "dualcba"
SLOW = 4  # contenders much slower than ours take so many times fewer steps a round


def seconds(work: Callable[[], object], device: str) -> float:
    """How long it takes, until the device is done."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


class Timed:
    """A contender with its place in the stream and its times, per step and per image.

    It is through its first steps, outer ones included, before it is timed.
    """

    def __init__(self, make: Make, setup: Setup, steps: int, images: int) -> None:
        self.contender = make(setup)
        self.setup = setup
        self.steps = steps
        self.images = images
        self.k = 0
        self.step_times: list[float] = []
        self.evaluation_times: list[float] = []
        self.advance(setup.first + 4 * setup.outer_every)
        if images:
            for _ in range(4 if setup.cuda else 1):
                self.contender.evaluate(images)

    def advance(self, steps: int) -> None:
        """So many steps on."""
        for k in range(self.k, self.k + steps):
            self.contender.step(k)
        self.k += steps

    def round(self) -> None:
        """Time some steps and one evaluation."""
        device = self.setup.device
        self.step_times.append(seconds(lambda: self.advance(self.steps), device) / self.steps)
        if self.images:
            took = seconds(lambda: self.contender.evaluate(self.images), device)
            self.evaluation_times.append(took / self.images)


Name = tuple[str, str]
"""Of a method and of a contender."""


def side_by_side(
    made: Mapping[Name, Make],
    setup: Setup,
    *,
    steps: int,
    rounds: int,
    slow: tuple[str, ...] = (),
    unscored: tuple[str, ...] = (),
) -> Iterator[list[dict[str, Any]] | None]:
    """Time contenders in turns; gives nothing after each piece of work, and at last the rows.

    `slow` ones take fewer steps a round, `unscored` ones are not asked to evaluate.
    """
    timed = {}
    images = 5000 if setup.cuda else 500
    fewer = max(setup.outer_every, steps // SLOW // setup.outer_every * setup.outer_every)
    for name, make in made.items():
        own = fewer if name[1] in slow else steps
        timed[name] = Timed(make, setup, own, 0 if name[1] in unscored else images)
        yield None
    gc.collect()
    for r in range(rounds):
        for name in list(timed)[:: 1 if r % 2 == 0 else -1]:
            timed[name].round()
            yield None
    yield [row(name, own, timed.get((name[0], OURS))) for name, own in timed.items()]


def row(name: Name, own: Timed, ours: Timed | None) -> dict[str, Any]:
    """What was measured of one contender."""
    step = float(np.median(own.step_times))
    found: dict[str, Any] = {
        "method": name[0],
        "contender": name[1],
        "ms_per_step": round(1e3 * step, 4),
        "quartiles_ms": (1e3 * np.quantile(own.step_times, [0.25, 0.75])).round(4).tolist(),
        "samples_per_second": round(own.setup.batch / step),
    }
    if ours is not None:
        ratios = np.array(own.step_times) / np.array(ours.step_times)
        found["ratio_to_dualcba"] = round(float(np.median(ratios)), 3)
    if own.evaluation_times:
        found["us_per_evaluated_image"] = round(1e6 * float(np.median(own.evaluation_times)), 2)
    return found
