"""Time functions in turns, so that other load on the machine affects all of them equally.

Each round calls every function once, in the order A B C and then C B A. Times are medians over the
rounds. Ratios are medians of the ratios within each round.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dualcba.bench.setup import Make, Setup

OURS = "dualcba"
SLOW = 4
"""The factor by which slow contenders make fewer steps per round."""

Work = Callable[[], object]
Name = tuple[str, str]
"""The names of a method and of a contender."""

K = TypeVar("K", bound=Hashable)


def seconds(work: Work, device: str | torch.device) -> float:
    """Return the seconds of a call, including the work on the device."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def take_turns(work: Sequence[Work], rounds: int) -> Iterator[None]:
    """Call each function once per round, in alternating order; yield None after each call.

    >>> calls = []
    >>> for _ in take_turns([lambda: calls.append("A"), lambda: calls.append("B")], rounds=3):
    ...     pass
    >>> "".join(calls)
    'ABBAAB'
    """
    for r in range(rounds):
        for one in work[:: 1 if r % 2 == 0 else -1]:
            one()
            yield None


class Stopwatch:
    """The times of a function in seconds per unit, one for each call of `run`.

    `units` is the number of steps, images and so on that one call of `work` processes.


    >>> slow, fast = Stopwatch(lambda: time.sleep(0.02)), Stopwatch(lambda: None)
    >>> for _ in take_turns([slow.run, fast.run], rounds=3):
    ...     pass
    >>> slow.median > fast.median, slow.ratio(slow), slow.ratio(fast) > 1
    (True, 1.0, True)
    """

    def __init__(self, work: Work, device: str | torch.device = "cpu", units: int = 1) -> None:
        self.work = work
        self.device = device
        self.units = units
        self.times: list[float] = []

    def run(self) -> None:
        """Call the work once and record the time."""
        self.times.append(seconds(self.work, self.device) / self.units)

    @property
    def median(self) -> float:
        """The median time."""
        return float(np.median(self.times))

    @property
    def quartiles(self) -> NDArray[np.float64]:
        """The first and the third quartile of the times."""
        return np.asarray(np.quantile(self.times, [0.25, 0.75]))

    def ratio(self, other: Stopwatch) -> float:
        """Return the median of the ratios to the other's time in the same round."""
        return float(np.median(self.ratios(other)))

    def ratios(self, other: Stopwatch) -> NDArray[np.float64]:
        """Return the ratio to the other's time in each round."""
        return np.asarray(np.array(self.times) / np.array(other.times))


def time_in_turns(
    work: Mapping[K, Work], rounds: int, device: str | torch.device = "cpu", units: int = 1
) -> dict[K, Stopwatch]:
    """Time several functions in turns; return the stopwatch of each."""
    watches = {name: Stopwatch(one, device, units) for name, one in work.items()}
    for _ in take_turns([watch.run for watch in watches.values()], rounds):
        pass
    return watches


class Timed:
    """A contender with its position in the stream and its times, per step and per image.

    It makes its first steps, including outer steps, before it is timed. With `images=0` it is not
    evaluated.
    """

    def __init__(self, make: Make, setup: Setup, steps: int, images: int) -> None:
        self.contender = make(setup)
        self.setup = setup
        self.k = 0
        self.steps = Stopwatch(lambda: self.advance(steps), setup.device, steps)
        self.evaluation: Stopwatch | None = None
        self.advance(setup.first + 4 * setup.outer_every)
        if images:
            for _ in range(4 if setup.cuda else 1):
                self.contender.evaluate(images)
            evaluate = partial(self.contender.evaluate, images)
            self.evaluation = Stopwatch(evaluate, setup.device, images)

    def advance(self, steps: int) -> None:
        """Make the next steps of the stream."""
        for k in range(self.k, self.k + steps):
            self.contender.step(k)
        self.k += steps

    def round(self) -> None:
        """Time some steps and one evaluation."""
        self.steps.run()
        if self.evaluation is not None:
            self.evaluation.run()


def side_by_side(
    made: Mapping[Name, Make],
    setup: Setup,
    *,
    steps: int,
    rounds: int,
    slow: tuple[str, ...] = (),
    unscored: tuple[str, ...] = (),
) -> Iterator[list[dict[str, Any]] | None]:
    """Time contenders in turns; yield None after each unit of work, then the rows.

    Contenders named in `slow` make fewer steps per round; those in `unscored` are not evaluated.
    """
    timed = {}
    images = 5000 if setup.cuda else 500
    fewer = max(setup.outer_every, steps // SLOW // setup.outer_every * setup.outer_every)
    for name, make in made.items():
        own = fewer if name[1] in slow else steps
        timed[name] = Timed(make, setup, own, 0 if name[1] in unscored else images)
        yield None
    gc.collect()
    yield from take_turns([own.round for own in timed.values()], rounds)
    yield [row(name, own, timed.get((name[0], OURS))) for name, own in timed.items()]


def row(name: Name, own: Timed, ours: Timed | None) -> dict[str, Any]:
    """Return the measurements of one contender."""
    step = own.steps.median
    found: dict[str, Any] = {
        "method": name[0],
        "contender": name[1],
        "ms_per_step": round(1e3 * step, 4),
        "quartiles_ms": (1e3 * own.steps.quartiles).round(4).tolist(),
        "samples_per_second": round(own.setup.batch / step),
    }
    if ours is not None:
        found["ratio_to_dualcba"] = round(own.steps.ratio(ours.steps), 3)
    if own.evaluation is not None:
        found["us_per_evaluated_image"] = round(1e6 * own.evaluation.median, 2)
    return found
