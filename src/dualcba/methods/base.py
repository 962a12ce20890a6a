"""The base class of rehearsal methods: a loss over logits, with the memory draws it needs.

A method is independent of bias adaptors. It defines the terms of its loss; the learner evaluates
them at raw or adapted logits. So every method works with CBA, Dual-CBA, IBN and all engines.

A sample can have several views. The usual one is augmented as the dataset says. Further ones are
declared by `make_views`, as transforms by name: each makes another input from the same raw sample,
or from the pixels of an earlier view, its `source`. A transform that is not random gives the raw
sample, normalised. The new batch has all these views. Memory draws have them too if `memory_views`:
all of them, or the last `viewed_draws`. A view is a `Batch` in `Batch.views`, with logits and rows
of its own, so the terms of a loss can use it like any other batch, adapted or raw. Each view passes
the network with batch statistics of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.data.transforms import Transform
from dualcba.losses import Adapt, Batch, CrossEntropy, Term, total
from dualcba.memory import Indices, Memory, Pool, Reservoir
from dualcba.memory.herding import class_counter
from dualcba.methods.scorers import Logits
from dualcba.nets import Network
from dualcba.normalization.statistics import evaluation_mode
from dualcba.tasks.class_sets import ClassSets


def call_directly(key: Hashable, fn: Callable[..., None], *inputs: Tensor) -> None:
    """Call `fn`; the default of `Context.run`."""
    fn(*inputs)


def pass_separately(
    network: Network, batches: Sequence[Batch], views: Sequence[str] = ()
) -> list[tuple[Tensor, Tensor]]:
    """Return logits and features of each batch; the default of `Context.passes`.

    A single sample has no batch statistics; the network's running statistics are used instead.
    """
    outputs = []
    for batch in (*batches, *(b.views[name] for name in views for b in batches)):
        with evaluation_mode(network) if len(batch.x) == 1 else nullcontext():
            outputs.append(network(batch.x))
    return outputs


@dataclass
class Context:
    """The parts of the learner that a method may use."""

    network: Network
    sets: ClassSets
    memory: Memory
    transform: Transform
    lr: Tensor  # () the inner learning rate α
    batch_size: int
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    """The context for forward passes that the method itself makes in a step."""

    passes: Callable[..., list[tuple[Tensor, Tensor]]] = pass_separately
    """`passes(network, [new, *mem], views)` returns logits and features of these batches, and of
    their views with these names, by another network of the method's, such as a teacher. They pass
    it as they pass the trained network: together or one by one, and in the same precision."""

    good: Tensor = field(default_factory=lambda: torch.tensor(True))
    """() bool: whether the current step is kept. On a GPU `after_step` is also called for a step
    that was refused; a method that reads the network or the batch there must change nothing."""

    run: Callable[..., None] = call_directly
    """`run(key, fn, *inputs)` calls a function outside the step that is called often, such as an
    epoch at the end of a task. Calls with equal keys must do the same work on inputs of equal
    shapes, in place and without waiting for the device. On a GPU they become one launch."""

    raw_targets: bool = False
    """Whether stored logits are rehearsed raw, at raw logits; else adapted, at adapted logits."""

    sample_mean: bool = False
    """Whether the loss is one mean over all samples, in methods that support it."""

    memory_batch: int | None = None
    """The learner's option of that name."""

    seed: int = 0
    """The learner's seed, for random numbers outside steps; those of steps come from `noise`."""

    draw_transforms: dict[int, Transform] = field(default_factory=dict)
    """The transforms of memory draws with an augmentation of their own, by number."""

    def transform_of(self, draw: int | None) -> Transform:
        """Return the transform of the memory draw of a number, or that of all other samples."""
        return self.transform if draw is None else self.draw_transforms.get(draw, self.transform)

    @property
    def draw_size(self) -> int:
        """The number of samples in each memory draw."""
        return self.batch_size if self.memory_batch is None else self.memory_batch


