"""The base class of rehearsal methods: a loss over logits, and the memory draws that it needs.

A method is independent of bias adaptors. It defines the terms of its loss; the learner evaluates
them at raw or adapted logits. So every method works with CBA, Dual-CBA, IBN and all engines.

A sample can have several views. The default view uses the augmentation of the dataset. `make_views`
declares further views as a dict of transforms: each makes another input from the same raw sample,
or from the pixels of an earlier view, its `source`. A transform that is not random gives the
normalised raw sample. The new batch has all these views. If `memory_views` is set, memory draws
have them too: all draws, or the last `viewed_draws`. A view is a `Batch` in `Batch.views` with its
own logits and rows, so a loss can use it like any other batch, adapted or raw. Each view is
normalised by its own batch statistics.
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

    For a single sample, which has no batch statistics, the running statistics are used.
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
    """The precision context for the method's own forward passes in a step."""

    passes: Callable[..., list[tuple[Tensor, Tensor]]] = pass_separately
    """`passes(network, [new, *mem], views)` passes these batches, and their views with these names,
    through a further network of the method, such as a teacher, and returns logits and features.
    Batches are normalised together or separately as in the trained network, in its precision."""

    good: Tensor = field(default_factory=lambda: torch.tensor(True))
    """() bool: whether the current step is accepted. On a GPU `after_step` is also called for a
    refused step; a method that uses the network or the batch there must then change nothing."""

    run: Callable[..., None] = call_directly
    """`run(key, fn, *inputs)` calls a function that runs often outside the step, such as an epoch
    at the end of a task. Calls with equal keys must do the same work on inputs of equal shapes, in
    place and without waiting for the device. On a GPU each call becomes one launch."""

    raw_targets: bool = False
    """Whether stored raw logits are compared with raw logits; else adapted with adapted logits."""

    sample_mean: bool = False
    """Whether the loss is one mean over all samples, in methods that support it."""

    memory_batch: int | None = None
    """The learner's option `memory_batch`."""

    seed: int = 0
    """The learner's seed, for random numbers outside steps; in steps, `noise` provides them."""

    draw_transforms: dict[int, Transform] = field(default_factory=dict)
    """The transforms of memory draws that have their own augmentation, by index of the draw."""

    def transform_of(self, draw: int | None) -> Transform:
        """Return the transform of a memory draw by its index, or that of all others for None."""
        return self.transform if draw is None else self.draw_transforms.get(draw, self.transform)

    @property
    def draw_size(self) -> int:
        """The number of samples in each memory draw."""
        return self.batch_size if self.memory_batch is None else self.memory_batch


T = TypeVar("T")


def viewed(method: Method, draws: Sequence[T]) -> Sequence[T]:
    """Return the memory draws that have the views of the method."""
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
    """The sizes of the memory draws whose rows `choose` selects; replaces `draws`."""

    extra_draw: bool = False
    """Whether `extra_step` is called with a further memory draw."""

    columns: tuple[str, ...] = ()
    """The values stored with each sample: `"logits"` (adapted, as in the loss), `"raw_logits"`."""

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
    """With `merge`, one in `held_out` samples of the memory is not mixed in; 0 mixes in all."""

    needs_boundaries: bool = False
    """Whether task boundaries must be given, not inferred."""

    semi_supervised: bool = False
    """Whether FixMatch can wrap the method."""

    unlabelled: bool = False
    """Whether the method accepts samples without a label (label −1)."""

    labelled: int = 0
    """The number of labelled samples at the start of each batch, the others being unlabelled.

    0 means that any sample may be labelled.
    """

    memory_views: bool = False
    """Whether the memory draws have the views of `make_views` too, not only the new batch."""

    viewed_draws: int | None = None
    """With `memory_views`, the number of last memory draws that have these views; None for all."""

    own_head: bool = False
    """Whether the method replaces the last layer of the network."""

    one_per_class: bool = False
    """Whether the memory must hold at least one sample of every class."""

    single_pass: bool = False
    """Whether every sample of a task must be observed only once."""

    repeats: int = 1
    """The number of updates per observed batch, each with new draws and augmentation."""

    raw_targets: bool = False
    """Whether to compare stored raw logits with raw logits; `bind` sets it."""

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
        """Return the transforms of memory draws that have their own augmentation, by draw index.

        The other draws and the new batch use `make_transform`.
        """
        return {}

    def choose(self, pool: Pool, u: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return rows (n,) of the memory or the new batch, and weights (n,), for each draw.

        The sizes n of the draws are those in `chosen`. `u` has n uniform numbers in [0, 1) for each
        draw. The labels of the pool are on the device, so the shapes cannot depend on them: give
        samples that should not be used weight 0. The weights have mean 1 and become `Batch.each`.
        """
        raise NotImplementedError

    def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
        """Called once in each step, after the forward passes and before any loss.

        Changes of buffers are undone if the step fails.
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
        """Return parameters, and values to subtract from them after the update of θ.

        `batch` has the outputs of the updated network for a further memory draw, without gradient.
        Not called while the memory is empty. If a value is not finite, the step is refused.
        """
        return [], []

    def after_step(self, noise: Tensor | None) -> None:
        """Called in the step after the update of θ, with the result of `noise` on the device.

        If it raises, the update of θ is undone; it must then leave its own state unchanged.
        """

    def begin_task(self) -> None:
        """Called when a task begins, after the update of the class sets."""

    def preview_task(self, x: Tensor, y: Tensor) -> None:
        """Called by a run after `begin_task`, with the labelled raw samples of the task.

        Only if `previews_task` is True and boundaries are given.
        """

    def exemplar_counter(self, size: int, C: int) -> Callable[[Indices], int]:
        """Return a function that counts the exemplars in the memory after each task.

        Call it with the labels of each task in order. With `merge`, a run uses the counts to plan
        its steps. They must agree with the memory of `make_memory`, by default `Herding`.
        """
        return class_counter(size, C)

    def mixed(self, x: Tensor) -> Tensor:
        """With `merge`, transform the exemplars that a run mixes into the samples of a task."""
        return x

    def end_task(self, x: Tensor, y: Tensor) -> None:
        """Called when a task ends, with its raw samples if `rereads_task`, else without samples."""

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """A context around each evaluation, for example to put other weights into the network.

        IBN statistics are estimated inside it too. It must restore everything at its end.
        """
        yield

    def networks(self) -> list[Network]:
        """Return further networks that `scores` uses; IBN estimates their statistics too."""
        return []

    def before_scores(self) -> None:
        """Called in evaluation mode before `scores`, for example to compute class means."""

    def scores(self, x: Tensor) -> Tensor:
        """Return scores (n, C) of normalised inputs; the argmax is the prediction."""
        return self.outputs(x)[0]

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, C) and features (n, d) of normalised inputs, for predictions.

        By default the trained network computes them. Override it in a method that predicts with
        other weights, such as an average. The read-out `ncm` uses the features.
        """
        return self.context.network(x)  # type: ignore[no-any-return]

    def scorer(self) -> nn.Module:
        """Return a module with the same outputs as `scores` has now.

        The module has copies of all weights. Like `scores`, this is called within `predicting`,
        after `before_scores`. A method that overrides `scores`, `outputs` or `before_scores` must
        override this too to support snapshots and exports.
        """
        return Logits(self.context.network)

    @classmethod
    def wrappable(cls) -> bool:
        """Whether a method such as MKD can wrap it: its loss must be the sum of its terms."""
        return cls.adaptable and cls.loss is Method.loss

    @property
    def closed_form(self) -> bool:
        """Whether the loss is the sum of its terms, so the outer step has a closed form."""
        return type(self).loss is Method.loss
