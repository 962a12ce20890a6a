"""The bias adaptors g_φ of Section III-C: posterior and class sets → correction of the logits.

Symbols as in the paper: p = softmax(z) is the posterior, ω the class-specific parameters, ν the
class-agnostic ones, φ = {ω, ν}. In logit space (the default) an adaptor returns r, and the adapted
logits are z + r. In probability space it returns a distribution g, and the adapted posterior is
(g + p)/Z. In both spaces p is detached, so the output has no gradient with respect to θ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.adaptors.prior import Prior
from dualcba.errors import expected
from dualcba.kernels import adaptor as kernels
from dualcba.options import (
    BALANCED,
    TrainingOptions,
    check_learnt_parts,
    check_logit_space,
    definitions,
)
from dualcba.randomness import global_generator
from dualcba.tasks.class_sets import ClassSets

WIDTH: int = definitions(TrainingOptions)["width"].default


class _MLP(nn.Module):
    """Two linear layers with a ReLU; Xavier-normal weights and zero biases."""

    def __init__(self, inputs: int, outputs: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        with global_generator():  # the default initial weights are discarded
            self.hidden = nn.Linear(inputs, width)
            self.output = nn.Linear(width, outputs)
        self.reset(generator)

    def reset(self, generator: torch.Generator) -> None:
        """Initialise in place; weights are drawn on the CPU, so they are equal on all devices."""
        for layer in (self.hidden, self.output):
            weight = torch.empty(layer.weight.shape, dtype=torch.float32, device="cpu")
            nn.init.xavier_normal_(weight, generator=generator)
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.zero_()

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weight and bias of the hidden layer, then of the output layer."""
        return (self.hidden.weight, self.hidden.bias, self.output.weight, self.output.bias)


def _outputs(p: Tensor, weights: kernels.Weights) -> Tensor:
    """Return the outputs of an MLP with these weights."""
    hidden = F.linear(p, weights[0], weights[1]).relu()
    return F.linear(hidden, weights[2], weights[3])


class _Part(nn.Module):
    """A part of the adaptor, whose outputs are optionally multiplied by a learnt strength s.

    s is 0 at first: then the part makes no correction, and only s has a gradient. The weights of
    the output layer are multiplied by s, so kernels need not support it.
    """

    strength: nn.Parameter | None

    def __init__(self, strength: bool) -> None:
        super().__init__()
        self.register_parameter("strength", nn.Parameter(torch.zeros(1)) if strength else None)

    def scaled(self, weights: kernels.Weights) -> kernels.Weights:
        """Return the weights of an MLP, with the output layer multiplied by the strength."""
        if self.strength is None:
            return weights
        hidden, bias, output, output_bias = weights
        return hidden, bias, self.strength * output, self.strength * output_bias


class ClassSpecific(_Part):
    """ω: maps the posterior to a correction per class.

    By default one MLP corrects all classes. If `individual`, one MLP reads and corrects the new
    classes, and another MLP the old classes.
    """

    def __init__(
        self,
        sets: ClassSets,
        width: int,
        generator: torch.Generator,
        *,
        individual: bool = False,
        strength: bool = False,
    ) -> None:
        super().__init__(strength)
        C = sets.num_classes
        self.individual = individual
        sides = 2 if individual else 1
        self.nets = nn.ModuleList(_MLP(C, C, width, generator) for _ in range(sides))

    def forward(self, p: Tensor, masks: Tensor) -> Tensor:
        """Return outputs (n, C) of a posterior (n, C); masks (3, C): old, new and seen classes."""
        old, new, seen = masks.unbind()
        if not self.individual:
            return self.all_classes(p) * seen
        of_old = _outputs(p * old, self.weights(1)) * old
        return torch.addcmul(of_old, _outputs(p * new, self.weights(0)), new)

    def all_classes(self, p: Tensor) -> Tensor:
        """Return the outputs (n, C) of the first MLP for all classes, seen or not."""
        return _outputs(p, self.weights(0))

    def weights(self, number: int) -> kernels.Weights:
        """Return the weights of an MLP."""
        return self.scaled(self.nets[number].weights())  # type: ignore[operator]

    def reset(self, generator: torch.Generator) -> None:
        """Re-initialise in place."""
        for net in self.nets:
            net.reset(generator)  # type: ignore[operator]
        if self.strength is not None:
            with torch.no_grad():
                self.strength.zero_()


