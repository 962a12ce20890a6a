"""The contenders of `dualcba.bench` and those of other frameworks."""

from __future__ import annotations

from functools import partial

from benchmarks import avalanche_replay, capymoa_replay
from benchmarks.avalanche_replay import Avalanche
from benchmarks.capymoa_replay import CapyMOA
from dualcba.bench.contenders import contenders
from dualcba.bench.ours import Ours
from dualcba.bench.setup import Make
from dualcba.bench.timing import Name

FOREIGN: dict[str, Make] = {
    "avalanche": Avalanche,
    "avalanche-plain": partial(Avalanche, augmented=False),
    "capymoa": CapyMOA,
    "capymoa-plain": partial(CapyMOA, augmented=False),
}
SLOW = ("usual", "avalanche", "avalanche-plain", "capymoa")
UNSCORED = ("avalanche", "avalanche-plain")


def everyone() -> dict[Name, Make]:
    """Return all contenders that can run on this machine, by method and name."""
    observe: Make = partial(Ours, method="er", checked=True)
    foreign = {("er", name): make for name, make in FOREIGN.items() if name not in missing()}
    return {**contenders(["er", "er-dual-cba"]), ("er", "dualcba-observe"): observe, **foreign}


def missing() -> list[str]:
    """Return the names of contenders whose framework is not installed."""
    here = {"avalanche": avalanche_replay.available(), "capymoa": capymoa_replay.available()}
    return [name for name in FOREIGN if not here[name.removesuffix("-plain")]]
