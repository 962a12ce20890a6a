"""Modules with copied weights that compute the current scores of a method from normalised inputs.

`Method.scorer` makes them, for predictions without the learner: snapshots and exported files.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dualcba.methods.discriminant import discriminant_scores
from dualcba.methods.nearest_mean import both_read_outs, scores_by_means
from dualcba.nets import Network
from dualcba.nets.inputs import logits_of
from dualcba.nets.network import full_precision

if TYPE_CHECKING:
    from dualcba.methods.base import Method


class Logits(nn.Module):
    """The logits of a copy of a network: `trunk` is the network without its last layer, `head`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        module = copy.deepcopy(network.module)
        self.head = module.get_submodule(network.head_name)
        self.trunk: nn.Module = nn.Identity()
        if network.head_name:
            module.set_submodule(network.head_name, nn.Identity())
            self.trunk = module
        self.head_name = network.head_name
        self.inputs = network.inputs
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, C) of normalised inputs."""
        return self.outputs(x)[0]

    def features(self, x: Tensor) -> Tensor:
        """Return the inputs (n, d) of the last layer."""
        return logits_of(self.inputs.call(self.trunk, x, {}))  # type: ignore[no-any-return]

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, C) and features (n, d) of normalised inputs, as the network does."""
        h = self.features(x)
        return full_precision(self.head(h)), full_precision(h)

    def whole(self) -> nn.Module:
        """Return the network including its last layer, as one module."""
        if not self.head_name:
            return self.head
        module = copy.deepcopy(self.trunk)
        module.set_submodule(self.head_name, copy.deepcopy(self.head))
        return module


class NearestMeans(nn.Module):
    """Minus the squared distance of features to each class mean, see `scores_by_means`.

    With `both`, the mean of the log-probabilities of these scores and of the logits.
    """

    means: Tensor
    has_mean: Tensor

    def __init__(
        self, logits: WithFeatures, means: Tensor, has_mean: Tensor, *, normalise: bool = True,
        both: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.logits = logits
        self.normalise = normalise
        self.both = both
        self.register_buffer("means", means.detach().clone())
        self.register_buffer("has_mean", has_mean.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, C) of normalised inputs."""
        z, h = self.logits.outputs(x)
        near = scores_by_means(z, h, self.means, self.has_mean, normalise=self.normalise)
        return both_read_outs(z, near) if self.both else near


class Discriminants(nn.Module):
    """The scores of a linear discriminant of normalised features, see `discriminant_scores`.

    With `both`, the mean of the log-probabilities of these scores and of the logits.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, logits: WithFeatures, weight: Tensor, bias: Tensor, *, both: bool) -> None:
        super().__init__()
        self.logits = logits
        self.both = both
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, C) of normalised inputs."""
        z, h = self.logits.outputs(x)
        scores = discriminant_scores(z, h, self.weight, self.bias)
        return both_read_outs(z, scores) if self.both else scores


class Corrected(nn.Module):
    """α·z + β, with α and β of each class."""

    alpha: Tensor
    beta: Tensor

    def __init__(self, logits: nn.Module, alpha: Tensor, beta: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.register_buffer("alpha", alpha.detach().clone())
        self.register_buffer("beta", beta.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return corrected logits (n, C) of normalised inputs."""
        z: Tensor = self.logits(x)
        return self.alpha * z + self.beta

    def merged(self) -> nn.Module:
        """Add β to the bias of the last layer, if it has one and α is 1, and return the logits."""
        head = self.logits.head if isinstance(self.logits, Logits) else None
        if not isinstance(head, nn.Linear) or head.bias is None or not (self.alpha == 1).all():
            return self
        head.bias.add_(self.beta)  # `Logits` has a copy of the network
        self.beta.zero_()
        return self.logits


class MeanScores(nn.Module):
    """The mean of the scores of several modules."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean scores (n, C) of normalised inputs."""
        return torch.stack([member(x) for member in self.members]).mean(0)

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean logits (n, C), and the features (n, d) of the first module."""
        first, *others = self.members
        z, h = first.outputs(x)  # type: ignore[operator]
        return torch.stack([z, *(member(x) for member in others)]).mean(0), h


WithFeatures = Logits | MeanScores
"""A module with `outputs`; the first member of `MeanScores` must then be `Logits`."""


def scorer_of(method: Method) -> nn.Module:
    """Return `method.scorer()`; raise if a subclass overrides the scores but not the scorer."""
    order = type(method).__mro__

    def place(name: str) -> int:
        return next(i for i, cls in enumerate(order) if name in vars(cls))

    if min(place("scores"), place("outputs"), place("before_scores")) < place("scorer"):
        name = type(method).__name__
        wanted = "a method that also defines `scorer`, for snapshots and exports"
        raise ValueError(f"the method {name} has scores of its own, expected {wanted}")
    return method.scorer()