class ClassAgnostic(_Part):
    """ν: maps (p_old, p_new), the total probability of old and new classes, to two corrections.

    It does not depend on single classes, so it transfers across tasks and datasets. With `counts`
    it has the further inputs `sizes` (4,): the numbers of old and new classes, and of their
    samples. They are equal for all samples of a batch, so they only shift the bias of the hidden
    layer. Their weights are initially 0.
    """

    counts: nn.Parameter | None

    def __init__(
        self,
        width: int,
        generator: torch.Generator,
        *,
        strength: bool = False,
        counts: bool = False,
    ) -> None:
        super().__init__(strength)
        self.net = _MLP(2, 2, width, generator)
        self.register_parameter("counts", nn.Parameter(torch.zeros(width, 4)) if counts else None)

    def forward(self, p: Tensor, sides: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Return outputs (n, 2) of a posterior (n, C); sides (2, C): old and new classes."""
        return _outputs(p @ sides.T, self.weights(sizes))

    def weights(self, sizes: Tensor | None = None) -> kernels.Weights:
        """Return the weights of the MLP; with `counts` the hidden bias depends on the sizes."""
        hidden, bias, output, output_bias = self.net.weights()
        if self.counts is not None:
            assert sizes is not None
            bias = torch.addmv(bias, self.counts, sizes)
        return self.scaled((hidden, bias, output, output_bias))


class Adaptor(nn.Module):
    """The bias adaptor g_φ, used in training only.

    Parameters
    ----------
    sets
        The class sets of the learner.
    specific
        The class-specific part: `"single"`, `"individual"` or `"none"`.
    agnostic
        Whether to add a class-agnostic part, or an existing part to use. If the adaptor has both
        parts, r is their mean.
    continual
        Plain CBA: corrects all classes from the first task on, and is never re-initialised.
        Otherwise r is zero in the first task and for unseen classes, and ω is re-initialised when a
        task begins.
    space
        `"logit"` (z + r) or `"probability"` ((g + p)/Z, as the paper writes it).
    divide
        Whether to divide the class-agnostic outputs by the number of old or new classes.
    strength
        Whether the correction of each part is multiplied by a learnt factor, initially 0; the
        factor of ω is set to 0 again when ω is re-initialised. Only in logit space.
    counts
        Whether the class-agnostic part also gets the logarithms of the numbers of old and new
        classes and of their samples in `pool`.
    prior
        Whether r starts from the log frequency of the classes in the inner batches; see `Prior`.
        Only in logit space.
    width
        The number of hidden units of each MLP.
    generator
        The random generator of the initial weights.

    >>> sets = ClassSets(4); sets.new_task([0, 1])
    >>> dual = Adaptor(sets, generator=torch.Generator().manual_seed(0))
    >>> dual.adapt(torch.ones(1, 4), dual(torch.ones(1, 4))).tolist()  # no old classes yet
    [[1.0, 1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        sets: ClassSets,
        *,
        specific: str = "single",
        agnostic: bool | ClassAgnostic = True,
        continual: bool = False,
        space: str = "logit",
        divide: bool = False,
        counts: bool = False,
        strength: bool = False,
        prior: bool = False,
        width: int = WIDTH,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        for name, value in (("specific", specific), ("space", space), ("width", width)):
            definitions(TrainingOptions)[name].check(value)
        check_learnt_parts(specific, agnostic is not False, prior)
        check_logit_space(space, strength=strength, prior=prior)
        _check_continual(specific, agnostic is not False, continual)
        self._shared = (sets,)  # in a tuple, so that `sets` is not a submodule of the adaptor
        self.continual = continual
        self.space = space
        self.divide = divide
        self.counts = counts
        self.strength = strength
        individual = specific == "individual"
        self.specific = (
            ClassSpecific(sets, width, generator, individual=individual, strength=strength)
            if specific != "none"
            else None
        )
        made = agnostic
        if agnostic is True:
            made = ClassAgnostic(width, generator, strength=strength, counts=counts)
        self.agnostic = made if isinstance(made, ClassAgnostic) else None
        # (C,) the samples of each class in the memory and the current batch
        pool = torch.zeros(sets.num_classes) if counts and self.agnostic is not None else None
        self.register_buffer("pool", pool)
        self.prior = Prior(sets.num_classes) if prior else None

    pool: Tensor | None

    @property
    def sets(self) -> ClassSets:
        """The class sets of the learner."""
        return self._shared[0]

    def forward(self, z: Tensor) -> Tensor:
        """Return the correction r (n, C) of logits (n, C), or the distribution g."""
        r = self._learnt(z.detach())
        return r if self.prior is None else r + self._log_prior(r)

    def _log_prior(self, r: Tensor) -> Tensor:
        assert self.prior is not None
        where = 1 if self.continual else self.sets.later
        return (self.sets.centred_log(self.prior.counts()) * where).to(r.dtype)

    def _learnt(self, z: Tensor) -> Tensor:
        """Return the correction by the learnt parts, without the prior."""
        if self.specific is None and self.agnostic is None:
            return torch.zeros_like(z)
        if self._fused(z):
            omega, nu = self._weights()
            masked = not self.continual
            return kernels.correction(z, omega, nu, self.sets, masked=masked, divide=self.divide)
        return self._from_posterior(z.softmax(1))

    def _fused(self, z: Tensor) -> bool:
        """Whether the fused kernels can compute the correction."""
        if not z.is_cuda or self.space != "logit":
            return False
        individual = self.specific is not None and self.specific.individual
        return not individual and kernels.applies(z, *self.parameters())

    def _weights(self) -> tuple[kernels.Weights | None, kernels.Weights | None]:
        omega = None if self.specific is None else self.specific.weights(0)
        return omega, None if self.agnostic is None else self.agnostic.weights(self._sizes())

    def _sizes(self) -> Tensor | None:
        """Return the further inputs of ν (4,), scaled to about the range of probabilities."""
        if self.pool is None:
            return None
        sides = torch.stack([self.sets.old, self.sets.new]).to(self.pool.dtype)
        return torch.cat([sides.sum(1), sides @ self.pool]).log1p() / 10

    def _from_posterior(self, p: Tensor) -> Tensor:
        if self.continual:
            return self._plain_cba(p)
        masks = self._masks().to(p.dtype)
        if self.agnostic is None:
            return self._class_specific(p, masks)
        sides, members = self._class_agnostic(p, masks[:2])
        if self.specific is None:
            return sides @ members
        # the mean of both parts
        return torch.addmm(self._class_specific(p, masks), sides, members, beta=0.5, alpha=0.5)

    def _masks(self) -> Tensor:
        """Return masks (3, C) of old, new and seen classes; all zero in the first task."""
        sets = self.sets
        return torch.stack([sets.old, sets.new, sets.seen]) * sets.later

    def _plain_cba(self, p: Tensor) -> Tensor:
        assert self.specific is not None
        r = self.specific.all_classes(p)
        return r if self.space == "logit" else r.softmax(1)

    def _class_specific(self, p: Tensor, masks: Tensor) -> Tensor:
        assert self.specific is not None
        r: Tensor = self.specific(p, masks)
        if self.space == "logit":
            return r
        return r.masked_fill(~self.sets.seen, -torch.inf).softmax(1)

    def _class_agnostic(self, p: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (n, 2) for old and new classes, and the factor of each class (2, C)."""
        assert self.agnostic is not None
        sides: Tensor = self.agnostic(p, members, self._sizes())
        if self.space == "probability":
            sides = sides.softmax(1)
        if self.space == "probability" or self.divide:
            members = members / members.sum(1, keepdim=True).clamp(min=1.0)
        return sides, members

    def adapt(self, z: Tensor, r: Tensor) -> Tensor:
        """Return the adapted logits z̃; r is the output of `forward` for these rows."""
        if self.space == "logit":
            return z + r
        mixed = ((r + z.softmax(1)) / 2).clamp(min=1e-12).log()
        return mixed if self.continual else torch.where(self.sets.later > 0, mixed, z)

    def reset_for_task(self, generator: torch.Generator) -> list[Tensor]:
        """Reset the prior and, except in plain CBA, re-initialise ω; return the parameters of ω.

        The caller resets their optimiser state.
        """
        if self.prior is not None:
            self.prior.reset()
        if self.continual or self.specific is None:
            return []
        self.specific.reset(generator)
        return list(self.specific.parameters())


def _check_continual(specific: str, agnostic: bool, continual: bool) -> None:
    if continual and (specific != "single" or agnostic):
        wanted = "False unless specific is 'single' and agnostic is False"
        raise ValueError(expected("continual", continual, wanted))


def class_specific(sets: ClassSets, generator: torch.Generator, **options: object) -> Adaptor:
    """Return the adaptor of `<base>-cba`: one class-specific MLP that is never re-initialised."""
    settings = {"specific": "single", "agnostic": False, "continual": True} | options
    return Adaptor(sets, generator=generator, **settings)  # type: ignore[arg-type]


def dual(sets: ClassSets, generator: torch.Generator, **options: object) -> Adaptor:
    """Return the adaptor of all other kinds: class-specific and class-agnostic."""
    return Adaptor(sets, generator=generator, **options)  # type: ignore[arg-type]


ADAPTORS: dict[str, Callable[..., Adaptor]] = {
    "cba": class_specific,
    "dual-cba": dual,
    BALANCED: dual,
}
