"""Runs a spec from the data to the result."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.adaptors.pretrained import load_agnostic
from dualcba.data import Dataset, Task, batches, blurry, cycled, disjoint, labelled
from dualcba.data.prefetch import read_ahead, resident
from dualcba.engine import resolve_device
from dualcba.evaluation import ANYTIME, RECORDERS, Evaluator
from dualcba.experiments.result import SCHEMA
from dualcba.experiments.settings import learning_rate, parse_setting
from dualcba.experiments.spec import Spec
from dualcba.learner import Learner
from dualcba.methods import parse_method
from dualcba.methods.fixmatch import FixMatch
from dualcba.nets import make_network
from dualcba.normalization.layers import convert_normalization
from dualcba.randomness import first_weights, generator

AGNOSTIC = "agnostic.safetensors"

Indices = NDArray[np.int64]
Arrivals = Iterator[tuple[Tensor, Tensor]]


@dataclass
class Hardware:
    """Where and how runs are computed; changes their speed, not their meaning."""

    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a task: (steps, n) rows, and which of them the memory may take, if not all."""

    rows: Indices
    kept: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, steps: int) -> Pass:
        """Its first so many steps."""
        return Pass(self.rows[:steps], None if self.kept is None else self.kept[:steps])


@dataclass
class Run:
    """One run under way: iterate `steps`, then ask for the `result`."""

    spec: Spec
    data: Dataset
    hardware: Hardware = field(default_factory=Hardware)
    alone: bool = True  # on its device; else nobody can say how much memory is whose
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})

    def __post_init__(self) -> None:
        spec = self.spec
        self.setting = parse_setting(spec.setting)
        source = spec.agnostic_from  # read now: the file may be gone when the run is complete
        self.agnostic_provenance = source and load_agnostic(source).provenance
        self.stream = make_stream(spec, self.data)
        self.known = make_known(spec, self.data)
        self.plan = make_plan(spec, self.stream, self.known)
        device = resolve_device(self.hardware.device)
        counts = self.alone and device.type == "cuda"
        self.held = torch.cuda.memory_allocated(device) if counts else None
        self.learner = make_learner(spec, self.data, self.hardware)
        if counts:
            torch.cuda.reset_peak_memory_stats(device)
        self.evaluator = Evaluator(
            self.learner, self.data, self.stream, anytime=ANYTIME[spec.anytime]
        )
        lengths = [sum(map(len, epochs)) for epochs in self.plan]
        self.recorders = {
            name: RECORDERS[name](self.learner, self.data, self.stream, lengths)
            for name in spec.record
        }

    @property
    def total(self) -> int:
        """How many steps it takes."""
        return sum(len(one) for epochs in self.plan for one in epochs)

    def steps(self) -> Iterator[int]:
        """Train and evaluate; yields after each step."""
        learner, evaluator = self.learner, self.evaluator
        device = learner.device
        train_y = self.data.train_y.clone()
        if self.known is not None:
            train_y[torch.from_numpy(~self.known)] = -1  # nothing below can see these labels
        labels = train_y.numpy()
        arrive = self._arrivals(train_y, device)
        with self._clock("evaluate"):
            evaluator.evaluate("start")
        given = self.spec.boundaries == "given"
        for number, (task, epochs) in enumerate(zip(self.stream, self.plan, strict=True)):
            if given:
                with self._clock("train"):
                    learner.new_task(task.classes)
            end_is_known = given or number == len(self.stream) - 1
            for epoch, one in enumerate(epochs):
                with self._clock("train"), learner.engine.scope():
                    lr = learning_rate(self.spec.lr, self.setting, epoch, len(epochs))
                    learner.lr.fill_(lr)
                for k, (x, y) in enumerate(arrive(one.rows)):
                    last = epoch == len(epochs) - 1 and k == len(one) - 1
                    if self.recorders:
                        with self._clock("evaluate"), learner.engine.scope():
                            for recorder in self.recorders.values():
                                recorder.before_step(x, y)
                    with self._clock("train"), learner.engine.scope():
                        kept = None if one.kept is None else one.kept[k]
                        learner.learn(x, y, kept, labels=labels[one.rows[k]], again=epoch > 0)
                        if last and end_is_known:
                            learner.end_task()
                    self._evaluate(number, last)
                    yield learner.step
        learner.check_finite()

    def _arrivals(self, train_y: Tensor, device: torch.device) -> Callable[[Indices], Arrivals]:
        """A function from rows to the batches that arrive, on the device."""
        train_x, engine = self.data.train_x, self.learner.engine
        if not resident(self.data, device):
            return lambda rows: (
                (engine.receive(x), engine.receive(y))
                for x, y in read_ahead(train_x, train_y, rows)
            )
        train_x, train_y = train_x.to(device), train_y.to(device)
        engine.hold([train_x, train_y])

        def arrive(rows: Indices) -> Arrivals:
            index = engine.receive(torch.from_numpy(rows))  # the engine's: it may lag behind
            for k in range(len(rows)):
                with engine.scope():
                    batch = train_x[index[k]], train_y[index[k]]
                yield batch

        return arrive

    def _evaluate(self, task: int, last: bool) -> None:
        every = self.spec.eval_every
        anytime = every > 0 and self.learner.step % every == 0
        if anytime or last:
            with self._clock("evaluate"):
                kind = "both" if anytime and last else "end" if last else "anytime"
                self.evaluator.evaluate(kind, task)

    def result(self) -> dict[str, Any]:
        """What `result.json` holds."""
        with self._clock("evaluate"):
            measured = self.evaluator.result()
            if self.recorders:
                with self.learner.engine.scope():
                    recorded = {name: r.result() for name, r in self.recorders.items()}
                measured["recordings"] = recorded
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
            "cost": cost(self.learner, self.held),
            "spec": spec.to_dict(),
            "agnostic_provenance": self.agnostic_provenance,
            "versions": versions(self.learner),
        }

    def files(self) -> dict[str, Callable[[Path], None]]:
        """What lies beside `result.json`: ν, where it was learnt, by a function that writes it."""
        adaptor = self.learner.adaptor
        if adaptor is None or adaptor.agnostic is None or self.spec.loads_adaptor:
            return {}
        save = partial(self.learner.save_agnostic, provenance=self.provenance())
        return {AGNOSTIC: save}

    def provenance(self) -> dict[str, Any]:
        """What a part that this run trained comes from."""
        shown = ("dataset", "setting", "method", "specific", "buffer", "seed", "tasks")
        made_by = versions(self.learner)["dualcba"]
        return {name: getattr(self.spec, name) for name in shown} | {"dualcba": made_by}

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        """Time on the host; on CUDA work is queued, so the split is approximate."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


def make_stream(spec: Spec, data: Dataset) -> list[Task]:
    """The tasks of a spec, blurred where the setting says so."""
    order = spec.class_order
    if isinstance(order, str):
        rng = generator(spec.seed, "classes")
        order = rng.permutation(data.num_classes).tolist() if order == "shuffled" else None
    stream = disjoint(data, spec.tasks, order)
    setting = parse_setting(spec.setting)
    if setting.kind == "blurry":
        return blurry(stream, setting.value, generator(spec.seed, "blurry"))
    return stream


def make_known(spec: Spec, data: Dataset) -> NDArray[np.bool_] | None:
    """Which samples have a label, where not all have."""
    setting = parse_setting(spec.setting)
    if setting.kind != "semi":
        return None
    return labelled(data, setting.value, generator(spec.seed, "labels"))


def make_plan(
    spec: Spec, stream: Sequence[Task], known: NDArray[np.bool_] | None
) -> list[list[Pass]]:
    """The passes over each task."""
    rng = generator(spec.seed, "order")

    def one(task: Task) -> Pass:
        if known is not None and spec.labelled_batches == "cycled":
            rows, first = cycled(task, known, spec.batch_size, rng)
            return Pass(rows, known[rows] & first)
        rows = batches(task, spec.batch_size, rng)
        return Pass(rows, None if known is None else known[rows])

    return [[one(task) for _ in range(spec.epochs)] for task in stream]


def make_learner(spec: Spec, data: Dataset, hardware: Hardware) -> Learner:
    """The learner of a spec."""
    with first_weights(spec.seed):
        network = make_network(spec.network, data.input_shape, data.num_classes)
        network = convert_normalization(network, spec.norm)
    base, kind = parse_method(spec.method)
    method = base(**spec.method_options)
    if parse_setting(spec.setting).kind == "semi":
        first = spec.batch_size if spec.labelled_batches == "cycled" else 0
        method = FixMatch(method, labelled=first)
    given = {name: getattr(spec, name) for name in ("adaptor_lr", "outer_every", "levels")}
    parts = ("space", "width", "specific", "agnostic", "divide")
    adaptor = {name: getattr(spec, name) for name in parts if getattr(spec, name) is not None}
    return Learner(
        network,
        data.input_shape,
        data.num_classes,
        method=method,
        adaptor=kind,
        buffer=spec.buffer,
        batch_size=spec.batch_size,
        lr=spec.lr,
        adaptor_options=adaptor,
        agnostic_from=spec.agnostic_from,
        freeze_after=spec.freeze_after,
        transform=data.transform(),
        dtype=data.train_x.dtype,
        forward=spec.forward,
        ibn_augment=spec.ibn_augment,
        ibn_average=spec.ibn_average,
        seen_only=spec.seen_only,
        boundaries=spec.boundaries,
        seed=spec.seed,
        device=hardware.device,
        engine=hardware.engine,
        precision=hardware.precision,
        **{name: value for name, value in given.items() if value is not None},
    )


def versions(learner: Learner) -> dict[str, str]:
    """What computed a result."""
    import dualcba

    return {
        "dualcba": dualcba.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device_name(learner.device),
        "engine": type(learner.engine).__name__.lower(),
        "precision": "bf16" if learner.precision.bf16 else "fp32",
    }


def device_name(device: torch.device) -> str:
    """What a result calls the device that computed it."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name})"


def cost(learner: Learner, held: int | None = None) -> dict[str, int | None]:
    """Parameters of network and adaptor; the most bytes on the GPU at once, over those held."""
    parts = [learner.network, *([learner.adaptor] if learner.adaptor else [])]
    most = None if held is None else torch.cuda.max_memory_allocated(learner.device) - held
    return {
        "parameters": sum(p.numel() for part in parts for p in part.parameters()),
        "gpu_memory": most,
    }
