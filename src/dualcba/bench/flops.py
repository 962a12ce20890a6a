"""Count the floating-point operations of a network from the shapes of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dualcba.engine.torch_private import ConvBase
from dualcba.normalization.statistics import evaluation_mode


def layer_flops(network: nn.Module, input_shape: Sequence[int]) -> list[int]:
    """Return the floating-point operations of each layer for one sample's forward, in order.

    Two operations per weight and output position, for convolutions and linear layers only.

    >>> layer_flops(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), [10])
    [400, 120]
    """
    counts = []
    for layer, shape in _outputs(network, input_shape):
        places = math.prod(shape[1:] if isinstance(layer, ConvBase) else shape[:-1])
        counts.append(2 * places * layer.get_parameter("weight").numel())
    return counts


def activations(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return the number of output values of convolutions and linear layers for one sample.

    >>> activations(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), [10])
    23
    """
    return sum(math.prod(shape) for _, shape in _outputs(network, input_shape))


def _outputs(
    network: nn.Module, input_shape: Sequence[int]
) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Return each convolution and linear layer in order, with its output shape per sample."""
    found: list[tuple[nn.Module, tuple[int, ...]]] = []

    def note(layer: nn.Module, _: tuple[Tensor, ...], out: Tensor) -> None:
        found.append((layer, tuple(out.shape[1:])))

    layers = [m for m in network.modules() if isinstance(m, ConvBase | nn.Linear)]
    handles = [m.register_forward_hook(note) for m in layers]
    device = next(network.parameters()).device
    try:
        with torch.no_grad(), evaluation_mode(network):
            network(torch.zeros(1, *input_shape, device=device))
    finally:
        for handle in handles:
            handle.remove()
    return found


def forward_flops(network: nn.Module, input_shape: Sequence[int]) -> int:
    """Return the floating-point operations of one sample's forward.

    >>> from dualcba.nets import ResNet18
    >>> round(forward_flops(ResNet18(3, 100), (3, 32, 32)) / 1e9, 3)
    1.111
    """
    return sum(layer_flops(network, input_shape))


def step_flops(
    network: nn.Module, input_shape: Sequence[int], trained: int, forwarded: float = 0
) -> int:
    """Return the floating-point operations of a step.

    `trained` samples have a forward and a backward pass, `forwarded` samples only a forward pass.
    The backward pass costs twice the forward pass, without the gradient of the input.

    >>> step_flops(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)), [10], 64)
    74240
    """
    counts = layer_flops(network, input_shape)
    return round(trained * (3 * sum(counts) - counts[0]) + forwarded * sum(counts))
