"""Undo the changes of a failed call outside the step itself: tasks, class sets, kept samples.

Between two tasks a method may train, select exemplars or copy the network. So a call that begins or
ends a task saves the whole state first. A step within a task saves only the task detection and the
class sets; `TrainingStep` undoes its other changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dualcba.methods import Method
from dualcba.training.interrupts import interrupts
from dualcba.training.learner_state import restore_state, save_state
from dualcba.training.parts import Parts

Receive = Callable[[Tensor], Tensor]


@contextmanager
def undone_as_a_whole(parts: Parts, receive: Receive) -> Iterator[None]:
    """Restore the whole state if the body raises, or leaves a value that is not finite."""
    before = save_state(parts, seed=0, step=0, wait=False)
    try:
        yield
        _check_weights(parts)
        interrupts.defer()
    except BaseException:
        interrupts.defer()
        restore_state(parts, before, receive)
        raise


@contextmanager
def undone_in_a_task(parts: Parts) -> Iterator[None]:
    """Restore the task detection, the class sets and the kept samples if the body raises."""
    tasks, sets = parts.tasks, parts.context.sets
    kept = len(tasks.data)
    detector = None if tasks.detector is None else tasks.detector.copy()
    with parts.engine.scope():
        masks = [] if detector is None else [(t, t.clone()) for t in sets.buffers()]
    try:
        yield
    except BaseException:
        interrupts.defer()
        with parts.engine.scope():
            del tasks.data[kept:]
            tasks.detector = detector
            for t, value in masks:
                t.copy_(value)
        raise


def _check_weights(parts: Parts) -> None:
    """Raise if the network or the method has a value that is not finite after the end of a task."""
    if type(parts.method).end_task is Method.end_task:
        return
    with parts.engine.scope():
        state = {**parts.context.network.state_dict(), **parts.method.state_dict()}
        values = {name: t for name, t in state.items() if t.is_floating_point()}
        finite = torch.stack([t.isfinite().all() for t in values.values()]).tolist()
    for name in (name for name, good in zip(values, finite, strict=True) if not good):
        raise FloatingPointError(
            f"{name} was not finite at the end of the task; the end of the task was undone; "
            "a smaller learning rate may help"
        )
