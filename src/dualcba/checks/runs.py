"""Runs over the synthetic stream, cached for several checks."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dualcba.checks.states import as_bytes, digest, held_bytes
from dualcba.checks.stream import STEPS, Arrival, Event, Material, play
from dualcba.learner import Learner

MakeLearner = Callable[[int], Learner]

LONG = 20  # steps per task in the checks of memory and time
SECOND = STEPS + 1  # the event that begins the second task
POINTS = (0, 1, 1 + STEPS // 2, SECOND, SECOND + 1, SECOND + 3)  # events before which to restore
FILE = "learner.safetensors"


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block, and restore them afterwards.

    A learner must not depend on the global generators.
    """
    numbers, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(legacy)  # noqa: NPY002


@dataclass(frozen=True)
class Reference:
    """A learner with seed 0 that makes no predictions before the end of the stream."""

    events: list[Event]
    x: NDArray[Any]
    """Samples for predictions."""
    end: dict[str, bytes]
    """The state after the stream, and the answers for `x`."""
    snapshots: Mapping[int, dict[str, Any]]
    """States returned by the learner before some of the events."""
    kept: Mapping[int, dict[str, bytes]]
    """Copies of these states as bytes, made at the same moment."""
    file: bytes
    """The file saved by the learner at the last of these points."""


class Size(NamedTuple):
    """Bytes of the state and of the whole learner after a step, without samples it may store."""

    step: int
    state: int
    held: int


@dataclass
class Long:
    """A learner on a longer stream: its sizes, and the seconds of steps from the second task on."""

    rereads: bool
    sizes: list[Size] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Runs:
    """Makes learners, and caches the runs that several checks share."""

    def __init__(self, make: MakeLearner) -> None:
        self.make = make

    def start(self, **stream: int) -> tuple[Learner, Material, list[Event]]:
        """Return a learner with seed 0, data for it, and the events of a stream."""
        learner = self.make(0)
        material = Material(learner)
        return learner, material, material.stream(**stream)

    @cached_property
    def reference(self) -> Reference:
        """The run to compare others with."""
        learner, material, events = self.start()
        x, snapshots, kept = material.questions(), {}, {}
        with global_randomness(1):
            for i, event in enumerate(events):
                if i in POINTS:
                    snapshots[i] = learner.state_dict()
                    kept[i] = digest(snapshots[i])
                if i == POINTS[-1]:
                    file = _saved(learner)
                play(learner, [event])
            return Reference(events, x, end_of(learner, x), snapshots, kept, file)

    @cached_property
    def long(self) -> Long:
        """The run for the checks of memory and time."""
        return self.play_long()

    def play_long(self) -> Long:
        """Make and return a new run for these checks."""
        learner, _, events = self.start(steps=LONG, tasks=3)
        out, arrived = Long(learner.method.rereads_task), 0
        for event in events:
            begun = time.perf_counter()
            play(learner, [event])
            if not isinstance(event, Arrival):
                arrived = 0
                continue
            _wait(learner)
            arrived += event.x.nbytes + event.y.nbytes
            if learner.task > 0:
                out.seconds.append(time.perf_counter() - begun)
                if learner.step - learner.task_starts[-1] in (LONG // 4, LONG):
                    out.sizes.append(_size(learner, arrived if out.rereads else 0))
        return out


def end_of(learner: Learner, x: NDArray[Any]) -> dict[str, bytes]:
    """Return the entries of a learner's state and its predictions for `x`, as bytes."""
    state = digest(learner.state_dict())
    return {**state, "answers": as_bytes(learner.predict_proba(x))}


def _saved(learner: Learner) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / FILE)
        return (Path(folder) / FILE).read_bytes()


def _size(learner: Learner, own: int) -> Size:
    """Return the size of a learner minus `own` bytes, those of the task that it reads again."""
    state = sum(t.nbytes for t in learner.state_dict()["tensors"].values())
    held = held_bytes(learner, leaving_out=(learner.parts.engine,))  # it may hold graphs
    return Size(learner.step, state - own, held - own)


def _wait(learner: Learner) -> None:
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
