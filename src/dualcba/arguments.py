"""The arguments of a learner, checked: one line for the first that cannot be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dualcba.adaptors import ADAPTOR_OPTIONS, ADAPTORS
from dualcba.errors import at_least, expected, one_of, unknown
from dualcba.methods import Method, check_options, parse_method
from dualcba.outer import LEVELS
from dualcba.precision import PRECISIONS

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


def check_parts(network: nn.Module, method: Method, buffer: int, num_classes: int) -> None:
    """Raise unless there is a network, a method that is free, and room for what it keeps."""
    if not isinstance(network, nn.Module):
        raise ValueError(expected("network", network, "an nn.Module"))
    if hasattr(method, "context"):
        raise ValueError("the method object works in another learner, expected one of its own")
    if method.one_per_class and buffer < num_classes:
        wanted = f"at least {num_classes}: {type(method).__name__} keeps samples of every class"
        raise ValueError(expected("buffer", buffer, wanted))
