"""A monitor of accuracy, memory and correction during training."""

from __future__ import annotations

import itertools
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualcba.errors import at_least, expected, reason
from dualcba.learner import Learner
from dualcba.monitoring.files import watch_content, write_watch
from dualcba.monitoring.numbers import age_numbers, class_numbers, loss_numbers, window_numbers
from dualcba.monitoring.prometheus import prometheus_text

if TYPE_CHECKING:
    from rich.panel import Panel

SAMPLED = 256
"""Largest number of memory samples on which the correction is measured."""

_serial = itertools.count()


class Monitor:
    """Measures accuracy, memory and correction of a learner while it trains.

    It measures until `close`, or until it is deleted. Each batch is predicted before it is trained
    on, so the accuracy is prequential. Training and predictions are not affected. On a GPU, answers
    stay on the device until the numbers are read. If the learner predicts under IBN statistics,
    each prediction estimates them from the whole memory; `every` reduces this cost.

    Parameters
    ----------
    learner
        The learner. It has one monitor at a time; a new one replaces it.
    window
        The number of latest samples for windowed numbers.
    every
        Predict only one of `every` batches.
    path
        A file to write the numbers to, for `dualcba watch`.
    seconds
        The minimum time between two writes.
    about
        Further fields to write, such as `title`, and `total`, the total number of steps.
    names
        Names of classes, instead of `learner.classes_`.

    >>> from dualcba.nets import MLP
    >>> _ = torch.manual_seed(0)
    >>> learner = Learner(MLP((4,), 4), (4,), 4, dtype=torch.float32, buffer=20, batch_size=8)
    >>> monitor = Monitor(learner, window=100)
    >>> learner.new_task([0, 1])
    >>> for _ in range(30):
    ...     learner.observe(torch.eye(4)[:2].repeat(4, 1), [0, 1] * 4)
    >>> numbers = monitor.numbers()
    >>> numbers["step"], numbers["samples"], numbers["window"]["accuracy"]
    (30, 240, 100.0)
    >>> [(c["class"], c["side"], c["answers"], c["memory"]) for c in numbers["classes"]]
    [(0, 'new', 50.0, 10), (1, 'new', 50.0, 10)]
    """

    def __init__(
        self,
        learner: Learner,
        *,
        window: int = 1000,
        every: int = 1,
        path: str | Path | None = None,
        seconds: float = 1.0,
        about: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        at_least(1, window=window, every=every)
        _check_learner(learner)
        _check_about(about)
        self.learner, self.window, self.every = learner, window, every
        self.path, self.seconds = None if path is None else Path(path), seconds
        self.about, self.names = dict(about or {}), names
        self._key = next(_serial)  # captured graphs write into the tensors of this monitor
        self._write_at = 0.0
        self._warned = False
        with learner.parts.engine.scope():
            device = learner.device
            self._answers, self._labels = (
                torch.full((window,), -1, device=device) for _ in range(2)
            )
            self._right, self._found = (
                torch.zeros(2, dtype=torch.long, device=device) for _ in range(2)
            )
            born = torch.full((learner.memory.size + 1,), -1, device=device)
            self._births = born, torch.zeros((), dtype=torch.long, device=device)
        self._restart()
        learner.attach(self)
        learner.memory.births = self._births
        learner.parts.engine.reset()  # graphs captured before do not record births

    def _restart(self) -> None:
        """Reset all measurements, at the start and after another state was loaded."""
        self._count = self._taken = 0
        self._step = self.learner.step
        with self.learner.parts.engine.scope():
            self._births[0].fill_(-1)
            self._right.zero_()

    # ------------------------------------------------------------------ steps

    def before_step(self, x: Tensor, y: Tensor, *, again: bool) -> None:
        """Predict a batch before it is trained on; called by the learner."""
        learner, engine = self.learner, self.learner.parts.engine
        if learner.step != self._step:
            self._restart()
        with engine.scope():
            self._births[1].fill_(learner.step)
        self._taken = 0 if again or learner.step % self.every else min(len(x), self.window)
        if self._taken:
            slots = (self._count + np.arange(self._taken)) % self.window
            key = ("monitor", self._key, self._taken)
            with learner.evaluating(learner.statistics):
                engine.run(key, self._predict, x[-self._taken :], y[-self._taken :], slots)

    def _predict(self, x: Tensor, y: Tensor, slots: Tensor) -> None:
        learner = self.learner
        answers = learner.scores(x).argmax(1)
        answers = torch.where(learner.class_sets.seen.any(), answers, -1)  # no class yet
        self._answers.index_copy_(0, slots, answers)
        self._labels.index_copy_(0, slots, y)
        labelled = y >= 0
        self._found.copy_(torch.stack([((answers == y) & labelled).sum(), labelled.sum()]))

    def after_step(self) -> None:
        """Count a batch after its step, and write the file if it is due; called by the learner."""
        self._step = self.learner.step
        self._count += self._taken
        if self._taken:
            with self.learner.parts.engine.scope():
                self._right.add_(self._found)
        if self.path is not None and time.monotonic() >= self._write_at:
            self.write()

    # ------------------------------------------------------------------ numbers

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as plain Python types; accuracies and shares are in percent.

        Unknown numbers are None. Waits for the device.
        """
        learner = self.learner
        with learner.evaluating(learner.statistics):
            labels, answers = self._window()
            right, seen = self._right.tolist()
            filled = learner.memory.filled
            stored = learner.memory.y[:filled].cpu().numpy()
            born = self._births[0][:filled].cpu().numpy()
            new, old = (m.cpu().numpy() for m in (learner.class_sets.new, learner.class_sets.old))
            found, names = window_numbers(labels, answers), self._names()
            classes, confusion = class_numbers(labels, answers, stored, new, old, names)
            return {
                "step": learner.step,
                "task": learner.task,
                "samples": seen,
                "accuracy": 100 * right / seen if seen else None,
                "window": {"size": self.window, **found},
                "classes": classes,
                "confusion": confusion,
                "loss": loss_numbers(self._losses()),
                "memory": {
                    "size": learner.memory.size,
                    "samples": filled,
                    "age": age_numbers(learner.step - born[born >= 0], learner.step),
                },
                "correction": self._correction(),
                "outliers": learner.outliers,
            }

    def _names(self) -> list[Any]:
        plain = (str, int, float, bool, type(None))
        given = self.learner.classes_ if self.names is None else self.names
        return [name if isinstance(name, plain) else str(name) for name in given]

    def _window(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the labels and answers of labelled samples in the window, in order of arrival."""
        filled = min(self._count, self.window)
        order = (self._count - filled + np.arange(filled)) % self.window
        labels, answers = (t.cpu().numpy()[order] for t in (self._labels, self._answers))
        return labels[labels >= 0], answers[labels >= 0]

    def _losses(self) -> NDArray[np.float32]:
        """Return the losses of the last steps, newest last; refused steps have NaN or infinity."""
        values = self.learner.parts.loss_monitor.values.cpu().numpy()
        step = self.learner.step
        return values[np.arange(max(0, step - 100), step) % len(values)]

    def _correction(self) -> dict[str, float | None] | None:
        """Return the mean correction r of old and of new classes, on samples of the memory."""
        learner, parts = self.learner, self.learner.parts
        filled = learner.memory.filled
        if learner.adaptor is None or not filled:
            return None
        rows = torch.linspace(0, filled - 1, min(filled, SAMPLED), device=learner.device).long()
        z, _ = parts.method.outputs(parts.context.transform(learner.memory.x[rows]))
        r = learner.adaptor(z.float())
        sides = {"old": learner.class_sets.old, "new": learner.class_sets.new}
        means = {side: r[:, mask].mean().item() for side, mask in sides.items() if mask.any()}
        return {side: means.get(side) for side in sides}

    # ------------------------------------------------------------------ outputs

    def panel(self) -> Panel:
        """Return the numbers as a panel, which `rich.print` prints."""
        from dualcba.monitoring.panel import panel

        return panel(watch_content(self.numbers(), self.about, "running"), now=time.time())

    def prometheus(self) -> str:
        """Return the numbers in Prometheus' text format."""
        return prometheus_text([({}, self.numbers())])

    def write(self, path: str | Path | None = None, *, status: str = "running") -> None:
        """Write the numbers to a file for `dualcba watch`, by default the monitor's own file.

        If its own file cannot be written, it warns once instead of raising an error.
        """
        if path is not None:
            write_watch(Path(path), watch_content(self.numbers(), self.about, status))
            return
        assert self.path is not None
        self._write_at = time.monotonic() + self.seconds
        try:
            write_watch(self.path, watch_content(self.numbers(), self.about, status))
        except (OSError, TypeError, ValueError) as error:  # labels may have any type
            if not self._warned:
                warnings.warn(f"{self.path} cannot be written: {reason(error)}", stacklevel=3)
            self._warned = True

    def close(self, status: str = "complete") -> None:
        """Write the file a last time, if there is one, and detach from the learner."""
        try:
            if self.path is not None:
                self.write(status=status)
        finally:
            if self.learner.memory.births is self._births:
                self.learner.attach(None)
                self.learner.memory.births = None
                self.learner.parts.engine.reset()


def _check_learner(learner: object) -> None:
    if not isinstance(learner, Learner):
        wanted = "a Learner: `learner_` of a fitted DualCBAClassifier, `learner` of RiverClassifier"
        raise ValueError(expected("learner", type(learner).__name__, wanted))
    if learner.parts.engine.ranks is not None:
        wanted = "a learner of a single process: each rank has only a part of the memory"
        raise ValueError(expected("learner", "a distributed one", wanted))


def _check_about(about: object) -> None:
    """Raise a ValueError unless it is None or can be written as a JSON object."""
    try:
        valid = about is None or isinstance(json.loads(json.dumps(about, allow_nan=False)), dict)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise ValueError(expected("about", about, "a dict of JSON values, or None"))
