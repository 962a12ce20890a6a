"""The state of a learner: everything the next step depends on, as named tensors and JSON types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from dualcba.checkpoint import check_same_layout, collect_tensors, load_tensors
from dualcba.randomness import restore_generator, restore_torch_generator
from dualcba.training.parts import Parts

META = ("seed", "step", "task_starts", "task_open", "rng")


def save_state(parts: Parts, *, seed: int, step: int) -> dict[str, Any]:
    """Return copies of all state: `tensors` by name, and `meta`."""
    engine = parts.engine
    with engine.scope():
        tensors = collect_tensors(parts.modules(), parts.optimizers())
        tensors |= {"lr": parts.context.lr.clone(), "losses": parts.loss_monitor.values.clone()}
        tensors |= parts.tasks.tensors()
    engine.finish()
    tensors["weights_rng"] = parts.outer_loop.rng.get_state()
    rng = {name: g.bit_generator.state for name, g in parts.sampler.rng.items()}
    meta = {"seed": seed, "step": step, **parts.tasks.meta(), "rng": rng}
    return {"tensors": tensors, "meta": meta}


def check_state(parts: Parts, state: Mapping[str, Any]) -> None:
    """Raise unless the state has all entries, each of the kind, shape and type expected here."""
    for part in ("meta", "tensors"):
        if part not in state:
            raise ValueError(f"the state has no entry {part!r}, expected what state_dict gave")
    meta = state["meta"]
    missing = set(META).difference(meta)
    if missing or set(meta["rng"]) != set(parts.sampler.rng):
        raise ValueError(f"the state's meta has no entry {sorted(missing) or 'rng'}")
    parts.tasks.check(meta)
    for value in meta["rng"].values():
        restore_generator(value)
    check_same_layout(save_state(parts, seed=0, step=0)["tensors"], state["tensors"])
    restore_torch_generator(state["tensors"]["weights_rng"])


def load_state(parts: Parts, state: Mapping[str, Any], receive: Callable[[Tensor], Tensor]) -> None:
    """Restore a checked state in place; `receive` brings a tensor to the device."""
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
    parts.outer_loop.rng = restore_torch_generator(state["tensors"]["weights_rng"])
    parts.sampler.rng.update({k: restore_generator(v) for k, v in meta["rng"].items()})
    engine.reset()
