"""Sweeps: a grid over lists of values, or a random search over ranges.

The values of lists form a grid. Ranges are sampled: each of `samples` draws gives one value per
range, and each point of the grid is run with the same draws. Without a range, `samples` is the
number of points drawn from the grid.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dualcba.errors import at_least, expected, one_of, unknown
from dualcba.experiments.spec import Spec, fields, make_specs
from dualcba.options import definitions
from dualcba.prediction import STATISTICS
from dualcba.randomness import generator

VALIDATION = 0.1
"""The fraction of the training data that scores a sweep, unless `validation` is given."""

SWEPT_SCORES = ("acc", "fm", "acc_auc", "acc_auc_last", "min_acc", "wc_acc", "bwt", "newest")
LOWER_IS_BETTER = ("fm",)
CURVE_SCORES = ("acc_auc", "acc_auc_last", "min_acc", "wc_acc")
"""Scores that need evaluations between task ends."""

LATER_SCORES = ("fm", "min_acc", "wc_acc", "bwt", "newest")
"""Scores that need at least two tasks."""

METHOD_OPTION = "method_options."
RESERVED = ("samples", "score", "statistics")

BESIDE = ("seed", "seeds", "validation")
"""Options that are common to all runs of a sweep."""

Point = dict[str, Any]
"""A value for each swept option."""


@dataclass(frozen=True)
class Range:
    """Values from `low` to `high`, uniform or log-uniform."""

    low: float
    high: float
    log: bool = False

    def at(self, share: float, *, whole: bool) -> float | int:
        """Return the value at a fraction `share` of the range.

        >>> Range(1e-3, 1e-1, log=True).at(0.5, whole=False), Range(10, 20).at(0.26, whole=True)
        (0.01, 13)
        """
        if self.log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return round(value) if whole else float(f"{value:.4g}")


@dataclass(frozen=True)
class Sweep:
    """The swept options, and the score that ranks the runs."""

    lists: Mapping[str, Sequence[Any]]
    ranges: Mapping[str, Range]
    samples: int | None = None
    score: str = "acc"
    statistics: str = "ibn"

    @property
    def varied(self) -> list[str]:
        """The names of the swept options."""
        return [*self.lists, *self.ranges]

    def points(self, seed: int = 0) -> list[Point]:
        """Return the combinations of values to run, which are determined by the seed.

        >>> Sweep({"buffer": [50, 100], "lr": [0.1]}, {}).points()
        [{'buffer': 50, 'lr': 0.1}, {'buffer': 100, 'lr': 0.1}]
        """
        combined = itertools.product(*self.lists.values())
        grid = [dict(zip(self.lists, c, strict=True)) for c in combined]
        rng = generator(seed, "sweep")
        if not self.ranges:
            if self.samples is None or self.samples >= len(grid):
                return grid
            return [grid[k] for k in sorted(rng.permutation(len(grid))[: self.samples].tolist())]
        shares = rng.random((self.samples or 1, len(self.ranges)))
        draws = [self._draw(row) for row in shares.tolist()]
        return [point | draw for point in grid for draw in draws]

    def _draw(self, shares: Sequence[float]) -> Point:
        pairs = zip(self.ranges.items(), shares, strict=True)
        return {name: r.at(share, whole=_kind(name) is int) for (name, r), share in pairs}

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as in a table `[sweep]` of a TOML file."""
        ranges = {name: asdict(r) for name, r in self.ranges.items()}
        lists = {name: list(values) for name, values in self.lists.items()}
        samples = {} if self.samples is None else {"samples": self.samples}
        return {**lists, **ranges, **samples, "score": self.score, "statistics": self.statistics}


def sweep_specs(sweep: Sweep, options: Mapping[str, Any]) -> list[Spec]:
    """Return the unique specs of a sweep; `options` has the other options, as in `make_specs`.

    Runs are scored on a validation split unless `validation` is given.
    """
    given = {"validation": VALIDATION, **{k: v for k, v in options.items() if v is not None}}
    for name in sweep.varied:
        if name in options:
            raise ValueError(f"{name} is given and in the sweep, expected only one of them")
    seed = given.get("seed", 0)
    at_least(0, seed=seed)
    methods = sweep.lists.get("method", ())
    points = sweep.points(seed)
    found = [spec for point in points for spec in make_specs(_with(given, point), methods)]
    for spec in found:
        _check_measured(sweep, spec)
    return list({json.dumps(spec.to_dict(), sort_keys=True): spec for spec in found}.values())


