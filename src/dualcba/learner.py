"""The learner: trains a network on a stream of new classes, and predicts at any time."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
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
from dualcba.data import check_labels
from dualcba.engine import Ranks, make_engine, resolve_device
from dualcba.errors import expected, reason
from dualcba.memory import Memory
from dualcba.methods import Method
from dualcba.nets import Network
from dualcba.nets.inputs import Inputs, Samples
from dualcba.prediction import Predictor
from dualcba.randomness import torch_generator
from dualcba.serving import Snapshot, export_model, frozen_model
from dualcba.tasks.class_sets import ClassSets
from dualcba.tasks.labels import read_labels
from dualcba.tasks.outputs import outputs_for
from dualcba.training.growth import LastLayer, PartsMaker
from dualcba.training.guard import RefusedError
from dualcba.training.interrupts import interrupts
from dualcba.training.learner_arguments import LearnerArguments, check_head, documented, keywords_of
from dualcba.training.learner_state import (
    check_estimate,
    check_state,
    load_state,
    save_state,
    split_classes,
    split_estimate,
    with_estimate,
)
from dualcba.training.ownership import Listener, ListenerRef, Lock, claim, claim_again
from dualcba.training.parts import Parts, make_parts
from dualcba.training.precision import default_modes
from dualcba.training.sharing import (
    check_equal,
    check_shareable,
    own_state,
    start_equal,
    whole_batch,
    whole_state,
)
from dualcba.training.undo import undone_as_a_whole, undone_in_a_task

ANY_LABELS = "; leave out num_classes to use labels of any type"
"""Appended to errors about labels that are not numbers, in a learner with `num_classes`."""


@documented(LearnerArguments)
class Learner:
    """Trains a network on a stream of batches, in one pass, and predicts at any time.

    Call `new_task` with the classes of a task, `observe` with each batch, and `predict` after any
    step. `method`, `buffer` and `lr` matter most; all options have defaults.

    Parameters
    ----------
    network : nn.Module
        Any module that maps (n, *input_shape) to (n, num_classes) with a last linear layer. The
        learner moves it to the device, puts it into training mode and trains it. If `num_classes`
        is not given, the last layer may have any number of outputs; when it runs out of outputs for
        new classes, their number is doubled.
    input_shape : tuple of int
        The shape of one sample; a dict or tuple of shapes if there are several inputs.
    num_classes : int, optional
        The number of classes, including those that arrive later; labels are 0, 1, and so on. Leave
        it out to use labels of any hashable type, such as text: each label that has not occurred
        before is then a new class (see `classes_`), up to `max_classes`.
    {options}

    Notes
    -----
    Options of the adaptor are accepted only if the method has an adaptor that uses them. A loaded
    class-agnostic part (`agnostic_from`) makes corrections of the size that its own training stream
    needed: on a stream with few, short tasks it can suppress new classes for a long time. Unless
    `specific` is given, it is the whole adaptor, and no part of the adaptor is trained.

    Tokens have the `dtype` torch.int64 or torch.int32 and are passed to the network unchanged. With
    a dict or tuple of shapes in `input_shape`, samples are dicts or tuples of arrays, and the
    network is called with keyword or positional arguments. With `cache_features`, a last layer that
    the method or `head` replaces is replaced in the learner only, not in the given network.
    Normalisation layers that are in evaluation mode when the network is given keep their
    statistics.

    A network that draws random numbers itself, as dropout does, uses torch's global generator,
    which is not part of the learner's seed or state.

    On a CPU the number of torch's threads changes the last bits of results. A learner does not set
    it; call `torch.set_num_threads(1)` for results that do not depend on the machine. Runs of the
    command line and `DualCBAClassifier` do so for the network `mlp`.

    Threads may share a learner: a lock admits one call at a time, so `predict` waits for a step in
    progress; predictions of a `snapshot` do not wait. A network belongs to one learner; a second
    learner on the same weights gives a warning.

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

    Without `num_classes`, labels may have any hashable type and need not be announced:

    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> learner = Learner(net, (4,), dtype=torch.float32, buffer=20, batch_size=8, lr=0.3,
    ...                   boundaries="inferred")
    >>> for names in (["owl", "cat"], ["dog", "ant"]):
    ...     x = torch.eye(4)[[["owl", "cat", "dog", "ant"].index(name) for name in names]]
    ...     for _ in range(50):
    ...         learner.observe(x.repeat(4, 1), names * 4)
    >>> learner.classes_, net[2].out_features
    (['owl', 'cat', 'dog', 'ant'], 8)
    >>> learner.predict(torch.eye(4)).tolist()
    ['owl', 'cat', 'dog', 'ant']

    A `Method` object with a bias adaptor; its predictions use IBN statistics unless `ibn=False`:

    >>> from dualcba.methods.er import ER
    >>> learner = Learner(nn.Linear(4, 2), (4,), 2, method=ER(), adaptor="dual-cba")
    >>> learner.adaptor is None, learner.statistics
    (False, 'ibn')
    """

    @keywords_of(LearnerArguments)
    def __init__(self, given: LearnerArguments) -> None:
        device = resolve_device(given.device)
        check_shareable(given)
        engine = make_engine(given.engine, device, distributed=given.distributed)
        if engine.ranks is not None:
            check_equal(engine.ranks, given)
        self._statistics = "ibn" if given.ibn else "bn"
        self._inputs, self._step = given.inputs, 0
        self._lock = Lock()
        self._listener = ListenerRef()
        host = torch.device("cpu")  # not the default device
        with default_modes(device), engine.scope(), host:  # first: it may fail, nothing is changed
            sets = ClassSets(given.outputs)
            rng = torch_generator(given.seed, "adaptor")
            adaptor = make_adaptor(given.kind, given, sets, rng)
        given, network = _make_network(given)
        self._maker = PartsMaker(given) if given.grows else None
        self._labels = given.labels()
        with default_modes(device), engine.scope(), host:
            self._parts = make_parts(engine, network, sets, adaptor, rng, given)
            check_head(network, self._parts.outer_loop, grows=given.grows)
            claim(self, network)
            if engine.ranks is not None:
                start_equal(engine.ranks, self._parts)
            if given.grows:
                self._parts.assign(0)
            self._predictor = Predictor(
                self._parts, seed=given.seed, average=given.ibn_average, augment=given.ibn_augment,
                seen_only=given.seen_only or given.grows, readout=given.readout,
                refresh=given.ibn_refresh, flip=given.test_flip,
            )  # fmt: skip

    # ------------------------------------------------------------------ training

    def new_task(self, classes: Sequence[Any] | Tensor | NDArray[Any]) -> None:
        """End the current task, if any, and begin a task with these new classes."""
        with self._lock, interrupts:
            self._predictor.check_outside("new_task")
            if self._ranks is not None:
                check = partial(self._parts.tasks.check_labels, classes)
                classes = self._ranks.same("new_task", check)
            if self._maker is None:
                self._begin(self._parts.tasks.check_classes(classes, hint=ANY_LABELS))
                return
            labels = self._parts.tasks.check_labels(classes)
            if not labels:
                raise ValueError(expected("classes of the new task", labels, "at least one label"))
            fresh = self._labels.classes(labels)[1]
            with default_modes(self.device), self._undone_growth() if fresh else nullcontext():
                self._add_new_classes(fresh)
                self._begin(self._labels.classes(labels)[0])

    def _begin(self, classes: Sequence[int]) -> None:
        self._predictor.forget()
        with default_modes(self.device), undone_as_a_whole(self._parts, self._receive):
            self._parts.tasks.begin(classes, self._step)

    def end_task(self) -> None:
        """End the current task, at the end of the stream; `new_task` also ends the task before."""
        with self._lock, interrupts:
            self._predictor.check_outside("end_task")
            if self._ranks is not None:
                self._ranks.exchange("end_task", None)
            self._predictor.forget()
            with default_modes(self.device), undone_as_a_whole(self._parts, self._receive):
                self._parts.tasks.end()

    def observe(self, x: Samples, y: ArrayLike | Tensor, *, again: bool = False) -> None:
        """Train on one batch of the stream: raw samples (n, *input_shape) and labels (n,).

        If `num_classes` was not given, labels that are not in `classes_` are new classes; with
        given boundaries they join the current task.

        Set `again` in later epochs, which repeat the samples of the task. If the call raises, the
        learner is unchanged. On a GPU a refused step (see `on_outlier`) is reported later, by
        `check_finite`. A label that no `new_task` has announced is treated as an old class; on a
        CPU there is a warning, once per task.

        If `distributed`, all ranks must make this call together, each with its share of the batch.
        The same holds for `new_task`, `end_task`, `save`, `load`, `state_dict` and the first
        prediction after a step.
        """
        method = self.method
        if self._ranks is not None:
            x, y = self._whole_batch(self._ranks, x, y, again)
        samples = self._inputs.check(x, "observed")
        if len(samples) <= method.labelled:
            wanted = f"more than {method.labelled}, the labelled samples at the start of a batch"
            raise ValueError(expected("number of observed samples", len(samples), wanted))
        with self._lock:
            labels, fresh = self._class_labels(y, len(samples))
            if self._maker is None:
                self._parts.tasks.check_announced(labels)
            storable = (labels >= 0).cpu().numpy() if method.unlabelled else None
            on_host = None if self._parts.tasks.detector is None else labels.cpu().numpy()
            with default_modes(self.device):
                samples, labels = self._receive(samples), self._receive(labels)
            self._observe(samples, labels, storable, on_host, again, fresh)

    def _whole_batch(self, ranks: Ranks, x: Any, y: Any, again: bool) -> tuple[Tensor, Any]:
        """Return the samples and labels that all ranks observe, on every rank."""

        def read() -> tuple[Tensor, Any]:
            samples = self._inputs.check(x, "observed")
            if self._maker is not None:
                return samples, read_labels(y, len(samples), "observed y")
            return samples, self._class_labels(y, len(samples))[0]

        with self._lock, default_modes(self.device):
            return whole_batch(ranks, read, self._receive, again=again)

    def _class_labels(self, y: Any, n: int) -> tuple[Tensor, list[Any]]:
        """Return the class of each label (−1 for unlabelled), and the list of new labels.

        New labels get the next class indices, in order.
        """
        unlabelled = self.method.unlabelled
        if self._maker is None:
            low = -1 if unlabelled else 0
            return check_labels(y, n, self.num_classes, "observed", low, hint=ANY_LABELS), []
        names = read_labels(y, n, "observed y")
        none = (-1, None) if unlabelled else ()
        found, fresh = self._labels.classes(names, none)
        if fresh:
            coming = {label: len(self._labels) + k for k, label in enumerate(fresh)}
            found = [coming.get(label, k) for label, k in zip(names, found, strict=True)]
        return torch.tensor(found, dtype=torch.long, device="cpu"), fresh

    def _receive(self, tensor: Tensor) -> Tensor:
        """Move a tensor to the device; copy an inference tensor, which does not allow autograd."""
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

        This is `observe` without its checks, for runs and benchmarks. `storable` masks the samples
        that may enter the memory, by default all; `labels` is y on the host, required if boundaries
        are inferred; `again` is as in `observe`. If `num_classes` was not given, y holds indices
        into `classes_`, and no class may be new. If `distributed`, every rank passes the whole
        batch.
        """
        self._observe(x, y, storable, labels, again, [])

    def _observe(
        self,
        x: Tensor,
        y: Tensor,
        storable: NDArray[np.bool_] | None,
        labels: NDArray[np.int64] | None,
        again: bool,
        fresh: Sequence[Any],
    ) -> None:
        """Add classes for the new labels in `fresh`, if any, and train on the batch."""
        with self._lock, interrupts, default_modes(self.device):
            self._predictor.check_outside("observe")
            listener = self._listener()
            if listener is not None:
                listener.before_step(x, y, again=again)
            if (trunk := self._parts.trunk) is not None:
                x = trunk.of_new(x, self._parts.engine, self._parts.precision.autocast)
            self._predictor.forget()
            try:
                with self._undone_growth() if fresh else nullcontext():
                    if fresh:
                        self._add_new_classes(fresh, to_task=True)
                    with undone_in_a_task(self._parts):
                        self._take_step(x, y, storable, labels, again)
            except RefusedError as refused:
                guard, losses = self._parts.guard, self._parts.loss_monitor
                if guard.on_outlier == "raise":
                    described = losses.describe(str(refused), self._step, self.task_starts)
                    raise FloatingPointError(described) from None
                guard.count_left_out()
                return
            self._step += 1
            self._predictor.ibn.moving.observe(len(x))
            if listener is not None:
                listener.after_step()
            if self._parts.loss_monitor.due(self._step):
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
                with parts.engine.scope():
                    kept = parts.guard.inputs(x)  # exemplars are selected from it
                parts.tasks.keep(kept, y, storable if parts.method.merge else None)
            update_adaptor = parts.outer_loop.due(step - parts.tasks.starts[-1])
            parts.training_step.take(x, y, storable, step, update_adaptor=update_adaptor)

    def attach(self, listener: Listener | None) -> None:
        """Call a listener before and after each step; it replaces the current one, None removes it.

        Use it to log or plot each step without changes to the training loop. A
        `dualcba.monitoring.Monitor` is a listener and attaches itself. The learner holds only a
        weak reference, so keep a reference to the listener. `after_step` is not called if the step
        is refused or fails.

        >>> class Counter:
        ...     steps = 0
        ...     def before_step(self, x, y, *, again):
        ...         pass  # x and y are the batch, on the device
        ...     def after_step(self):
        ...         self.steps += 1
        >>> learner = Learner(torch.nn.Linear(4, 2), (4,), 2, dtype=torch.float32)
        >>> counter = Counter()
        >>> learner.attach(counter)
        >>> learner.new_task([0, 1])
        >>> for _ in range(3):
        ...     learner.observe(torch.eye(4), [0, 1, 0, 1])
        >>> counter.steps
        3
        """
        with self._lock:
            self._listener = ListenerRef(listener)

    # ------------------------------------------------------------------ growing

    def add_classes(self, labels: Sequence[Any] | Tensor | NDArray[Any]) -> None:
        """Add new classes with these labels, in this order, before their samples arrive.

        Only for a learner without `num_classes`. It is seldom needed, since `new_task` and
        `observe` also add new labels; use it to fix the order of `classes_` and of the columns of
        `predict_proba`. Labels that are already in `classes_` are ignored. A class is predicted
        only once it has been observed or announced by `new_task`.

        >>> learner = Learner(torch.nn.Linear(4, 2), (4,), dtype=torch.float32)
        >>> learner.add_classes(["cat", "dog"])
        >>> learner.classes_
        ['cat', 'dog']
        """
        if self._maker is None:
            wanted = "a learner without num_classes for add_classes"
            raise ValueError(expected("num_classes", self.num_classes, wanted))
        with self._lock, interrupts, default_modes(self.device):
            self._predictor.check_outside("add_classes")
            if self._ranks is not None:
                labels = self._ranks.same(
                    "add_classes", partial(read_labels, labels, None, "labels")
                )
            fresh = self._labels.classes(read_labels(labels, None, "labels"))[1]
            with self._undone_growth():
                self._add_new_classes(fresh)
                interrupts.defer()

    def _add_new_classes(self, fresh: Sequence[Any], *, to_task: bool = False) -> None:
        """Add a class for each new label; `to_task` adds it to the task, if boundaries are given.

        Call it inside `_undone_growth`, which undoes it if it fails.
        """
        if not fresh:
            return
        before = len(self._labels)
        self._labels.add(fresh)
        self._resize(len(self._labels))
        tasks, sets = self._parts.tasks, self._parts.context.sets
        if to_task and tasks.open and tasks.detector is None:
            with self._parts.engine.scope():
                new = sets.new.nonzero().flatten().tolist()
                sets.set_new([*new, *range(before, len(self._labels))])

    def _resize(self, count: int) -> None:
        """Resize the network for `count` classes."""
        assert self._maker is not None
        parts, outputs = self._parts, outputs_for(count, self._maker.given.outputs)
        if outputs != parts.context.sets.num_classes:
            with torch.device("cpu"):
                made = self._maker.resized(parts, outputs, self._receive, trained=self._step > 0)
                self._parts, self._predictor = made, self._predictor.of(made)
            claim_again(self, made.context.network)
        self._parts.assign(count)

    @contextmanager
    def _undone_growth(self) -> Iterator[None]:
        """Restore the labels, the parts and the last layer if the body raises."""
        parts, predictor, names = self._parts, self._predictor, self._labels.names
        layer, detector = LastLayer(self.network), parts.tasks.detector
        detector = None if detector is None else detector.copy()
        with parts.engine.scope():
            masks = [(t, t.clone()) for t in parts.context.sets.buffers()]
        try:
            yield
        except BaseException:
            interrupts.defer()
            layer.put_back()
            grown, self._parts, self._predictor = self._parts is not parts, parts, predictor
            self._labels.replace(names)
            parts.assign(len(names))
            parts.tasks.detector = detector
            with parts.engine.scope():
                for t, value in masks:
                    t.copy_(value)
            if grown:
                claim_again(self, parts.context.network)
                parts.engine.reset()
            raise

    def check_finite(self) -> None:
        """Raise a `FloatingPointError` if a recent step was refused and this was not reported yet.

        A step is refused, and its batch skipped, if the batch has an outlier or the result is not
        finite (see `on_outlier`). On a CPU `observe` raises at once, so this call does nothing. On
        a GPU `observe` does not wait for the device, and runs this check every few hundred steps;
        call it at the end of a stream, or before you rely on a score. It waits for the device. With
        `on_outlier` `"skip"` or `"clip"` it never raises; `outliers` counts such batches.
        """
        if self._parts.guard.on_outlier == "raise":
            with self._lock:
                self._parts.loss_monitor.check(self._step, self._parts.tasks.starts)

    # ------------------------------------------------------------------ prediction

    def predict(self, x: Samples) -> Tensor | Any:
        """Return the predicted class of each sample, (n,); the adaptor is not used.

        If `num_classes` was not given, the result is a NumPy array of labels.
        """
        with self._lock:
            classes = self._scores(x).argmax(1)
            return classes if self._maker is None else self._labels.array[classes.numpy()]

    def predict_proba(self, x: Samples) -> Tensor:
        """Return the probability of each class, (n, num_classes); the adaptor is not used.

        If `num_classes` was not given, the columns are those of `classes_`.
        """
        return self._scores(x).softmax(1)

    def _scores(self, x: Samples) -> Tensor:
        samples = self._inputs.check(x, "given")
        with self._lock:
            if not self.num_classes:
                raise ValueError("the learner has no class yet, expected observe or new_task first")
            scores = self._predictor.scores_of(samples, self.statistics, self._step)
            return scores[:, : self.num_classes]

    def snapshot(self, device: str | torch.device | None = None) -> Snapshot:
        """Return a copy of the model for predictions, which later training does not change.

        It shares nothing with the learner, so other threads can use it during training, and it can
        be pickled for other processes. By default it is on the learner's device.
        """
        with self._lock:
            model = frozen_model(self._predictor, self.statistics, self._step, self.num_classes)
            snapshot = Snapshot(
                model, self.num_classes, self._inputs, step=self._step,
                labels=None if self._maker is None else self._labels.array,
                bf16=self._parts.precision.bf16, device=self.device,
            )  # fmt: skip
        return snapshot if device is None else snapshot.to(device)

    def export(self, path: str | Path, *, fold: bool = True) -> None:
        """Write the model for predictions, as it is now, to a file; see `export_model`."""
        export_model(self.snapshot("cpu"), path, fold=fold)

    def scores(self, x: Tensor) -> Tensor:
        """Return scores (n, C) of raw samples on the device, inside `evaluating`.

        C is `num_classes` if that was given, else the number of outputs of the network, of which
        the first ones are those of `classes_`.
        """
        return self._predictor.scores(x)

    @contextmanager
    def evaluating(self, statistics: str = "bn") -> Iterator[None]:
        """Put the network into evaluation mode for calls of `scores`, and restore it afterwards.

        `predict` does so by itself. Use the context to score many batches that are already on the
        device, or to compare statistics: `"bn"` uses the running statistics of training, `"ibn"`
        re-estimates them from the memory, once for all calls inside. Other threads wait until the
        context ends. Inside the context, the learner cannot train, save or load.

        >>> learner = Learner(torch.nn.Linear(4, 2), (4,), 2, dtype=torch.float32, device="cpu")
        >>> with learner.evaluating("bn"):
        ...     scores = learner.scores(torch.eye(4))
        >>> scores.shape
        torch.Size([4, 2])
        """
        with self._lock, self._predictor.evaluating(statistics, self._step):
            yield

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything the next step depends on: named `tensors`, and `meta`.

        If predictions have estimated IBN statistics from parts of the memory (see `ibn_refresh`),
        there is a third entry, `estimate`: the next predictions depend on it, but no step does.
        """
        with self._lock:
            self._predictor.check_outside("state_dict")
            state = save_state(self._parts, seed=self.seed, step=self._step)
            if self._ranks is not None:
                state = whole_state(self._ranks, self.memory, state)
            if self._maker is not None:
                state["meta"]["classes"] = self._labels.to_json()
            estimate = self._predictor.ibn.save()
            return state if estimate is None else {**state, "estimate": estimate}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a learner made with the same arguments, and continue from it.

        The seed may differ; it is loaded with the state.
        """
        with self._lock, interrupts:
            self._predictor.check_outside("load_state_dict")
            names, state = split_classes(state, self._labels if self._maker else None)
            growing = nullcontext() if names is None else self._undone_growth()
            with default_modes(self.device), growing:
                if names is not None:
                    self._labels.replace(names)
                    self._resize(len(names))
                own = self._predictor.ibn.moving.tensors()
                if self._ranks is None:
                    check_state(self._parts, state)
                    check_estimate(own, state.get("estimate"))
                else:
                    state = own_state(self._ranks, self._parts, state)
                    check = partial(check_estimate, own, state.get("estimate"))
                    self._ranks.each("load_state_dict", check)
                load_state(self._parts, state, self._receive)
                interrupts.defer()
            self._predictor.forget()
            self._predictor.ibn.load(state.get("estimate"), state["meta"]["step"])
            self._predictor.ibn.seed = self._parts.context.seed = state["meta"]["seed"]
            self._step = state["meta"]["step"]

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file, completely or not at all."""
        write = partial(write_state_file, Path(path), with_estimate(self.state_dict()))
        if self._ranks is None:
            write()
        else:  # one rank writes, the others wait for it
            self._ranks.each("save", write if self._ranks.rank == 0 else lambda: None)

    def load(self, path: str | Path) -> None:
        """Load a file written by `save`, and continue from it; no code in the file is executed."""
        read = partial(read_state_file, Path(path))
        found = read() if self._ranks is None else self._ranks.each("load", read)
        self.load_state_dict(split_estimate(found))

    def __deepcopy__(self, memo: dict[int, Any]) -> Learner:
        """Return an independent copy, which continues in the same way."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        with self._lock, default_modes(self.device):
            self._predictor.check_outside("deepcopy")
            self._parts.engine.finish()
            engine = copy.deepcopy(self._parts.engine, memo)
            with engine.scope():  # the copy's own stream, on which its first step follows
                for module in self._parts.modules().values():
                    for p in module.parameters():
                        if id(p) not in memo:  # copied like other tensors: views of it stay views
                            values = copy.deepcopy(p.detach(), memo)
                            memo[id(p)] = torch.nn.Parameter(values, p.requires_grad)
                made.__dict__.update(copy.deepcopy(self.__dict__, memo))
            engine.finish()  # this learner may take a step or be deleted next
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the learner by torch.save, which keeps tensors that share memory together."""
        wanted = "save or snapshot, or a learner on a CPU whose network can be pickled"
        content = io.BytesIO()
        try:
            if self.device.type != "cpu":
                raise ValueError(f"it is on {self.device}")
            with self._lock:
                self._predictor.check_outside("pickle")
                torch.save(self.__dict__, content)
        except Exception as error:  # the caller's network may raise anything
            if self._ranks is not None:  # the error of `Ranks` is clearer
                raise
            message = f"the learner cannot be pickled: {reason(error)}, expected {wanted}"
            raise pickle.PicklingError(message) from error
        return _unpickled, (type(self), content.getvalue())

    def save_agnostic(self, path: str | Path, provenance: Mapping[str, Any]) -> None:
        """Write the adaptor's class-agnostic part to a file for `agnostic_from`.

        `provenance` is stored in the file: the dataset, method, buffer, seed and so on that the
        part was trained with.
        """
        if self.adaptor is None:
            raise ValueError("the learner has no adaptor, expected one with a class-agnostic part")
        with self._lock:
            self._parts.engine.finish()
            save_agnostic(self.adaptor, path, provenance)

    # ------------------------------------------------------------------ properties

    @property
    def _ranks(self) -> Ranks | None:
        """The processes that train this learner, if there are several."""
        return self._parts.engine.ranks

    @property
    def network(self) -> Network:
        """The network; its attribute `module` is the given module.

        With `cache_features` it is the last layer alone, whose inputs are features.
        """
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
        """The bias adaptor; None if the method has none."""
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
        """The number of classes: as given, or else the number of classes so far."""
        return self.network.num_classes if self._maker is None else len(self._labels)

    @property
    def classes_(self) -> list[Any]:
        """The labels: 0, 1, and so on, or without `num_classes` the labels in order of arrival."""
        return list(range(self.num_classes)) if self._maker is None else self._labels.names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample; with several inputs, the shape of the row of bytes."""
        return self._inputs.shape

    @property
    def dtype(self) -> torch.dtype:
        """The type of the raw samples."""
        return self._inputs.dtype

    @property
    def inputs(self) -> Inputs:
        """The shapes and types of a sample's inputs; several are stored as one row of bytes."""
        return self._inputs

    @property
    def batch_size(self) -> int:
        """The option `batch_size`; `observe` accepts batches of other sizes too."""
        return self._parts.context.batch_size

    @property
    def memory_batch(self) -> int:
        """The number of samples in each memory draw."""
        return self._parts.context.draw_size

    @property
    def device(self) -> torch.device:
        """The device on which the learner computes."""
        return self._parts.engine.device

    @property
    def seed(self) -> int:
        """The seed that was given, or that of the loaded state."""
        return self._predictor.ibn.seed

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
        """The number of batches that were skipped or clipped, see `on_outlier`."""
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


def _make_network(given: LearnerArguments) -> tuple[LearnerArguments, Network]:
    """Return the network to train, and the arguments, which `cache_features` changes."""
    if not given.network.training and not given.cache_features:
        given.network.train()  # if only some layers are in evaluation mode, they stay frozen
    network = Network(
        given.network, given.inputs.shape, given.outputs, head=given.last_layer,
        inputs=given.inputs,
    )  # fmt: skip
    if given.cache_features:
        given, network = given.over_features(network)
    if given.head_scale is not None:
        network.use_cosine_head(given.head_scale, learnt=bool(given.learn_scale))
    return given, network


def _unpickled(cls: type[Learner], content: bytes) -> Learner:
    made = cls.__new__(cls)
    with default_modes(torch.device("cpu")):
        made.__dict__.update(torch.load(io.BytesIO(content), weights_only=False))
    return made
