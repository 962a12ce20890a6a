"""The bias adaptor in any training loop: correction, outer step, tasks and state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.adaptors.hypergradient import Grads, hypergradient
from dualcba.adaptors.outer_step import AdaptorTraining, make_adaptor
from dualcba.adaptors.virtual_step import check_followed, follow
from dualcba.checkpoint import Tensors, collect_tensors, entries_of, load_tensors
from dualcba.engine.optimizers import first_states
from dualcba.errors import at_least, expected
from dualcba.losses import Adapt, Batch, CrossEntropy, Term
from dualcba.methods import Method
from dualcba.nets.heads import head_input
from dualcba.normalization.statistics import batch_norms, evaluation_mode, without_tracking
from dualcba.plugin import given, ranks
from dualcba.plugin.states import State, check_tensors, split_state
from dualcba.randomness import restore_torch_generator, torch_generator
from dualcba.tasks.class_sets import ClassSets
from dualcba.training.precision import default_modes
from dualcba.training.task_lifecycle import label_list

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps adapted logits (n, C) and labels (n,) of a batch to a scalar."""

FIELDS: dict[str, type] = {"kind": str, "steps": int}


class BiasAdaptor:
    """Corrects the logits of a network in training, and trains this correction g_φ.

    Use it in a training loop of your own; `Learner` has one built in. In each step, call
    `outer_step` to update φ if it is `due`, `adapt` to correct the logits for the loss, and
    `end_step` to count the step. Call `new_task` when a task begins. Predictions use the
    uncorrected logits.

    Parameters
    ----------
    head
        The network's last layer, an `nn.Linear` in float32, already on its device.
    optimizer
        The optimiser of the network: SGD, Adam or AdamW of torch. The virtual step of the last
        layer is the step that this optimiser would make, with its moments and current learning
        rate; gradient clipping is not taken into account. With `virtual="sgd"` any optimiser is
        accepted.
    kind
        `"cba"`, `"dual-cba"` or `"balanced-cba"`.
    loss
        A function of logits and labels, by default the mean cross-entropy. The inner loss is its
        sum over the inner batches of `outer_step`. It must be twice differentiable.
    seed
        The seed of the adaptor's weights; pass the same in all processes.
    group
        The processes that share the adaptor, by default all if `torch.distributed` is initialised.
        They must call `outer_step` together. Its loss is then the mean over all processes, as with
        DistributedDataParallel, and φ stays equal in all of them.
    **options
        Options of the adaptor, with the names and defaults of `Learner`: `adaptor_lr`,
        `outer_every`, `outer_warmup`, `virtual`, `virtual_lr`, `space`, `strength`, `width`,
        `specific`, `agnostic`, `divide`, `agnostic_from` and `freeze_after`.

    >>> net = nn.Linear(3, 4)
    >>> adaptor = BiasAdaptor(net, torch.optim.AdamW(net.parameters()))
    >>> adaptor.new_task([0, 1])
    >>> x = torch.ones(2, 3)
    >>> torch.equal(adaptor.adapt(net(x)), net(x))  # no correction in the first task
    True
    """

    def __init__(
        self,
        head: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        kind: str = "dual-cba",
        loss: Loss | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        self._options = given.adaptor_options(kind, options)
        self._parameters = given.last_layer(head)
        check_followed(optimizer, self._parameters, self._options)
        at_least(0, seed=seed)
        if loss is not None and not callable(loss):
            raise ValueError(expected("loss", loss, "a function of logits and labels"))
        self.head, self.optimizer, self.kind, self.group = head, optimizer, kind, group
        self._loss = loss
        self._weight = self._parameters[0]
        device = self._weight.device
        with default_modes(device), torch.device("cpu"):
            self.class_sets = ClassSets(len(self._weight))
            rng = torch_generator(seed, "adaptor")
            made = make_adaptor(kind, self._options, self.class_sets, rng)
            assert made is not None
            self.class_sets.to(device)
            self.adaptor = made.to(device)
            self._training = AdaptorTraining(made, rng, self.class_sets, self._options)
        self._steps = 0  # in this task

    # ------------------------------------------------------------------ tasks and steps

    def new_task(self, classes: Sequence[int] | Tensor | NDArray[Any]) -> None:
        """Begin a task with these new classes; the classes seen before are old."""
        listed = label_list(classes)
        self.class_sets.check(listed)
        with self._modes():
            self.class_sets.begin(listed)
            self._training.begin_task()
        self._steps = 0

    @property
    def due(self) -> bool:
        """Whether φ is updated in this step: every `outer_every` steps, from the second task on."""
        return self._training.scheduled(self._steps)

    def end_step(self, y: Tensor) -> None:
        """End a step of the loop: count it, and add its labels (n,) to the seen classes."""
        self._check_begun("end_step")
        device = self._weight.device
        labels = given.labels(y, None, self.class_sets.num_classes, device, "observed")
        self.class_sets.appear(labels, all_labelled=True)
        self._steps += 1

    # ------------------------------------------------------------------ forward passes

    def outputs(self, network: nn.Module, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Return the logits `network(*inputs)`, and the features: the inputs of the last layer.

        Not needed if the loop computes logits and features itself.
        """
        features: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(
            lambda _, args, kwargs: features.append(head_input(args, kwargs)), with_kwargs=True
        )
        try:
            z = network(*inputs)
        finally:
            hook.remove()
        if not features:
            raise ValueError("the network did not call head, expected the network's last layer")
        return z, features[-1]

    @torch.no_grad()
    def features(self, network: nn.Module, *inputs: Any) -> Tensor:
        """Return features for the outer batch, without gradients or updates of running statistics.

        For a single sample, which has no batch statistics, the running statistics are used.
        """
        single = isinstance(inputs[0], Tensor) and len(inputs[0]) == 1
        mode = evaluation_mode(network) if single else nullcontext()
        with mode, without_tracking(batch_norms(network)):
            return self.outputs(network, *inputs)[1]

    # ------------------------------------------------------------------ correction and outer step

    def adapt(self, z: Tensor) -> Tensor:
        """Return the adapted logits z + r (n, C) in float32, for the loss; r has no gradient.

        Pass all rows of a step in one call for the same results as with `Learner`.
        """
        self._check_begun("adapt")
        z = given.matrix(z, self.class_sets.num_classes, self._weight, "logits")
        with torch.autocast(z.device.type, enabled=False), self._scope():
            with torch.no_grad():
                r = self.adaptor(z)
            return self.adaptor.adapt(z, r)

    def outer_step(
        self, inner: Sequence[tuple[Tensor, Tensor, Tensor]], outer: tuple[Tensor, Tensor]
    ) -> None:
        """Update φ by the exact gradient of the outer loss after a virtual step of the last layer.

        Parameters
        ----------
        inner
            The batches of the step, such as the new batch and the memory draw, each as logits
            (n, C), features (n, d) and labels (n,). The inner loss is the sum of their losses at
            adapted logits.
        outer
            Features (n, d) and labels (n,) of a fresh draw from the memory.
        """
        self._check_begun("outer_step")
        if not self._training.phi:
            raise ValueError("no part of the adaptor is trained, expected no call of outer_step")
        batches = self._check_batches(inner, outer)
        with self._modes():
            processes = ranks.count(self.group)
            shared = [batches] if processes == 1 else ranks.gather(batches, self.group)
            grads = self._gradient(shared)
            if processes > 1:
                grads = ranks.broadcast(grads, self.group)
            if not all(bool(g.isfinite().all()) for g in grads if g is not None):
                wanted = "finite logits and features"
                raise FloatingPointError(f"the outer gradient is not finite, expected {wanted}")
            self._training.update(grads)

    def _gradient(self, shared: Sequence[Sequence[ranks.Rows]]) -> Grads:
        """Return ∇φ of the outer loss; `shared` has the batches of each process, outer one last."""
        new, *mem = _batches([batch for each in shared for batch in each[:-1]])
        z, h, y = (torch.cat(parts) for parts in zip(*(each[-1] for each in shared), strict=True))
        outer = Batch(h, y[:, 0].long(), z, h)
        step = follow(self.optimizer, self._parameters, self._options)
        method = _Default(1 / len(shared)) if self._loss is None else _Own(self._loss, len(shared))
        return hypergradient(self.adaptor, method, new, mem, outer, self.head, step)

    def _check_batches(self, inner: Any, outer: Any) -> list[ranks.Rows]:
        """Check the inner batches and the outer one; return each as matrices z, h and y."""
        given.check_tuples(inner, outer)
        C, d = self._weight.shape
        named = [(f"inner[{k}]", *batch) for k, batch in enumerate(inner)]
        rows: list[ranks.Rows] = []
        for name, z, h, y in (*named, ("outer", None, *outer)):
            h = given.matrix(h, d, self._weight, f"features of {name}").detach()
            z = h.new_zeros(len(h), C) if z is None else z  # the outer logits are not used
            z = given.matrix(z, C, self._weight, f"logits of {name}").detach()
            if len(z) != len(h):
                wanted = f"{len(h)}, as many as features"
                raise ValueError(expected(f"number of logits of {name}", len(z), wanted))
            labels = given.labels(y, len(h), C, h.device, name)
            rows.append((z, h, labels[:, None]))
        return rows

    def _check_begun(self, name: str) -> None:
        if self.class_sets.task < 0:
            raise ValueError(f"no task has begun, expected new_task(classes) before {name}")

    @contextmanager
    def _modes(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(default_modes(self._weight.device))
            stack.enter_context(self._scope())
            yield

    def _scope(self) -> Any:
        """Return the context of the GPU, on which Triton kernels are launched."""
        return torch.cuda.device(self._weight.device) if self._weight.is_cuda else nullcontext()

    # ------------------------------------------------------------------ state

    def state_dict(self) -> State:
        """Return a copy of everything the next step depends on, except network and optimiser."""
        tensors = collect_tensors(self._modules(), self._optimizers())
        tensors["weights_rng"] = self._training.rng.get_state()
        return {"tensors": tensors, "meta": {"kind": self.kind, "steps": self._steps}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`; if it does not match, raise without any change."""
        tensors, meta = split_state(state, FIELDS)
        if meta["kind"] != self.kind:
            raise ValueError(expected("kind of the state's adaptor", meta["kind"], repr(self.kind)))
        check_tensors(self._layout(tensors), tensors)
        rng = restore_torch_generator(tensors["weights_rng"])
        device = self._weight.device
        with self._modes():
            on_device = {name: t.to(device) for name, t in tensors.items()}
            load_tensors(on_device, self._modules(), self._optimizers())
            self._training.rng = rng
            self._training.choose_phi()
        self._steps = meta["steps"]

    def _modules(self) -> dict[str, nn.Module]:
        return {"adaptor": self.adaptor, "sets": self.class_sets}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        optimizer = self._training.optimizer
        return {} if optimizer is None else {"adaptor_optimizer": optimizer}

    def _layout(self, tensors: Tensors) -> Tensors:
        """Return a tensor of the expected shape and type for each entry.

        Adam's state has all fields of a parameter, or none before its first step.
        """
        layout = collect_tensors(self._modules(), {})
        layout["weights_rng"] = self._training.rng.get_state()
        for name, optimizer in self._optimizers().items():
            every = first_states(name, optimizer).items()
            layout |= {k: t for k, t in every if entries_of(tensors, k.rpartition(".")[0])}
        return layout


class _Default(Method):
    """The inner loss of ER: the sum of the mean cross-entropies of all batches, times a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return a cross-entropy for each batch."""
        return [CrossEntropy(batch, self.weight) for batch in (new, *mem)]


class _Own(Method):
    """The caller's loss, summed over all batches and divided by the number of processes."""

    def __init__(self, loss: Loss, processes: int) -> None:
        super().__init__()
        self.of_batch, self.processes = loss, processes

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        """Return the loss at adapted logits."""
        values = [self.of_batch(adapt(batch), batch.y) for batch in (new, *mem)]
        return reduce(torch.add, values) / self.processes


def _batches(rows: Sequence[ranks.Rows]) -> list[Batch]:
    """Return batches of logits, features and labels, with consecutive rows."""
    made, start = [], 0
    for z, h, y in rows:
        made.append(Batch(h, y[:, 0].long(), z, h, rows=slice(start, start + len(z))))
        start += len(z)
    return made
