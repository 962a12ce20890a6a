"""The learner: trains a network on a stream of new classes, and predicts at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dualcba.adaptors.adaptor import Adaptor
from dualcba.adaptors.outer_step import make_adaptor
from dualcba.adaptors.pretrained import save_agnostic
from dualcba.checkpoint import read, write
from dualcba.data import Transform, check_labels, check_samples
from dualcba.engine import make_engine, resolve_device
from dualcba.errors import above_zero, at_least, expected
from dualcba.memory import Memory
from dualcba.methods import Method
from dualcba.nets import Network
from dualcba.prediction import Predictor
from dualcba.randomness import torch_generator
from dualcba.tasks.class_sets import ClassSets
from dualcba.training import arguments
from dualcba.training.parts import Parts, make_parts
from dualcba.training.precision import Precision, default_modes
from dualcba.training.state import check_state, load_state, save_state


class Learner:
    """Trains a network on the batches of a stream, in one pass, and predicts at any time.

    Parameters
    ----------
    network
        Any module that maps (n, *input_shape) to (n, num_classes) through a last linear layer. The
        learner takes it over: it is moved to the device, put into training mode, and trained.
    input_shape, num_classes
        The shape of one sample; the number of classes, including those that arrive later.
    method
        A name such as `"er"`, `"er-cba"` or `"er-dual-cba"`, or a `Method` object.
    method_options
        Arguments of the named method, such as DER++'s `alpha`.
    buffer
        Number of samples in the memory.
    batch_size
        Number of samples in each memory draw.
    lr, adaptor_lr
        Learning rates of the network (SGD) and of the adaptor (Adam).
    outer_every
        The adaptor is updated every `outer_every` steps of a task, from the second task on.
    levels
        The gradient that updates the adaptor. `"bi"`: the outer loss of the virtually updated
        network. For the single-level ablation, `"joint"`: the inner loss, and `"buffer"`: the outer
        loss of the adapted network, without unrolling.
    adaptor
        `"cba"`, `"dual-cba"` or None, for a `Method` object; a method's name already includes it.
    adaptor_options
        Arguments of `Adaptor`: `specific`, `agnostic`, `space`, `divide`, `width`.
    agnostic_from
        Where to load Dual-CBA's class-agnostic part from: `"pretrained"` for the one in the
        package, or a file of `save_agnostic`. The part is frozen. Without `specific` it is the
        whole adaptor and nothing of it is trained. The size of its correction is that of the
        stream it was trained on; on few, short tasks it can suppress new classes for long.
    freeze_after
        Freeze the class-agnostic part after this number of tasks.
    transform
        Augmentation and normalisation; by default uint8 is scaled to [0, 1] and floats are kept.
    dtype
        Type of the raw samples: `torch.uint8` or `torch.float32`. Pass tokens as float32, which
        holds integers up to 2²⁴ exactly, to a network that converts them with `long()`.
    forward
        `"split"`: the new batch and each memory draw have batch statistics of their own;
        `"concat"`: they share them.
    ibn
        Whether `predict` re-estimates batch-normalisation statistics from the memory; by default
        only with Dual-CBA. Layers given in evaluation mode keep their statistics, as in training.
        `ibn_augment`: whether to augment the samples; `ibn_average`: `"cumulative"` or `"ema"`.
    seen_only
        Predict only classes that have been seen; before the first one, any class.
    boundaries
        `"given"`: the caller starts each task with `new_task`; `"inferred"`: tasks and new classes
        are detected from the labels (see `dualcba.tasks.detection`).
    seed
        Seed of all random choices of the learner.
    device, engine, precision
        `"auto"`, or `"cpu"`/`"cuda[:n]"`, `"eager"`/`"captured"`, `"fp32"`/`"bf16"`.
    head
        Name of the network's last linear layer; by default it is found automatically.

    A network that draws random numbers itself, as dropout does, uses torch's global generator,
    which is not part of the learner's seed or state. A learner is not thread-safe: `predict` may be
    called between any two steps, but not during one.

    >>> _ = torch.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> learner = Learner(net, (4,), 4, dtype=torch.float32, buffer=20, batch_size=8, lr=0.3)
    >>> x = torch.eye(4).repeat(8, 1); y = torch.arange(4).repeat(8)
    >>> for classes in ([0, 1], [2, 3]):
    ...     learner.new_task(classes)
    ...     mine = torch.isin(y, torch.tensor(classes))
    ...     for _ in range(50):
    ...         learner.observe(x[mine], y[mine])
    >>> learner.predict(torch.eye(4)).tolist()
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        network: nn.Module,
        input_shape: Sequence[int],
        num_classes: int,
        *,
        method: str | Method = "er-dual-cba",
        method_options: Mapping[str, Any] | None = None,
        buffer: int = 200,
        batch_size: int = 32,
        lr: float = 0.03,
        adaptor_lr: float = 0.01,
        outer_every: int = 5,
        levels: str = "bi",
        adaptor: str | None = None,
        adaptor_options: Mapping[str, Any] | None = None,
        agnostic_from: str | Path | None = None,
        freeze_after: int | None = None,
        transform: Transform | None = None,
        dtype: torch.dtype = torch.uint8,
        forward: str = "split",
        ibn: bool | None = None,
        ibn_augment: bool = True,
        ibn_average: str = "cumulative",
        seen_only: bool = False,
        boundaries: str = "given",
        seed: int = 0,
        device: str | torch.device = "auto",
        engine: str = "auto",
        precision: str = "auto",
        head: str | None = None,
    ) -> None:
        options = adaptor_options or {}
        base, kind = arguments.resolve(method, method_options or {}, adaptor)
        arguments.check_adaptor(kind, options)
        arguments.check_transfer(kind, options, agnostic_from, freeze_after)
        arguments.check_levels(kind, levels)
        at_least(2, num_classes=num_classes)
        at_least(1, buffer=buffer, batch_size=batch_size, outer_every=outer_every)
        at_least(0, seed=seed)
        above_zero(lr=lr, adaptor_lr=adaptor_lr)
        arguments.check_choices(
            dtype=dtype, forward=forward, ibn_average=ibn_average, precision=precision,
            boundaries=boundaries,
        )  # fmt: skip
        arguments.check_flags(ibn=ibn, ibn_augment=ibn_augment, seen_only=seen_only)
        shape = arguments.check_shape(input_shape)
        transform = transform or Transform([0.0], [1.0])
        arguments.check_input(transform, shape)
        arguments.check_network(network)
        arguments.check_parts(base, buffer, num_classes)
        target = resolve_device(device)
        runner = make_engine(engine, target)
        self._statistics = "ibn" if ibn or (ibn is None and kind == "dual-cba") else "bn"
        self._dtype = dtype
        self._step = 0

        with default_modes(target), runner.scope():  # may fail: before the network is changed
            sets = ClassSets(num_classes)
            rng = torch_generator(seed, "adaptor")
            bias_adaptor = make_adaptor(kind, options, agnostic_from, sets, rng)
        if not network.training:
            network.train()  # as a whole; layers that the caller froze one by one stay frozen
        net = Network(network, shape, num_classes, head=head)
        with default_modes(target), runner.scope():
            memory = base.make_memory(buffer, shape, dtype, num_classes)
            self._parts = parts = make_parts(
                runner, Precision(precision, target, net), net, sets, memory, base, bias_adaptor,
                rng, transform, lr=lr, batch_size=batch_size, adaptor_lr=float(adaptor_lr),
                levels=levels, outer_every=outer_every, freeze_after=freeze_after,
                concat=forward == "concat", inferred=boundaries == "inferred", seed=seed,
            )  # fmt: skip
            arguments.check_head(net, parts.outer_loop)
            self._predictor = Predictor(
                parts, seed=seed, average=ibn_average, augment=ibn_augment, seen_only=seen_only
            )

    # ------------------------------------------------------------------ training

    def new_task(self, classes: Sequence[int] | Tensor | NDArray[np.int64]) -> None:
        """Begin a task with these new classes, and end the one before."""
        labels = self._parts.tasks.check_classes(classes)
        self._predictor.forget()
        with default_modes(self.device):
            self._parts.tasks.begin(labels, self._step)

    def end_task(self) -> None:
        """End the current task, or the stream; `new_task` ends the task before it as well."""
        self._predictor.forget()
        with default_modes(self.device):
            self._parts.tasks.end()

    def observe(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor, *, again: bool = False) -> None:
        """Train on one batch of the stream: raw samples (n, *input_shape) and labels (n,).

        Set `again` in later epochs, when the task has had these samples before.
        """
        method = self.method
        samples = self._check_samples(x, "observed")
        if len(samples) <= method.labelled:
            wanted = f"more than the {method.labelled} labelled ones that lead a batch"
            raise ValueError(expected("number of observed samples", len(samples), wanted))
        low = -1 if method.unlabelled else 0
        labels = check_labels(y, len(samples), self.num_classes, "observed", low)
        storable = (labels >= 0).cpu().numpy() if method.unlabelled else None
        on_host = None if self._parts.tasks.detector is None else labels.cpu().numpy()
        with default_modes(self.device):
            samples, labels = self._receive(samples), self._receive(labels)
        self.observe_on_device(samples, labels, storable, labels=on_host, again=again)

    def _receive(self, tensor: Tensor) -> Tensor:
        """Bring a tensor to the device; copy one of inference mode, so that gradients can pass."""
        return self._parts.engine.receive(tensor.clone() if tensor.is_inference() else tensor)

    def observe_on_device(
        self,
        x: Tensor,
        y: Tensor,
        storable: NDArray[np.bool_] | None = None,
        *,
        labels: NDArray[np.int64] | None = None,
        again: bool = False,
    ) -> None:
        """Train on a batch that is already checked and on the device, without waiting for it.

        This is `observe` without its checks, for runs and benchmarks. `storable` is the mask of
        samples that may enter the memory, by default all; `labels` is y on the host, required if
        boundaries are inferred; `again` as for `observe`.
        """
        parts = self._parts
        with default_modes(self.device):
            self._predictor.forget()
            parts.tasks.before_step(labels, self._step)
            update_adaptor = parts.outer_loop.due(self._step - parts.tasks.starts[-1])
            parts.training_step.take(x, y, storable, self._step, update_adaptor=update_adaptor)
            if parts.method.rereads_task and not again:
                parts.tasks.keep(x, y)
            self._step += 1
            if parts.loss_monitor.due(self._step):
                self.check_finite()

    def check_finite(self) -> None:
        """Raise a `FloatingPointError` if a recent loss was not finite."""
        self._parts.loss_monitor.check(self._step, self._parts.tasks.starts)

    # ------------------------------------------------------------------ prediction

    def predict(self, x: ArrayLike | Tensor) -> Tensor:
        """Return the class of each sample, (n,); the adaptor is not used."""
        return self._scores(x).argmax(1)

    def predict_proba(self, x: ArrayLike | Tensor) -> Tensor:
        """Return the probability of each class, (n, num_classes); the adaptor is not used."""
        return self._scores(x).softmax(1)

    def _scores(self, x: ArrayLike | Tensor) -> Tensor:
        samples = self._check_samples(x, "given")
        return self._predictor.scores_of(samples, self.statistics, self._step)

    def _check_samples(self, x: ArrayLike | Tensor, what: str) -> Tensor:
        samples = check_samples(x, what, self.input_shape)
        if samples.dtype != self._dtype:
            given = getattr(x, "dtype", samples.dtype)
            raise ValueError(expected(f"dtype of {what} x", str(given), str(self._dtype)))
        return samples

    def scores(self, x: Tensor) -> Tensor:
        """Return (n, num_classes) scores of raw samples on the device, inside `evaluating`."""
        return self._predictor.scores(x)

    def evaluating(self, statistics: str = "bn") -> AbstractContextManager[None]:
        """Evaluation mode under `"bn"` or `"ibn"` statistics; everything is restored afterwards."""
        return self._predictor.evaluating(statistics, self._step)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything the next step depends on: `tensors` by name, and `meta`."""
        return save_state(self._parts, seed=self.seed, step=self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a learner made with the same arguments; the seed is loaded."""
        check_state(self._parts, state)
        with default_modes(self.device):
            load_state(self._parts, state, self._receive)
        self._predictor.forget()
        self._predictor.seed = state["meta"]["seed"]
        self._step = state["meta"]["step"]

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file, completely or not at all."""
        write(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Continue from a file written by `save`; no code is loaded from it."""
        self.load_state_dict(read(Path(path)))

    def save_agnostic(self, path: str | Path, provenance: Mapping[str, Any]) -> None:
        """Write the adaptor's class-agnostic part to a file for `agnostic_from`.

        `provenance` is stored with it: the dataset, method, buffer, seed and so on that made it.
        """
        if self.adaptor is None:
            raise ValueError("the learner has no adaptor, expected one to save")
        self._parts.engine.finish()
        save_agnostic(self.adaptor, path, provenance)

    # ------------------------------------------------------------------ properties

    @property
    def network(self) -> Network:
        """The network; its `module` is the one that was given."""
        return self._parts.context.network

    @property
    def method(self) -> Method:
        """The rehearsal method."""
        return self._parts.method

    @property
    def adaptor(self) -> Adaptor | None:
        """The bias adaptor, if any."""
        return self._parts.outer_loop.adaptor

    @property
    def memory(self) -> Memory:
        """The rehearsal memory."""
        return self._parts.context.memory

    @property
    def class_sets(self) -> ClassSets:
        """Which classes are new, old and unseen."""
        return self._parts.context.sets

    @property
    def num_classes(self) -> int:
        """The number of classes, including those that arrive later."""
        return self.network.num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.network.input_shape

    @property
    def dtype(self) -> torch.dtype:
        """The type of the raw samples."""
        return self._dtype

    @property
    def batch_size(self) -> int:
        """The number of samples in each memory draw."""
        return self._parts.context.batch_size

    @property
    def device(self) -> torch.device:
        """The device it computes on."""
        return self._parts.engine.device

    @property
    def seed(self) -> int:
        """The seed it was made with, or that of the state it has loaded."""
        return self._predictor.seed

    @property
    def statistics(self) -> str:
        """The statistics that `predict` uses: `"bn"` or `"ibn"`."""
        return self._statistics

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return self._step

    @property
    def task(self) -> int:
        """The index of the current task, from 0; −1 before the first."""
        return self.class_sets.task

    @property
    def task_starts(self) -> list[int]:
        """The step at which each task began."""
        return list(self._parts.tasks.starts)

    @property
    def parts(self) -> Parts:
        """The internal parts, for evaluation and benchmarks; they may change between versions."""
        return self._parts
