"""Tensors, arrays and other objects that are unusual as samples or labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Own(Tensor):
    """A subclass."""


class Raises:
    """Whatever is asked of it raises."""

    def __array__(self, *given: Any, **named: Any) -> Any:
        raise KeyError("no\nno")

    def __iter__(self) -> Any:
        raise ArithmeticError("no\nno")

    def __repr__(self) -> str:
        raise ZeroDivisionError


def nested(depth: int = 20_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "quantised": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "complex": lambda t: t.to(torch.complex64),
    "conjugate": lambda t: torch.complex(t.float(), t.float()).conj(),
    "nested": lambda t: torch.nested.nested_tensor([t.reshape(-1)[:3], t.reshape(-1)[:2]]),
    "jagged": lambda t: torch.nested.nested_tensor(
        [t.reshape(-1)[:3], t.reshape(-1)[:2]], layout=torch.jagged
    ),
    "bits": lambda t: t.byte().view(torch.bits8),
    "complex array": lambda t: t.numpy() + 1j,
    "none": lambda t: None,
    "text": lambda t: "abc",
    "mapping": lambda t: {"a": 1},
    "deep list": lambda t: nested(),
    "raises": lambda t: Raises(),
    "function": lambda t: len,
    "huge": lambda t: [[10**400] * 5] * 8,
}
TAKEN: dict[str, Callable[[Tensor], Any]] = {
    "gradient": lambda t: t.requires_grad_() if t.is_floating_point() else t,
    "subclass": lambda t: t.as_subclass(Own),
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "negative view": lambda t: torch._neg_view(-t),
    "expanded": lambda t: t.unsqueeze(0).expand(1, *t.shape)[0],
    "strided": lambda t: t.repeat_interleave(2, 0)[::2],
    "array": lambda t: t.numpy(),
    "big endian": lambda t: t.numpy().astype(t.numpy().dtype.newbyteorder(">")),
    "list": lambda t: t.tolist(),
}
