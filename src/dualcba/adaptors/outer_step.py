"""The outer level: φ, what of it learns and when, its step, and the logits it adapts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dualcba.adaptors.adaptor import ADAPTORS, Adaptor
from dualcba.adaptors.hypergradient import (
    Grads,
    buffer_gradient,
    hypergradient,
    inner_gradient,
    trainable,
)
from dualcba.adaptors.pretrained import load_agnostic
from dualcba.engine.optimizers import Adam
from dualcba.losses import Adapt, Batch, identity, inner_batches, stack_rows
from dualcba.methods import Context, Method
from dualcba.options import TrainingOptions
from dualcba.tasks.class_sets import ClassSets

LEVELS = ("bi", "joint", "buffer")


class OuterLevel:
    """An adaptor, or none, with its optimiser and the generator of its weights.

    `levels`, `every` and `freeze_after` are the learner's `levels`, `outer_every` and
    `freeze_after`.
    """

    def __init__(
        self,
        adaptor: Adaptor | None,
        rng: torch.Generator,
        method: Method,
        context: Context,
        options: TrainingOptions,
    ) -> None:
        self.adaptor = adaptor
        self.rng = rng
        self.method = method
        self.context = context
        self.levels = options.levels
        self.every = options.outer_every
        self.freeze_after = options.freeze_after
        self.optimizer: torch.optim.Adam | None = None
        if adaptor is not None and trainable(adaptor):
            cuda = context.lr.is_cuda
            phi = trainable(adaptor)
            self.optimizer = Adam(phi, lr=float(options.adaptor_lr), fused=True, capturable=cuda)
        self.choose_phi()

    def choose_phi(self) -> None:
        """Which parameters of the adaptor learn in this task: ν not after its first so many."""
        part = None if self.adaptor is None else self.adaptor.agnostic
        if part is not None and self.freeze_after is not None:
            part.requires_grad_(self.context.sets.task < self.freeze_after)
            for p in part.parameters():
                p.grad = None  # without a gradient Adam leaves it, and its moments, alone
        self.phi = [] if self.adaptor is None else trainable(self.adaptor)

    def begin_task(self) -> None:
        """Choose φ, and start ω anew from the second task on."""
        self.choose_phi()
        if self.adaptor is not None and self.context.sets.task > 0:
            _zero_state(self.optimizer, self.adaptor.reset_for_task(self.rng))

    def due(self, in_task: int) -> bool:
        """Whether φ learns at the so-many-th step of the task, from 0."""
        later = self.context.sets.task > 0 and self.context.memory.filled > 0
        return bool(self.phi) and later and in_task % self.every == 0

    @property
    def takes_a_draw(self) -> bool:
        """Whether its step takes a fresh memory draw; the inner loss has all that it needs."""
        return self.levels != "joint"

    def step(self, new: Batch, mem: Sequence[Batch], buf: Batch | None) -> None:
        """Move φ: by the outer loss of the virtually updated network, unless levels say other."""
        assert self.adaptor is not None
        assert self.optimizer is not None
        for p, g in zip(trainable(self.adaptor), self._gradient(new, mem, buf), strict=True):
            p.grad = g
        self.optimizer.step()

    def _gradient(self, new: Batch, mem: Sequence[Batch], buf: Batch | None) -> Grads:
        assert self.adaptor is not None
        if buf is None:
            return inner_gradient(self.adaptor, self.method, new, mem)
        if self.levels == "buffer":
            return buffer_gradient(self.adaptor, self.method, buf)
        head, lr = self.context.network.head, self.context.lr
        return hypergradient(self.adaptor, self.method, new, mem, buf, head, lr)

    def adapt(self, new: Batch, mem: Sequence[Batch]) -> Adapt:
        """Logits as the loss shall see them; θ takes the adaptor's output as a constant."""
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
) -> Adaptor | None:
    """An adaptor, if any; ν comes from the file `agnostic_from`, frozen, where given."""
    if kind is None:
        return None
    parts = ("specific", "agnostic", "divide", "space", "width")
    given = {name: getattr(options, name) for name in parts}
    given = {name: value for name, value in given.items() if value is not None}
    if options.agnostic_from is None:
        return ADAPTORS[kind](sets, rng, **given)
    loaded = load_agnostic(options.agnostic_from)
    adaptor = ADAPTORS[kind](sets, rng, **{**given, "agnostic": loaded.part})
    loaded.check(adaptor)
    return adaptor


def _zero_state(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> None:
    for p in parameters if optimizer is not None else ():
        for value in optimizer.state.get(p, {}).values():  # type: ignore[union-attr]
            value.zero_()
