"""A wrapper that returns features and logits of any `nn.Module` with a final linear layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dualcba.engine.torch_private import BatchNormBase, foreach_copy_
from dualcba.errors import expected, unknown
from dualcba.nets.heads import CosineHead, head_input, resize_head
from dualcba.nets.inputs import Inputs, Part, logits_of
from dualcba.normalization.statistics import batch_norms, evaluation_mode

SAMPLEWISE = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.LayerNorm, nn.GroupNorm,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
}  # fmt: skip
"""Modules that process each sample separately, apart from batch normalisation statistics."""

CAST_LAYERS = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d}
"""Modules whose parameters are all cast to low precision by autocast."""


class Network(nn.Module):
    """A network that returns its logits and the features before its last linear layer.

    Parameters
    ----------
    module
        Maps (n, *input_shape) to (n, num_classes) logits. The logits must be the output of a linear
        layer, because the outer step differentiates through that layer in closed form.
    input_shape
        The shape of one sample.
    num_classes
        The number of logits.
    head
        The name of the last layer; by default the last `nn.Linear`.
    inputs
        The inputs of the module; by default one float tensor.

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
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.inputs = inputs or Inputs(Part(input_shape, torch.float32))
        self._cast_weights: dict[str, Tensor] = {}
        self._plain = True  # the module takes one tensor and returns the logits
        self.head_name = find_head(module, head)
        self._probe()

    @property
    def head(self) -> nn.Module:
        """The last layer, with its `weight` (C, d) and, where it has one, `bias` (C,)."""
        return self.module.get_submodule(self.head_name)

    @property
    def samplewise(self) -> bool:
        """Whether samples are known to be processed separately, except for batch statistics.

        Then several batches may share a forward pass (`grouped_statistics`). A module class that is
        not in `SAMPLEWISE` declares this by a class attribute `samplewise = True`.
        """
        modules = list(self.module.modules())
        tracked = set(batch_norms(self.module))
        untracked = [m for m in modules if isinstance(m, BatchNormBase) and m not in tracked]
        others = [m for m in modules if type(m) not in SAMPLEWISE]
        return not untracked and all(getattr(type(m), "samplewise", False) for m in others)

    def replace_head(self, head: nn.Module) -> None:
        """Replace the last layer; raise if the network has no other layer."""
        if not self.head_name:
            wanted = "a network that contains its last layer, such as nn.Sequential(nn.Linear(...))"
            raise ValueError(
                f"the network is a bare linear layer that another head replaces, expected {wanted}"
            )
        parent, _, name = self.head_name.rpartition(".")
        setattr(self.module.get_submodule(parent), name, head)

    def use_cosine_head(self, scale: float, *, learnt: bool) -> None:
        """Replace the last layer by a `CosineHead` with the same weights."""
        weight = self.head.weight
        assert isinstance(weight, Tensor)
        head = CosineHead(weight, scale, learnt=learnt)
        head.weight.requires_grad_(weight.requires_grad)
        self.replace_head(head)

    def resize(self, outputs: int) -> None:
        """Change the number of outputs; new outputs are copies of the last one."""
        resize_head(self.head, outputs)
        self.num_classes = outputs

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and features (n, d) of inputs (n, ...), in at least float32."""
        features: list[Tensor] = []
        # removed after the call: the caller may use, copy or save the module at any time
        hook = self.head.register_forward_pre_hook(
            lambda _, args, kwargs: features.append(head_input(args, kwargs)), with_kwargs=True
        )
        try:
            if self._plain and not self._cast_weights:
                z = self.module(x)
            else:
                z = logits_of(self.inputs.call(self.module, x, self._cast_weights))
        finally:
            hook.remove()
        return full_precision(z), full_precision(features[-1])

    @contextmanager
    def cast_weights(self, dtype: torch.dtype) -> Iterator[None]:
        """Inside the context, use the weights of convolutions and linear layers in `dtype`.

        Autocast would cast weights one by one. Here one operation casts all weights, and one casts
        their gradients in the backward pass.
        """
        weights = {
            f"{name}.{weight}" if name else weight: p
            for name, m in self.module.named_modules()
            if type(m) in CAST_LAYERS
            for weight, p in m.named_parameters()
        }
        unique = list(dict.fromkeys(weights.values()))  # a weight may be shared by two layers
        cast = _Cast.apply(dtype, *unique) if unique else ()  # type: ignore[no-untyped-call]
        cast_of = dict(zip(unique, cast, strict=True))
        self._cast_weights = {name: cast_of[p] for name, p in weights.items()}
        try:
            yield
        finally:
            self._cast_weights = {}

    @torch.no_grad()
    def _trial(self) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
        """Call the module with two samples; return the result and its head's inputs and outputs."""
        weight = next(self.module.parameters())
        calls: list[tuple[Tensor, Tensor]] = []
        hook = self.head.register_forward_hook(
            lambda _, args, kwargs, out: calls.append((head_input(args, kwargs), out)),
            with_kwargs=True,
        )
        try:
            with evaluation_mode(self.module):
                dtype = self.inputs.dtype if self.inputs.whole else weight.dtype
                with torch.inference_mode(False):  # inference tensors have no `_version`
                    x = torch.zeros(2, *self.input_shape, dtype=dtype, device=weight.device)
                version = x._version
                out = self.inputs.call(self.module, x, {})
        except Exception as error:  # the caller's network may raise anything
            raise ValueError(
                f"the network does not accept inputs of shape {self.inputs.given_shape}: "
                f"{str(error).splitlines()[0]}"
            ) from error
        finally:
            hook.remove()
        if x._version != version:
            wanted = "an unchanged input: write x - mean instead of x.sub_(mean)"
            raise ValueError(f"the network changes its input in place, expected {wanted}")
        return out, calls

    def _probe(self) -> None:
        out, calls = self._trial()
        z = logits_of(out)
        self._plain = z is out and type(self.inputs) is Inputs
        if not calls or calls[-1][1] is not z or calls[-1][0].dim() != 2:
            raise ValueError(
                f"the network's output is not the output of its last linear layer "
                f"{self.head_name!r}, expected logits of shape (n, {self.num_classes}) from it"
            )
        if tuple(z.shape) != (2, self.num_classes):
            raise ValueError(
                f"the network's last layer {self.head_name!r} has {z.shape[-1]} outputs, "
                f"expected {self.num_classes}, one per class"
            )


