"""Fold batch normalisation with fixed statistics into the layer before it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from dualcba.normalization.layers import BatchNorm

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, BatchNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Pair = tuple[str, str]
"""The names of a layer and of the normalisation of its output."""


def fold_normalization(network: nn.Module, example: Tensor) -> nn.Module:
    """Return a copy in evaluation mode with normalisation folded into the layers before it.

    If the output of a convolution or linear layer is only used by a batch normalisation, the layer
    gets new weights and a bias, and the normalisation is replaced by an `nn.Identity`. `example`
    are inputs of the network: a normalisation is not folded if this changes the outputs for them.

    >>> net = nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU())
    >>> sorted(fold_normalization(net, torch.rand(2, 3)).state_dict())
    ['0.bias', '0.weight']
    """
    folded = copy.deepcopy(network).eval().requires_grad_(False)
    try:
        exact, inputs = copy.deepcopy(folded).double(), example.double()
        with torch.no_grad():
            wanted = exact(inputs)
            for pair in pairs(exact, inputs):
                before = [exact.get_submodule(name) for name in pair]
                fold(exact, pair)
                if torch.allclose(exact(inputs), wanted, rtol=1e-8, atol=1e-8):
                    fold(folded, pair)
                    continue
                for name, module in zip(pair, before, strict=True):
                    exact.set_submodule(name, module)
    except (RuntimeError, TypeError):  # the network insists on float32
        return folded
    return folded


def fold(network: nn.Module, pair: Pair) -> None:
    """Fold one normalisation, in place."""
    layer, norm = (network.get_submodule(name) for name in pair)
    fuse: Any = fuse_conv_bn_eval if isinstance(layer, CONVOLUTIONS) else fuse_linear_bn_eval
    network.set_submodule(pair[0], fuse(layer, norm).requires_grad_(False))
    network.set_submodule(pair[1], nn.Identity())


def pairs(network: nn.Module, example: Tensor) -> list[Pair]:
    """Return the layers followed by a batch normalisation, found in a pass in evaluation mode."""
    made: dict[int, str] = {}  # the layer that made a tensor, by the id of the tensor
    kept: list[Tensor] = []  # keeps tensors alive, so that ids stay unique
    found: list[Pair] = []
    calls: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            calls.append(name)
            if type(module) in PLAIN and id(args[0]) in made:
                found.append((made[id(args[0])], name))
            elif type(module) in (*CONVOLUTIONS, nn.Linear):
                kept.append(output)
                made[id(output)] = name

        return hook

    hooks = [m.register_forward_hook(watch(name)) for name, m in network.named_modules() if name]
    try:
        with torch.no_grad():
            network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return [p for p in found if calls.count(p[0]) == calls.count(p[1]) == 1 and _fits(network, p)]


def _fits(network: nn.Module, pair: Pair) -> bool:
    layer: Any
    norm: Any
    layer, norm = (network.get_submodule(name) for name in pair)
    outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return norm.running_mean is not None and bool(outputs == norm.num_features)
