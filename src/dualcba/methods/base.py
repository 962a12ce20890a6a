"""What a rehearsal method is: a loss over logits, and what it draws and stores.

A method does not know that bias adaptors exist. It names its terms; the learner takes them at
raw or at adapted logits, and gives every method CBA, Dual-CBA, IBN and the fast engines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.data.transforms import Transform
from dualcba.losses import Adapt, Batch, CrossEntropy, Term, total
from dualcba.memory import Memory, Reservoir
from dualcba.nets import Network
from dualcba.tasks.class_sets import ClassSets


def call_directly(key: Hashable, fn: Callable[..., None], *inputs: Tensor) -> None:
    """Call it."""
    fn(*inputs)


@dataclass
class Context:
    """What a method may use of the learner it works in."""

    network: Network
    sets: ClassSets
    memory: Memory
    transform: Transform
    lr: Tensor  # () the inner learning rate α
    batch_size: int
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    """Enter it around forwards of the method's own, inside the step."""

    run: Callable[..., None] = call_directly
    """`run(key, fn, *inputs)`: work outside the step that is done often, such as an epoch at a
    task's end. Calls with equal keys do the same on inputs of equal shapes, in place and without
    waiting for the device; on a GPU they become one launch."""


class Method(nn.Module):
    """A rehearsal method. Submodules and buffers that it registers are part of the state.

    Subclasses give `terms` (or, for losses that are no sum of such terms, `loss`), and whatever
    of the rest they need.
    """

    title: str = ""
    """What tables call it, as its paper does; its name where nothing is said."""

    draws: int = 1
    """How many independent memory draws a step makes."""

    columns: tuple[str, ...] = ()
    """Stored with each sample: `"logits"` (adapted, as trained on) and `"raw_logits"`."""

    adaptable: bool = True
    """Whether its classifier has logits that a bias adaptor can correct."""

    rereads_task: bool = False
    """Whether it needs the current task's samples again when the task ends."""

    semi_supervised: bool = False
    """Whether FixMatch can be put around it."""

    unlabelled: bool = False
    """Whether it learns from samples without a label, which is −1."""

    labelled: int = 0
    """So many samples lead each batch and have a label, the others not; 0: any may have one."""

    one_per_class: bool = False
    """Whether its memory must hold at least one sample of every class."""

    single_pass: bool = False
    """Whether it only makes sense where every sample of a task comes once."""

    repeats: int = 1
    """How often each step is made, every time with fresh draws and augmentation."""

    context: Context

    def bind(self, context: Context) -> None:
        """Called once, before the first step: make copies of the network, buffers and the like."""
        self.context = context

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """The memory it rehearses from: a reservoir."""
        return Reservoir(size, shape, dtype, dict.fromkeys(self.columns, (C,)))

    def make_transform(self, transform: Transform) -> Transform:
        """The augmentation it trains with: the dataset's."""
        return transform

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Other views of the new samples that its loss takes, beside the usual one."""
        return {}

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """What is minimised; `mem` is empty as long as the memory is."""
        raise NotImplementedError

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """The inner loss, a scalar: the sum of the terms."""
        return total(self.terms(new, mem), adapt)

    def outer_terms(self, outer: Batch) -> list[Term]:
        """What the adaptor is learnt by: the raw network's loss on a fresh memory draw."""
        return [CrossEntropy(outer)]

    def noise(self, rng: np.random.Generator, step: int) -> NDArray[np.float64] | None:
        """Random numbers of its own for one step, drawn ahead on the host."""
        return None

    def after_step(self, noise: Tensor | None) -> None:
        """Called inside the step after θ has moved; `noise` as drawn, on the device."""

    def begin_task(self) -> None:
        """Called when a task begins, after the class sets have changed."""

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Called when a task ends, with its raw samples if `rereads_task`, else with none."""

    def before_scores(self) -> None:
        """Called before each round of `scores`, in evaluation mode: class means and the like."""

    def scores(self, x: Tensor) -> Tensor:
        """Normalised inputs → (n, C) scores whose argmax is the prediction."""
        z, _ = self.context.network(x)
        return z  # type: ignore[no-any-return]

    @property
    def closed_form(self) -> bool:
        """Whether the loss is the sum of its terms, so that the outer step needs no autograd."""
        return type(self).loss is Method.loss
