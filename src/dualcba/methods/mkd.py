"""MKD: distillation from a moving average of the network; a wrapper of any method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real

import torch
from torch import Tensor

from dualcba.data.augmentation import crop_and_flip, cutmix, plain
from dualcba.data.transforms import Transform
from dualcba.engine.torch_private import foreach_copy_, foreach_lerp_
from dualcba.errors import above_zero, at_least_0, expected
from dualcba.losses import (
    Batch,
    CrossEntropy,
    Divergence,
    Term,
    mean_weights,
    scaled,
    weights_of_one_mean,
)
from dualcba.memory import Pool
from dualcba.methods.base import Context, Method
from dualcba.methods.clser import frozen_copy, update_average
from dualcba.methods.exemplars import check_flags
from dualcba.methods.gsa import mean_one, spread
from dualcba.methods.wrapper import Wrapper
from dualcba.options.definition import check_choice

PREDICTORS = ("average", "student", "teacher")
SECOND: dict[str, Callable[[Transform], Transform]] = {
    "raw": plain,
    "weak": lambda transform: crop_and_flip(transform, (0.6, 1.0)),
    "augmented": lambda transform: transform,
    "cutmix": cutmix,
}
"""Functions that make the second view from the transform of the learner."""


class MKD(Wrapper):
    """Momentum knowledge distillation: a moving average of the network teaches the network.

    L = L_base + λ/2 · [D(z_T(x̂), z(x̂)) + D(z_T(x̂), z(x))]

    D(a, b) = T²·KL(softmax(a/T) ‖ softmax(b/T)), one mean over all new and memory samples; x̂ is the
    augmented sample and x the raw sample. After each step the teacher is updated: θ_T ← (1 − α)·θ_T
    + α·θ. It is normalised by batch statistics. Distillation uses raw logits, with or without a
    bias adaptor. Predictions use the weights (θ + θ_T)/2: under BN with the running statistics of
    the network, under IBN with statistics that are estimated for the averaged weights.

    With `own_draw` the distillation uses the new batch and a separate memory draw, and the
    cross-entropy of both is added to L_base, which uses the other draws. MKD was published like
    this around GSA.

    L = L_base + CE(z(x̂), y) + λ/2 · [D(z_T(x̂), z(x̂)) + D(z_T(x̂), z(x))]

    Parameters
    ----------
    method
        The method to wrap.
    alpha
        The rate of the teacher, α.
    temperature
        T.
    weight
        λ; by default 4.5·log₁₀ α + 14.5, which is 5.5 at α = 0.01, and at least 0.
    predict
        The weights used for predictions: `"average"`, `"student"` or `"teacher"`.
    second
        The second view: `"raw"`, the raw sample x; `"weak"`, a random resized crop of x with an
        area of 0.6 to 1 and a flip; `"augmented"`, another draw of the augmentation; or `"cutmix"`,
        the raw sample x̃ with a rectangle of another sample pasted in, which the teacher sees too:
        D(z_T(x̃), z(x̃)) replaces D(z_T(x̂), z(x)).
    share
        The share s of the second view in L_base, at no further cost: (1 − s)·L_base(x̂) +
        s·L_base(x). By default 0, or 0.5 if the second view is `"augmented"`; `"cutmix"` needs 0.
        With `own_draw` it is the share in CE instead of L_base.
    own_draw
        Whether the distillation uses the new samples and a separate memory draw, instead of all
        samples of the wrapped method. The second view must be `"raw"` or `"weak"`, and the wrapped
        method must have no views.
    mild
        With `own_draw`, whether the memory draws of the wrapped method have the mild augmentation
        of the `"weak"` view, while the new samples and the separate draw have the augmentation of
        the learner. MKD was published like this around GSA, whose draws are cropped with padding
        and flipped.

    References
    ----------
    Michel et al., Rethinking momentum knowledge distillation in online continual learning, ICML
    2024. On mixed images in distillation: Beyer et al., Knowledge distillation: a good teacher is
    patient and consistent, CVPR 2022.
    """

    title = "MKD"
    memory_views = True

    def __init__(
        self,
        method: Method,
        *,
        alpha: float = 0.01,
        temperature: float = 4.0,
        weight: float | None = None,
        predict: str = "average",
        second: str = "raw",
        share: float | None = None,
        own_draw: bool = False,
        mild: bool = False,
    ) -> None:
        super().__init__(method)
        check_flags(own_draw=own_draw, mild=mild)
        if mild and not own_draw:
            raise ValueError(expected("mild", mild, "False, or own_draw=True"))
        _check_rate(alpha)
        above_zero(temperature=temperature)
        check_choice("predict", predict, PREDICTORS)
        check_choice("second", second, tuple(SECOND))
        self.alpha, self.temperature, self.predict = alpha, temperature, predict
        self.second = second
        if own_draw and second not in ("raw", "weak"):
            raise ValueError(expected("second", second, "'raw' or 'weak' with own_draw"))
        self.share = _check_share(second, share)
        self.own_draw, self.mild = own_draw, mild
        self.viewed_draws = 1 if own_draw else None
        self.weight = default_weight(alpha) if weight is None else at_least_0("weight", weight)
        self._cached: tuple[Tensor, tuple[list[Tensor], list[Tensor]]] | None = None  # of a step

    def bind(self, context: Context) -> None:
        """Initialise the teacher with the network."""
        super().bind(context)
        self.teacher = frozen_copy(context.network)
        if self.own_draw and self.chosen:
            self.chosen = (*self.method.chosen, context.draw_size)
        elif self.own_draw:
            self.draws = self.method.draws + 1

    def choose(self, pool: Pool, u: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the choice of the wrapped method and, with `own_draw`, any rows of the memory."""
        if not self.own_draw:
            return super().choose(pool, u)
        rows, valid = spread(pool.labels[: pool.memory.size] >= 0, u[-1], len(u[-1]))
        return [*super().choose(pool, u[:-1]), (rows, mean_one(valid))]

    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Call the wrapped method with its own draws."""
        super().observe(new, mem[:-1] if self.own_draw else mem)

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Return the second view, and the views of the wrapped method."""
        second = SECOND[self.second](transform)
        views = self.method.make_views(transform)
        if self.own_draw and views:
            given = f"True around a method with the views {', '.join(views)}"
            raise ValueError(f"own_draw is {given}, expected False, or a method without views")
        return {**views, self.second: second}

    def make_draw_transforms(self, transform: Transform) -> dict[int, Transform]:
        """Return the mild augmentation of the draws of the wrapped method, if it has one."""
        made = super().make_draw_transforms(transform)
        if not self.mild:
            return made
        draws = range(len(self.method.chosen) or self.method.draws)
        return dict.fromkeys(draws, SECOND["weak"](transform)) | made

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the terms of the wrapped method, and the distillation of both views."""
        batches = [new, *(mem[-1:] if self.own_draw else mem)]
        terms = self._supervised(batches)
        if self.own_draw:
            terms = [*self.method.terms(new, mem[:-1]), *terms]
        shares, each = mean_weights(batches, by_samples=True), weights_of_one_mean(batches)
        for batch, share, e, *targets in zip(
            batches, shares, each, *self.targets(batches), strict=True
        ):
            weight = self.weight / 2 * share
            for view, target in zip((batch, batch.views[self.second]), targets, strict=True):
                view = replace(view, each=e)
                terms.append(Divergence(view, target, self.temperature, weight))
        return terms

    def _supervised(self, batches: Sequence[Batch]) -> list[Term]:
        """Return L_base, or CE with `own_draw`, of the first and, by its share, the second view."""
        loss = _cross_entropy if self.own_draw else self.method.terms
        if not self.share:
            return loss(batches[0], batches[1:])
        others = [replace(b.views[self.second], columns=b.columns) for b in batches]
        both = (1 - self.share, batches), (self.share, others)
        return [scaled(term, s) for s, part in both for term in loss(part[0], part[1:])]

    def targets(self, batches: Sequence[Batch]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the teacher's logits of each batch, and the targets of its second view.

        Both are the same, unless the second view mixes images. Computed once per step.
        """
        if self._cached is None or self._cached[0] is not batches[0].x:
            seen = [self.second] if self.second == "cutmix" else []
            with torch.no_grad():
                logits = [z for z, _ in self.context.passes(self.teacher, batches, seen)]
            first, others = logits[: len(batches)], logits[len(batches) :]
            self._cached = batches[0].x, (first, others or first)
        return self._cached[1]

    def after_step(self, noise: Tensor | None) -> None:
        """Update the teacher."""
        super().after_step(noise)
        self._cached = None
        rate = torch.where(self.context.good, 1 - self.alpha, 1.0)  # a refused step changes nothing
        theta = list(self.context.network.parameters())
        update_average(list(self.teacher.parameters()), theta, rate)

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """Put the weights for predictions into the network, and restore its own afterwards."""
        part = {"student": 0.0, "average": 0.5, "teacher": 1.0}[self.predict]
        theta = [p.detach() for p in self.context.network.parameters()]
        own = [p.clone() for p in theta] if part else []
        try:
            if own:
                foreach_lerp_(theta, [p.detach() for p in self.teacher.parameters()], part)
            with super().predicting():
                yield
        finally:
            if own:
                foreach_copy_(theta, own)