def _check_measured(sweep: Sweep, spec: Spec) -> None:
    """Raise a ValueError if a run would not measure the score of the sweep."""
    by = f"score is {sweep.score!r}"
    if sweep.score in LATER_SCORES and spec.num_tasks < 2:
        others = ", ".join(name for name in SWEPT_SCORES if name not in LATER_SCORES)
        raise ValueError(f"{by} and tasks is 1, expected 2 tasks or more, or one of {others}")
    if sweep.score not in CURVE_SCORES:
        return
    others = ", ".join(name for name in SWEPT_SCORES if name not in CURVE_SCORES)
    if not spec.eval_every:
        wanted = f"steps between evaluations, at least 1, or one of {others}"
        raise ValueError(f"{by} and {expected('eval_every', 0, wanted)}")
    if spec.anytime not in ("both", sweep.statistics):
        by += f" with statistics {sweep.statistics!r}"
        wanted = f"'both' or {sweep.statistics!r}, or statistics {spec.anytime!r}"
        raise ValueError(f"{by} and {expected('anytime', spec.anytime, wanted)}")


def _with(given: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return the options updated with the values of a point."""
    own = {
        k.removeprefix(METHOD_OPTION): v for k, v in point.items() if k.startswith(METHOD_OPTION)
    }
    plain = {k: v for k, v in point.items() if not k.startswith(METHOD_OPTION)}
    options = {"method_options": {**given.get("method_options", {}), **own}} if own else {}
    return {**given, **plain, **options}


# ---------------------------------------------------------------------- reading


def read_sweep(table: Mapping[str, Any]) -> Sweep:
    """Return the sweep in a table of options, each with a list of values or a range.

    >>> read_sweep({"lr": {"low": 0.01, "high": 0.1, "log": True}, "samples": 5}).ranges
    {'lr': Range(low=0.01, high=0.1, log=True)}
    >>> read_sweep({"bufer": [50]})
    Traceback (most recent call last):
    ...
    ValueError: unknown option of the sweep 'bufer', did you mean 'buffer'? (... known, such as ...)
    """
    lists: dict[str, list[Any]] = {}
    ranges: dict[str, Range] = {}
    for name, value in table.items():
        if name in RESERVED:
            continue
        _check_name(name)
        if isinstance(value, Mapping):
            ranges[name] = _range(name, value)
        else:
            lists[name] = _list(name, value)
    samples = table.get("samples")
    score, statistics = table.get("score", "acc"), table.get("statistics", "ibn")
    if not lists and not ranges:
        raise ValueError("the sweep is empty, expected at least one option with values")
    if samples is not None:
        at_least(1, samples=samples)
    elif ranges:
        name = next(iter(ranges))
        raise ValueError(f"{name} is a range, expected `samples`, the number of draws, as well")
    one_of(SWEPT_SCORES, score=score)
    one_of(STATISTICS, statistics=statistics)
    return Sweep(lists, ranges, samples, score, statistics)


def _check_name(name: str) -> None:
    if name.startswith(METHOD_OPTION) and name != METHOD_OPTION:
        return
    if name in BESIDE:
        wanted = f"--{name}, which applies to the whole sweep"
        raise ValueError(f"{name} is in the sweep, expected {wanted}")
    known = [field for field in fields() if field not in (*BESIDE, "method_options")]
    if name not in known:
        raise ValueError(unknown("option of the sweep", name, [*known, f"{METHOD_OPTION}NAME"]))


def _list(name: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError(expected(name, value, "at least one value"))
    unique = [v for k, v in enumerate(values) if v not in values[:k]]
    return [definitions(Spec)[name].check(v) if name in definitions(Spec) else v for v in unique]


def _range(name: str, value: Mapping[str, Any]) -> Range:
    wanted = "a range: low and high, numbers with low < high, and perhaps log = true"
    low, high = (_number(value.get(end)) for end in ("low", "high"))
    log = value.get("log", False)
    known = set(value) <= {"low", "high", "log"} and isinstance(log, bool)
    if not known or _kind(name) not in (int, float) or not -math.inf < low < high < math.inf:
        raise ValueError(expected(name, dict(value), wanted))
    if log and low <= 0:
        raise ValueError(expected(f"{name}.low", low, "a number above 0 if log is true"))
    return Range(low, high, log)


def _number(value: Any) -> float:
    """Return a number unchanged, and NaN for any other value."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return value if real else math.nan


def _kind(name: str) -> Any:
    """Return the type of an option; options of methods are taken as floats."""
    return definitions(Spec)[name].kind if name in definitions(Spec) else float
