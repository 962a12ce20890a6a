"""The arithmetic of a network, counted from the shapes of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dualcba.normalization import modes


def forward_flops(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Floating-point operations of one sample's forward: 2 per weight and place it is used at.

    Convolutions and linear layers are counted, all else is memory traffic.

    >>> forward_flops(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), [10])
    520
    """
    total = 0

    def count(layer: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal total
        places = math.prod(out.shape[2:]) if isinstance(layer, _ConvNd) else out.numel()
        weight = layer.get_parameter("weight")
        total += 2 * places * (weight.numel() if isinstance(layer, _ConvNd) else weight.shape[1])

    layers = [m for m in network.modules() if isinstance(m, _ConvNd | nn.Linear)]
    handles = [m.register_forward_hook(count) for m in layers]
    device = next(network.parameters()).device
    try:
        with torch.no_grad(), modes(network):
            network(torch.zeros(1, *input_shape, device=device))
    finally:
        for handle in handles:
            handle.remove()
    return total


def step_flops(forward: int, *, trained: int, forwarded: float = 0) -> int:
    """Of a step: a trained sample passes forward and twice as much backward; others only forward.

    The gradient of the first layer's input, which nobody needs, is counted too: under 1 % of
    ResNet-18.

    >>> step_flops(100, trained=64, forwarded=32 / 5)
    19840
    """
    return round(forward * (3 * trained + forwarded))
