"""The parts of a learner, and the functions that build them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from dualcba.adaptors.adaptor import Adaptor
from dualcba.adaptors.hypergradient import trainable
from dualcba.adaptors.outer_step import OuterLoop
from dualcba.adaptors.virtual_step import make_virtual_step
from dualcba.data.standardise import Standardise
from dualcba.data.transforms import Transform
from dualcba.engine import Engine, Ranks
from dualcba.engine.optimizers import make_optimizer
from dualcba.methods import Context, Method
from dualcba.nets import Network
from dualcba.normalization.statistics import running_averages
from dualcba.tasks.class_sets import ClassSets
from dualcba.training.backup import Backup
from dualcba.training.draws import StepSampler, uses_pool
from dualcba.training.forward import ForwardPass, Passes
from dualcba.training.guard import StepGuard
from dualcba.training.learner_arguments import LearnerArguments
from dualcba.training.loss_monitor import LossMonitor
from dualcba.training.precision import Precision
from dualcba.training.shared_forward import SharedForwardPass
from dualcba.training.step import TrainingStep
from dualcba.training.task_lifecycle import TaskLifecycle
from dualcba.training.trunk import Trunk


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a learner, for evaluation, experiments and benchmarks.

    They are internal: names and methods may change between versions.
    """

    engine: Engine
    context: Context
    """Network, class sets, memory, transform and learning rate."""

    method: Method
    precision: Precision
    forward_pass: ForwardPass
    outer_loop: OuterLoop
    sampler: StepSampler
    optimizer: torch.optim.Optimizer
    """The optimiser of θ; the optimiser of φ is `outer_loop.optimizer`."""

    loss_monitor: LossMonitor
    guard: StepGuard
    training_step: TrainingStep
    tasks: TaskLifecycle
    trunk: Trunk | None = None
    """Maps raw samples to the features that the memory stores, if `cache_features`."""

    def modules(self) -> dict[str, nn.Module]:
        """Return all modules that are part of the state, by name."""
        modules: dict[str, nn.Module] = {
            "network": self.context.network,
            "sets": self.context.sets,
            "memory": self.context.memory,
            "method": self.method,
        }
        if self.trunk is not None:
            modules["trunk"] = self.trunk
        adaptor, inputs = self.outer_loop.adaptor, self.training_step.standardise
        if inputs is not None:
            modules["inputs"] = inputs
        return modules if adaptor is None else {**modules, "adaptor": adaptor}

    def assign(self, count: int) -> None:
        """Set the number of outputs that have a class: the first `count` ones."""
        self.context.sets.assigned = count
        if self.tasks.detector is not None:
            self.tasks.detector.resize(count)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimisers of θ and, if φ is trained, of φ, by name."""
        of_phi = self.outer_loop.optimizer
        theta: dict[str, torch.optim.Optimizer] = {"optimizer": self.optimizer}
        return theta if of_phi is None else {**theta, "adaptor_optimizer": of_phi}


def make_parts(
    engine: Engine,
    network: Network,
    sets: ClassSets,
    adaptor: Adaptor | None,
    rng: torch.Generator,
    given: LearnerArguments,
) -> Parts:
    """Move all modules to the engine's device, bind the method, and build the parts.

    `rng` draws the adaptor's weights when they are reset.
    """
    method, ranks = given.base, engine.ranks
    precision = Precision(given.precision, engine.device, network)
    standardise = None
    if given.standardise:
        standardise = Standardise(network.input_shape).to(engine.device)
    base = given.transform if standardise is None else standardise
    context = _make_context(engine, network, sets, adaptor, given, precision, base)
    views = {k: v.to(engine.device) for k, v in method.make_views(base).items()}
    own = method.make_draw_transforms(base)
    context.draw_transforms = {k: t.to(engine.device) for k, t in own.items()}
    forward_pass = _make_forward_pass(context, method, views, precision, ranks, given)
    context.passes = Passes(forward_pass)
    optimizer = make_optimizer(trainable(network) + trainable(method), context.lr, given)
    virtual = make_virtual_step(optimizer, context.lr, given)
    outer_loop = OuterLoop(adaptor, rng, method, context, given, virtual, ranks)
    sampler = StepSampler(
        given.seed, context, method, views, balanced=given.outer_draw == "balanced",
        pooled=uses_pool(given) or bool(method.chosen),
    )  # fmt: skip
    monitor = LossMonitor(engine)
    backup = Backup(context, method, outer_loop, optimizer, standardise)
    statistics = running_averages(forward_pass.trained_norm_layers)
    guard = StepGuard(
        context, backup, optimizer, statistics, given.on_outlier, given.inputs,
        by_feature=given.standardise,
    )  # fmt: skip
    backup.others = [monitor.values, guard.largest, guard.outliers, *sets.buffers()]
    step = TrainingStep(
        context, method, sampler, forward_pass, outer_loop, optimizer, monitor, backup, guard,
        precision, engine, standardise, stores_first=given.while_empty == "store",
    )  # fmt: skip
    inferred = given.boundaries == "inferred"
    tasks = TaskLifecycle(context, method, outer_loop, forward_pass, engine, inferred=inferred)
    return Parts(
        engine, context, method, precision, forward_pass, outer_loop, sampler, optimizer, monitor,
        guard, step, tasks, given.trunk,
    )  # fmt: skip


def _make_context(
    engine: Engine, network: Network, sets: ClassSets, adaptor: Adaptor | None,
    given: LearnerArguments, precision: Precision, transform: Transform,
) -> Context:  # fmt: skip
    """Make the memory, move all modules to the device, and bind the method to them."""
    method, device = given.base, engine.device
    memory = method.make_memory(
        given.buffer, network.input_shape, given.inputs.dtype, given.outputs
    )
    if engine.ranks is not None:
        memory.split(engine.ranks)
    transform = method.make_transform(transform).to(device)
    engine.keep_alive([*method.parameters(), *method.buffers()])
    _place(engine, network, network.input_shape)
    for module in (sets, memory, adaptor):
        if module is not None:
            module.to(device)
    if given.trunk is not None:
        _place(engine, given.trunk, given.trunk.inputs.shape)
    context = Context(
        network, sets, memory, transform, torch.tensor(given.lr, device=device),
        given.batch_size, precision.autocast, good=torch.tensor(True, device=device),
        run=engine.run, raw_targets=given.targets == "raw",
        sample_mean=given.loss_mean == "samples", memory_batch=given.memory_batch,
        seed=given.seed,
    )  # fmt: skip
    method.bind(context)
    method.to(device)
    return context


def _make_forward_pass(
    context: Context, method: Method, views: dict[str, Transform], precision: Precision,
    ranks: Ranks | None, given: LearnerArguments,
) -> ForwardPass:  # fmt: skip
    make = ForwardPass if ranks is None else partial(SharedForwardPass, ranks)
    return make(
        context, method, views, mode=given.forward, tracking=given.tracking,
        cast_weights=precision.cast_weights,
    )  # fmt: skip


def _place(engine: Engine, module: nn.Module, shape: tuple[int, ...]) -> None:
    """Move a network to the device; networks for images get the channels-last memory format."""
    engine.keep_alive([*module.parameters(), *module.buffers()])
    module.to(engine.device)
    if len(shape) == 3:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
