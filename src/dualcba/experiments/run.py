"""Runs of a spec, from the data to the result."""

from __future__ import annotations

import platform
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.adaptors.pretrained import load_agnostic
from dualcba.data import (
    Dataset,
    Task,
    batches,
    blurry,
    cycled,
    disjoint,
    gaussian,
    i_blurry,
    labelled,
    long_tailed,
    validation_split,
)
from dualcba.data.prefetch import fits_on_device, prefetch_batches
from dualcba.engine import resolve_device
from dualcba.errors import expected
from dualcba.evaluation import ANYTIME, RECORDERS, Clock, Evaluator, Scoring
from dualcba.experiments.merging import merged_rows, with_exemplars
from dualcba.experiments.provenance import by_protocol, held_out
from dualcba.experiments.real_time import events, parted, trained_batches
from dualcba.experiments.result import SCHEMA
from dualcba.experiments.settings import learning_rate, parse_settings
from dualcba.experiments.spec import Spec
from dualcba.learner import Learner
from dualcba.methods import Method, parse_method
from dualcba.methods.fixmatch import FixMatch
from dualcba.nets import make_network
from dualcba.normalization.layers import convert_normalization
from dualcba.options import Hardware, TrainingOptions, definitions
from dualcba.randomness import first_weights, generator

AGNOSTIC = "agnostic.safetensors"

