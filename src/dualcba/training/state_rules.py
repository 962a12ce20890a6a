"""Rules for valid states, as tables; the whole state is checked before anything is loaded."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualcba.checkpoint import Tensors
from dualcba.memory import Exemplars
from dualcba.memory.balanced import EMPTY, KEY_BITS
from dualcba.methods.gsa import GSA
from dualcba.randomness import restore_generator, restore_torch_generator
from dualcba.tasks.arrivals import ARRIVED
from dualcba.tasks.detection import THRESHOLD
from dualcba.training.parts import Parts

LARGEST = 2**53
"""The largest accepted count; JSON represents all whole numbers up to it exactly."""


@dataclass(frozen=True)
class Given:
    """A state to check, and the learner that will load it."""

    parts: Parts
    own: Tensors
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.parts.context.sets.assigned

    @property
    def task(self) -> int:
        """The index of the current task, from `task_starts`; −1 before the first."""
        return len(self.meta["task_starts"]) - 1

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].cpu()

    @property
    def filled(self) -> int:
        """The number of filled rows of the memory."""
        return min(int(self["memory._extra_state"]), self.parts.context.memory.size)


# ---------------------------------------------------------------- meta


def _whole(value: object, low: int = 0, high: int = LARGEST) -> bool:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and low <= int(value) <= high  # type: ignore[call-overload]


def _wholes(value: object, high: int) -> bool:
    return isinstance(value, list) and all(_whole(v, 0, high) for v in value)


def _per_class(value: object, given: Given, valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) == given.classes and all(map(valid, value))


def _counts(value: object, given: Given) -> bool:
    return _per_class(value, given, _whole)


def _mask(value: object, given: Given) -> bool:
    return _per_class(value, given, lambda v: isinstance(v, bool))


def _starts(value: Any, given: Given) -> bool:
    step = given.meta["step"]
    ascending = _wholes(value, step) and value == sorted(value)
    return ascending and (value[0] == 0 if value else step == 0)


def _labels(value: Any, given: Given) -> bool:
    if not _wholes(value, given.classes - 1) or value != sorted(set(value)):
        return False
    new: list[int] = given["sets.new"].nonzero().flatten().tolist()
    return bool(value == new)


def _recent(value: Any, given: Given) -> bool:
    counts = given.meta["boundaries"]["counts"]
    return _counts(value, given) and all(r <= c for r, c in zip(value, counts, strict=True))


def _below_arrival(value: Any, given: Given) -> bool:
    return _per_class(value, given, lambda v: type(v) in (int, float) and 0 <= v < ARRIVED)


def _flag(value: Any, given: Given) -> bool:
    return isinstance(value, bool)


def _generator(value: Any) -> bool:
    """Whether a value is exactly the state of a NumPy generator."""
    try:
        text = json.dumps(value, sort_keys=True)  # JSON types only
        state = restore_generator(value).bit_generator.state
    except (TypeError, ValueError, RecursionError):
        return False
    same = json.dumps(state, sort_keys=True) == text
    return same and state["state"]["inc"] % 2 == 1  # an even increment is not a PCG64's


MetaRule = tuple[str, Callable[[Any, Given], bool]]

META: dict[str, MetaRule] = {
    "seed": ("a whole number of at least 0", lambda v, _: _whole(v, 0, 2**256)),
    "step": ("a whole number from 0 to 2⁵³", lambda v, _: _whole(v)),
    "task_starts": ("a list of steps in ascending order, from 0 to the current step", _starts),
    "task_open": (
        "True or False, and False before the first task",
        lambda v, given: isinstance(v, bool) and (given.task >= 0 or not v),
    ),
}
"""The expected value of each entry of `meta`, checked in this order."""

BOUNDARIES: dict[str, MetaRule] = {
    "number": (
        "a whole number up to the number of tasks",
        lambda v, given: _whole(v, min(given.task + 1, 1), given.task + 1),
    ),
    "evidence": (
        f"a whole number from 0 to {THRESHOLD - 1}",
        lambda v, _: _whole(v, 0, THRESHOLD - 1),
    ),
    "new": ("the new classes of the class sets, in ascending order", _labels),
    "counts": ("one count of at least 0 per class", _counts),
    "recent": ("one count per class, from 0 to that in counts", _recent),
    "before": ("True or False per class", _mask),
    "own": ("True or False per class", _mask),
}
"""The expected value of each entry of `meta["boundaries"]`."""

ARRIVALS: dict[str, MetaRule] = {
    "began": ("True or False", _flag),
    "settled": ("True or False", _flag),
    "waiting": ("True or False per class", _mask),
    "strays": ("True or False per class", _mask),
    "evidence": (f"one number from 0 to below {ARRIVED:g} per class", _below_arrival),
    "since": ("one count per class, from 0 to that in counts", _recent),
}
"""The expected value of each entry of `meta["boundaries"]["arrivals"]`, which may be missing."""


def check_meta(given: Given, own: Mapping[str, Any]) -> None:
    """Raise unless `meta` has the same entries as the learner's own `meta`, with valid values."""
    given.parts.tasks.check(given.meta)
    _same_keys("meta", own, given.meta)
    for name, rule in META.items():
        _apply(f"meta {name!r}", given.meta[name], rule, given)
    _same_keys("meta 'rng'", own["rng"], given.meta["rng"])
    for name, value in given.meta["rng"].items():
        if not _generator(value):
            raise ValueError(_message(f"meta 'rng.{name}'", value, "the state of a PCG64"))


