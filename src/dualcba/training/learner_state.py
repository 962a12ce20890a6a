"""Save, check and load the state of a learner: everything that the next step depends on.

A state consists of named tensors and of metadata as JSON types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dualcba.checkpoint import (
    Copy,
    Tensors,
    check_dense,
    check_same_layout,
    collect_tensors,
    entries_of,
    load_tensors,
)
from dualcba.engine.optimizers import ADAM_FIELDS, first_states
from dualcba.errors import expected
from dualcba.randomness import restore_generator, restore_torch_generator
from dualcba.tasks.labels import Labels
from dualcba.training.parts import Parts
from dualcba.training.state_rules import Given, check_boundaries, check_meta, check_values


def save_state(
    parts: Parts, *, seed: int, step: int, wait: bool = True, copy: Copy = torch.clone
) -> dict[str, Any]:
    """Return a copy of the state, made by `copy`: named `tensors`, and `meta`.

    Without `wait`, only work of the engine may use the tensors.
    """
    engine = parts.engine
    with engine.scope():
        tensors = collect_tensors(parts.modules(), parts.optimizers(), copy)
        losses = parts.loss_monitor.values.nan_to_num(0.0, 0.0, 0.0)  # of refused steps
        tensors |= {"lr": copy(parts.context.lr), "losses": copy(losses)}
        tensors |= parts.tasks.tensors(copy) | parts.guard.tensors(copy)
    if wait:
        engine.finish()
    tensors["weights_rng"] = parts.outer_loop.rng.get_state()
    rng = {name: g.bit_generator.state for name, g in parts.sampler.rng.items()}
    meta = {"seed": seed, "step": step, **parts.tasks.meta(), "rng": rng}
    return {"tensors": tensors, "meta": meta}


def split_classes(
    state: Mapping[str, Any], labels: Labels | None
) -> tuple[list[Any] | None, Mapping[str, Any]]:
    """Return the labels in the state of a growing learner, and the state without them.

    `labels` are those of the learner that loads the state; None if it does not grow.
    """
    meta = state.get("meta") if isinstance(state, Mapping) else None
    if not isinstance(meta, Mapping) or (labels is None and "classes" not in meta):
        return None, state
    if labels is None or "classes" not in meta:
        given, other = ("not given", "given") if labels is None else ("given", "not given")
        raise ValueError(f"num_classes of the saved learner was {given}, expected it {other}")
    rest = {name: value for name, value in meta.items() if name != "classes"}
    return labels.from_json(meta["classes"]), {**state, "meta": rest}


def with_estimate(state: Mapping[str, Any]) -> dict[str, Any]:
    """Move the `estimate` of a state, if any, into `tensors` and `meta`, as in a file."""
    tensors, meta = dict(state["tensors"]), dict(state["meta"])
    if (estimate := state.get("estimate")) is not None:
        meta["estimate"] = {k: v for k, v in estimate.items() if k != "tensors"}
        tensors |= estimate["tensors"]
    return {"tensors": tensors, "meta": meta}


def split_estimate(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Undo `with_estimate`."""
    meta = state["meta"]
    if not isinstance(meta, Mapping) or not isinstance(meta.get("estimate"), Mapping):
        return state
    own = {f"estimate.{k}": v for k, v in entries_of(state["tensors"], "estimate").items()}
    tensors = {k: v for k, v in state["tensors"].items() if k not in own}
    rest = {k: v for k, v in meta.items() if k != "estimate"}
    return {"tensors": tensors, "meta": rest, "estimate": {**meta["estimate"], "tensors": own}}


def check_state(
    parts: Parts, state: Mapping[str, Any], own: Mapping[str, Any] | None = None
) -> None:
    """Raise unless the whole state is valid for this learner; nothing is changed.

    `own` is the learner's current state, by default `save_state` of its parts. A state with changed
    but finite weights is valid: only files have a checksum.
    """
    own = save_state(parts, seed=0, step=0) if own is None else own
    for part in ("meta", "tensors"):
        found = state.get(part) if isinstance(state, Mapping) else None
        if not isinstance(found, Mapping):
            raise ValueError(f"the state has no entry {part!r}, expected the result of state_dict")
    given = Given(parts, own["tensors"], state["tensors"], state["meta"])
    check_meta(given, own["meta"])
    check_dense(given.tensors)
    _check_optimizer(given)
    layout = _layout(given)
    try:
        check_same_layout(layout, given.tensors)
    except ValueError as error:
        raise ValueError(f"{_other_option(layout, given)}{error}") from None
    check_values(given)
    check_boundaries(given)


