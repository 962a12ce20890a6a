"""The outer loop: selects the trained parameters φ of the adaptor, and updates them when due."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dualcba.adaptors.adaptor import ADAPTORS, Adaptor, ClassAgnostic
from dualcba.adaptors.hypergradient import (
    Grads,
    buffer_gradient,
    hypergradient,
    inner_gradient,
    trainable,
)
from dualcba.adaptors.outer_loss import make_outer_terms
from dualcba.adaptors.pretrained import load_agnostic
from dualcba.adaptors.virtual_step import VirtualStep
from dualcba.engine.optimizers import Adam
from dualcba.engine.ranks import Ranks
from dualcba.losses import Adapt, Batch, identity, inner_batches, stack_rows
from dualcba.memory import Pool
from dualcba.methods import Context, Method
from dualcba.options import TrainingOptions
from dualcba.tasks.class_sets import ClassSets


class AdaptorTraining:
    """An adaptor with its optimiser, and the schedule by which its parameters φ are trained.

    `adaptor` may be None; then nothing is trained. `rng` draws the adaptor's weights when they are
    reset. It uses the options `adaptor_lr`, `outer_every`, `outer_warmup` and `freeze_after`.
    """

    def __init__(
        self,
        adaptor: Adaptor | None,
        rng: torch.Generator,
        sets: ClassSets,
        options: TrainingOptions,
    ) -> None:
        self.adaptor = adaptor
        self.rng = rng
        self.sets = sets
        self.every = options.outer_every
        self.warmup = options.outer_warmup
        self.freeze_after = options.freeze_after
        self.optimizer: torch.optim.Adam | None = None
        if adaptor is not None and (phi := trainable(adaptor)):
            cuda = phi[0].is_cuda
            self.optimizer = Adam(phi, lr=float(options.adaptor_lr), fused=True, capturable=cuda)
        self.choose_phi()

    def choose_phi(self) -> None:
        """Select the trained parameters: ν is frozen after the first `freeze_after` tasks."""
        part = None if self.adaptor is None else self.adaptor.agnostic
        if part is not None and self.freeze_after is not None:
            part.requires_grad_(self.sets.task < self.freeze_after)
            for p in part.parameters():
                p.grad = None  # Adam skips parameters without a gradient, and their moments
        self.phi = [] if self.adaptor is None else trainable(self.adaptor)

    def begin_task(self) -> None:
        """Select φ, and from the second task on reset ω and its optimiser state."""
        self.choose_phi()
        if self.adaptor is not None and self.sets.task > 0:
            _zero_state(self.optimizer, self.adaptor.reset_for_task(self.rng))

    def scheduled(self, in_task: int) -> bool:
        """Return whether φ is updated at this step of the task, counted from 0.

        φ is updated every `every` steps and in the first `warmup` steps of a task, from the second
        task on.
        """
        if not self.phi or self.sets.task <= 0:
            return False
        return in_task < self.warmup or in_task % self.every == 0

    def update(self, grads: Grads) -> None:
        """Update φ once by these gradients, one for each trained parameter."""
        assert self.adaptor is not None
        assert self.optimizer is not None
        for p, g in zip(trainable(self.adaptor), grads, strict=True):
            p.grad = g
        self.optimizer.step()


class OuterLoop(AdaptorTraining):
    """Updates the parameters φ of a learner's adaptor, and adapts logits with it.

    Without an adaptor nothing is updated and logits stay raw. `levels` is the learner's option,
    `outer_terms` are the terms of its `outer_loss`, and `network_first` means that θ is trained
    with φ before the update of φ. `virtual` is the virtual step, by default that of plain SGD.
    """

    def __init__(
        self,
        adaptor: Adaptor | None,
        rng: torch.Generator,
        method: Method,
        context: Context,
        options: TrainingOptions,
        virtual: VirtualStep | Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(adaptor, rng, context.sets, options)
        self.method = method
        self.context = context
        self.levels = options.levels
        self.network_first = options.update_order == "network-first"
        self.virtual = context.lr if virtual is None else virtual
        self.outer_terms = make_outer_terms(options.outer_loss, method, context.sets)
        self.ranks = ranks  # the processes of a distributed learner

    @torch.no_grad()
    def observe(self, new: Batch, mem: Sequence[Batch], filled: Tensor | None) -> None:
        """Update the adaptor's class counts with the labels of this step; called before `step`.

        `filled` is the number of samples in the memory; None if the adaptor does not use it.
        """
        adaptor, context = self.adaptor, self.context
        if adaptor is not None and adaptor.prior is not None:
            adaptor.prior.update(torch.cat([b.y for b in (new, *mem)]))
        if adaptor is not None and adaptor.pool is not None:
            assert filled is not None
            pool = Pool(context.memory, filled, new.y, context.sets.num_classes)
            adaptor.pool.copy_(pool.counts)

    def due(self, in_task: int) -> bool:
        """Return whether φ is updated: an update is scheduled, and the memory is not empty."""
        return self.scheduled(in_task) and self.context.memory.filled > 0

    @property
    def uses_outer_batch(self) -> bool:
        """Whether the outer step uses a fresh memory draw: with all `levels` except `"joint"`."""
        return self.levels != "joint"

    def step(self, new: Batch, mem: Sequence[Batch], outer_batch: Batch | None) -> None:
        """Update φ once, by default with the outer loss of the virtually updated network."""
        grads = self._gradient(new, mem, outer_batch)
        if self.ranks is not None:  # equal on all ranks, except for a GPU's rounding
            self.ranks.average_([g for g in grads if g is not None])
        self.update(grads)

    def step_and_adapt(self, new: Batch, mem: Sequence[Batch], outer_batch: Batch | None) -> Adapt:
        """Update φ once, and return `adapt` with the new φ or, if `network_first`, the old φ.

        The virtual step of the last layer uses the old φ. So if `network_first`, the last layer
        then makes exactly this step.
        """
        if self.network_first:
            adapt = self.adapt(new, mem)
            self.step(new, mem, outer_batch)
            return adapt
        self.step(new, mem, outer_batch)
        return self.adapt(new, mem)

    def _gradient(self, new: Batch, mem: Sequence[Batch], outer_batch: Batch | None) -> Grads:
        assert self.adaptor is not None
        if outer_batch is None:
            return inner_gradient(self.adaptor, self.method, new, mem)
        if self.levels == "buffer":
            return buffer_gradient(self.adaptor, self.method, outer_batch, self.outer_terms)
        head = self.context.network.head
        return hypergradient(
            self.adaptor, self.method, new, mem, outer_batch, head, self.virtual,
            outer_terms=self.outer_terms,
        )  # fmt: skip

    def adapt(self, new: Batch, mem: Sequence[Batch]) -> Adapt:
        """Return the function from a batch to its adapted logits.

        The correction r has no gradient with respect to θ.
        """
        if self.adaptor is None:
            return identity
        adaptor = self.adaptor
        with torch.no_grad():
            r = adaptor(stack_rows([b.z for b in inner_batches(new, mem)]))
        return lambda b: adaptor.adapt(b.z, r[b.rows])


def make_adaptor(
    kind: str | None,
    options: TrainingOptions,
    sets: ClassSets,
    rng: torch.Generator,
    loaded: ClassAgnostic | None = None,
) -> Adaptor | None:
    """Make an adaptor of a kind, or None; if `agnostic_from` is given, load ν from it and freeze ν.

    `loaded` is the part that an earlier call has loaded, so that the file is not read again.
    """
    if kind is None:
        return None
    parts = ("specific", "agnostic", "divide", "counts", "space", "strength", "prior", "width")
    given = {name: getattr(options, name) for name in parts}
    given = {name: value for name, value in given.items() if value is not None}
    if options.agnostic_from is None:
        return ADAPTORS[kind](sets, rng, **given)
    if loaded is not None:
        return ADAPTORS[kind](sets, rng, **{**given, "agnostic": loaded})
    file = load_agnostic(options.agnostic_from, kind)
    adaptor = ADAPTORS[kind](sets, rng, **{**given, "agnostic": file.part})
    file.check(adaptor)
    return adaptor


def _zero_state(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> None:
    for p in parameters if optimizer is not None else ():
        for value in optimizer.state.get(p, {}).values():  # type: ignore[union-attr]
            value.zero_()
