"""CCL-DC: two networks distil from each other along a chain of views; a wrapper of any method."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from dualcba.data.randaugment import RandAugment, check_images
from dualcba.data.transforms import Transform
from dualcba.errors import above_zero, at_least_0, expected
from dualcba.losses import (
    Adapt,
    Batch,
    Divergence,
    Term,
    mean_weights,
    scaled,
    total,
    weights_of_one_mean,
)
from dualcba.memory import Memory
from dualcba.methods.base import Context, Method
from dualcba.methods.er_ace import ERACE
from dualcba.methods.scorers import Logits, MeanScores
from dualcba.methods.views import chain_of_views
from dualcba.methods.wrapper import Wrapper
from dualcba.nets import Network
from dualcba.normalization.statistics import evaluation_mode
from dualcba.randomness import global_generator

CHAIN = ("v0", "v1", "v2", "v3")
"""The views of a sample, each more distorted than the previous one."""

VIEW_PAIRS = (("v3", "v3"), ("v1", "v0"), ("v2", "v1"), ("v3", "v2"))
"""The view of the peer that gives the targets, and the own view that learns them."""


class CCLDC(Wrapper):
    """Collaborative learning and distillation chain: two networks, five views of each sample.

    L = ½·[L_base(x̂) + Σ_j L_base(v_j)] + λ·[D(v3 → v3) + D(v1 → v0) + D(v2 → v1) + D(v3 → v2)]

    x̂ is the augmented sample, v0 the raw sample, v1 a crop and flip of v0, v2 RandAugment of v1 and
    v3 RandAugment of v2. D(a → b) = T²·KL(softmax(a/T) ‖ softmax(b/T)), one mean over all new and
    memory samples, from the peer's constant logits of view a to the own logits of view b, both raw.
    Both networks are trained by this loss. Predictions use the mean of their logits; read-outs that
    need features use those of the first network. With `peers=1` the network is its own peer.

    The second network has other initial weights, which are a function of those of the first; frozen
    layers are copied. With a bias adaptor, the logits of both networks are corrected by the same r,
    and the adaptor is trained through the virtual step of the first network only.

    Parameters
    ----------
    method
        The method to wrap.
    peers
        The number of networks, 1 or 2.
    weight
        λ; by default 1 around ER-ACE and 2 around other methods.
    temperature
        T.
    operations, magnitude
        The number of RandAugment operations for v2 and for v3, and their strength from 0 to 30. The
        authors use 3 and 15 on CIFAR, and 1 and 11 on Tiny-ImageNet.

    References
    ----------
    Wang et al., Improving plasticity in online continual learning via collaborative learning, CVPR
    2024.
    """

    title = "CCL-DC"
    memory_views = True
    closed_form = True  # the second network's loss depends on r, not on the first one's logits

    def __init__(
        self,
        method: Method,
        *,
        peers: int = 2,
        weight: float | None = None,
        temperature: float = 4.0,
        operations: int = 3,
        magnitude: int = 15,
    ) -> None:
        super().__init__(method)
        if isinstance(peers, bool) or peers not in (1, 2):
            raise ValueError(expected("peers", peers, "1 or 2"))
        above_zero(temperature=temperature)
        usual = 1.0 if isinstance(method, ERACE) else 2.0
        self.weight = usual if weight is None else at_least_0("weight", weight)
        self.peers, self.temperature = peers, temperature
        self.operations, self.magnitude = operations, magnitude
        RandAugment(operations, magnitude)  # checks the options
        self._outputs: list[tuple[Tensor, Tensor]] = []  # of the peer in this step

    def bind(self, context: Context) -> None:
        """Make the second network."""
        super().bind(context)
        if self.peers == 2:
            self.peer = fresh_copy(context.network)

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """Return the memory of the wrapped method; raise unless the samples are images."""
        check_images(shape, dtype)
        return super().make_memory(size, shape, dtype, C)

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Return the chain of views, and the views of the wrapped method."""
        chain = chain_of_views(transform, self.operations, self.magnitude)
        return {**self.method.make_views(transform), **chain}

    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Pass all views through the second network."""
        super().observe(new, mem)
        if self.peers == 2:
            self._outputs = self.context.passes(self.peer, [new, *mem], tuple(new.views))

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the terms of the first network."""
        batches = [new, *mem]
        return self._terms(batches, self._peer_batches(batches) if self._outputs else batches)

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return the sum of the losses of both networks."""
        loss = total(self.terms(new, mem), adapt)
        if not self._outputs:
            return loss
        batches = [new, *mem]
        return loss + total(self._terms(self._peer_batches(batches), batches), adapt)

    def _terms(self, own: Sequence[Batch], teachers: Sequence[Batch]) -> list[Term]:
        """Return the terms of one network, from its own batches and those of its teacher."""
        terms = self.method.terms(own[0], own[1:])
        for name in CHAIN:
            new, *mem = (replace(b.views[name], columns=b.columns) for b in own)
            terms += self.method.terms(new, mem)
        terms = [scaled(term, 0.5) for term in terms]
        shares = mean_weights(own, by_samples=True)
        each = weights_of_one_mean(own)
        for source, own_view in VIEW_PAIRS:
            for batch, teacher, share, e in zip(own, teachers, shares, each, strict=True):
                view = replace(batch.views[own_view], each=e)
                target = teacher.views[source].z.detach()
                terms.append(Divergence(view, target, self.temperature, self.weight * share))
        return terms

    def _peer_batches(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches with the outputs of the second network."""
        made, n = [], len(batches)
        for k, batch in enumerate(batches):
            (z, h), *rest = self._outputs[k::n]
            views = {
                name: replace(batch.views[name], z=other_z, h=other_h)
                for name, (other_z, other_h) in zip(batch.views, rest, strict=True)
            }
            made.append(replace(batch, z=z, h=h, views=views))
        return made

    def after_step(self, noise: Tensor | None) -> None:
        """Discard the outputs of the second network."""
        super().after_step(noise)
        self._outputs = []

    def networks(self) -> list[Network]:
        """Return the second network, if there is one."""
        return [self.peer] if self.peers == 2 else []

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """Put the second network into evaluation mode."""
        with ExitStack() as stack:
            for network in self.networks():
                stack.enter_context(evaluation_mode(network))
            stack.enter_context(super().predicting())
            yield

    def scores(self, x: Tensor) -> Tensor:
        """Return the mean of the logits of all networks."""
        own = super().scores(x)
        others = [network(x)[0] for network in self.networks()]
        return torch.stack([own, *others]).mean(0) if others else own

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the logits of all networks, and the features of the first one."""
        own, h = super().outputs(x)
        others = [network(x)[0] for network in self.networks()]
        return (torch.stack([own, *others]).mean(0) if others else own), h

    def scorer(self) -> nn.Module:
        """Return a module of the mean logits of all networks."""
        own = super().scorer()
        others = [Logits(network) for network in self.networks()]
        return MeanScores([own, *others]) if others else own


def fresh_copy(network: Network) -> Network:
    """Return a copy of a network with new weights, by `reset_parameters` of its layers.

    Frozen layers, which have a weight that is not trained or are in evaluation mode, are not reset.
    The new weights are a function of the given ones, not of torch's global generator.
    """
    copy = deepcopy(network).cpu()
    seed = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in copy.parameters()))
    with global_generator(seed):
        for module in copy.modules():
            _reset(module)
    return copy


def _reset(module: nn.Module) -> None:
    trained = module.training and all(p.requires_grad for p in module.parameters(recurse=False))
    if trained and callable(reset := getattr(module, "reset_parameters", None)):
        reset()
