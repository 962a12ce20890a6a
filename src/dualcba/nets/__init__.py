"""Networks by name: the paper's ResNet-18 and small ones for CPUs. `Network` wraps any other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from dualcba.errors import expected, unknown
from dualcba.nets.mlp import MLP
from dualcba.nets.network import Network, head_outputs
from dualcba.nets.published import SOURCES, freeze, published_network
from dualcba.nets.resnet import ResNet18

__all__ = ["MLP", "NETWORKS", "Network", "ResNet18", "freeze", "head_outputs", "make_network"]

Shape = tuple[int, ...]


def _resnet(shape: Shape, classes: int, *, name: str, width: int = 64) -> nn.Module:
    if len(shape) != 3:
        wanted = "(channels, height, width); the network 'mlp' accepts any shape"
        raise ValueError(expected(f"input shape for {name}", shape, wanted))
    return ResNet18(shape[0], classes, width=width)


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "resnet18": partial(_resnet, name="resnet18"),
    "resnet18-slim": partial(_resnet, name="resnet18-slim", width=20),
    "mlp": MLP,
}


def make_network(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return a network by name, with PyTorch's default initialisation.

    `timm:NAME` and `hf:NAME` are networks of timm and Hugging Face, see `dualcba.nets.published`.
    """
    if name.partition(":")[0] in SOURCES:
        return published_network(name, input_shape, num_classes)
    if name not in NETWORKS:
        raise ValueError(unknown("network", name, NETWORKS))
    return NETWORKS[name](input_shape, num_classes)
