"""The learner: a network that learns a stream of new classes and answers at any time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dualcba.adaptors import ADAPTOR_OPTIONS, ADAPTORS, Adaptor
from dualcba.bilevel import Grads, buffer_gradient, hypergradient, inner_gradient, trainable
from dualcba.boundaries import Boundaries
from dualcba.classes import ClassSets
from dualcba.data import Transform, check_labels, check_samples
from dualcba.engine import make_engine, resolve_device
from dualcba.errors import above_zero, at_least, expected, one_of, unknown
from dualcba.losses import Adapt, Batch, identity, inner_batches
from dualcba.methods import Context, Method, check_options, parse_method
from dualcba.nets import Network
from dualcba.norm_layers import TaskAware, penalties, told
from dualcba.normalization import (
    Statistics,
    batch_norms,
    grouped,
    modes,
    share,
    untracked,
    weighed,
)
from dualcba.pretrained import load_agnostic, save_agnostic
from dualcba.randomness import Array, Layout, generator, pack, torch_generator, unpack
from dualcba.state import below, compare, read, restore, snapshot, write

RECENT = 1024  # losses kept for finding where one ceased to be finite
IBN_BATCH = 200
IBN_TOGETHER = 5  # so many batches of the IBN pass go through a GPU at once
PREDICT_BATCH = 512
LEVELS = ("bi", "joint", "buffer")


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
        is, and nothing of the adaptor is learnt.
    freeze_after
        The class-agnostic part learns in the first so many tasks only.
    transform
        Augmentation and normalisation; by default uint8 goes to [0, 1] and floats stay.
    dtype
        Of the raw samples: `torch.uint8` or `torch.float32`.
    forward
        `"split"`: new batch and draws pass the network one by one, so that batch statistics never
        mix; `"concat"`: together.
    ibn
        Whether `predict` re-estimates batch-normalisation statistics from the memory; by default
        with Dual-CBA. `ibn_augment` and `ibn_average` (`"cumulative"`, `"ema"`) say how.
    seen_only
        Answer only with classes that have been seen; otherwise with any of them.
    boundaries
        `"given"`: the caller says by `new_task` when a task begins; `"inferred"`: nobody does, and
        tasks and new classes follow from the labels, by the rule of `dualcba.boundaries`.
    seed
        Of every random choice the learner makes.
    device, engine, precision
        `"auto"`, or `"cpu"`/`"cuda[:n]"`, `"eager"`/`"captured"`, `"fp32"`/`"bf16"`.
    head
        The name of the network's last linear layer; found by itself.

    A network that draws random numbers of its own, as dropout does, takes them from torch's global
    generator, which is not part of the learner's seed or state.

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
        base, kind = _resolve(method, method_options or {}, adaptor)
        _check_adaptor(kind, adaptor_options or {})
        _check_transfer(kind, adaptor_options or {}, agnostic_from, freeze_after)
        one_of(LEVELS, levels=levels)
        if kind is None and levels != "bi":
            raise ValueError(expected("levels", levels, "'bi' without an adaptor"))
        at_least(2, num_classes=num_classes)
        at_least(1, buffer=buffer, batch_size=batch_size, outer_every=outer_every)
        at_least(0, seed=seed)
        above_zero(lr=lr, adaptor_lr=adaptor_lr)
        one_of((torch.uint8, torch.float32), dtype=dtype)
        one_of(("split", "concat"), forward=forward)
        one_of(("cumulative", "ema"), ibn_average=ibn_average)
        one_of(("auto", "fp32", "bf16"), precision=precision)
        one_of(("given", "inferred"), boundaries=boundaries)
        if not isinstance(network, nn.Module):
            raise ValueError(expected("network", network, "an nn.Module"))
        if hasattr(base, "context"):
            raise ValueError("the method object works in another learner, expected one of its own")
        if base.one_per_class and buffer < num_classes:
            wanted = f"at least {num_classes}: {type(base).__name__} keeps samples of every class"
            raise ValueError(expected("buffer", buffer, wanted))
        self.device = resolve_device(device)
        self.engine = make_engine(engine, self.device)
        self.seed = seed
        self.batch_size = batch_size
        self.outer_every = outer_every
        self.levels = levels
        self.agnostic_from = agnostic_from
        self.freeze_after = freeze_after
        self.concat = forward == "concat"
        self.ibn = kind == "dual-cba" if ibn is None else ibn
        self.ibn_augment = ibn_augment
        self.seen_only = seen_only
        self.ibn_average = ibn_average
        self.dtype = dtype
        self.bf16 = precision == "bf16" or (precision == "auto" and self.device.type == "cuda")
        self.step = 0
        self.task_starts: list[int] = []
        self._task_open = False
        self._task_data: list[tuple[Tensor, Tensor]] = []

        self._rng = {name: generator(seed, name) for name in ("memory", "augmentation", "method")}
        self._weights_rng = torch_generator(seed, "adaptor")

        if not network.training:
            network.train()  # as a whole; parts that were frozen by hand stay as they are
        shape = tuple(input_shape)
        self.method = base
        self.network = Network(network, shape, num_classes, head=head)
        self.sets = ClassSets(num_classes)
        self.boundaries = Boundaries(num_classes) if boundaries == "inferred" else None
        self.memory = base.make_memory(buffer, shape, dtype, num_classes)
        with self.engine.scope():
            self.lr = torch.tensor(lr, device=self.device)
            self._place(transform or Transform([0.0], [1.0]))
            self.adaptor = self._make_adaptor(kind, adaptor_options or {})
        self._make_optimizers(adaptor_lr)

    def _place(self, transform: Transform) -> None:
        """Bring everything to the device and tell the method of it."""
        self.transform = self.method.make_transform(transform).to(self.device)
        views = self.method.make_views(transform)
        self.views = {name: view.to(self.device) for name, view in views.items()}
        for module in (self.network, self.sets, self.memory):
            module.to(self.device)
        if self.device.type == "cuda" and len(self.network.input_shape) == 3:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parts = (self.network, self.sets, self.memory, self.transform, self.lr)
        self.method.bind(Context(*parts, self.batch_size, self._autocast))
        self.method.to(self.device)
        self.norms = batch_norms(self.network)
        self._aware = [layer for layer in self.norms if isinstance(layer, TaskAware)]
        self._samplewise = self.network.samplewise
        self._running = Statistics(self.norms)
        self._incremental = Statistics(self.norms)
        self._incremental_step = -1
        self._evaluations = 0  # how deep in `evaluating`
        self._losses = torch.zeros(RECENT, device=self.device)

    def _make_adaptor(self, kind: str | None, options: Mapping[str, Any]) -> Adaptor | None:
        if kind is None:
            return None
        if self.agnostic_from is None:
            return ADAPTORS[kind](self.sets, self._weights_rng, **options).to(self.device)
        loaded = load_agnostic(self.agnostic_from)
        options = {"specific": "none", **options, "agnostic": loaded.part}
        adaptor = ADAPTORS[kind](self.sets, self._weights_rng, **options)
        loaded.check(adaptor)
        return adaptor.to(self.device)

    def _make_optimizers(self, adaptor_lr: float) -> None:
        theta = trainable(self.network) + trainable(self.method)
        self.optimizer = torch.optim.SGD(theta, lr=self.lr, fused=True)
        self.adaptor_optimizer: torch.optim.Adam | None = None
        if self.adaptor is not None and trainable(self.adaptor):
            phi = trainable(self.adaptor)
            cuda = self.device.type == "cuda"
            self.adaptor_optimizer = torch.optim.Adam(
                phi, lr=adaptor_lr, fused=True, capturable=cuda
            )
        self._choose_phi()

    def _choose_phi(self) -> None:
        """Which parameters of the adaptor learn in this task: ν not after its first so many."""
        part = None if self.adaptor is None else self.adaptor.agnostic
        if part is not None and self.freeze_after is not None:
            part.requires_grad_(self.task < self.freeze_after)
            for p in part.parameters():
                p.grad = None  # without a gradient Adam leaves it, and its moments, alone
        self._phi = [] if self.adaptor is None else trainable(self.adaptor)

    # ------------------------------------------------------------------ learning

    @property
    def task(self) -> int:
        """The number of the current task, from 0; −1 before the first."""
        return self.sets.task

    def new_task(self, classes: Sequence[int] | Tensor | NDArray[np.int64]) -> None:
        """Say that a task with these new classes begins; ends the one before."""
        if self.boundaries is not None:
            raise ValueError("boundaries are inferred from the labels, expected no new_task")
        classes = classes.tolist() if isinstance(classes, Tensor | np.ndarray) else classes
        self.sets.check(classes)
        self._begin_task(classes)

    def _begin_task(self, classes: Sequence[int]) -> None:
        self.end_task()
        with self.engine.scope():
            self.sets.begin(classes)
            self._choose_phi()
            if self.adaptor is not None and self.task > 0:
                void = self.adaptor.reset_for_task(self._weights_rng)
                _zero_state(self.adaptor_optimizer, void)
            self.method.begin_task()
        self.task_starts.append(self.step)
        self._task_open = True

    def end_task(self) -> None:
        """Say that the current task, or the stream, is over; a new task does so by itself."""
        if not self._task_open:
            return
        self._task_open = False
        with self.engine.scope():
            if self._task_data:
                x, y = (torch.cat(part) for part in zip(*self._task_data, strict=True))
            else:
                x, y = self.memory.x[:0], self.memory.y[:0]
            self.method.end_task(x, y)
        self._task_data = []
        self._incremental_step = -1

    def observe(self, x: ArrayLike | Tensor, y: ArrayLike | Tensor) -> None:
        """Learn from one batch of the stream: raw samples (n, *input_shape) and labels (n,)."""
        samples = check_samples(x, "observed", self.network.input_shape)
        if samples.dtype != self.dtype:
            raise ValueError(expected("dtype of observed x", str(samples.dtype), str(self.dtype)))
        low = -1 if self.method.unlabelled else 0
        labels = check_labels(y, len(samples), self.sets.num_classes, "observed", low)
        known = (labels >= 0).cpu().numpy() if self.method.unlabelled else None
        host = None if self.boundaries is None else labels.cpu().numpy()
        samples, labels = self.engine.receive(samples), self.engine.receive(labels)
        self.learn(samples, labels, known, labels=host)

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
        if self.boundaries is not None:
            self._infer_task(labels)
        if not self._task_open:
            raise ValueError("no task has begun, expected new_task(classes) before observe")
        in_task = self.step - self.task_starts[-1]
        outer = (
            bool(self._phi)
            and self.task > 0
            and in_task % self.outer_every == 0
            and self.memory.filled > 0
        )
        for k in range(self.method.repeats):
            last, first = k == self.method.repeats - 1, k == 0
            store = np.full(len(x), last) if known is None else known & last
            packet, layout = pack(self._draw(len(x), outer and first, store))
            step = partial(self._step, layout=layout, outer=outer and first)
            key = ("step", layout, len(self._phi) if outer and first else 0)  # how many learn in it
            self.engine.run(key, step, x, y, packet)
        if self.method.rereads_task and not again:
            with self.engine.scope():
                self._task_data.append((x.clone(), y.clone()))
        self.step += 1
        if self.device.type == "cpu" or self.step % (RECENT // 2) == 0:
            self.check_finite()

    def _infer_task(self, labels: NDArray[np.int64] | None) -> None:
        """Begin a task, or change what is new, as the labels of the next batch say."""
        assert self.boundaries is not None
        if labels is None:
            raise ValueError(expected("labels", labels, "y on the host: boundaries are inferred"))
        before = self.boundaries.new
        boundary, new = self.boundaries.update(labels)
        if boundary or not self._task_open:
            self._begin_task(sorted(new))
        elif new != before:
            with self.engine.scope():
                self.sets.set_new(sorted(new))

    def _draw(self, n: int, outer: bool, store: NDArray[np.bool_]) -> dict[str, Array]:
        """Everything random that the next step needs, by name; `store`: what memory may take."""
        parts: dict[str, Array] = {"at": np.array([self.step % RECENT])}
        rng, augmentation = self._rng["memory"], self._rng["augmentation"]

        def draw(name: str, count: int, rows: bool) -> None:
            if rows:
                parts[name] = self.memory.draw(count, rng)
                count = len(parts[name])
            if self.transform.random:
                parts[f"{name}.augment"] = self.transform.draw(augmentation, count)

        draw("new", n, rows=False)
        for i in range(self.method.draws if self.memory.filled else 0):
            draw(f"mem{i}", self.batch_size, rows=True)
        if outer and self.levels != "joint":
            draw("outer", self.batch_size, rows=True)
        for name, view in self.views.items():
            parts[f"view.{name}"] = view.draw(augmentation, n)
        parts["slots"] = np.full(n, self.memory.size)
        parts["slots"][store] = self.memory.slots(int(store.sum()), rng)
        noise = self.method.noise(self._rng["method"], self.step)
        return parts if noise is None else {**parts, "noise": noise}

    def _step(self, x: Tensor, y: Tensor, packet: Tensor, *, layout: Layout, outer: bool) -> None:
        """One iteration of Algorithm 1, in place on the device."""
        with self._lowered():
            self._iterate(x, y, unpack(packet, layout), outer)

    def _iterate(self, x: Tensor, y: Tensor, draw: Mapping[str, Tensor], outer: bool) -> None:
        penalties(self._aware)  # what a step that failed may have left behind
        buf = None
        if "outer" in draw:
            with self.engine.aside():  # it takes the network as it is, and nothing of the rest
                buf = self._outer_batch(draw)
        new, *mem = self._forward(x, y, draw)
        if buf is not None:
            self.engine.join()
        if outer:
            self._outer_step(new, mem, buf)
        adapt = self._adapt(new, mem)
        loss = self.method.loss(new, mem, adapt)
        extra = penalties(self._aware)
        loss = loss if extra is None else loss + extra
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            self.method.after_step(draw.get("noise"))
            self.sets.appear(y)
            columns = {}
            if self.memory.columns:
                columns = {"logits": adapt(new).detach(), "raw_logits": new.z.detach()}
            self.memory.write(draw["slots"], x, y, columns)
            self._losses.index_copy_(0, draw["at"], loss.detach().float().view(1))

    def _forward(self, x: Tensor, y: Tensor, draw: Mapping[str, Tensor]) -> list[Batch]:
        """The new batch and each memory draw through the network."""
        names = ["new", *(f"mem{i}" for i in range(self.method.draws) if f"mem{i}" in draw)]
        raw: list[tuple[Tensor, Tensor, Mapping[str, Tensor]]] = [(x, y, {})]
        raw += [self.memory.read(draw[name]) for name in names[1:]]
        views = self._augmented([r[0] for r in raw], [draw.get(f"{n}.augment") for n in names])
        for name, other in self.views.items():
            raw.append(raw[0])
            views.append(other(x, draw[f"view.{name}"]))
        labels = [r[1] for r in raw]
        with self._autocast():
            outputs = self._through(views, labels)
        batches, start = [], 0
        for view, (_, label, columns), (z, h) in zip(views, raw, outputs, strict=True):
            rows = slice(start, start + len(view))
            batches.append(Batch(view, label, z, h, columns, rows))
            start = rows.stop
        if self.views:
            seen_otherwise = batches[len(names) :]
            batches = batches[: len(names)]
            batches[0].views = dict(zip(self.views, seen_otherwise, strict=True))
        return batches

    def _augmented(self, raw: list[Tensor], params: list[Tensor | None]) -> list[Tensor]:
        """All raw batches augmented at once."""
        drawn = [p for p in params if p is not None]
        views = self.transform(torch.cat(raw), torch.cat(drawn) if drawn else None)
        return list(torch.split(views, [len(part) for part in raw]))

    def _through(
        self, views: Sequence[Tensor], labels: Sequence[Tensor]
    ) -> Sequence[tuple[Tensor, Tensor]]:
        """Logits and features of each view."""
        sizes = [len(v) for v in views]
        alike = sizes[0] > 1 and sizes == sizes[:1] * len(sizes)
        if not self.concat and not (alike and self._samplewise):
            return self._one_by_one(views, labels)
        apart = nullcontext() if self.concat else grouped(self.norms, len(views))
        with apart:
            z, h = self._outputs(torch.cat(list(views)), torch.cat(list(labels)))
        return list(zip(torch.split(z, sizes), torch.split(h, sizes), strict=True))

    def _one_by_one(
        self, views: Sequence[Tensor], labels: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Each view in a forward of its own; lone samples last.

        Those take running statistics, which no later forward may move before the backward.
        """
        outputs: dict[int, tuple[Tensor, Tensor]] = {}
        for i in sorted(range(len(views)), key=lambda i: len(views[i]) == 1):
            outputs[i] = self._outputs(views[i], labels[i])
        return [outputs[i] for i in range(len(views))]

    def _outputs(self, view: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features; a lone sample has no batch statistics and takes the running ones."""
        mode = modes(self.network) if len(view) == 1 else nullcontext()
        with mode, self._tell_tasks(y):
            return self.network(view)  # type: ignore[no-any-return]

    def _tell_tasks(self, y: Tensor) -> AbstractContextManager[object]:
        """Let layers that ask for it know the task of each sample."""
        if not self._aware:
            return nullcontext()
        owner = self.sets.owner
        return told(self._aware, torch.where(y < 0, owner.max(), owner[y.clamp(min=0)]))

    def _outer_step(self, new: Batch, mem: Sequence[Batch], buf: Batch | None) -> None:
        """Move φ: by the outer loss of the virtually updated network, unless levels say other."""
        assert self.adaptor is not None
        assert self.adaptor_optimizer is not None
        for p, g in zip(trainable(self.adaptor), self._phi_gradient(new, mem, buf), strict=True):
            p.grad = g
        self.adaptor_optimizer.step()

    def _phi_gradient(self, new: Batch, mem: Sequence[Batch], buf: Batch | None) -> Grads:
        assert self.adaptor is not None
        if buf is None:
            return inner_gradient(self.adaptor, self.method, new, mem)
        if self.levels == "buffer":
            return buffer_gradient(self.adaptor, self.method, buf)
        head = self.network.head
        return hypergradient(self.adaptor, self.method, new, mem, buf, head, self.lr)

    def _outer_batch(self, draw: Mapping[str, Tensor]) -> Batch:
        """A fresh memory draw through the network, which takes no notice of it."""
        x, y, columns = self.memory.read(draw["outer"])
        view = self.transform(x, draw.get("outer.augment"))
        with torch.no_grad(), untracked(self.norms), self._autocast():
            z, h = self._outputs(view, y)
        return Batch(view, y, z, h, columns)

    def _adapt(self, new: Batch, mem: Sequence[Batch]) -> Adapt:
        """Logits as the loss shall see them; θ takes the adaptor's output as a constant."""
        if self.adaptor is None:
            return identity
        adaptor = self.adaptor
        with torch.no_grad():
            r = adaptor(torch.cat([b.z for b in inner_batches(new, mem)]))
        return lambda b: adaptor.adapt(b.z, r[b.rows])

    def check_finite(self) -> None:
        """Stop with a `FloatingPointError` if a recent loss was not finite."""
        cpu = self.device.type == "cpu"  # where every step is looked at, and looking is free
        if cpu and self.step and math.isfinite(self._losses[(self.step - 1) % RECENT].item()):
            return
        count = min(self.step, RECENT)
        steps = np.arange(self.step - count, self.step)
        if cpu:  # the others were fine
            steps = steps[-2:]
        with self.engine.scope():
            losses = self._losses[torch.from_numpy(steps % RECENT).to(self.device)].cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(losses))
        if not len(bad):
            return
        at = int(steps[bad[0]])
        task = int(np.searchsorted(self.task_starts, at, side="right"))
        last = f"{losses[bad[0] - 1]:.4g}" if bad[0] else "unknown"
        raise FloatingPointError(
            f"the loss became {losses[bad[0]]} at step {at + 1} in task {task}; "
            f"the last finite loss was {last}; a smaller learning rate may help"
        )

    # ------------------------------------------------------------------ answering

    def predict(self, x: ArrayLike | Tensor) -> Tensor:
        """The class of each sample, (n,); the adaptor takes no part."""
        return self._scores(x).argmax(1)

    def predict_proba(self, x: ArrayLike | Tensor) -> Tensor:
        """The probability of each class, (n, num_classes)."""
        return self._scores(x).softmax(1)

    def _scores(self, x: ArrayLike | Tensor) -> Tensor:
        samples = check_samples(x, "given", self.network.input_shape)
        if samples.dtype != self.dtype:
            raise ValueError(expected("dtype of given x", str(samples.dtype), str(self.dtype)))
        with self.evaluating("ibn" if self.ibn else "bn"):
            parts = torch.split(samples, PREDICT_BATCH)
            return torch.cat([self.scores(self.engine.receive(p)) for p in parts]).cpu()

    def scores(self, x: Tensor) -> Tensor:
        """Raw samples on the device → (n, C) scores; call it within `evaluating`."""
        with self._lowered(), self._autocast():
            scores = self.method.scores(self.transform(x)).float()
        return scores.masked_fill(~self.sets.seen, -torch.inf) if self.seen_only else scores

    @contextmanager
    def evaluating(self, norm: str = "bn") -> Iterator[None]:
        """Evaluation mode under BN or IBN statistics; afterwards all is as it was."""
        incremental = norm == "ibn" and bool(self.norms) and self.memory.filled > 1
        with self.engine.scope(), torch.no_grad():
            running = self._running if self._evaluations == 0 else Statistics(self.norms)
            self._evaluations += 1
            if incremental:
                running.keep()
            try:
                if incremental:
                    self._estimate()
                with modes(self.network):
                    with self._autocast():
                        self.method.before_scores()
                    yield
            finally:
                self._evaluations -= 1
                if incremental:
                    running.restore()

    def _estimate(self) -> None:
        """IBN: statistics from one shuffled pass over the memory, kept until the next step."""
        if self._incremental_step == self.step:
            self._incremental.restore()
            return
        filled = self.memory.filled
        rng = generator(self.seed, "ibn", self.step)
        parts: dict[str, Array] = {"rows": rng.permutation(filled)}
        if self.ibn_augment and self.transform.random:
            parts["augment"] = self.transform.draw(rng, filled)
        packet, layout = pack(parts)
        run = partial(self._pass_over_memory, layout=layout)
        self.engine.run(("ibn", layout), run, packet)
        self._incremental.keep()
        self._incremental_step = self.step

    def _pass_over_memory(self, packet: Tensor, *, layout: Layout) -> None:
        draw = unpack(packet, layout)
        rows, augment = draw["rows"], draw.get("augment")
        plain = self.ibn_average == "cumulative"
        # a moving average has the training's batches; for a plain one larger batches do as well
        size = IBN_BATCH if plain else max(2, self.batch_size)
        most = IBN_TOGETHER if plain and self._samplewise and self.device.type == "cuda" else 1
        with (
            modes(self.network, self.norms),
            weighed(self.norms) as weigh,
            torch.no_grad(),
            self._lowered(),
            self._autocast(),
        ):
            for k, groups, part in _portions(len(rows), size, most):
                weigh(share(k + 1, self.ibn_average))
                x = self.memory.x.index_select(0, rows[part])
                with grouped(self.norms, groups, cumulative=True) if most > 1 else nullcontext():
                    self.network(self.transform(x, None if augment is None else augment[part]))

    def _lowered(self) -> AbstractContextManager[object]:
        """The network's weights in bfloat16, cast at once, where that is the precision."""
        return self.network.lowered(torch.bfloat16) if self.bf16 else nullcontext()

    def _autocast(self) -> AbstractContextManager[object]:
        """Entered inside captured functions only: cached casts of weights must not outlive one."""
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of everything the next step depends on: `tensors` by name, and `meta`."""
        with self.engine.scope():
            tensors = snapshot(self._parts(), self._optimizers())
            tensors |= {"lr": self.lr.clone(), "losses": self._losses.clone()}
            for i, (x, y) in enumerate(self._task_data):
                tensors |= {f"task_data.{i}.x": x.clone(), f"task_data.{i}.y": y.clone()}
        self.engine.finish()
        tensors["weights_rng"] = self._weights_rng.get_state()
        meta = {
            "step": self.step,
            "task_starts": list(self.task_starts),
            "task_open": self._task_open,
            "rng": {k: g.bit_generator.state for k, g in self._rng.items()},
        }
        if self.boundaries is not None:
            meta["boundaries"] = self.boundaries.state_dict()
        return {"tensors": tensors, "meta": meta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of a learner built with the same arguments."""
        meta = state["meta"]
        lacking = {"step", "task_starts", "task_open", "rng"}.difference(meta)
        if lacking or set(meta["rng"]) != set(self._rng):
            raise ValueError(f"the state's meta has no entry {sorted(lacking) or 'rng'}")
        if ("boundaries" in meta) != (self.boundaries is not None):
            has, wanted = ("inferred", "given") if "boundaries" in meta else ("given", "inferred")
            raise ValueError(expected("boundaries of the state", has, repr(wanted)))
        compare(self.state_dict()["tensors"], state["tensors"])
        tensors = {k: self.engine.receive(v) for k, v in state["tensors"].items()}
        with self.engine.scope():
            restore(tensors, self._parts(), self._optimizers())
            self.lr.copy_(tensors["lr"])
            self._losses.copy_(tensors["losses"])
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
            kept = below(tensors, "task_data")
            pairs = [(kept[f"{i}.x"], kept[f"{i}.y"]) for i in range(len(kept) // 2)]
            self._task_data = [(x.to(self.device), y.to(self.device)) for x, y in pairs]
        self._weights_rng.set_state(state["tensors"]["weights_rng"].cpu())
        for name, value in meta["rng"].items():
            self._rng[name].bit_generator.state = value
        if self.boundaries is not None:
            self.boundaries.load_state_dict(meta["boundaries"])
        self.step = meta["step"]
        self.task_starts = list(meta["task_starts"])
        self._task_open = meta["task_open"]
        self._incremental_step = -1
        self._choose_phi()
        self.engine.reset()

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file, whole or not at all."""
        write(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Go on from a file that `save` wrote; loading runs no code from it."""
        self.load_state_dict(read(Path(path)))

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


def _resolve(
    method: str | Method, options: Mapping[str, Any], adaptor: str | None
) -> tuple[Method, str | None]:
    if isinstance(method, Method):
        if adaptor is not None and adaptor not in ADAPTORS:
            raise ValueError(expected("adaptor", adaptor, f"one of {', '.join(ADAPTORS)}"))
        if adaptor is not None and not method.adaptable:
            name = type(method).__name__
            raise ValueError(expected("adaptor", adaptor, f"none: {name} has no logits to adapt"))
        if options:
            raise ValueError(expected("method_options", options, "none beside a Method object"))
        return method, adaptor
    if not isinstance(method, str):
        raise ValueError(expected("method", method, "a name or a Method object"))
    base, kind = parse_method(method)
    if adaptor is not None and adaptor != kind:
        raise ValueError(expected("adaptor", adaptor, f"{kind!r}, as the method {method!r} says"))
    check_options(method, options)
    return base(**options), kind


def _check_adaptor(kind: str | None, options: Mapping[str, Any]) -> None:
    if options and kind is None:
        raise ValueError(expected("adaptor_options", dict(options), "none without an adaptor"))
    for name in options:
        if kind is not None and name not in ADAPTOR_OPTIONS[kind]:
            raise ValueError(
                unknown(f"option of the adaptor {kind!r}", name, ADAPTOR_OPTIONS[kind])
            )


def _check_transfer(
    kind: str | None, options: Mapping[str, Any], source: object, freeze_after: int | None
) -> None:
    agnostic = kind == "dual-cba" and options.get("agnostic", True)
    given = {"agnostic_from": source, "freeze_after": freeze_after}
    for field, value in given.items():
        if value is not None and not agnostic:
            raise ValueError(expected(field, value, "None without a class-agnostic part"))
    if freeze_after is not None:
        at_least(2, freeze_after=freeze_after)  # in the first task nothing of it is learnt
        if source is not None:
            raise ValueError(expected("freeze_after", freeze_after, "None for a loaded part"))


def _portions(n: int, size: int, most: int) -> Iterator[tuple[int, int, slice]]:
    """n rows in parts of about `size`: how many came before, how many pass together, their rows.

    >>> list(_portions(10, 4, 2))
    [(0, 1, slice(0, 4, None)), (1, 2, slice(4, 10, None))]
    """
    sizes = [len(part) for part in np.array_split(np.arange(n), math.ceil(n / size))]
    k = start = 0
    while k < len(sizes):
        groups = min(most, sizes[k:].count(sizes[k]))
        stop = start + groups * sizes[k]
        yield k, groups, slice(start, stop)
        k, start = k + groups, stop


def _zero_state(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> None:
    for p in parameters if optimizer is not None else ():
        for value in optimizer.state.get(p, {}).values():  # type: ignore[union-attr]
            value.zero_()