T = TypeVar("T")


def viewed(method: Method, draws: Sequence[T]) -> Sequence[T]:
    """Return those of the memory draws that have the views of the method."""
    if not method.memory_views:
        return draws[:0]
    return draws if method.viewed_draws is None else draws[-method.viewed_draws :]


class Method(nn.Module):
    """The base class of rehearsal methods.

    A subclass implements `terms`, or `loss` if its loss is not a sum of such terms, and overrides
    other methods and attributes as needed. Its parameters, buffers and submodules are part of the
    learner's state.
    """

    title: str = ""
    """The name in tables; by default the registered name."""

    draws: int = 1
    """The number of independent memory draws per step."""

    chosen: tuple[int, ...] = ()
    """The sizes of memory draws whose rows `choose` selects; then `draws` does not apply."""

    extra_draw: bool = False
    """Whether `extra_step` is called with a further memory draw."""

    columns: tuple[str, ...] = ()
    """What is stored with each sample: `"logits"` (adapted, as in the loss), `"raw_logits"`."""

    adaptable: bool = True
    """Whether a bias adaptor can correct the logits of its classifier."""

    rereads_task: bool = False
    """Whether `end_task` needs the samples of the task."""

    previews_task: bool = False
    """Whether a run calls `preview_task` when a task begins."""

    stores_in_steps: bool = True
    """Whether samples enter the memory in steps; if not, when a task ends."""

    merge: bool = False
    """Whether a run mixes the samples of the memory into the data of each task."""

    held_out: int = 0
    """With `merge`, every `held_out`-th sample of the memory is left out there; 0: none."""

    needs_boundaries: bool = False
    """Whether task boundaries must be given, not inferred."""

    semi_supervised: bool = False
    """Whether FixMatch can wrap the method."""

    unlabelled: bool = False
    """Whether it accepts samples without a label (label −1)."""

    labelled: int = 0
    """The number of labelled samples at the start of each batch, the others being unlabelled.

    0 means that any sample may be labelled.
    """

    memory_views: bool = False
    """Whether the memory draws have the views of `make_views` too, not only the new batch."""

    viewed_draws: int | None = None
    """With `memory_views`, how many memory draws have these views, the last ones; None for all."""

    own_head: bool = False
    """Whether it replaces the last layer of the network by one of its own."""

    one_per_class: bool = False
    """Whether the memory must hold at least one sample of every class."""

    single_pass: bool = False
    """Whether every sample of a task must be observed only once."""

    repeats: int = 1
    """The number of updates per observed batch, each with new draws and augmentation."""

    raw_targets: bool = False
    """Whether to rehearse stored raw logits at raw logits; `bind` sets it."""

    sample_mean: bool = False
    """Whether the loss is one mean over new and memory samples; `bind` sets it."""

    context: Context

    def bind(self, context: Context) -> None:
        """Called once before the first step, to create copies of the network or buffers."""
        self.context = context
        self.raw_targets = context.raw_targets
        self.sample_mean = context.sample_mean

    def make_memory(self, size: int, shape: tuple[int, ...], dtype: torch.dtype, C: int) -> Memory:
        """Return the memory for samples of this shape and dtype and C classes: a reservoir."""
        return Reservoir(size, shape, dtype, dict.fromkeys(self.columns, (C,)))

    def make_transform(self, transform: Transform) -> Transform:
        """Return the augmentation for training: that of the dataset."""
        return transform

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Return the transforms of further views of the samples, by name.

        See `dualcba.data.augmentation`: the raw samples (`plain`), another draw of the training
        augmentation (`transform` itself), `crop_and_flip` and `randaugment`.
        """
        return {}

    def make_draw_transforms(self, transform: Transform) -> dict[int, Transform]:
        """Return the transforms of memory draws that have an augmentation of their own, by number.

        The others, and the new batch, have that of `make_transform`.
        """
        return {}

    def choose(self, pool: Pool, u: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the rows (n,) and weights (n,) of each draw in `chosen`, from memory or new batch.

        `u` has n uniform numbers in [0, 1) for each draw. The labels of the pool are on the device,
        so the shapes cannot depend on them: a sample that is not wanted has weight 0. The weights
        have mean 1, and become `Batch.each`.
        """
        raise NotImplementedError

    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Called once in each step after its forward passes, before any loss.

        Buffers that are changed here are restored if the step fails.
        """

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the terms of the inner loss; `mem` is empty while the memory is empty."""
        raise NotImplementedError

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return the inner loss, a scalar: the sum of the terms."""
        return total(self.terms(new, mem), adapt)

    def outer_terms(self, outer_batch: Batch) -> list[Term]:
        """Return the terms of the outer loss, at the raw logits of a new memory draw."""
        return [CrossEntropy(outer_batch)]

    def noise(self, rng: np.random.Generator, step: int) -> NDArray[np.float64] | None:
        """Return random numbers for one step, drawn on the host before the step."""
        return None

    def extra_step(self, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters, and what is subtracted from them after the update of θ.

        `batch` has the outputs of a further memory draw, without gradient, by the updated network.
        It is not called while the memory is empty. A change that is not finite is refused with the
        step.
        """
        return [], []

    def after_step(self, noise: Tensor | None) -> None:
        """Called in the step after the update of θ, with the result of `noise` on the device.

        If it raises, the update of θ is undone; its own state must be unchanged then.
        """

    def begin_task(self) -> None:
        """Called when a task begins, after the update of the class sets."""

    def preview_task(self, x: Tensor, y: Tensor) -> None:
        """Called by a run after `begin_task`, with the raw samples of the task that have a label.

        Only if `previews_task`, and boundaries are given.
        """

    def exemplar_counter(self, size: int, C: int) -> Callable[[Indices], int]:
        """Return a function of the labels of each task in turn: the exemplars after it.

        With `merge`, a run plans its steps by it. It must agree with the memory of `make_memory`,
        by default a `Herding` memory.
        """
        return class_counter(size, C)

    def mixed(self, x: Tensor) -> Tensor:
        """Return exemplars as a run mixes them into the samples of a task, with `merge`."""
        return x

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Called when a task ends, with its raw samples if `rereads_task`, else with none."""

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """A context around each evaluation, with other weights in the network, for example.

        Within it the statistics of IBN are estimated too. Afterwards all must be as before.
        """
        yield

    def networks(self) -> list[Network]:
        """Return further networks that `scores` uses; IBN estimates their statistics too."""
        return []

    def before_scores(self) -> None:
        """Called in evaluation mode before `scores`, to compute class means for example."""

    def scores(self, x: Tensor) -> Tensor:
        """Return scores (n, C) of normalised inputs; the argmax is the prediction."""
        return self.outputs(x)[0]

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, C) and features (n, d) of normalised inputs, for predictions.

        They are those of the trained network. A method that predicts with other weights, such as
        an average, returns the outputs of those; the read-out `ncm` uses the features.
        """
        return self.context.network(x)  # type: ignore[no-any-return]

    def scorer(self) -> nn.Module:
        """Return a module that maps normalised inputs to what `scores` returns now.

        It has copies of all weights. It is called where `scores` may be: within `predicting`, after
        `before_scores`. A method with another `scores`, `outputs` or `before_scores` defines its
        own, or has no snapshots and exports.
        """
        return Logits(self.context.network)

    @classmethod
    def wrappable(cls) -> bool:
        """Whether a method such as MKD can go around it: its loss is the sum of its terms."""
        return cls.adaptable and cls.loss is Method.loss

    @property
    def closed_form(self) -> bool:
        """Whether the loss is the sum of its terms, so the outer step has a closed form."""
        return type(self).loss is Method.loss
