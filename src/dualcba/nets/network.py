"""Any `nn.Module` whose last layer is linear, seen as features and logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from dualcba.errors import unknown
from dualcba.normalization.statistics import batch_norms, modes

SAMPLEWISE = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.LayerNorm, nn.GroupNorm,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
}  # fmt: skip
"""Modules that treat each sample by itself, but for the statistics of batch normalisation."""

CAST_LAYERS = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d}
"""Modules whose parameters autocast converts to the lower precision."""


class Network(nn.Module):
    """A network that gives its logits and the features that its last linear layer saw.

    Parameters
    ----------
    module
        Maps (n, *input_shape) to (n, num_classes) logits, which must come straight from a linear
        layer: the outer step differentiates through that layer in closed form.
    input_shape
        The shape of one sample.
    num_classes
        The number of logits.
    head
        The name of the last layer; found by itself when not given.

    >>> net = Network(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), (3,), 2)
    >>> z, h = net(torch.zeros(5, 3))
    >>> net.head_name, tuple(z.shape), tuple(h.shape)
    ('2', (5, 2), (5, 8))
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        head: str | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.input_shape = input_shape
        self.num_classes = num_classes
        self._cast_weights: dict[str, Tensor] = {}
        self.head_name = _find_head(module, head)
        self._probe()

    @property
    def head(self) -> nn.Module:
        """The last layer, with its `weight` (C, d) and, where it has one, `bias` (C,)."""
        return self.module.get_submodule(self.head_name)

    @property
    def samplewise(self) -> bool:
        """Whether samples meet nowhere but in batch statistics, as far as one can know.

        Then several batches may pass together (`normalization.grouped`). A module of another class
        says so of itself by a class attribute `samplewise = True`.
        """
        modules = list(self.module.modules())
        tracked = set(batch_norms(self.module))
        untracked = [m for m in modules if isinstance(m, _BatchNorm) and m not in tracked]
        own = [m for m in modules if type(m) not in SAMPLEWISE]
        return not untracked and all(getattr(type(m), "samplewise", False) for m in own)

    def replace_head(self, head: nn.Module) -> None:
        """Put another last layer in the place of the present one."""
        parent, _, name = self.head_name.rpartition(".")
        setattr(self.module.get_submodule(parent), name, head)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (n, ...) → logits (n, C) and features (n, d), in at least float32."""
        entered: list[Tensor] = []
        # only for the call: the module is the caller's, who may use, copy or save it in between
        hook = self.head.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
        try:
            z = self._call(x) if self._cast_weights else self.module(x)
        finally:
            hook.remove()
        return _full(z), _full(entered[-1])

    def _call(self, x: Tensor) -> Tensor:
        return functional_call(self.module, self._cast_weights, x, tie_weights=False)  # type: ignore[no-any-return]

    @contextmanager
    def cast_weights(self, dtype: torch.dtype) -> Iterator[None]:
        """Weights of convolutions and linear layers in `dtype` for the forwards within.

        Autocast would cast each by itself; here all of them are cast at once, and so are their
        gradients on the way back.
        """
        weights = {
            f"{name}.{own}" if name else own: p
            for name, m in self.module.named_modules()
            if type(m) in CAST_LAYERS
            for own, p in m.named_parameters()
        }
        once = list(dict.fromkeys(weights.values()))  # a weight may stand in two places
        cast = _Cast.apply(dtype, *once) if once else ()  # type: ignore[no-untyped-call]
        cast_to = dict(zip(once, cast, strict=True))
        self._cast_weights = {name: cast_to[p] for name, p in weights.items()}
        try:
            yield
        finally:
            self._cast_weights = {}

    @torch.no_grad()
    def _probe(self) -> None:
        weight = next(self.module.parameters())
        passed: list[tuple[Tensor, Tensor]] = []
        watch = self.head.register_forward_hook(lambda m, a, out: passed.append((a[0], out)))
        shape = (2, *self.input_shape)
        try:
            with modes(self.module):
                z = self.module(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
        except Exception as error:  # a network may fail in any way
            raise ValueError(
                f"the network does not take inputs of shape {self.input_shape}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        finally:
            watch.remove()
        if not passed or passed[-1][1] is not z or passed[-1][0].dim() != 2:
            raise ValueError(
                f"the output of the network does not come straight from its last linear layer "
                f"{self.head_name!r}; expected logits of shape (n, {self.num_classes}) from it"
            )
        if tuple(z.shape) != (2, self.num_classes):
            raise ValueError(
                f"the network's last layer {self.head_name!r} gives {z.shape[-1]} outputs, "
                f"expected {self.num_classes}, one per class"
            )


class _Cast(torch.autograd.Function):
    """Many tensors in another dtype, by one launch each way."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [t.dtype for t in tensors]
        return _cast(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [k for k, g in enumerate(grads) if g is not None]
        cast = _cast([grads[k] for k in there], [ctx.dtypes[k] for k in there])  # type: ignore[misc]
        out: list[Tensor | None] = [None] * len(grads)
        for k, grad in zip(there, cast, strict=True):
            out[k] = grad
        return (None, *out)


def _cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    out = [torch.empty_like(t, dtype=d) for t, d in zip(tensors, dtypes, strict=True)]
    if out:
        torch._foreach_copy_(out, list(tensors))
    return tuple(out)


def _find_head(module: nn.Module, name: str | None) -> str:
    linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ValueError(
            f"the network {type(module).__name__} has no linear layer, "
            "expected a final nn.Linear that gives the logits"
        )
    if name is not None and name not in linear:
        raise ValueError(unknown("linear layer", name, linear))
    return name or linear[-1]


def _full(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t
