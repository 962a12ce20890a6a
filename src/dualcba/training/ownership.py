"""A lock for the threads that share a learner, and a warning if learners share weights."""

from __future__ import annotations

import threading
import warnings
import weakref
from types import TracebackType
from typing import Protocol

from torch import Tensor, nn

_weights: weakref.WeakKeyDictionary[object, set[int]] = weakref.WeakKeyDictionary()
"""The ids of the weights that each existing learner trains."""


class Lock:
    """A reentrant lock that can be copied and pickled: the copy is a new lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


class Listener(Protocol):
    """The interface of objects that are called before and after each step; see `Learner.attach`."""

    def before_step(self, x: Tensor, y: Tensor, *, again: bool) -> None:
        """Called before a step with its batch on the device, which must not be changed."""

    def after_step(self) -> None:
        """Called after a step, unless it was refused or has failed."""


class ListenerRef:
    """A weak reference to a listener, or None; it is not copied or pickled with the learner."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._get = None if listener is None else weakref.ref(listener)

    def __call__(self) -> Listener | None:
        """Return the listener, if there is one and it still exists."""
        return None if self._get is None else self._get()

    def __reduce__(self) -> tuple[type[ListenerRef], tuple[()]]:
        return ListenerRef, ()


def claim(learner: object, network: nn.Module) -> None:
    """Register the weights that a learner trains; warn if another existing learner trains them."""
    own = {id(p) for p in network.parameters()}
    if any(own & others for others in _weights.values()):
        warnings.warn(
            "another learner trains the same weights, expected a network for each learner: each "
            "step of one learner changes the other",
            stacklevel=5,
        )
    _weights[learner] = own


def claim_again(learner: object, network: nn.Module) -> None:
    """Register the weights of a learner whose network has new weights."""
    _weights[learner] = {id(p) for p in network.parameters()}
