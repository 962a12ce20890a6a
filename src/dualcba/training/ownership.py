"""Who may use a learner and its network: one thread at a time, and one learner."""

from __future__ import annotations

import threading
import warnings
import weakref
from types import TracebackType
from typing import Protocol

from torch import Tensor, nn

_weights: weakref.WeakKeyDictionary[object, set[int]] = weakref.WeakKeyDictionary()
"""The identities of the weights that each living learner trains."""


class Lock:
    """A reentrant lock; a copy of it, or of the object that has it, gets a lock of its own."""

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
    """What a learner tells of its steps, see `Learner.attach`."""

    def before_step(self, x: Tensor, y: Tensor, *, again: bool) -> None:
        """Called with a batch on the device before it is learnt; it must change nothing."""

    def after_step(self) -> None:
        """Called after a step, unless it was refused or has failed."""


class ListenerRef:
    """A listener that others keep alive, or None; a copy of it has none."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._get = None if listener is None else weakref.ref(listener)

    def __call__(self) -> Listener | None:
        """Return the listener, if there is one and it still exists."""
        return None if self._get is None else self._get()

    def __reduce__(self) -> tuple[type[ListenerRef], tuple[()]]:
        return ListenerRef, ()


def claim(learner: object, network: nn.Module) -> None:
    """Note that a learner trains these weights; warn if another one that still exists does."""
    own = {id(p) for p in network.parameters()}
    if any(own & others for others in _weights.values()):
        warnings.warn(
            "another learner trains the same weights, expected a network of its own: each step of "
            "one learner changes what the other has learnt",
            stacklevel=5,
        )
    _weights[learner] = own


def claim_again(learner: object, network: nn.Module) -> None:
    """Note the weights of a learner whose network has got others."""
    _weights[learner] = {id(p) for p in network.parameters()}
