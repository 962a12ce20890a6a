"""The arguments of a learner, checked: one line for the first that cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from dualcba.adaptors.adaptor import ADAPTOR_OPTIONS, ADAPTORS
from dualcba.adaptors.outer_step import LEVELS, OuterLoop
from dualcba.data import Transform
from dualcba.errors import at_least, expected, one_of, unknown
from dualcba.methods import Method, check_options, parse_method
from dualcba.nets import Network
from dualcba.training.precision import PRECISIONS

CHOICES: dict[str, Sequence[object]] = {
    "dtype": (torch.uint8, torch.float32),
    "forward": ("split", "concat"),
    "ibn_average": ("cumulative", "ema"),
    "precision": PRECISIONS,
    "boundaries": ("given", "inferred"),
}


def resolve(
    method: str | Method, options: Mapping[str, Any], adaptor: str | None
) -> tuple[Method, str | None]:
    """The method and the kind of adaptor that the arguments name.

    >>> base, kind = resolve("er-dual-cba", {}, None)
    >>> type(base).__name__, kind
    ('ER', 'dual-cba')
    """
    if isinstance(method, Method):
        return _own(method, options, adaptor)
    if not isinstance(method, str):
        raise ValueError(expected("method", method, "a name or a Method object"))
    base, kind = parse_method(method)
    if adaptor is not None and adaptor != kind:
        raise ValueError(expected("adaptor", adaptor, f"{kind!r}, as the method {method!r} says"))
    check_options(method, options)
    return base(**options), kind


def _own(
    method: Method, options: Mapping[str, Any], adaptor: str | None
) -> tuple[Method, str | None]:
    if adaptor is not None and adaptor not in ADAPTORS:
        raise ValueError(expected("adaptor", adaptor, f"one of {', '.join(ADAPTORS)}"))
    if adaptor is not None and not method.adaptable:
        name = type(method).__name__
        raise ValueError(expected("adaptor", adaptor, f"none: {name} has no logits to adapt"))
    if options:
        raise ValueError(expected("method_options", options, "none beside a Method object"))
    return method, adaptor


def check_adaptor(kind: str | None, options: Mapping[str, Any]) -> None:
    """Raise unless the adaptor takes these options."""
    if options and kind is None:
        raise ValueError(expected("adaptor_options", dict(options), "none without an adaptor"))
    for name in options:
        if kind is not None and name not in ADAPTOR_OPTIONS[kind]:
            raise ValueError(
                unknown(f"option of the adaptor {kind!r}", name, ADAPTOR_OPTIONS[kind])
            )


def check_transfer(
    kind: str | None, options: Mapping[str, Any], source: object, freeze_after: int | None
) -> None:
    """Raise unless there is a class-agnostic part to load or to freeze."""
    agnostic = kind == "dual-cba" and options.get("agnostic", True)
    given = {"agnostic_from": source, "freeze_after": freeze_after}
    for field, value in given.items():
        if value is not None and not agnostic:
            raise ValueError(expected(field, value, "None without a class-agnostic part"))
    if freeze_after is not None:
        at_least(2, freeze_after=freeze_after)  # in the first task nothing of it is learnt
        if source is not None:
            raise ValueError(expected("freeze_after", freeze_after, "None for a loaded part"))


def check_levels(kind: str | None, levels: str) -> None:
    """Raise unless an adaptor can learn by these levels."""
    one_of(LEVELS, levels=levels)
    if kind is None and levels != "bi":
        raise ValueError(expected("levels", levels, "'bi' without an adaptor"))


def check_choices(**given: object) -> None:
    """Raise unless each is one of its `CHOICES`.

    >>> check_choices(forward="apart")
    Traceback (most recent call last):
    ...
    ValueError: forward is 'apart', expected 'split' or 'concat'
    """
    for field, value in given.items():
        one_of(CHOICES[field], **{field: value})


def check_flags(*, ibn: object, **flags: object) -> None:
    """Raise unless these are truth values; `ibn` may be left open."""
    if ibn is not None and not isinstance(ibn, bool):
        raise ValueError(expected("ibn", ibn, "True, False or None"))
    for field, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(expected(field, value, "True or False"))


def check_shape(shape: object) -> tuple[int, ...]:
    """The shape of one sample.

    >>> check_shape(64)
    Traceback (most recent call last):
    ...
    ValueError: input_shape is 64, expected the shape of one sample, such as (64,) or (3, 32, 32)
    """
    sizes = tuple(shape) if isinstance(shape, Iterable) else ()
    if not sizes or not all(isinstance(n, int | np.integer) and n >= 1 for n in sizes):
        wanted = "the shape of one sample, such as (64,) or (3, 32, 32)"
        raise ValueError(expected("input_shape", shape, wanted))
    return tuple(int(n) for n in sizes)


def check_network(network: nn.Module) -> None:
    """Raise unless it is a network in single precision, of which something learns."""
    if not isinstance(network, nn.Module):
        raise ValueError(expected("network", network, "an nn.Module"))
    weights = list(network.named_parameters())
    for name, weight in weights:
        if weight.is_floating_point() and weight.dtype != torch.float32:
            wanted = "torch.float32: call float() on the network"
            raise ValueError(expected(f"dtype of the network's {name}", weight.dtype, wanted))
    if weights and not any(weight.requires_grad for _, weight in weights):
        raise ValueError("no parameter of the network requires a gradient, expected some to learn")


def check_head(network: Network, outer_loop: OuterLoop) -> None:
    """Raise unless the head learns, where the adaptor learns by a virtual step of it."""
    frozen = [name for name, p in network.head.named_parameters() if not p.requires_grad]
    if frozen and outer_loop.optimizer is not None and outer_loop.levels == "bi":
        name = f"{network.head_name}.{frozen[0]}"
        wanted = "one that does: the adaptor learns by a step of the last layer"
        raise ValueError(f"the network's {name} requires no gradient, expected {wanted}")


def check_input(transform: Transform, shape: tuple[int, ...]) -> None:
    """Raise unless the transform takes samples of this shape."""
    if not isinstance(transform, Transform):
        raise ValueError(expected("transform", transform, "a Transform"))
    channels = max(transform.scale.numel(), transform.shift.numel())
    if channels not in (1, shape[0]):
        wanted = f"1 or {shape[0]}, the channels of input_shape {shape}"
        raise ValueError(expected("length of the transform's mean and std", channels, wanted))
    if transform.random and len(shape) != 3:
        wanted = "(channels, height, width) for a transform that crops or flips"
        raise ValueError(expected("input_shape", shape, wanted))


def check_parts(method: Method, buffer: int, num_classes: int) -> None:
    """Raise unless the method is free and there is room for what it keeps."""
    if hasattr(method, "context"):
        raise ValueError("the method object works in another learner, expected one of its own")
    if method.one_per_class and buffer < num_classes:
        wanted = f"at least {num_classes}: {type(method).__name__} keeps samples of every class"
        raise ValueError(expected("buffer", buffer, wanted))