Indices = NDArray[np.int64]
Arrivals = Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a task: the rows of each batch, (steps, n)."""

    rows: Indices
    storable: NDArray[np.bool_] | None = None
    """(steps, n) the samples that may enter the memory; None for all."""

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, steps: int) -> Pass:
        """Return a pass with the first `steps` batches only."""
        return Pass(self.rows[:steps], None if self.storable is None else self.storable[:steps])


@dataclass
class Run:
    """A run of one spec: iterate over `steps`, then call `result`.

    `data` is the dataset, or the split of it that the spec's `validation` asks for.
    `alone` says that no other run uses the device, so that its peak memory can be measured.
    """

    spec: Spec
    data: Dataset
    hardware: Hardware = field(default_factory=Hardware)
    alone: bool = True
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})
    taken: int = 0
    """The number of batches so far; `steps` goes on after them."""

    peak: int = 0
    """The peak GPU memory in bytes before a checkpoint was loaded."""

    def __post_init__(self) -> None:
        spec = self.spec
        self.data = validation_split(self.data, spec.validation)
        self.setting = next(iter(parse_settings(spec.setting).values()))  # the arrangement
        source = spec.agnostic_from  # read now: the file may be gone when the run is complete
        kind = parse_method(spec.method)[1] or ""
        self.agnostic_provenance = source and load_agnostic(source, kind).provenance
        self.relative_cost = spec.relative_cost
        if spec.real_time and spec.relative_cost is None:
            from dualcba.experiments.relative_cost import count_relative_cost  # it uses this module

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
        lengths = [sum(map(len, passes)) for passes in self.schedule]
        scoring = Scoring(ANYTIME[spec.anytime], spec.eval_every, spec.epochs, self.clock)
        self.recorders = {
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

        A run that has loaded a checkpoint goes on after the batches that it has `taken`.
        """
        train_y = self._visible_labels()
        arrive = self._arrivals(train_y)
        if self.learner.method.merge:
            arrive = with_exemplars(arrive, self.learner.memory, len(train_y), self.engine)
        labels = None if self.learner.method.merge else train_y.numpy()
        if not self.taken:
            with self._clock("evaluate"):
                self.evaluator.evaluate("start")
        if self.clock is not None:
            yield from self._real_time(arrive, train_y.numpy(), self.clock)
            self.learner.check_finite()
            return
        for number, epoch, start in self._passes_left():
            passes = self.schedule[number]
            one = passes[epoch]
            if not epoch and not start:
                self._begin_task(self.stream[number])
            self._set_learning_rate(epoch, len(passes))
            for k, (x, y) in enumerate(self._clocked(arrive(one.rows[start:])), start):
                self._record(x, y)
                last = epoch == len(passes) - 1 and k == len(one) - 1
                ends = last and self._end_is_known(number)
                storable = None if one.storable is None else one.storable[k]
                known = None if labels is None else labels[one.rows[k]]
                self._train(x, y, storable, known, again=epoch > 0, ends=ends)
                self._evaluate(number, last)
                self.taken += 1
                yield self.learner.step
        self.learner.check_finite()

    def _passes_left(self) -> Iterator[tuple[int, int, int]]:
        """Yield the task, the epoch and the first batch of each pass that is not complete."""
        skipped = self.taken
        for number, passes in enumerate(self.schedule):
            for epoch, one in enumerate(passes):
                if skipped < len(one):
                    yield number, epoch, skipped
                skipped = max(0, skipped - len(one))

    def _real_time(
        self, arrive: Callable[[Indices], Arrivals], labels: Indices, clock: Clock
    ) -> Iterator[int]:
        """Train and evaluate while the stream goes on; yields after each batch."""
        assert self.relative_cost is not None
        lengths = [len(passes[0]) for passes in self.schedule]
        whole = joined([passes[0] for passes in self.schedule])
        past, left = parted(events(lengths, self.relative_cost), self.taken)
        rows = whole.rows[trained_batches(len(whole), self.relative_cost)]
        trained = self._clocked(arrive(rows[past["train"] :]))
        # without recorders nobody looks at the batches that arrive
        arriving = arrive(whole.rows[past["arrive"] :]) if self.recorders else None
        ends = np.cumsum(lengths).tolist()
        clock.now = self.taken
        self._set_learning_rate(0, 1)
        for event in left:
            number = event.number
            if event.kind == "begin":
                self._begin_task(self.stream[number])
            elif event.kind == "arrive" and arriving is not None:
                self._record(*next(arriving))
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
        """Return a copy of the training labels, with −1 for those that the setting hides."""
        train_y = self.data.train_y.clone()
        if self.has_label is not None:
            train_y[torch.from_numpy(~self.has_label)] = -1
        return train_y

    def _arrivals(self, train_y: Tensor) -> Callable[[Indices], Arrivals]:
        """Return a function from the rows of a pass to its batches, on the device."""
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

    def _end_is_known(self, number: int) -> bool:
        """Return whether `end_task` is called at the end of a task."""
        return self.spec.boundaries == "given" or number == len(self.stream) - 1

    def _set_learning_rate(self, epoch: int, epochs: int) -> None:
        with self._clock("train"), self.engine.scope():
            lr = learning_rate(self.spec.lr, self.setting, epoch, epochs)
            self.learner.parts.context.lr.fill_(lr)

    def _record(self, x: Tensor, y: Tensor) -> None:
        """Call the recorders before a step."""
        if not self.recorders:
            return
        with self._clock("evaluate"), self.engine.scope():
            for recorder in self.recorders.values():
                recorder.before_step(x, y)

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
        """Take one step, and end the task if it is the last one of it."""
        with self._clock("train"), self.engine.scope():
            self.learner.observe_on_device(x, y, storable, labels=labels, again=again)
            if ends:
                self.learner.end_task()

    def _evaluate(self, task: int, last: bool) -> None:
        """Evaluate if it is due; `last` says that the step was the last one of the task."""
        every = self.spec.eval_every
        anytime = every > 0 and self.position % every == 0
        if anytime or last:
            with self._clock("evaluate"):
                kind = "both" if anytime and last else "end" if last else "anytime"
                self.evaluator.evaluate(kind, task, self.position)

    def result(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        with self._clock("evaluate"):
            measured = self.evaluator.result()
            if self.recorders:
                with self.engine.scope():
                    recorded = {name: r.result() for name, r in self.recorders.items()}
                    found = [pair for r in self.recorders.values() for pair in r.scores().items()]
                measured["recordings"] = recorded
                for statistics, scores in found:
                    measured["scores"][statistics] |= scores
        spec = self.spec
        total = self.seconds["train"] + self.seconds["evaluate"]
        return {
            "schema": SCHEMA,
            "method": spec.method,
            "dataset": spec.dataset,
            "setting": spec.setting,
            "buffer": spec.buffer,
            "seed": spec.seed,
            "status": "complete",
            **measured,
            "seconds": {**self.seconds, "total": total},
            "cost": self.cost() | self._real_time_cost(),
            "spec": spec.to_dict(),
            "data": asdict(self.data.origin),
            "agnostic_provenance": self.agnostic_provenance,
            "versions": versions(self.learner),
        }

    def _real_time_cost(self) -> dict[str, float]:
        """Return the relative cost in real-time evaluation, else nothing."""
        return {} if self.relative_cost is None else {"relative_cost": self.relative_cost}

    def cost(self) -> dict[str, int | None]:
        """Return the cost of the run so far, with that before a checkpoint was loaded."""
        found = cost(self.learner, self.held)
        if found["gpu_memory"] is not None:
            found["gpu_memory"] = max(self.peak, found["gpu_memory"])
        return found

    def files(self) -> dict[str, Callable[[Path], None]]:
        """Return the files beside `result.json`, as functions that write them: ν, if trained."""
        adaptor = self.learner.adaptor
        if adaptor is None or adaptor.agnostic is None or self.spec.agnostic_from is not None:
            return {}
        save = partial(self.learner.save_agnostic, provenance=self.provenance())
        return {AGNOSTIC: save}

    def provenance(self) -> dict[str, Any]:
        """Return the origin of ν, to be stored with it."""
        shown = ("dataset", "setting", "method", "specific", "buffer", "seed", "tasks")
        made_by = versions(self.learner)["dualcba"]
        found = {name: getattr(self.spec, name) for name in shown}
        return found | held_out(self.spec) | by_protocol(self.spec) | {"dualcba": made_by}

    def _clocked(self, batches: Arrivals) -> Arrivals:
        """Count the time until a batch is there as training; on CUDA a full queue waits here."""
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self.seconds["train"] += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        """Add the time on the host; work on CUDA is queued, so the split is approximate."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


def joined(passes: Sequence[Pass]) -> Pass:
    """Return one pass after another as one pass."""
    masks = [one.storable for one in passes if one.storable is not None]
    rows = np.concatenate([one.rows for one in passes])
    return Pass(rows, np.concatenate(masks) if masks else None)


def make_stream(spec: Spec, data: Dataset) -> list[Task]:
    """Return the tasks of a spec, with the training samples as the setting arranges them."""
    order = spec.class_order
    if isinstance(order, str):
        rng = generator(spec.seed, "classes")
        order = rng.permutation(data.num_classes).tolist() if order == "shuffled" else None
    stream = disjoint(data, spec.tasks, order)
    settings, labels = parse_settings(spec.setting), data.train_y.numpy()
    if tail := settings.get("longtail"):
        stream = long_tailed(stream, labels, tail.value, generator(spec.seed, "longtail"))
    if one := settings.get("blurry"):
        return blurry(stream, one.value, generator(spec.seed, "blurry"))
    if one := settings.get("i-blurry"):
        rng = generator(spec.seed, "i-blurry")
        return i_blurry(stream, labels, one.value, one.second, rng)
    if one := settings.get("gaussian"):
        return gaussian(stream, labels, one.value, generator(spec.seed, "gaussian"))
    return stream


def make_label_mask(
    spec: Spec, data: Dataset, stream: Sequence[Task] | None = None
) -> NDArray[np.bool_] | None:
    """Return the mask of training samples with a label; None if all have one.

    On a long-tailed stream the labels are those of samples that it has.
    """
    settings = parse_settings(spec.setting)
    if "semi" not in settings:
        return None
    tail = stream is not None and "longtail" in settings
    among = np.concatenate([task.train for task in stream or ()]) if tail else None
    return labelled(data, settings["semi"].value, generator(spec.seed, "labels"), among)


def make_schedule(
    spec: Spec, stream: Sequence[Task], has_label: NDArray[np.bool_] | None, data: Dataset
) -> list[list[Pass]]:
    """Return the passes over each task."""
    rng = generator(spec.seed, "order")
    method = parse_method(spec.method)[0](**spec.method_options)
    if method.merge:
        return _merged_schedule(spec, stream, data, method, rng)

    def one(task: Task) -> Pass:
        if has_label is not None and spec.labelled_batches == "cycled":
            every = spec.unlabelled_samples == "all"
            rows, first = cycled(task, has_label, spec.batch_size, rng, every=every)
            return Pass(rows, has_label[rows] & first)
        rows = batches(task, spec.batch_size, rng)
        return Pass(rows, None if has_label is None else has_label[rows])

    return [[one(task) for _ in range(spec.epochs)] for task in stream]


def _merged_schedule(
    spec: Spec, stream: Sequence[Task], data: Dataset, method: Method, rng: np.random.Generator
) -> list[list[Pass]]:
    """Return the passes over each task and the exemplars of earlier tasks."""
    if spec.boundaries != "given":
        wanted = "'given': exemplars are mixed into a task when it begins"
        raise ValueError(expected("boundaries", spec.boundaries, wanted))
    schedule = merged_rows(
        stream, data.train_y.numpy(), data.num_classes, batch_size=spec.batch_size,
        epochs=spec.epochs, size=spec.buffer, held_out=getattr(method, "held_out", 0), rng=rng,
    )  # fmt: skip
    return [[Pass(rows, rows < len(data.train_y)) for rows in passes] for passes in schedule]


def make_learner(spec: Spec, data: Dataset, hardware: Hardware) -> Learner:
    """Make the learner of a spec."""
    with first_weights(spec.seed):
        network = make_network(spec.network, data.input_shape, data.num_classes)
        network = convert_normalization(network, spec.norm)
    base, kind = parse_method(spec.method)
    method = base(**spec.method_options)
    if "semi" in parse_settings(spec.setting):
        first = spec.batch_size if spec.labelled_batches == "cycled" else 0
        every, adapted = spec.unlabelled_samples == "all", spec.pseudo_labels != "raw"
        method = FixMatch(method, labelled=first, every=every, adapted=adapted)
    shared = {name: getattr(spec, name) for name in definitions(TrainingOptions)}
    raw = data if spec.pixels == "normalised" else replace(data, mean=[0.0], std=[1.0])
    return Learner(
        network,
        data.input_shape,
        data.num_classes,
        **shared | {"method_options": None, "method": method, "adaptor": kind},
        transform=raw.transform(),
        dtype=data.train_x.dtype,
        device=hardware.device,
        engine=hardware.engine,
        precision=hardware.precision,
        ibn_refresh="full",  # predictions of a run are those that it is scored by
    )


def versions(learner: Learner) -> dict[str, str]:
    """Return the versions of the software, and the hardware, that computed a result."""
    import dualcba

    return {
        "dualcba": dualcba.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device_name(learner.device),
        "engine": type(learner.parts.engine).__name__.lower(),
        "precision": "bf16" if learner.parts.precision.bf16 else "fp32",
    }


def device_name(device: torch.device) -> str:
    """Return the name of a device in a result."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name})"


def cost(learner: Learner, held: int | None = None) -> dict[str, int | None]:
    """Return the number of parameters of network and adaptor, and the peak GPU memory in bytes.

    `held` is the memory allocated before the run, which does not count.
    """
    parts = [learner.network, *([learner.adaptor] if learner.adaptor else [])]
    most = None if held is None else torch.cuda.max_memory_allocated(learner.device) - held
    return {
        "parameters": sum(p.numel() for part in parts for p in part.parameters()),
        "gpu_memory": most,
    }
