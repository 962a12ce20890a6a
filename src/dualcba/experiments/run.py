"""A run: from spec and data to the result."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.adaptors.pretrained import load_agnostic
from dualcba.data import Dataset, Task, validation_split
from dualcba.data.prefetch import fits_on_device, prefetch_batches
from dualcba.engine import resolve_device
from dualcba.evaluation import ANYTIME, RECORDERS, Clock, Evaluator, Recorder, Scoring
from dualcba.experiments.making import (
    Indices,
    first_arrivals,
    joined,
    make_label_mask,
    make_learner,
    make_schedule,
    make_stream,
)
from dualcba.experiments.merging import with_exemplars
from dualcba.experiments.provenance import provenance
from dualcba.experiments.real_time import events, parted, trained_batches
from dualcba.experiments.relative_cost import count_relative_cost
from dualcba.experiments.result import COMPLETE, NAMED, SCHEMA
from dualcba.experiments.settings import learning_rate
from dualcba.experiments.spec import Spec
from dualcba.experiments.versions import versions
from dualcba.learner import Learner
from dualcba.methods import parse_method
from dualcba.options import Hardware

AGNOSTIC = "agnostic.safetensors"

Arrivals = Iterator[tuple[Tensor, Tensor]]


@dataclass
class Run:
    """A run of one spec: iterate over `steps`, then call `result`.

    `data` is the dataset, or its validation split if the spec has `validation`. `alone` means that
    no other run uses the device, so that peak memory can be measured.
    """

    spec: Spec
    data: Dataset
    hardware: Hardware = field(default_factory=Hardware)
    alone: bool = True
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})
    taken: int = 0
    """The number of batches so far, after which `steps` continues."""

    peak: int = 0
    """The peak GPU memory in bytes before a checkpoint was loaded."""

    def __post_init__(self) -> None:
        spec = self.spec
        self.data = validation_split(self.data, spec.validation)
        source = spec.agnostic_from  # read now, since the file may be removed during the run
        kind = parse_method(spec.method)[1] or ""
        self.agnostic_provenance = source and load_agnostic(source, kind).provenance
        self.relative_cost = spec.relative_cost
        if spec.real_time and spec.relative_cost is None:
            self.relative_cost = count_relative_cost(spec, self.data, self.hardware)
        self.clock = None if self.relative_cost is None else Clock()
        self.stream = make_stream(spec, self.data)
        self.has_label = make_label_mask(spec, self.data, self.stream)
        self.schedule = make_schedule(spec, self.stream, self.has_label, self.data)
        device = resolve_device(self.hardware.device)
        counts = self.alone and device.type == "cuda"
        self.held = torch.cuda.memory_allocated(device) if counts else None
        self.learner = make_learner(spec, self.data, self.hardware)
        self.engine = self.learner.parts.engine
        if counts:
            torch.cuda.reset_peak_memory_stats(device)
        self.evaluator = Evaluator(
            self.learner, self.data, self.stream, anytime=ANYTIME[spec.anytime]
        )
        self.recorders = self._make_recorders()

    def _make_recorders(self) -> dict[str, Recorder]:
        spec, lengths = self.spec, [sum(map(len, passes)) for passes in self.schedule]
        scoring = Scoring(ANYTIME[spec.anytime], spec.eval_every, spec.epochs, self.clock)
        return {
            name: RECORDERS[name](self.learner, self.data, self.stream, lengths, scoring)
            for name in spec.record
        }

    @property
    def total(self) -> int:
        """The number of steps."""
        return sum(len(one) for passes in self.schedule for one in passes)

    @property
    def position(self) -> int:
        """The number of steps so far; in real time, of batches that have arrived."""
        return self.learner.step if self.clock is None else self.clock.now

    def steps(self) -> Iterator[int]:
        """Train and evaluate; yields `position` after each step, or in real time each batch.

        After a checkpoint was loaded, it continues after `taken` batches.
        """
        train_y = self._visible_labels()
        arrive = self._arrivals(train_y)
        method, memory = self.learner.method, self.learner.memory
        if method.merge:
            arrive = with_exemplars(arrive, method, memory, len(train_y), self.engine)
        labels = None if method.merge else train_y.numpy()
        if not self.taken:
            with self._clock("evaluate"):
                self.evaluator.evaluate("start")
        if self.clock is not None:
            yield from self._real_time(arrive, train_y.numpy(), self.clock)
            self.learner.check_finite()
            return
        for number, epoch, start in self._passes_left():
            yield from self._take_pass(arrive, labels, number, epoch, start)
        self.learner.check_finite()

    def _take_pass(
        self,
        arrive: Callable[[Indices], Arrivals],
        labels: Indices | None,
        number: int,
        epoch: int,
        start: int,
    ) -> Iterator[int]:
        """Train and evaluate in an epoch of a task, from batch `start`; yields after each step."""
        passes = self.schedule[number]
        one = passes[epoch]
        if not epoch and not start:
            self._begin_task(self.stream[number])
        self._set_learning_rate(epoch, len(passes))
        for k, (x, y) in enumerate(self._clocked(arrive(one.rows[start:])), start):
            self._record(x, y, self.taken)
            last = epoch == len(passes) - 1 and k == len(one) - 1
            ends = last and self._end_is_known(number)
            storable = None if one.storable is None else one.storable[k]
            known = None if labels is None else labels[one.rows[k]]
            self._train(x, y, storable, known, again=epoch > 0, ends=ends)
            self._evaluate(number, last)
            self.taken += 1
            yield self.learner.step

    def _passes_left(self) -> Iterator[tuple[int, int, int]]:
        """Yield the task, the epoch and the next batch of each incomplete pass."""
        skipped = self.taken
        for number, passes in enumerate(self.schedule):
            for epoch, one in enumerate(passes):
                if skipped < len(one):
                    yield number, epoch, skipped
                skipped = max(0, skipped - len(one))

    def _real_time(
        self, arrive: Callable[[Indices], Arrivals], labels: Indices, clock: Clock
    ) -> Iterator[int]:
        """Train and evaluate in real time; yields after each batch of the stream."""
        assert self.relative_cost is not None
        lengths = [len(passes[0]) for passes in self.schedule]
        whole = joined([passes[0] for passes in self.schedule])
        past, left = parted(events(lengths, self.relative_cost), self.taken)
        rows = whole.rows[trained_batches(len(whole), self.relative_cost)]
        trained = self._clocked(arrive(rows[past["train"] :]))
        # only recorders use the batches that arrive
        arriving = arrive(whole.rows[past["arrive"] :]) if self.recorders else None
        ends = np.cumsum(lengths).tolist()
        clock.now = self.taken
        self._set_learning_rate(0, 1)
        for event in left:
            number = event.number
            if event.kind == "begin":
                self._begin_task(self.stream[number])
            elif event.kind == "arrive" and arriving is not None:
                self._record(*next(arriving), number)
            elif event.kind == "train":
                storable = None if whole.storable is None else whole.storable[number]
                known = labels[whole.rows[number]]
                self._train(*next(trained), storable, known, again=False, ends=False)
            elif event.kind == "end" and self._end_is_known(number):
                with self._clock("train"):
                    self.learner.end_task()
            elif event.kind == "tick":
                clock.now = self.taken = number + 1
                task = bisect_right(ends, number)
                self._evaluate(task, clock.now == ends[task])
                yield clock.now

    def _visible_labels(self) -> Tensor:
        """Return a copy of the training labels, with −1 for hidden ones."""
        train_y = self.data.train_y.clone()
        if self.has_label is not None:
            train_y[torch.from_numpy(~self.has_label)] = -1
        return train_y

    def _arrivals(self, train_y: Tensor) -> Callable[[Indices], Arrivals]:
        """Return a function that yields the batches of a pass on the device, given its rows."""
        train_x, engine, device = self.data.train_x, self.engine, self.learner.device
        if not fits_on_device(self.data, device):
            return lambda rows: (
                (engine.receive(x), engine.receive(y))
                for x, y in prefetch_batches(train_x, train_y, rows)
            )
        train_x, train_y = train_x.to(device), train_y.to(device)
        engine.keep_alive([train_x, train_y])

        def arrive(rows: Indices) -> Arrivals:
            index = engine.receive(torch.from_numpy(rows))  # a copy: the engine may lag behind
            for k in range(len(rows)):
                with engine.scope():
                    batch = train_x[index[k]], train_y[index[k]]
                yield batch

        return arrive

    def _begin_task(self, task: Task) -> None:
        """Announce a task, unless the learner infers the boundaries."""
        if self.spec.boundaries == "given":
            with self._clock("train"):
                self.learner.new_task(task.classes)
                if self.learner.method.previews_task:
                    self._preview(task)

    def _preview(self, task: Task) -> None:
        """Pass the labelled samples of a task to the method before the first step."""
        rows, data, engine = torch.from_numpy(task.train), self.data, self.engine
        if self.has_label is not None:
            rows = rows[torch.from_numpy(self.has_label)[rows]]
        x, y = (engine.receive(each[rows]) for each in (data.train_x, data.train_y))
        with engine.scope():
            self.learner.method.preview_task(x, y)

    def _end_is_known(self, number: int) -> bool:
        """Return whether the learner is told of the end of a task."""
        return self.spec.boundaries == "given" or number == len(self.stream) - 1

    def _set_learning_rate(self, epoch: int, epochs: int) -> None:
        with self._clock("train"), self.engine.scope():
            lr = learning_rate(self.spec.lr, epoch, epochs, drops=self.spec.lr_drops)
            self.learner.parts.context.lr.fill_(lr)

    def _record(self, x: Tensor, y: Tensor, number: int) -> None:
        """Call the recorders before step `number`, or in real time when the batch arrives."""
        if not self.recorders:
            return
        first = self._first[number]
        with self._clock("evaluate"), self.engine.scope():
            new = y if first.all() else y.where(self.engine.receive(torch.from_numpy(first)), -1)
            for recorder in self.recorders.values():
                recorder.before_step(x, new if recorder.first_only else y)

    @cached_property
    def _first(self) -> list[NDArray[np.bool_]]:
        """For each batch, a mask of the samples that arrive for the first time."""
        every = [one for passes in self.schedule for one in passes]
        return [row for mask in first_arrivals(every, len(self.data.train_y)) for row in mask]

    def _train(
        self,
        x: Tensor,
        y: Tensor,
        storable: NDArray[np.bool_] | None,
        labels: Indices | None,
        *,
        again: bool,
        ends: bool,
    ) -> None:
        """Take one step, and end the task if `ends`."""
        with self._clock("train"), self.engine.scope():
            self.learner.observe_on_device(x, y, storable, labels=labels, again=again)
            if ends:
                self.learner.end_task()

    def _evaluate(self, task: int, last: bool) -> None:
        """Evaluate if it is due; `last` marks the last step of the task."""
        every = self.spec.eval_every
        anytime = every > 0 and self.position % every == 0
        if anytime or last:
            with self._clock("evaluate"):
                kind = "both" if anytime and last else "end" if last else "anytime"
                self.evaluator.evaluate(kind, task, self.position)

    def result(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        with self._clock("evaluate"):
            measured = self._measured()
        spec, relative = self.spec, self.relative_cost
        return {
            "schema": SCHEMA,
            **{name: getattr(spec, name) for name in (*NAMED, "seed")},
            "status": COMPLETE,
            **measured,
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
            "cost": self.cost() | ({} if relative is None else {"relative_cost": relative}),
            "spec": spec.to_dict(),
            "data": asdict(self.data.origin),
            "agnostic_provenance": self.agnostic_provenance,
            "versions": versions(self.learner),
        }

    def _measured(self) -> dict[str, Any]:
        """Return the measurements of the evaluator and the recorders."""
        measured = self.evaluator.result()
        if self.recorders:
            with self.engine.scope():
                recorded = {name: r.result() for name, r in self.recorders.items()}
                found = [pair for r in self.recorders.values() for pair in r.scores().items()]
            measured["recordings"] = recorded
            for statistics, scores in found:
                measured["scores"][statistics] |= scores
        return measured

    def cost(self) -> dict[str, int | None]:
        """Return the cost of the run so far, including the part before a loaded checkpoint."""
        found = cost(self.learner, self.held)
        if found["gpu_memory"] is not None:
            found["gpu_memory"] = max(self.peak, found["gpu_memory"])
        return found

    def files(self) -> dict[str, Callable[[Path], None]]:
        """Return functions that write further files of the run, by name: ν if it was trained."""
        adaptor = self.learner.adaptor
        if adaptor is None or adaptor.agnostic is None or self.spec.agnostic_from is not None:
            return {}
        save = partial(self.learner.save_agnostic, provenance=self.provenance())
        return {AGNOSTIC: save}

    def provenance(self) -> dict[str, Any]:
        """Return the provenance to store with ν."""
        made_by = versions(self.learner)["dualcba"]
        return provenance(self.spec, self.spec.seed) | {"dualcba": made_by}

    def _clocked(self, batches: Arrivals) -> Arrivals:
        """Count the time to get a batch as training; on CUDA it includes waiting for the queue."""
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.seconds["train"] += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        """Add the wall-clock time of the block; approximate on CUDA, which is asynchronous."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


def cost(learner: Learner, held: int | None = None) -> dict[str, int | None]:
    """Return the number of parameters of network and adaptor, and the peak GPU memory in bytes.

    `held` is the memory allocated before the run, which is subtracted.
    """
    parts = [learner.network, *([learner.adaptor] if learner.adaptor else [])]
    most = None if held is None else torch.cuda.max_memory_allocated(learner.device) - held
    return {
        "parameters": sum(p.numel() for part in parts for p in part.parameters()),
        "gpu_memory": most,
    }
