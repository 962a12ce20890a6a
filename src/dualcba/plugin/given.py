"""Checks of the arguments of the plug-in, made before anything changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dualcba.data.dataset import check_labels
from dualcba.errors import expected, unknown
from dualcba.nets.heads import CosineHead, check_weight
from dualcba.options import (
    CBA,
    TrainingOptions,
    check_adaptor_parts,
    check_optimizer,
    fill,
    kind_defaults,
)
from dualcba.options.definition import check_choice

OPTIONS = (
    "adaptor_lr", "outer_every", "outer_warmup", "virtual", "virtual_lr", "space", "strength",
    "width", "specific", "agnostic", "divide", "agnostic_from", "freeze_after",
)  # fmt: skip
"""The options of `Learner` that `BiasAdaptor` accepts; the training loop decides about others."""


def adaptor_options(kind: str, given: dict[str, Any]) -> TrainingOptions:
    """Check the options of a kind of adaptor, and fill in the defaults."""
    check_choice("kind", kind, CBA)
    for name in given:
        if name not in OPTIONS:
            raise TypeError(unknown("option", name, OPTIONS))
    options = TrainingOptions(**given)
    fill(options, kind_defaults(kind, options), kind)
    check_adaptor_parts(options, kind)
    check_optimizer(options)
    return options


def last_layer(head: nn.Module) -> list[Tensor]:
    """Return the parameters of a last layer, weights first; raise if an adaptor cannot use it."""
    if not isinstance(head, nn.Linear | CosineHead):
        raise ValueError(expected("type of head", type(head).__name__, "Linear, the last layer"))
    check_weight(head, "head.weight")
    if head.weight.dtype != torch.float32:
        wanted = "torch.float32; use autocast for other precisions"
        raise ValueError(expected("dtype of head.weight", head.weight.dtype, wanted))
    for name, p in head.named_parameters():
        if not p.requires_grad:
            wanted = "a trainable last layer: the adaptor is trained through a step of this layer"
            raise ValueError(f"head.{name} requires no gradient, expected {wanted}")
    return list(head.parameters())


def matrix(t: Any, columns: int, like: Tensor, name: str) -> Tensor:
    """Return a matrix (n, columns) in float32 on the device of another tensor, or raise."""
    if not isinstance(t, Tensor) or t.dim() != 2 or t.shape[1] != columns or not len(t):
        found = tuple(t.shape) if isinstance(t, Tensor) else t
        raise ValueError(expected(f"shape of {name}", found, f"(n, {columns}), n of at least 1"))
    if not t.is_floating_point() or t.device != like.device:
        wanted = f"floats on {like.device}, as the last layer"
        raise ValueError(f"{name} is {t.dtype} on {t.device}, expected {wanted}")
    return t.float()


def check_tuples(inner: Any, outer: Any) -> None:
    """Raise unless there are inner batches of three tensors each, and an outer one of two."""

    def sized(batch: Any, size: int) -> bool:
        return isinstance(batch, list | tuple) and len(batch) == size

    if not isinstance(inner, list | tuple) or not inner or not all(sized(b, 3) for b in inner):
        wanted = "a list of at least one tuple (logits, features, labels)"
        raise ValueError(f"inner has another structure, expected {wanted}")
    if not sized(outer, 2):
        raise ValueError("outer has another structure, expected a tuple (features, labels)")


def labels(
    y: Any, n: int | None, num_classes: int | None, device: torch.device, name: str
) -> Tensor:
    """Return labels (n,) on a device, with any n if it is None; values on a GPU are not checked."""
    if n is None:
        shape = (len(y),) if isinstance(y, list | tuple) else tuple(getattr(y, "shape", ()))
        if len(shape) != 1:
            raise ValueError(expected(f"shape of {name} y", shape, "(n,)"))
        (n,) = shape
    if not isinstance(y, Tensor) or not y.is_cuda:
        return check_labels(y, n, num_classes, name).to(device)
    check_labels(torch.zeros(y.shape, dtype=y.dtype), n, num_classes, name)  # shape and type
    return y.detach().long().to(device)
