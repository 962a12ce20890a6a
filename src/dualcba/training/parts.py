"""The parts that a learner is made of, and how they are put together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dualcba.adaptors.adaptor import Adaptor
from dualcba.adaptors.hypergradient import trainable
from dualcba.adaptors.outer_step import OuterLoop
from dualcba.adaptors.virtual_step import make_virtual_step
from dualcba.data.standardise import Standardise
from dualcba.engine import Engine
from dualcba.engine.optimizers import make_optimizer
from dualcba.memory import Memory
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

    They are internal: their names and methods may change from one version to the next.
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
    """That of θ; the one of φ is `outer_loop.optimizer`."""

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
        """Note that the first `count` outputs have a class, and the others have none."""
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
    """Move everything to the engine's device, bind the method, and build the parts on top.

    `rng` draws the adaptor's weights when they are reset.
    """
    method, shape = given.base, network.input_shape
    precision = Precision(given.precision, engine.device, network)
    memory = method.make_memory(given.buffer, shape, given.inputs.dtype, given.outputs)
    if engine.ranks is not None:
        memory.split(engine.ranks)
    standardise = Standardise(shape).to(engine.device) if given.standardise else None
    base = given.transform if standardise is None else standardise
    transform = method.make_transform(base).to(engine.device)
    views = {k: v.to(engine.device) for k, v in method.make_views(base).items()}
    _place(engine, network, sets, memory, method, adaptor)
    if given.trunk is not None:
        _place_trunk(engine, given.trunk)
    lr = torch.tensor(given.lr, device=engine.device)
    context = Context(
        network, sets, memory, transform, lr, given.batch_size, precision.autocast,
        good=torch.tensor(True, device=engine.device), run=engine.run,
        raw_targets=given.targets == "raw", sample_mean=given.loss_mean == "samples",
        memory_batch=given.memory_batch,
    )  # fmt: skip
    method.bind(context)
    method.to(engine.device)
    forward_pass = (ForwardPass if engine.ranks is None else SharedForwardPass)(
        context, method, views, concat=given.forward == "concat", tracking=given.tracking,
        cast_weights=precision.cast_weights,
    )  # fmt: skip
    if isinstance(forward_pass, SharedForwardPass) and engine.ranks is not None:
        forward_pass.ranks = engine.ranks
    context.passes = Passes(forward_pass)
    optimizer = make_optimizer(trainable(network) + trainable(method), lr, given)
    virtual = make_virtual_step(optimizer, lr, given)
    outer_loop = OuterLoop(adaptor, rng, method, context, given, virtual)
    outer_loop.ranks = engine.ranks
    balanced = given.outer_draw == "balanced"
    sampler = StepSampler(
        given.seed, context, method, views, balanced=balanced,
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
    tasks = TaskLifecycle(context, method, outer_loop, engine, inferred=inferred)
    return Parts(
        engine, context, method, precision, forward_pass, outer_loop, sampler, optimizer, monitor,
        guard, step, tasks, given.trunk,
    )  # fmt: skip


def _place(
    engine: Engine, network: Network, sets: ClassSets, memory: Memory, method: Method,
    adaptor: Adaptor | None,
) -> None:  # fmt: skip
    """Move the modules to the device; images use the memory format that convolutions prefer."""
    for given in (network, method):
        engine.keep_alive([*given.parameters(), *given.buffers()])
    for module in (network, sets, memory, adaptor):
        if module is not None:
            module.to(engine.device)
    if len(network.input_shape) == 3:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _place_trunk(engine: Engine, trunk: Trunk) -> None:
    engine.keep_alive([*trunk.parameters(), *trunk.buffers()])
    trunk.to(engine.device)
    if len(trunk.inputs.shape) == 3:
        trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
