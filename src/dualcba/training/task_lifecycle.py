"""Tasks: where one begins and ends, by the caller's word or by the labels, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.adaptors.outer_step import OuterLevel
from dualcba.checkpoint import Tensors, entries_of
from dualcba.engine import Engine
from dualcba.errors import expected
from dualcba.methods import Context, Method
from dualcba.tasks.detection import Boundaries


class Tasks:
    """The tasks so far; with `inferred` boundaries nobody says when one begins."""

    def __init__(
        self,
        context: Context,
        method: Method,
        outer: OuterLevel,
        engine: Engine,
        *,
        inferred: bool,
        network_changed: Callable[[], None],
    ) -> None:
        self.context = context
        self.method = method
        self.outer = outer
        self.engine = engine
        self.network_changed = network_changed
        self.boundaries = Boundaries(context.sets.num_classes) if inferred else None
        self.starts: list[int] = []  # the step of each
        self.open = False
        self.data: list[tuple[Tensor, Tensor]] = []  # of the current one, for methods that reread

    def begin(self, classes: Sequence[int], step: int) -> None:
        """End the task before, and start one with these new classes."""
        self.end()
        with self.engine.scope():
            self.context.sets.begin(classes)
            self.outer.begin_task()
            self.method.begin_task()
        self.starts.append(step)
        self.open = True

    def end(self) -> None:
        """Let the method finish the task with its samples, if it rereads them."""
        if not self.open:
            return
        with self.engine.scope():
            if self.data:
                x, y = (torch.cat(part) for part in zip(*self.data, strict=True))
            else:
                x, y = self.context.memory.x[:0], self.context.memory.y[:0]
            self.method.end_task(x, y)
        self.open, self.data = False, []
        self.network_changed()  # the method may have changed network and memory

    def infer(self, labels: NDArray[np.int64] | None, step: int) -> None:
        """Begin a task, or change what is new, as the labels of the next batch say."""
        assert self.boundaries is not None
        if labels is None:
            raise ValueError(expected("labels", labels, "y on the host: boundaries are inferred"))
        before = self.boundaries.new
        boundary, new = self.boundaries.update(labels)
        if boundary or not self.open:
            self.begin(sorted(new), step)
        elif new != before:
            with self.engine.scope():
                self.context.sets.set_new(sorted(new))

    def keep(self, x: Tensor, y: Tensor) -> None:
        """Hold samples until the task ends."""
        with self.engine.scope():
            self.data.append((x.clone(), y.clone()))

    def tensors(self) -> Tensors:
        """Copies of what is held, by name."""
        held: Tensors = {}
        for i, (x, y) in enumerate(self.data):
            held |= {f"task_data.{i}.x": x.clone(), f"task_data.{i}.y": y.clone()}
        return held

    def meta(self) -> dict[str, Any]:
        """The rest of the state, as JSON takes it."""
        meta: dict[str, Any] = {"task_starts": list(self.starts), "task_open": self.open}
        if self.boundaries is not None:
            meta["boundaries"] = self.boundaries.state_dict()
        return meta

    def check(self, meta: Mapping[str, Any]) -> None:
        """Raise unless the state was made under boundaries of this kind."""
        if ("boundaries" in meta) != (self.boundaries is not None):
            has, wanted = ("inferred", "given") if "boundaries" in meta else ("given", "inferred")
            raise ValueError(expected("boundaries of the state", has, repr(wanted)))

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from what `tensors`, on the device, and `meta` gave."""
        kept = entries_of(tensors, "task_data")
        pairs = range(len(kept) // 2)
        self.data = [(kept[f"{i}.x"].clone(), kept[f"{i}.y"].clone()) for i in pairs]
        self.starts = list(meta["task_starts"])
        self.open = meta["task_open"]
        if self.boundaries is not None:
            self.boundaries.load_state_dict(meta["boundaries"])
        self.network_changed()
        self.outer.choose_phi()