LOG_P = "estimate.log_p"
ROWS = ("estimate.features", LOG_P, "estimate.stale")
"""The values that read-outs cache for the rows of the memory, and which rows are out of date.

The cached values are features, or log-probabilities of the current outputs.
"""


def check_estimate(own: Tensors, estimate: Any) -> None:
    """Raise unless the state's `estimate` is None or valid; `own` has the learner's tensors.

    States of earlier versions have `observed` instead of `since`.
    """
    if estimate is None:
        return
    count = "observed" if isinstance(estimate, Mapping) and "observed" in estimate else "since"
    names = sorted(["moved", count, "task", "tensors"])
    if not isinstance(estimate, Mapping) or sorted(estimate, key=str) != names:
        raise ValueError(f"the state's 'estimate' is not valid, expected a dict of {names}")
    tensors, samples, task = estimate["tensors"], estimate[count], estimate["task"]
    if not isinstance(tensors, Mapping):
        raise ValueError("the state's 'estimate' has no 'tensors', expected a dict of tensors")
    _check_estimated(own, tensors)
    if type(samples) is not int or samples < 0:
        raise ValueError(expected(f"the state's 'estimate.{count}'", samples, "a count"))
    moved = estimate["moved"]
    if type(moved) is not float or not 0 <= moved < math.inf:
        raise ValueError(expected("the state's 'estimate.moved'", moved, "a number of at least 0"))
    pair = isinstance(task, list) and [type(v) for v in task] == [int, bool]
    if not pair or task[0] < 0:
        raise ValueError(expected("the state's 'estimate.task'", task, "a count and a bool"))


def _check_estimated(own: Tensors, tensors: Mapping[str, Any]) -> None:
    """Raise unless the tensors of an estimate are valid."""
    check_dense(tensors)
    # entries of a read-out may be missing, and may be present if this learner has no read-out
    optional = {k for k in ROWS if not (k in own and k in tensors)}
    check_same_layout(
        {k: v for k, v in own.items() if k not in optional},
        {k: v for k, v in tensors.items() if k not in optional},
    )
    for name, t in tensors.items():
        if not bool(t.isfinite().all()):
            raise ValueError(f"the state's entry {name!r} has values that are not finite")
        if name.endswith("var") and bool((t < 0).any()):
            raise ValueError(f"the state's entry {name!r} has values below 0")


OPTIMIZERS = {
    (): "sgd without momentum",
    ("momentum_buffer",): "sgd with momentum",
    tuple(sorted(ADAM_FIELDS)): "adam or adamw",
}
"""Optimisers of the network, by the names of the state of each parameter."""


def _check_optimizer(given: Given) -> None:
    """Raise if the state was saved with another optimiser of the network."""
    wanted, found = (
        OPTIMIZERS.get(tuple(sorted({k.rpartition(".")[2] for k in entries_of(t, "optimizer")})))
        for t in (given.own, given.tensors)
    )
    if found is not None and found != wanted:
        raise ValueError(f"the state's optimizer is {found}, expected {wanted} as in the learner")


def _other_option(own: Tensors, given: Given) -> str:
    """Return a message about the option in which the saved learner differs, if it can be found."""
    state = given.tensors
    has, wanted = (bool(entries_of(t, "trunk")) for t in (state, own))
    if has != wanted:
        return f"the state was saved with cache_features {has}, expected {wanted}: "
    if sizes := _other_size(own, state):
        return sizes
    has, wanted = (bool(entries_of(t, "inputs")) for t in (state, own))
    if has != wanted:
        return f"the state was saved with standardise {has}, expected {wanted}: "
    has, wanted = (bool(entries_of(t, "adaptor")) for t in (state, own))
    if has != wanted:
        kinds = "a method with a bias adaptor", "one without"
        if not has:
            kinds = "a method without a bias adaptor", "one with"
        return f"the state was saved with {kinds[0]}, expected {kinds[1]}: "
    for part in ("method", "memory"):
        if entries_of(own, part).keys() != entries_of(state, part).keys():
            name = type(given.parts.method).__name__
            return f"the state was saved with another method, expected {name}: "
    for part in ("adaptor", "network", "trunk"):
        if _shapes(entries_of(own, part)) != _shapes(entries_of(state, part)):
            return f"the state was saved with another {part} or other options of it: "
    return ""


