"""Runs a spec from the data to the result."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dualcba.data import Dataset, batches, disjoint
from dualcba.evaluation import Evaluator
from dualcba.experiments.spec import Spec
from dualcba.learner import Learner
from dualcba.nets import make_network
from dualcba.randomness import generator, torch_generator


@dataclass
class Hardware:
    """Where and how runs are computed; changes their speed, not their meaning."""

    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"


@dataclass
class Run:
    """One run under way: iterate `steps`, then ask for the `result`."""

    spec: Spec
    data: Dataset
    hardware: Hardware = field(default_factory=Hardware)
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})

    def __post_init__(self) -> None:
        spec = self.spec
        self.stream = disjoint(self.data, spec.tasks)
        order = generator(spec.seed, "order")
        self.plan = [
            np.concatenate([batches(task, spec.batch_size, order) for _ in range(spec.epochs)])
            for task in self.stream
        ]
        self.learner = make_learner(spec, self.data, self.hardware)
        self.evaluator = Evaluator(self.learner, self.data, self.stream)

    @property
    def total(self) -> int:
        """How many steps it takes."""
        return sum(len(p) for p in self.plan)

    def steps(self) -> Iterator[int]:
        """Train and evaluate; yields after each step."""
        learner, evaluator = self.learner, self.evaluator
        device = learner.device
        train_x, train_y = self.data.train_x.to(device), self.data.train_y.to(device)
        with self._clock("evaluate"):
            evaluator.evaluate("start")
        for task, rows in zip(self.stream, self.plan, strict=True):
            with self._clock("train"), learner.engine.scope():
                learner.new_task(task.classes)
                index = torch.from_numpy(rows).to(device)
            for k in range(len(rows)):
                last = k == len(rows) - 1
                with self._clock("train"), learner.engine.scope():
                    learner.learn(train_x[index[k]], train_y[index[k]])
                    if last:
                        learner.end_task()
                anytime = self.spec.eval_every > 0 and learner.step % self.spec.eval_every == 0
                if anytime or last:
                    with self._clock("evaluate"):
                        kind = "both" if anytime and last else "end" if last else "anytime"
                        evaluator.evaluate(kind)
                yield learner.step
        learner.check_finite()

    def result(self) -> dict[str, Any]:
        """What `result.json` holds."""
        with self._clock("evaluate"):
            measured = self.evaluator.result()
        spec = self.spec
        total = self.seconds["train"] + self.seconds["evaluate"]
        return {
            "method": spec.method,
            "dataset": spec.dataset,
            "setting": spec.setting,
            "buffer": spec.buffer,
            "seed": spec.seed,
            "status": "complete",
            **measured,
            "seconds": {**self.seconds, "total": total},
            "spec": spec.to_dict(),
            "versions": versions(self.learner),
        }

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        """Time on the host; on CUDA work is queued, so the split is approximate."""
        start = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - start


def make_learner(spec: Spec, data: Dataset, hardware: Hardware) -> Learner:
    """The learner of a spec."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_generator(spec.seed, "init").initial_seed())
        network = make_network(spec.network, data.input_shape, data.num_classes)
    given = {name: getattr(spec, name) for name in ("adaptor_lr", "outer_every")}
    parts = ("space", "width", "specific", "agnostic", "divide")
    adaptor = {name: getattr(spec, name) for name in parts if getattr(spec, name) is not None}
    return Learner(
        network,
        data.input_shape,
        data.num_classes,
        method=spec.method,
        method_options=spec.options,
        buffer=spec.buffer,
        batch_size=spec.batch_size,
        lr=spec.lr,
        adaptor_options=adaptor,
        transform=data.transform(),
        dtype=data.train_x.dtype,
        forward=spec.forward,
        ibn_augment=spec.ibn_augment,
        ibn_average=spec.ibn_average,
        seed=spec.seed,
        device=hardware.device,
        engine=hardware.engine,
        precision=hardware.precision,
        **{name: value for name, value in given.items() if value is not None},
    )


def versions(learner: Learner) -> dict[str, str]:
    """What computed a result."""
    import dualcba

    device = learner.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "dualcba": dualcba.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": f"{device.type} ({name})",
        "engine": type(learner.engine).__name__.lower(),
        "precision": "bf16" if learner.bf16 else "fp32",
    }
