"""The bias adaptors g_φ of Section III-C: posterior and class sets → correction of the logits.

Symbols as in the paper: p = softmax(z) is the posterior, ω the class-specific parameters, ν the
class-agnostic ones, φ = {ω, ν}. In logit space (the default) an adaptor returns r, and the adapted
logits are z + r. In probability space it returns a distribution g, and the adapted posterior is
(g + p)/Z. In both, the output is a constant for θ, because p is detached.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.errors import expected
from dualcba.kernels import adaptor as kernels
from dualcba.options import BALANCED, TrainingOptions, definitions
from dualcba.tasks.class_sets import ClassSets

WIDTH: int = definitions(TrainingOptions)["width"].default


class _MLP(nn.Module):
    """Two linear layers with a ReLU; Xavier-normal weights and zero biases."""

    def __init__(self, inputs: int, outputs: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # the default initial weights are discarded
            self.hidden = nn.Linear(inputs, width)
            self.output = nn.Linear(width, outputs)
        self.reset(generator)

    def reset(self, generator: torch.Generator) -> None:
        """Initialise in place; weights are drawn on the CPU, so all devices start equal."""
        for layer in (self.hidden, self.output):
            weight = torch.empty(layer.weight.shape, dtype=torch.float32)
            nn.init.xavier_normal_(weight, generator=generator)
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.zero_()

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weight and bias of the hidden layer, then of the output layer."""
        return (self.hidden.weight, self.hidden.bias, self.output.weight, self.output.bias)

    def forward(self, p: Tensor) -> Tensor:
        hidden = F.linear(p, self.hidden.weight, self.hidden.bias).relu()
        return F.linear(hidden, self.output.weight, self.output.bias)


class ClassSpecific(nn.Module):
    """ω: maps the posterior to a correction per class.

    By default it is one MLP over all classes. If `individual`, one MLP reads and corrects the new
    classes and another one the old classes.
    """

    def __init__(
        self, sets: ClassSets, width: int, generator: torch.Generator, *, individual: bool = False
    ) -> None:
        super().__init__()
        C = sets.num_classes
        self.individual = individual
        sides = 2 if individual else 1
        self.nets = nn.ModuleList(_MLP(C, C, width, generator) for _ in range(sides))

    def forward(self, p: Tensor, masks: Tensor) -> Tensor:
        """Return outputs (n, C) of a posterior (n, C); masks (3, C): old, new and seen classes."""
        old, new, seen = masks
        if not self.individual:
            return self.nets[0](p) * seen  # type: ignore[no-any-return]
        return torch.addcmul(self.nets[1](p * old) * old, self.nets[0](p * new), new)

    def reset(self, generator: torch.Generator) -> None:
        """Re-initialise in place."""
        for net in self.nets:
            net.reset(generator)  # type: ignore[operator]


class ClassAgnostic(nn.Module):
    """ν: maps (p_old, p_new), the total probability of old and new classes, to two corrections.

    It does not depend on single classes, so it transfers across tasks and datasets.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.net = _MLP(2, 2, width, generator)

    def forward(self, p: Tensor, sides: Tensor) -> Tensor:
        """Return outputs (n, 2) of a posterior (n, C); sides (2, C): old and new classes."""
        return self.net(p @ sides.T)  # type: ignore[no-any-return]


class Adaptor(nn.Module):
    """The bias adaptor g_φ, used in training only.

    Parameters
    ----------
    sets
        The class sets of the learner.
    specific
        The class-specific part: `"single"`, `"individual"` or `"none"`.
    agnostic
        Whether to add a class-agnostic part, or an existing part to use. With both parts, r is
        their mean.
    continual
        Plain CBA: corrects all classes from the first task on, and is never re-initialised.
        Otherwise r is zero in the first task and for unseen classes, and ω is re-initialised when a
        task begins.
    space
        `"logit"` (z + r) or `"probability"` ((g + p)/Z, as the paper writes it).
    divide
        Whether to divide the class-agnostic outputs by the number of old or new classes.
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
        width: int = WIDTH,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        _check(specific, agnostic is not False, continual, space, width)
        self._shared = (sets,)  # in a tuple: not a submodule, so not in the adaptor's state_dict
        self.continual = continual
        self.space = space
        self.divide = divide
        self.specific = (
            ClassSpecific(sets, width, generator, individual=specific == "individual")
            if specific != "none"
            else None
        )
        made = ClassAgnostic(width, generator) if agnostic is True else agnostic
        self.agnostic = made if isinstance(made, ClassAgnostic) else None

    @property
    def sets(self) -> ClassSets:
        """The class sets of the learner."""
        return self._shared[0]

    def forward(self, z: Tensor) -> Tensor:
        """Return the correction r (n, C) of logits (n, C), or the distribution g."""
        z = z.detach()
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
        """Return the weights of ω and of ν."""
        omega = None if self.specific is None else self.specific.nets[0].weights()  # type: ignore[operator]
        return omega, None if self.agnostic is None else self.agnostic.net.weights()

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
        """Return the output of ω for all classes."""
        assert self.specific is not None
        r: Tensor = self.specific.nets[0](p)
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
        sides: Tensor = self.agnostic(p, members)
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
        """Re-initialise ω, except in plain CBA, and return its parameters.

        The caller resets their optimiser state.
        """
        if self.continual or self.specific is None:
            return []
        self.specific.reset(generator)
        return list(self.specific.parameters())


def _check(specific: str, agnostic: bool, continual: bool, space: str, width: int) -> None:
    options = definitions(TrainingOptions)
    for name, value in (("specific", specific), ("space", space), ("width", width)):
        options[name].check(value)
    if specific == "none" and not agnostic:
        raise ValueError("specific is 'none' and agnostic is False, expected at least one part")
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
