"""Checks that the ranks of a distributed learner agree, and functions that share batch and state.

See `dualcba.engine.ranks` for how a step is shared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from dualcba.checkpoint import Tensors
from dualcba.engine.ranks import Ranks, initialised
from dualcba.engine.torch_private import BatchNormBase
from dualcba.errors import expected, shown
from dualcba.kernels.conv_norm import PLAIN
from dualcba.memory import Memory
from dualcba.methods import Method
from dualcba.options import definitions
from dualcba.training.learner_arguments import LearnerArguments
from dualcba.training.learner_state import check_state, save_state
from dualcba.training.parts import Parts

RANDOM = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    nn.RReLU,
)  # fmt: skip
"""Layers that draw random numbers in training."""

NOT_COMPARED = ("network", "device", "transform", "agnostic_from")
"""Arguments of a learner whose text may differ between ranks."""


def _warn_if_alone() -> None:
    """Warn if there are several ranks, each of which would train a separate learner."""
    if initialised() and (size := dist.get_world_size()) > 1:
        warnings.warn(
            f"the process group has {size} ranks and distributed is False, expected True: each "
            "rank trains a separate learner, with another network, adaptor and memory",
            stacklevel=6,
        )


# ---------------------------------------------------------------------- what can be shared


def check_shareable(given: LearnerArguments) -> None:
    """Raise if a learner is distributed, and ranks cannot share its steps.

    If it is not distributed, but there are several ranks, warn.
    """
    if not given.distributed:
        _warn_if_alone()
        return
    _check_method(given.base)
    for name, module in given.network.named_modules():
        what = f"layer {name!r} of the network" if name else "network"
        if isinstance(module, BatchNormBase) and not _synchronized(module):
            wanted = "BatchNorm1d, 2d or 3d with running statistics if distributed"
            raise ValueError(expected(what, module, wanted))
        if _draws(module):
            wanted = "no random layer if distributed: each rank would draw different numbers"
            raise ValueError(expected(what, module, wanted))


def _check_method(method: Method) -> None:
    name = type(method).__name__
    if method.labelled:
        wanted = "0 if distributed: the samples of each rank would begin with labelled ones"
        raise ValueError(expected(f"labelled of {name}", method.labelled, wanted))


def _synchronized(layer: BatchNormBase) -> bool:
    return type(layer) in PLAIN and layer.running_mean is not None


def _draws(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training."""
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout)
    return isinstance(module, RANDOM) and bool(getattr(module, "p", 1.0))


def check_equal(ranks: Ranks, given: LearnerArguments) -> None:
    """Raise on all ranks unless the learner has the same arguments on all of them."""
    first, *others = ranks.exchange("Learner", _described(given))
    for rank, other in enumerate(others, 1):
        for name, value in first.items():
            if other.get(name) != value:
                text = f"{name} of the learner on rank {rank} is {other.get(name)}"
                raise ValueError(f"{text}, expected {value}, as on rank 0")


def _described(given: LearnerArguments) -> dict[str, str]:
    """Return the arguments that must be equal, and the shapes of the weights, as text."""
    names = ["input_shape", "num_classes", *definitions(LearnerArguments)]
    found = {k: shown(getattr(given, k)) for k in names if k not in NOT_COMPARED}
    weights = {k: tuple(t.shape) for k, t in given.network.state_dict().items()}
    method = {"method": type(given.base).__name__, "kind of adaptor": str(given.kind)}
    return found | method | {"network": shown(weights)}


def start_equal(ranks: Ranks, parts: Parts) -> None:
    """Copy the weights of rank 0 to all ranks."""
    modules = [m for name, m in parts.modules().items() if name != "memory"]
    ranks.broadcast_([t for m in modules for t in (*m.parameters(), *m.buffers())])


# ---------------------------------------------------------------------- batches


def whole_batch(
    ranks: Ranks,
    read: Callable[[], tuple[Tensor, Any]],
    receive: Callable[[Tensor], Tensor],
    *,
    again: bool,
) -> tuple[Tensor, list[Any]]:
    """Return the samples of all ranks on the device, and their labels, in the order of ranks.

    `read` checks the samples and labels of this rank. If that fails on one rank, or `again` differs
    between them, all ranks raise.
    """
    samples: list[Tensor] = []

    def labels() -> list[Any]:
        x, y = read()
        samples.append(x)
        return y.tolist() if isinstance(y, Tensor) else list(y)

    found = ranks.attempt("observe again" if again else "observe", labels)
    counts = tuple((len(part),) for part in found)
    return ranks.join(receive(samples[0]), counts), [label for part in found for label in part]


# ---------------------------------------------------------------------- state


def whole_state(ranks: Ranks, memory: Memory, state: dict[str, Any]) -> dict[str, Any]:
    """Merge the states of all ranks into the state that a single process would have."""
    ranks.exchange("state_dict", None)
    own: Tensors = state["tensors"]
    whole = {f"memory.{k}": memory.whole(own[f"memory.{k}"]) for k in memory.split_names()}
    return {**state, "tensors": {**own, **whole}}


def own_state(ranks: Ranks, parts: Parts, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return this rank's share of a whole state; if it is invalid on one rank, all ranks raise."""
    memory = parts.context.memory
    present = whole_state(ranks, memory, save_state(parts, seed=0, step=0))
    ranks.each("load_state_dict", lambda: check_state(parts, state, present))
    whole: Mapping[str, Tensor] = state["tensors"]
    own = {f"memory.{k}": memory.own_share(whole[f"memory.{k}"]) for k in memory.split_names()}
    return {**state, "tensors": {**whole, **own}}
