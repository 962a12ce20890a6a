"""Begin and end the tasks of a stream, announced by the caller or detected from the labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.adaptors.outer_step import OuterLoop
from dualcba.checkpoint import Copy, Tensors, entries_of
from dualcba.data.dataset import plain_tensor
from dualcba.engine import Engine
from dualcba.errors import expected
from dualcba.methods import Context, Method
from dualcba.tasks.detection import TaskDetector
from dualcba.training.forward import ForwardPass


class TaskLifecycle:
    """Begins and ends tasks, and keeps the samples of the current task if the method needs them.

    With `inferred` boundaries a `TaskDetector` decides from the labels when a task begins.
    """

    def __init__(
        self,
        context: Context,
        method: Method,
        outer_loop: OuterLoop,
        forward_pass: ForwardPass,
        engine: Engine,
        *,
        inferred: bool,
    ) -> None:
        self.context = context
        self.method = method
        self.outer_loop = outer_loop
        self.forward_pass = forward_pass
        self.engine = engine
        self.detector = TaskDetector(context.sets.num_classes) if inferred else None
        self.starts: list[int] = []  # the first step of each task
        self.open = False
        self.warned = -1  # the last task with a warning about an unannounced label
        self.data: list[tuple[Tensor, Tensor]] = []  # samples of the task, for `rereads_task`

    def check_classes(self, classes: Any, *, hint: str = "") -> list[Any]:
        """Return the classes of a new task as a list of labels; raise if they are not valid.

        `hint` is appended to the error about labels that are not whole numbers.
        """
        labels = self.check_labels(classes)
        self.context.sets.check(labels, hint)
        return labels

    def check_labels(self, classes: Any) -> list[Any]:
        """Return the labels of a new task as a list; raise if they are not a list.

        Also raise if boundaries are inferred, because tasks are then not announced.
        """
        if self.detector is not None:
            raise ValueError("boundaries are inferred from the labels, expected no new_task")
        return label_list(classes)

    def check_announced(self, labels: Tensor) -> None:
        """Warn, once per task, about labels that no task so far has announced; −1 means no label.

        This is not an error, because in some streams samples arrive before their task. Labels on a
        GPU are not checked, since this would wait for the device.
        """
        sets, task = self.context.sets, self.context.sets.task
        if self.detector is not None or labels.is_cuda or sets.owner.is_cuda or self.warned == task:
            return
        other = labels[(sets.owner[labels.clamp(min=0)] < 0) & (labels >= 0)]
        if len(other):
            self.warned = task
            announced = sets.owner.ge(0).nonzero().flatten().tolist()
            wanted = f"announced classes, {announced}; others are treated as old classes"
            warnings.warn(expected("observed y", sorted(set(other.tolist())), wanted), stacklevel=3)

    def begin(self, classes: Sequence[int], step: int) -> None:
        """End the current task, and begin one with these new classes."""
        self.end()
        with self.engine.scope():
            self.context.sets.begin(classes)
            self.outer_loop.begin_task()
            self.method.begin_task()
            self._equalize()
        self.starts.append(step)
        self.open = True

    def end(self) -> None:
        """End the current task, if any, and pass its samples to the method if it needs them."""
        if not self.open:
            return
        self.forward_pass.restore_modes()
        with self.engine.scope():
            if self.data:
                x, y = (torch.cat(part) for part in zip(*self.data, strict=True))
            else:
                x, y = self.context.memory.x[:0], self.context.memory.y[:0]
            self.method.end_task(x, y)
            self._equalize()
        self.open, self.data = False, []

    def _equalize(self) -> None:
        """Copy the values of rank 0 to all ranks, which may differ by rounding on a GPU."""
        if self.engine.ranks is None:
            return
        memory = self.context.memory
        stored = [] if memory.ranks is not None else [memory.x, memory.y]
        modules = (self.context.network, self.method)
        values = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        self.engine.ranks.broadcast_([*values, *stored])

    def detect(self, labels: NDArray[np.int64] | None) -> bool:
        """Return whether a task begins with the next batch, inferred from its labels.

        If the batch adds new classes to the current task, the class sets are updated. Raises if
        boundaries are given and no task has begun.
        """
        if self.detector is None:
            if not self.open:
                wanted = "new_task(classes) before observe, or boundaries='inferred'"
                raise ValueError(f"no task has begun, expected {wanted}")
            return False
        if labels is None:
            wanted = "y on the host, because boundaries are inferred"
            raise ValueError(expected("labels", labels, wanted))
        before = self.detector.new
        boundary, new = self.detector.update(labels)
        begins = boundary or not self.open
        if new != before and not begins:
            with self.engine.scope():
                self.context.sets.set_new(sorted(new))
        return begins

    def begin_detected(self, step: int) -> None:
        """Begin the task that was detected."""
        assert self.detector is not None
        self.begin(sorted(self.detector.new), step)

    def keep(self, x: Tensor, y: Tensor, mask: NDArray[np.bool_] | None = None) -> None:
        """Keep copies of the samples, or of those selected by a mask, until the task ends."""
        if mask is None or mask.all():
            with self.engine.scope():
                self.data.append((x.clone(), y.clone()))
        elif mask.any():
            rows = self.engine.receive(torch.from_numpy(np.flatnonzero(mask)))
            with self.engine.scope():
                self.data.append((x[rows], y[rows]))

    def tensors(self, copy: Copy = torch.clone) -> Tensors:
        """Return copies of the kept samples, by name."""
        kept: Tensors = {}
        for i, (x, y) in enumerate(self.data):
            kept |= {f"task_data.{i}.x": copy(x), f"task_data.{i}.y": copy(y)}
        return kept

    def meta(self) -> dict[str, Any]:
        """Return the rest of the state, as JSON types."""
        meta: dict[str, Any] = {"task_starts": list(self.starts), "task_open": self.open}
        if self.detector is not None:
            meta["boundaries"] = self.detector.state_dict()
        return meta

    def check(self, meta: Mapping[str, Any]) -> None:
        """Raise unless the state was saved with the same kind of boundaries."""
        if ("boundaries" in meta) != (self.detector is not None):
            has, wanted = ("inferred", "given") if "boundaries" in meta else ("given", "inferred")
            raise ValueError(expected("boundaries of the state", has, repr(wanted)))

    def load(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore the results of `tensors`, moved to the device, and of `meta`."""
        kept = entries_of(tensors, "task_data")
        pairs = range(len(kept) // 2)
        self.data = [(kept[f"{i}.x"].clone(), kept[f"{i}.y"].clone()) for i in pairs]
        self.starts = list(meta["task_starts"])
        self.open = meta["task_open"]
        if self.detector is not None:
            self.detector.load_state_dict(meta["boundaries"])
        self.outer_loop.choose_phi()


def label_list(classes: Any) -> list[Any]:
    """Return the labels of a new task as a list; they may be a list, an array or a tensor."""
    name = "classes of the new task"
    if isinstance(classes, Tensor):
        classes = plain_tensor(classes, name)
    classes = classes.tolist() if isinstance(classes, Tensor | np.ndarray) else classes
    try:
        given = list(classes)
    except Exception:  # it cannot be iterated, or raises
        raise ValueError(expected(name, classes, "a list of labels")) from None
    each = (plain_tensor(c, name) if isinstance(c, Tensor) else c for c in given)
    labels: list[Any] = [c.item() if getattr(c, "shape", None) == () else c for c in each]
    return labels