def _cross_entropy(new: Batch, mem: Sequence[Batch]) -> list[Term]:
    """Return CE as one mean over the samples of all batches."""
    batches = (new, *mem)
    shares, each = mean_weights(batches, by_samples=True), weights_of_one_mean(batches)
    return [CrossEntropy(b, w, each=e) for b, w, e in zip(batches, shares, each, strict=True)]


def _check_rate(alpha: object) -> None:
    number = isinstance(alpha, Real) and not isinstance(alpha, bool)
    if not number or not 0 < alpha <= 1:  # type: ignore[operator]
        raise ValueError(expected("alpha", alpha, "a number above 0, at most 1"))


def _check_share(second: str, share: float | None) -> float:
    """Return the share of the second view in L_base, or raise."""
    if share is None:
        return 0.5 if second == "augmented" else 0.0
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ValueError(expected("share", share, "a number from 0 to below 1"))
    if share and second == "cutmix":
        raise ValueError(expected("share", share, "0 with 'cutmix': a mixed image has two labels"))
    return float(share)


def default_weight(alpha: float) -> float:
    """Return λ for a rate α.

    >>> default_weight(0.01), default_weight(0.1)
    (5.5, 10.0)
    """
    return max(0.0, 4.5 * math.log10(alpha) + 14.5)
