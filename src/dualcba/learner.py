"""The learner: trains a network on a stream of new classes, and predicts at any time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dualcba.adaptors.adaptor import Adaptor
from dualcba.adaptors.outer_step import make_adaptor
from dualcba.adaptors.pretrained import save_agnostic
from dualcba.checkpoint import read_state_file, write_state_file
from dualcba.data import check_labels, check_samples
from dualcba.engine import make_engine, resolve_device
from dualcba.errors import expected
from dualcba.memory import Memory
from dualcba.methods import Method
from dualcba.nets import Network
from dualcba.prediction import Predictor
from dualcba.randomness import torch_generator
from dualcba.tasks.class_sets import ClassSets
from dualcba.training.guard import RefusedError
from dualcba.training.interrupts import interrupts
from dualcba.training.learner_arguments import LearnerArguments, check_head, documented, keywords_of
from dualcba.training.learner_state import check_state, load_state, save_state
from dualcba.training.ownership import Lock, claim
from dualcba.training.parts import Parts, make_parts
from dualcba.training.precision import default_modes
from dualcba.training.undo import undone_as_a_whole, undone_in_a_task


@documented(LearnerArguments)
class Learner:
    """Trains a network on the batches of a stream, in one pass, and predicts at any time.

    Parameters
    ----------
    network
        Any module that maps (n, *input_shape) to (n, num_classes) with a last linear layer. The
        learner moves it to the device, puts it into training mode and trains it.
    input_shape
        The shape of one sample.
    num_classes
        The number of classes, including those that arrive later.
    {options}

    Notes
    -----
    Options of the adaptor are accepted only if the method has an adaptor that uses them. A
    class-agnostic part that was loaded (`agnostic_from`) corrects by as much as the stream that it
    was trained on needed: on few, short tasks it can suppress new classes for long. Without
    `specific` it is the whole adaptor, and nothing of it is trained.

    Pass tokens as float32, which holds integers up to 2²⁴ exactly, to a network that converts them
    with `long()`. Normalisation layers given in evaluation mode keep their statistics.

    A network that draws random numbers itself, as dropout does, uses torch's global generator,
    which is not part of the learner's seed or state.

    On a CPU torch's number of threads changes the last bits of results. A learner leaves it as it
    is; call `torch.set_num_threads(1)` for results that do not depend on the machine. Runs of the
    command line and `DualCBAClassifier` do so for the network `mlp`.

    Threads may share a learner: a lock lets one call in at a time, so `predict` waits for a step in
    progress. A network belongs to one learner; a second one on the same weights gives a warning.

    >>> from torch import nn
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

    @keywords_of(LearnerArguments)
    def __init__(self, given: LearnerArguments) -> None:
        device = resolve_device(given.device)
        engine = make_engine(given.engine, device)
        self._statistics = "ibn" if given.ibn else "bn"
        self._dtype, self._step = given.dtype, 0
        self._lock = Lock()
        with default_modes(device), engine.scope():  # may fail: before the network is changed
            sets = ClassSets(given.num_classes)
            rng = torch_generator(given.seed, "adaptor")
            adaptor = make_adaptor(given.kind, given, sets, rng)
        if not given.network.training:
            given.network.train()  # as a whole; layers that the caller froze one by one stay frozen
        shape = tuple(given.input_shape)
        network = Network(given.network, shape, given.num_classes, head=given.last_layer)
        if given.head_scale is not None:
            network.use_cosine_head(given.head_scale, learnt=bool(given.learn_scale))
        with default_modes(device), engine.scope():
            self._parts = make_parts(engine, network, sets, adaptor, rng, given)
            check_head(network, self._parts.outer_loop)
            claim(self, network)
            self._predictor = Predictor(
                self._parts, seed=given.seed, average=given.ibn_average,
                augment=given.ibn_augment, seen_only=given.seen_only, readout=given.readout,
            )  # fmt: skip

    # ------------------------------------------------------------------ training

    def new_task(self, classes: Sequence[int] | Tensor | NDArray[np.int64]) -> None:
        """Begin a task with these new classes, and end the one before."""
        with self._lock, interrupts:
            labels = self._parts.tasks.check_classes(classes)
            self._predictor.forget()
            with default_modes(self.device), undone_as_a_whole(self._parts, self._receive):
                self._parts.tasks.begin(labels, self._step)

    def end_task(self) -> None:
        """End the current task, or the stream; `new_task` ends the task before it as well."""
        with self._lock, interrupts:
            self._predictor.forget()
            with default_modes(self.device), undone_as_a_whole(self._parts, self._receive):
                self._parts.tasks.end()

    def observe(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor, *, again: bool = False) -> None:
        """Train on one batch of the stream: raw samples (n, *input_shape) and labels (n,).

        Set `again` in later epochs, when the task has had these samples before. If it raises, the
        learner is as before the call. On a GPU a step that is refused (`on_outlier`) is reported
        later, by `check_finite`. A label that no `new_task` has announced is trained on, as that of
        an old class; on a CPU this gives a warning once per task.
        """
        method = self.method
        samples = self._check_samples(x, "observed")
        if len(samples) <= method.labelled:
            wanted = f"more than the {method.labelled} labelled ones that lead a batch"
            raise ValueError(expected("number of observed samples", len(samples), wanted))
        low = -1 if method.unlabelled else 0
        labels = check_labels(y, len(samples), self.num_classes, "observed", low)
        self._parts.tasks.check_announced(labels)
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
        with self._lock, interrupts, default_modes(self.device):
            self._predictor.forget()
            try:
                with undone_in_a_task(parts):
                    self._take_step(x, y, storable, labels, again)
            except RefusedError as refused:
                if parts.guard.on_outlier == "raise":
                    described = parts.loss_monitor.describe(
                        str(refused), self._step, self.task_starts
                    )
                    raise FloatingPointError(described) from None
                parts.guard.leave_out()
                return
            self._step += 1
            if parts.loss_monitor.due(self._step):
                self.check_finite()

    def _take_step(
        self,
        x: Tensor,
        y: Tensor,
        storable: NDArray[np.bool_] | None,
        labels: NDArray[np.int64] | None,
        again: bool,
    ) -> None:
        parts, step = self._parts, self._step
        begins = parts.tasks.detect(labels)
        with undone_as_a_whole(parts, self._receive) if begins else nullcontext():
            if begins:
                parts.tasks.begin_detected(step)
            if parts.method.rereads_task and not again:
                parts.tasks.keep(x, y, storable if parts.method.merge else None)
            update_adaptor = parts.outer_loop.due(step - parts.tasks.starts[-1])
            parts.training_step.take(x, y, storable, step, update_adaptor=update_adaptor)

    def check_finite(self) -> None:
        """Raise a `FloatingPointError` if a recent step was refused and nobody was told.

        On a CPU `observe` raises at once. On a GPU it does not wait for the device; this does, and
        is called every few hundred steps. With `on_outlier` `"skip"` or `"clip"` nothing is raised.
        """
        if self._parts.guard.on_outlier == "raise":
            with self._lock:
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
        with self._lock:
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

    @contextmanager
    def evaluating(self, statistics: str = "bn") -> Iterator[None]:
        """Evaluation mode under `"bn"` or `"ibn"` statistics; everything is restored afterwards.

        Other threads wait until the context ends.
        """
        with self._lock, self._predictor.evaluating(statistics, self._step):
            yield

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything the next step depends on: `tensors` by name, and `meta`."""
        with self._lock:
            return save_state(self._parts, seed=self.seed, step=self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a learner made with the same arguments; the seed is loaded."""
        with self._lock:
            check_state(self._parts, state)
            with default_modes(self.device):
                load_state(self._parts, state, self._receive)
            self._predictor.forget()
            self._predictor.seed = state["meta"]["seed"]
            self._step = state["meta"]["step"]

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file, completely or not at all."""
        write_state_file(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Continue from a file written by `save`; no code is loaded from it."""
        self.load_state_dict(read_state_file(Path(path)))

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
    def optimizer(self) -> str:
        """The name of the network's optimiser."""
        return type(self._parts.optimizer).__name__.lower()

    @optimizer.setter
    def optimizer(self, value: object) -> None:
        wanted = "the option optimizer of Learner: 'sgd', 'adam' or 'adamw'"
        raise AttributeError(f"optimizer of a learner cannot be assigned, expected {wanted}")

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
        """The usual number of samples per step."""
        return self._parts.context.batch_size

    @property
    def memory_batch(self) -> int:
        """The number of samples in each memory draw."""
        return self._parts.context.draw_size

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
    def outliers(self) -> int:
        """The number of batches that were left out or clipped, see `on_outlier`."""
        with self._parts.engine.scope():
            return int(self._parts.guard.outliers)

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
