"""The frozen part of a network, whose features the memory stores instead of samples.

A learner with a trunk trains on the inputs of the last layer. The trunk maps each raw sample to
these features once, when it arrives. Everything else, such as the memory, IBN, the methods and the
adaptor, uses the features as samples.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from dualcba.data.transforms import Transform
from dualcba.engine import Engine
from dualcba.nets import Network
from dualcba.nets.inputs import Inputs, logits_of
from dualcba.normalization.statistics import evaluation_mode

HEAD = "head"
"""The name of the last layer in the network of a learner with a trunk."""

Autocast = Callable[[], AbstractContextManager[object]]


class Trunk(nn.Module):
    """Maps raw samples (n, ...) to features (n, d), in evaluation mode and without a gradient.

    Parameters
    ----------
    module
        The network without its last layer.
    transform
        Normalises the samples; it must not be random.
    inputs
        The shapes and types of the inputs of the module.
    """

    def __init__(self, module: nn.Module, transform: Transform, inputs: Inputs) -> None:
        super().__init__()
        self.module = module
        self.transform = transform
        self.inputs = inputs
        self._captured: dict[int, Tensor] = {}  # features of new batches, by their number

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return the features of raw samples, in float32."""
        with evaluation_mode(self):
            out = self.inputs.call(self.module, self.transform(x), {})
        features: Tensor = logits_of(out)
        return features.float()

    def of_new(self, x: Tensor, engine: Engine, autocast: Autocast) -> Tensor:
        """Return the features of new samples; on a GPU this is one launch.

        The result is valid until the next call.
        """
        if not x.is_cuda:
            with autocast():
                return self(x)  # type: ignore[no-any-return]
        with engine.scope():
            if len(x) not in self._captured:
                with autocast():
                    self._captured[len(x)] = torch.empty_like(self(x))
        out = self._captured[len(x)]
        engine.run(("trunk", tuple(x.shape)), partial(self._write, out, autocast), x)
        return out

    def _write(self, out: Tensor, autocast: Autocast, x: Tensor) -> None:
        with autocast():
            out.copy_(self(x))


def split_network(network: Network, transform: Transform, inputs: Inputs) -> tuple[Trunk, Network]:
    """Split a network into its trunk and a network that is only the last layer.

    Both share all weights with the given network. Raises if the trunk can change in training.

    >>> from dualcba.nets.inputs import Part
    >>> net = nn.Sequential(nn.Linear(3, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 2))
    >>> inputs = Inputs(Part((3,), torch.float32))
    >>> net = Network(net.eval(), (3,), 2)
    >>> trunk, last = split_network(net, Transform([0.0], [1.0]), inputs)
    >>> tuple(trunk(torch.zeros(4, 3)).shape), last.input_shape, last.head is net.head
    ((4, 5), (5,), True)
    """
    module, name, head = network.module, network.head_name, network.head
    check_frozen(module, name)
    device = next(network.parameters()).device
    own = copy.deepcopy(transform).to(device)  # other learners may use it on other devices
    trunk = Trunk(without_head(module, name), own, inputs)
    _check_split(trunk, network, inputs)
    weight = head.weight
    assert isinstance(weight, Tensor)
    alone = nn.Sequential(OrderedDict([(HEAD, head)]))
    return trunk, Network(alone, (weight.shape[1],), network.num_classes, head=HEAD)


def check_frozen(module: nn.Module, head: str) -> None:
    """Raise unless all layers but the last are frozen: no gradients, and in evaluation mode."""
    wanted = "a frozen trunk for cache_features"
    if not head:
        raise ValueError(f"the network is a bare linear layer, expected {wanted}")
    for name, p in module.named_parameters():
        if p.requires_grad and not name.startswith(f"{head}."):
            raise ValueError(
                f"the network's {name} requires a gradient, expected {wanted}: "
                "requires_grad_(False) on all but the last layer"
            )
    for name, m in module.named_modules():
        if m.training and name != head and name and not head.startswith(f"{name}."):
            raise ValueError(
                f"the network's {name} is in training mode, expected {wanted}: eval() on the "
                "network"
            )


def without_head(module: nn.Module, head: str) -> nn.Module:
    """Return a network without its last layer; all other modules are shared.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 2)))
    >>> trunk = without_head(net, "1.1")
    >>> x = torch.zeros(4, 3)
    >>> tuple(trunk(x).shape), trunk[0] is net[0], tuple(net(x).shape)
    ((4, 5), True, (4, 2))
    """
    first, _, rest = head.partition(".")
    made = copy.copy(module)
    made._modules = dict(module._modules)
    inner = module.get_submodule(first)
    made._modules[first] = without_head(inner, rest) if rest else nn.Identity()
    return made


@torch.no_grad()
def _check_split(trunk: Trunk, network: Network, inputs: Inputs) -> None:
    """Raise unless the trunk returns the inputs of the last layer."""
    device = next(network.parameters()).device
    shape = (2, *inputs.shape)
    values = torch.arange(math.prod(shape), device=device) % (1 if inputs.whole else 5)
    x = values.view(shape).to(inputs.dtype)  # tokens and rows are zeros, which all networks accept
    with evaluation_mode(network):
        wanted = network(trunk.transform(x))[1]
    found = trunk(x)
    if found.shape != wanted.shape or not torch.allclose(found, wanted):
        raise ValueError(
            f"without its last layer {network.head_name!r} the network does not return the inputs "
            "of this layer, expected a network that ends with it for cache_features"
        )