class _Cast(torch.autograd.Function):
    """Casts a list of tensors to another dtype, with one launch in each direction."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [t.dtype for t in tensors]
        return _cast(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [k for k, g in enumerate(grads) if g is not None]
        cast = _cast([grads[k] for k in given], [ctx.dtypes[k] for k in given])  # type: ignore[misc]
        out: list[Tensor | None] = [None] * len(grads)
        for k, grad in zip(given, cast, strict=True):
            out[k] = grad
        return (None, *out)


def _cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    out = [torch.empty_like(t, dtype=d) for t, d in zip(tensors, dtypes, strict=True)]
    if out:
        foreach_copy_(out, list(tensors))
    return tuple(out)


def head_outputs(module: nn.Module, head: str | None = None) -> int:
    """Return the number of outputs of a network's last linear layer; raise if it has only one.

    >>> head_outputs(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    2
    """
    name = find_head(module, head)
    outputs = len(module.get_submodule(name).weight)  # type: ignore[arg-type]
    if outputs < 2:
        wanted = "at least 2; more are added when classes arrive"
        raise ValueError(expected(f"outputs of the last layer {name!r}", outputs, wanted))
    return outputs


def find_head(module: nn.Module, name: str | None) -> str:
    """Return the name of a network's last linear layer, or check the given name."""
    linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ValueError(
            f"the network {type(module).__name__} has no linear layer, "
            "expected a final nn.Linear that returns the logits"
        )
    if name is not None and name not in linear:
        raise ValueError(unknown("linear layer", name, linear))
    return name or linear[-1]


def full_precision(t: Tensor) -> Tensor:
    """Return outputs of a forward pass in float32 if they are in half precision, else unchanged."""
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t