def check_boundaries(given: Given) -> None:
    """Raise unless the state of the task detection is valid, if there is one."""
    if given.parts.tasks.detector is None:
        return
    value = given.meta["boundaries"]
    arrivals = isinstance(value, Mapping) and "arrivals" in value
    names = {**BOUNDARIES, "arrivals": None} if arrivals else BOUNDARIES
    _same_keys("meta 'boundaries'", names, value)
    for name, rule in BOUNDARIES.items():
        _apply(f"meta 'boundaries.{name}'", value[name], rule, given)
    if arrivals:
        _same_keys("meta 'boundaries.arrivals'", ARRIVALS, value["arrivals"])
        for name, rule in ARRIVALS.items():
            _apply(f"meta 'boundaries.arrivals.{name}'", value["arrivals"][name], rule, given)


def _same_keys(what: str, own: Mapping[str, Any], value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(_message(what, value, f"a dict with {sorted(own)}"))
    for name in sorted(own.keys() | value.keys(), key=str):
        if name not in value:
            raise ValueError(f"the state's {what} has no entry {name!r}, expected {sorted(own)}")
        if name not in own:
            text = reprlib.repr(name)
            raise ValueError(f"the state's {what} has an entry {text}, expected {sorted(own)}")


def _apply(what: str, value: Any, rule: MetaRule, given: Given) -> None:
    wanted, valid = rule
    if not valid(value, given):
        raise ValueError(_message(what, value, wanted))


def _message(what: str, value: object, wanted: str) -> str:
    text = " ".join(reprlib.repr(value).split())
    short = text if len(text) <= 80 else f"{text[:77]}..."
    return f"the state's {what} is {short}, expected {wanted}"


# ---------------------------------------------------------------- tensors


def _from(low: float, high: float = torch.inf) -> Callable[[Tensor, Given], bool]:
    return lambda t, _: bool(((t >= low) & (t <= high)).all())


def _moment_step(t: Tensor, given: Given) -> bool:
    return _from(0)(t, given) and bool((t == t.round()).all())


def _spare_row(t: Tensor, given: Given) -> bool:
    return not bool(((t[-1] != 0) | t[-1].signbit()).any())


def _finite_samples(t: Tensor, given: Given) -> bool:
    """Whether the floats in rows of several inputs are finite."""
    parts = given.parts.guard.samples.unpack(t.contiguous())
    return all(bool(p.isfinite().all()) for p in parts)


def _memory_labels(t: Tensor, given: Given) -> bool:
    seen = given["sets.seen"]
    valid = _from(0, max(given.classes - 1, 0))(t, given)
    return valid and bool(seen[t[: given.filled]].all())


def _memory_keys(t: Tensor, given: Given) -> bool:
    """`Balanced`: a random key in each filled row, none in the other rows."""
    size, filled = len(t) - 1, given.filled
    keys = _from(size + 1, 2**KEY_BITS - 1)(t[:filled], given)
    return keys and bool((t[filled:-1] == EMPTY).all())


def _memory_shares(t: Tensor, given: Given) -> bool:
    """`TaskShares`: rows are sorted by task."""
    owner = t[: given.filled]
    return _from(0, max(given.task, 0))(t, given) and torch.equal(owner, owner.sort().values)


def _memory_age(t: Tensor, given: Given) -> bool:
    memory = given.parts.context.memory
    return _from(0, memory.size if isinstance(memory, Exemplars) else LARGEST)(t, given)


def _sums(t: Tensor, given: Given) -> bool:
    """GSA sums probabilities. Other sums, such as iCaRL's of features, may be negative."""
    of_gsa = any(isinstance(module, GSA) for module in given.parts.method.modules())
    return not of_gsa or _from(0)(t, given)


def _task_labels(t: Tensor, given: Given) -> bool:
    low = -1 if given.parts.method.unlabelled else 0
    return _from(low, given.classes - 1)(t, given)


def _task(t: Tensor, given: Given) -> bool:
    return int(t) == given.task


def _before(t: Tensor, given: Given) -> bool:
    return _from(-1, max(given.task - 1, -1))(t, given)


def _owner(t: Tensor, given: Given) -> bool:
    return torch.equal(t, given["sets.before"].masked_fill(given["sets.new"], given.task))


def _seen(t: Tensor, given: Given) -> bool:
    return bool(t[given["sets.owner"] >= 0].all())


def _weights_rng(t: Tensor, given: Given) -> bool:
    return torch.equal(restore_torch_generator(t).get_state(), t)


TENSORS: tuple[tuple[str, str, Callable[[Tensor, Given], bool]], ...] = (
    ("*.running_var", "no negative value", _from(0)),
    ("*.num_batches_tracked", "a number of at least 0", _from(0, LARGEST)),
    ("*optimizer.*.exp_avg_sq", "no negative value", _from(0)),
    ("*optimizer.*.step", "a whole number of at least 0", _moment_step),
    ("lr", "a number of at least 0", _from(0)),
    ("guard.*", "a number of at least 0", _from(0)),
    ("inputs.count", "a whole number of at least 0", _moment_step),
    ("inputs.squares", "no negative value", _from(0)),
    ("sets._extra_state", "the number of tasks in task_starts less 1", _task),
    ("sets.later", "0 in the first task and 1 later", lambda t, g: bool(t == (g.task > 0))),
    ("sets.before", "a task before the current one, or -1", _before),
    ("sets.new", "no class before the first task", lambda t, g: g.task >= 0 or not t.any()),
    ("sets.owner", "the current task for new classes, 'sets.before' for others", _owner),
    ("sets.seen", "all classes that a task has announced", _seen),
    ("sets.seen", "no class without a label", lambda t, g: not t[g.classes :].any()),
    ("memory._extra_state", "a number of samples of at least 0", _memory_age),
    ("memory.x", "finite numbers in all inputs", _finite_samples),
    ("task_data.*.x", "finite numbers in all inputs", _finite_samples),
    ("memory.[!_]*", "zeros in the last row, which is spare", _spare_row),
    ("memory.y", "labels of seen classes", _memory_labels),
    ("memory.keys", "one key per filled row", _memory_keys),
    ("memory.owner", "the tasks of the shares in ascending order", _memory_shares),
    ("adaptor.pool", "no negative value", _from(0)),
    ("adaptor.prior.mean", "no negative value", _from(0)),
    ("adaptor.prior.steps", "a whole number of at least 0", _moment_step),
    ("method.*counts", "no negative value", _from(0)),
    ("method.*sums", "no negative value", _sums),
    ("method.*steps", "a whole number of at least 0", _moment_step),
    ("task_data.*.y", "labels of the classes", _task_labels),
    ("weights_rng", "the state of a torch generator", _weights_rng),
)  # fmt: skip
"""Rules for the values of entries, by patterns of their names, checked in this order."""


def check_values(given: Given) -> None:
    """Raise unless all values are finite and as in `TENSORS`."""
    for name, t in given.tensors.items():
        if not _finite(t, given.own.get(name)):
            raise ValueError(_value_message(name, t, "finite numbers"))
        if t.dtype == torch.bool and not _from(0, 1)(t.view(torch.uint8), given):
            raise ValueError(_value_message(name, t.view(torch.uint8), "True or False"))
    for pattern, wanted, valid in TENSORS:
        for name in given.tensors:
            if fnmatchcase(name, pattern) and not valid(given[name], given):
                raise ValueError(_value_message(name, given[name], wanted))


def _finite(t: Tensor, own: Tensor | None) -> bool:
    """Whether all numbers are finite, except those that the learner has too, as in a mask of −∞."""
    if not t.is_floating_point():
        return True
    finite = t.isfinite()
    if own is not None and own.shape == t.shape and not bool(finite.all()):
        finite = finite | torch.isclose(t, own.to(t.device), rtol=0, atol=0, equal_nan=True)
    return bool(finite.all())


def _value_message(name: str, t: Tensor, wanted: str) -> str:
    values = np.unique(t.detach().cpu().double().numpy())
    shown = f"{values[0]:g}" if len(values) == 1 else f"values from {values[0]:g} to {values[-1]:g}"
    return f"the state's entry {name!r} has {shown}, expected {wanted}"
