"""The learner: a network that learns a stream of new classes and answers at any time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dualcba.adaptors.hypergradient import trainable
from dualcba.adaptors.outer_step import OuterLevel, make_adaptor
from dualcba.adaptors.pretrained import save_agnostic
from dualcba.checkpoint import (
    check_same_layout,
    collect_tensors,
    load_tensors,
    read_state_file,
    write_state_file,
)
from dualcba.data import Transform, check_labels, check_samples
from dualcba.engine import make_engine, resolve_device
from dualcba.engine.optimizers import SGD
from dualcba.engine.torch_private import BatchNormBase
from dualcba.errors import expected
from dualcba.methods import Context
from dualcba.nets import Network
from dualcba.prediction import Answers
from dualcba.randomness import pack, resumed, torch_generator, torch_resumed
from dualcba.tasks.class_sets import ClassSets
from dualcba.training.arguments import LearnerArguments, check_head, keywords_of
from dualcba.training.draws import Draws
from dualcba.training.forward import Forwards
from dualcba.training.loss_monitor import RecentLosses
from dualcba.training.precision import Precision, undisturbed
from dualcba.training.step import Iteration
from dualcba.training.task_lifecycle import Tasks

PREDICT_BATCH = 512


class Learner:
    """Learns from batches of a stream, one pass, and predicts whenever asked.

    Parameters
    ----------
    network
        Any module that maps (n, *input_shape) to (n, num_classes) by a last linear layer. It is
        the learner's from then on: moved to the device, put into training mode, and trained.
    input_shape, num_classes
        Of one sample; of the classes that will ever arrive.
    method
        A name such as `"er"`, `"er-cba"` or `"er-dual-cba"`, or a `Method` of your own together
        with `adaptor`.
    method_options
        Arguments of the method named, such as DER++'s `alpha`.
    buffer
        How many samples the memory holds.
    batch_size
        How many samples each memory draw takes.
    lr, adaptor_lr
        Of the network (SGD) and of the adaptor (Adam).
    outer_every
        The adaptor learns at every so-many-th step of a task, from the second task on.
    levels
        What the adaptor learns by at those steps, before the network moves: `"bi"`, the outer loss
        of the virtually updated network; or, for the single-level ablation, `"joint"`, the inner
        loss itself, and `"buffer"`, the outer loss of the adapted network without unrolling.
    adaptor
        `"cba"`, `"dual-cba"` or none, for a `Method` object; a name already says it.
    adaptor_options
        Passed to `Adaptor`: `specific`, `agnostic`, `space`, `divide`, `width`.
    agnostic_from
        Load Dual-CBA's class-agnostic part, frozen, instead of learning it: `"pretrained"`, the
        one in the package, or a file of `save_agnostic`. Without `specific` it is then all there
        is, and nothing of the adaptor is learnt. It corrects by as much as its own stream needed:
        where tasks are few and short it can hold new classes back for long.
    freeze_after
        The class-agnostic part learns in the first so many tasks only.
    transform
        Augmentation and normalisation; by default uint8 goes to [0, 1] and floats stay.
    dtype
        Of the raw samples: `torch.uint8` or `torch.float32`. Tokens go as float32, which holds
        whole numbers up to 2²⁴, to a network that makes them `long()`.
    forward
        `"split"`: new batch and draws pass the network one by one, so that batch statistics never
        mix; `"concat"`: together.
    ibn
        Whether `predict` re-estimates batch-normalisation statistics from the memory; by default
        with Dual-CBA. Layers that come in evaluation mode keep theirs, as in training.
        `ibn_augment` and `ibn_average` (`"cumulative"`, `"ema"`) say how.
    seen_only
        Answer only with classes that have been seen, once there are any; otherwise with any class.
    boundaries
        `"given"`: the caller says by `new_task` when a task begins; `"inferred"`: nobody does, and
        tasks and new classes follow from the labels, by the rule of `dualcba.tasks.detection`.
    seed
        Of every random choice the learner makes.
    device, engine, precision
        `"auto"`, or `"cpu"`/`"cuda[:n]"`, `"eager"`/`"captured"`, `"fp32"`/`"bf16"`.
    head
        The name of the network's last linear layer; found by itself.

    A network that draws random numbers of its own, as dropout does, takes them from torch's global
    generator, which is not part of the learner's seed or state. A learner is for one thread at a
    time: `predict` may come at any step, but not during one.

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
        network, base, kind = given.network, given.base, given.kind
        shape, num_classes = tuple(given.input_shape), given.num_classes
        self.device = resolve_device(given.device)
        self.engine = make_engine(given.engine, self.device)
        self.batch_size = given.batch_size
        self.ibn = bool(given.ibn)
        self.dtype = given.dtype
        self.step = 0

        with undisturbed(self.device), self.engine.scope():  # before anything of the caller's moves
            self.sets = ClassSets(num_classes)
            rng = torch_generator(given.seed, "adaptor")
            self.adaptor = make_adaptor(kind, given, self.sets, rng)
        if not network.training:
            network.train()  # as a whole; parts that were frozen by hand stay as they are
        self._modes = [(module, module.training) for module in network.modules()]
        self.method = base
        self.network = Network(network, shape, num_classes, head=given.head)
        self.precision = Precision(given.precision, self.device, self.network)
        with undisturbed(self.device), self.engine.scope():
            self.memory = base.make_memory(given.buffer, shape, given.dtype, num_classes)
            self.lr = torch.tensor(given.lr, device=self.device)
            context = self._place(given.transform)
            self.forwards = Forwards(context, base, self.views, concat=given.forward == "concat")
            self.outer = OuterLevel(
                self.adaptor, rng, base, context,
                given,
            )  # fmt: skip
            check_head(self.network, self.outer)
            self.answers = Answers(
                context, base, self.forwards, self.precision, self.engine, seed=given.seed,
                average=given.ibn_average, augment=given.ibn_augment, seen_only=given.seen_only,
            )  # fmt: skip
            self.losses = RecentLosses(self.engine)
        self.tasks = Tasks(
            context, base, self.outer, self.engine,
            inferred=given.boundaries == "inferred", network_changed=self.answers.forget,
        )  # fmt: skip
        self.draws = Draws(given.seed, context, base, self.views)
        theta = trainable(self.network) + trainable(base)
        self.optimizer = SGD(theta, lr=self.lr, fused=True)
        self.iteration = Iteration(
            context, base, self.forwards, self.outer, self.optimizer, self.losses,
            self.precision, self.engine,
        )  # fmt: skip

    def _place(self, transform: Transform) -> Context:
        """Bring everything to the device and tell the method of it."""
        self.transform = self.method.make_transform(transform).to(self.device)
        views = self.method.make_views(transform)
        self.views = {name: view.to(self.device) for name, view in views.items()}
        for given in (self.network, self.method):
            self.engine.keep_alive([*given.parameters(), *given.buffers()])
        for module in (self.network, self.sets, self.memory, self.adaptor):
            if module is not None:
                module.to(self.device)
        if len(self.network.input_shape) == 3:  # what convolutions are quick with, on a CPU too
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parts = (self.network, self.sets, self.memory, self.transform, self.lr)
        context = Context(*parts, self.batch_size, self.precision.autocast, self.engine.run)
        self.method.bind(context)
        self.method.to(self.device)
        return context

    @property
    def adaptor_optimizer(self) -> torch.optim.Adam | None:
        """That of φ, if anything of it is learnt."""
        return self.outer.optimizer

    @property
    def outer_every(self) -> int:
        """Steps between outer updates."""
        return self.outer.every

    @property
    def norms(self) -> list[BatchNormBase]:
        """The network's layers that keep running statistics."""
        return self.forwards.norms

    @property
    def seed(self) -> int:
        """Its own, or that of the state it has loaded."""
        return self.answers.seed

    # ------------------------------------------------------------------ learning

    @property
    def task(self) -> int:
        """The number of the current task, from 0; −1 before the first."""
        return self.sets.task

    @property
    def task_starts(self) -> list[int]:
        """The step at which each task began."""
        return self.tasks.starts

    def new_task(self, classes: Sequence[int] | Tensor | NDArray[np.int64]) -> None:
        """Say that a task with these new classes begins; ends the one before."""
        if self.tasks.boundaries is not None:
            raise ValueError("boundaries are inferred from the labels, expected no new_task")
        classes = classes.tolist() if isinstance(classes, Tensor | np.ndarray) else classes
        if not isinstance(classes, Iterable):
            raise ValueError(expected("classes of the new task", classes, "a list of labels"))
        labels: list[Any] = list(classes)  # of an iterator too
        labels = [c.item() if getattr(c, "shape", None) == () else c for c in labels]
        self.sets.check(labels)
        with undisturbed(self.device):
            self.tasks.begin(labels, self.step)

    def end_task(self) -> None:
        """Say that the current task, or the stream, is over; a new task does so by itself."""
        with undisturbed(self.device):
            self.tasks.end()

    def observe(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor, *, again: bool = False) -> None:
        """Learn from one batch of the stream: raw samples (n, *input_shape) and labels (n,).

        `again` says that the task had these samples before, in an earlier epoch.
        """
        samples = self._samples(x, "observed")
        if len(samples) <= self.method.labelled:
            wanted = f"more than the {self.method.labelled} labelled ones that lead a batch"
            raise ValueError(expected("number of observed samples", len(samples), wanted))
        low = -1 if self.method.unlabelled else 0
        labels = check_labels(y, len(samples), self.sets.num_classes, "observed", low)
        known = (labels >= 0).cpu().numpy() if self.method.unlabelled else None
        host = None if self.tasks.boundaries is None else labels.cpu().numpy()
        with undisturbed(self.device):
            samples, labels = self._receive(samples), self._receive(labels)
        self.learn(samples, labels, known, labels=host, again=again)

    def _receive(self, tensor: Tensor) -> Tensor:
        """On the device; a copy of what was made in inference mode, which no gradient can pass."""
        return self.engine.receive(tensor.clone() if tensor.is_inference() else tensor)

    def learn(
        self,
        x: Tensor,
        y: Tensor,
        known: NDArray[np.bool_] | None = None,
        *,
        labels: NDArray[np.int64] | None = None,
        again: bool = False,
    ) -> None:
        """`observe` for data already checked and on the device; nothing here waits for it.

        `known` says on the host which samples have a label, where not all have; `labels` is y on
        the host, where boundaries are inferred; `again` that the task had these samples before, in
        an earlier epoch.
        """
        with undisturbed(self.device):
            if self.tasks.boundaries is not None:
                self.tasks.infer(labels, self.step)
            if not self.tasks.open:
                raise ValueError("no task has begun, expected new_task(classes) before observe")
            if not self.network.module.training:  # the caller may have tested it by itself
                for module, mode in self._modes:
                    module.training = mode
            outer = self.outer.due(self.step - self.task_starts[-1])
            for k in range(self.method.repeats):
                last = k == self.method.repeats - 1
                store = np.full(len(x), last) if known is None else known & last
                self._iterate(x, y, store, outer=outer and k == 0)
            if self.method.rereads_task and not again:
                self.tasks.keep(x, y)
            self.step += 1
            if self.losses.due(self.step):
                self.check_finite()

    def _iterate(self, x: Tensor, y: Tensor, store: NDArray[np.bool_], *, outer: bool) -> None:
        """Draw what the iteration needs, and have the engine run it."""
        fresh = outer and self.outer.takes_a_draw
        seen = self.memory.seen
        parts = self.draws.draw(self.step, len(x), store, outer=fresh)
        packet, layout = pack({"at": self.losses.place(self.step), **parts})
        run = partial(self.iteration.run, layout=layout, outer=outer)
        key = ("step", layout, len(self.outer.phi) if outer else 0)  # how many learn in it
        try:
            self.engine.run(key, run, x, y, packet)
        except BaseException:  # as when there is no room for a batch: its rows were not written
            self.memory.seen = seen
            raise

    def check_finite(self) -> None:
        """Stop with a `FloatingPointError` if a recent loss was not finite."""
        self.losses.check(self.step, self.task_starts)

    # ------------------------------------------------------------------ answering

    def predict(self, x: ArrayLike | Tensor) -> Tensor:
        """The class of each sample, (n,); the adaptor takes no part."""
        return self._scores(x).argmax(1)

    def predict_proba(self, x: ArrayLike | Tensor) -> Tensor:
        """The probability of each class, (n, num_classes)."""
        return self._scores(x).softmax(1)

    def _scores(self, x: ArrayLike | Tensor) -> Tensor:
        samples = self._samples(x, "given")
        if samples.is_cuda:  # within `evaluating` the caller's stream is not the current one
            samples = self.engine.receive(samples)
        with self.evaluating("ibn" if self.ibn else "bn"):
            parts = torch.split(samples, PREDICT_BATCH)
            there = (p if p.is_cuda else self.engine.receive(p) for p in parts)
            return torch.cat([self.scores(p) for p in there]).cpu()

    def _samples(self, x: ArrayLike | Tensor, what: str) -> Tensor:
        samples = check_samples(x, what, self.network.input_shape)
        if samples.dtype != self.dtype:
            given = getattr(x, "dtype", samples.dtype)
            raise ValueError(expected(f"dtype of {what} x", str(given), str(self.dtype)))
        return samples

    def scores(self, x: Tensor) -> Tensor:
        """Raw samples on the device → (n, C) scores; call it within `evaluating`."""
        return self.answers.scores(x)

    def evaluating(self, norm: str = "bn") -> AbstractContextManager[None]:
        """Evaluation mode under BN or IBN statistics; afterwards all is as it was."""
        return self.answers.evaluating(norm, self.step)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of everything the next step depends on: `tensors` by name, and `meta`."""
        with self.engine.scope():
            tensors = collect_tensors(self._parts(), self._optimizers())
            tensors |= {"lr": self.lr.clone(), "losses": self.losses.values.clone()}
            tensors |= self.tasks.tensors()
        self.engine.finish()
        tensors["weights_rng"] = self.outer.rng.get_state()
        rng = {name: g.bit_generator.state for name, g in self.draws.rng.items()}
        meta = {"seed": self.seed, "step": self.step, **self.tasks.meta(), "rng": rng}
        return {"tensors": tensors, "meta": meta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of a learner built with the same arguments; the seed is its own."""
        for part in ("meta", "tensors"):
            if part not in state:
                raise ValueError(f"the state has no entry {part!r}, expected what state_dict gave")
        meta = state["meta"]
        lacking = {"seed", "step", "task_starts", "task_open", "rng"}.difference(meta)
        if lacking or set(meta["rng"]) != set(self.draws.rng):
            raise ValueError(f"the state's meta has no entry {sorted(lacking) or 'rng'}")
        self.tasks.check(meta)
        drawing = {name: resumed(value) for name, value in meta["rng"].items()}
        check_same_layout(self.state_dict()["tensors"], state["tensors"])
        weights_rng = torch_resumed(state["tensors"]["weights_rng"])
        with undisturbed(self.device):
            tensors = {k: self._receive(v) for k, v in state["tensors"].items()}
            with self.engine.scope():
                load_tensors(tensors, self._parts(), self._optimizers())
                self.lr.copy_(tensors["lr"])
                self.losses.values.copy_(tensors["losses"])
                for group in self.optimizer.param_groups:
                    group["lr"] = self.lr
                self.tasks.load(tensors, meta)
        self.outer.rng = weights_rng
        self.draws.rng.update(drawing)
        self.answers.seed = meta["seed"]
        self.step = meta["step"]
        self.engine.reset()

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file, whole or not at all."""
        write_state_file(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote; loading runs no code from it."""
        self.load_state_dict(read_state_file(Path(path)))

    def save_agnostic(self, path: str | Path, provenance: Mapping[str, Any]) -> None:
        """Write the adaptor's class-agnostic part to a file for `agnostic_from`.

        `provenance` goes with it: the dataset, method, buffer and seed that made it, and the like.
        """
        if self.adaptor is None:
            raise ValueError("the learner has no adaptor, expected one to save")
        self.engine.finish()
        save_agnostic(self.adaptor, path, provenance)

    def _parts(self) -> dict[str, nn.Module]:
        parts: dict[str, nn.Module] = {
            "network": self.network,
            "sets": self.sets,
            "memory": self.memory,
            "method": self.method,
        }
        return parts if self.adaptor is None else {**parts, "adaptor": self.adaptor}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        theta: dict[str, torch.optim.Optimizer] = {"optimizer": self.optimizer}
        if self.adaptor_optimizer is None:
            return theta
        return {**theta, "adaptor_optimizer": self.adaptor_optimizer}