def _other_size(own: Tensors, state: Mapping[str, Tensor]) -> str:
    """Return a message about the size or type in which samples or classes differ, if any."""
    x, y, mine = state.get("memory.x"), state.get("memory.y"), own["memory.x"]
    classes, own_classes = state.get("sets.new"), own["sets.new"]
    pairs: dict[str, tuple[object, object]] = {}
    if x is not None and y is not None and x.dim() and x.shape[:1] == y.shape:
        pairs["dtype"] = x.dtype, mine.dtype
        pairs["input_shape"] = tuple(x.shape[1:]), tuple(mine.shape[1:])
        pairs["buffer"] = len(x) - 1, len(mine) - 1  # the last row is spare
    if classes is not None and classes.dim() == 1:
        pairs["num_classes"] = len(classes), len(own_classes)
    for name, (found, wanted) in pairs.items():
        if found != wanted:
            return f"the state was saved with {name} {found}, expected {wanted}: "
    return ""


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: t.shape for name, t in tensors.items()}


def _layout(given: Given) -> Tensors:
    """Return a tensor of the expected shape and type for each entry of the state.

    The state of the adaptor's optimiser has all fields of a parameter or none. There can be any
    number of task samples. The guard has two entries, or none in states of earlier versions.
    """
    optional = ("task_data.", "guard.", "adaptor_optimizer.")
    layout = {k: v for k, v in given.own.items() if not k.startswith(optional)}
    if entries_of(given.tensors, "guard"):
        guard = given.parts.guard
        layout |= {"guard.largest": guard.largest, "guard.outliers": guard.outliers}
    if (optimizer := given.parts.outer_loop.optimizer) is not None:
        every = first_states("adaptor_optimizer", optimizer).items()
        layout |= {k: v for k, v in every if entries_of(given.tensors, k.rpartition(".")[0])}
    if given.parts.method.rereads_task and given.meta["task_open"]:
        layout |= _task_data(given, layout["memory.x"], layout["memory.y"])
    return layout


def _task_data(given: Given, x: Tensor, y: Tensor) -> Tensors:
    """Return the layout of the task's samples, with the given numbers of batches and labels."""
    examples: Tensors = {}
    for i in range((len(entries_of(given.tensors, "task_data")) + 1) // 2):
        labels = given.tensors.get(f"task_data.{i}.y", y[:1])
        n = max(1, labels.numel())
        examples |= {f"task_data.{i}.x": x[:1].expand(n, *x.shape[1:])}
        examples |= {f"task_data.{i}.y": y[:1].expand(n)}
    return examples


def load_state(parts: Parts, state: Mapping[str, Any], receive: Callable[[Tensor], Tensor]) -> None:
    """Restore a checked state in place; if that fails, undo all changes.

    `receive` moves a tensor to the device.
    """
    before = save_state(parts, seed=0, step=0)
    try:
        restore_state(parts, state, receive)
    except BaseException:
        restore_state(parts, before, receive)
        raise


def restore_state(
    parts: Parts, state: Mapping[str, Any], receive: Callable[[Tensor], Tensor]
) -> None:
    """Restore a valid state in place."""
    meta, engine = state["meta"], parts.engine
    tensors = {name: receive(value) for name, value in state["tensors"].items()}
    lr = parts.context.lr
    with engine.scope():
        load_tensors(tensors, parts.modules(), parts.optimizers())
        lr.copy_(tensors["lr"])
        parts.loss_monitor.values.copy_(tensors["losses"])
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        parts.tasks.load(tensors, meta)
        parts.guard.load(tensors)
        if (inputs := parts.training_step.standardise) is not None:
            inputs.refresh()
    parts.outer_loop.rng = restore_torch_generator(state["tensors"]["weights_rng"])
    parts.sampler.rng.update({k: restore_generator(v) for k, v in meta["rng"].items()})
    engine.reset()
