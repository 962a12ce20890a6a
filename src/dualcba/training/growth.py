"""Another number of outputs for a learner in the middle of its stream.

Nothing that a learner consists of changes its shape. All parts are made anew, for more outputs, and
take over the state of the parts before: where an entry of the state has another shape, the old
values go into its first rows and columns, and the others are those of a new learner. So methods,
adaptors, memories and optimisers need no code for it. The network stays the same module; its last
layer gets further rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from dualcba.adaptors.outer_step import make_adaptor
from dualcba.checkpoint import Tensors
from dualcba.engine.optimizers import first_state
from dualcba.nets import Network
from dualcba.randomness import torch_generator
from dualcba.tasks.class_sets import ClassSets
from dualcba.tasks.outputs import NO_LOGIT
from dualcba.training.learner_arguments import LearnerArguments
from dualcba.training.learner_state import restore_state, save_state
from dualcba.training.parts import Parts, make_parts


class PartsMaker:
    """Makes the parts of a learner again, for another number of outputs.

    `given` are the arguments of the learner, before its method has been bound to a network.
    """

    def __init__(self, given: LearnerArguments) -> None:
        self.given = copy.copy(given)
        object.__setattr__(self.given, "base", copy.deepcopy(given.base))

    def resized(
        self, parts: Parts, outputs: int, seed: int, receive: Callable[[Tensor], Tensor]
    ) -> Parts:
        """Return parts with another number of outputs; the caller assigns classes to them.

        New weights follow from the seed and the number of outputs. The given parts keep their own
        tensors, except for those of the network.
        """
        before = save_state(parts, seed=0, step=0)
        given, engine, network = copy.copy(self.given), parts.engine, parts.context.network
        object.__setattr__(given, "base", copy.deepcopy(self.given.base))
        object.__setattr__(given, "outputs", outputs)
        with engine.scope():
            network.resize(outputs, torch_generator(seed, "head", outputs))
            sets, rng = ClassSets(outputs), torch_generator(seed, "adaptor", outputs)
            loaded = _loaded_part(parts, given)
            adaptor = make_adaptor(given.kind, given, sets, rng, loaded)
            made = make_parts(engine, network, sets, adaptor, rng, given)
        if not parts.guard.waits:
            made.training_step.stay_on_device()
        if parts.tasks.detector is not None:
            made.tasks.detector = parts.tasks.detector.copy()
        examples = {**save_state(made, seed=0, step=0)["tensors"], **_first_moments(made)}
        tensors = {k: _fitted(k, v, examples) for k, v in before["tensors"].items()}
        restore_state(made, before | {"tensors": tensors}, receive)
        return made


def _loaded_part(parts: Parts, given: LearnerArguments) -> Any:
    """Return a copy of the class-agnostic part, if it came from a file."""
    adaptor = parts.outer_loop.adaptor
    if adaptor is None or given.agnostic_from is None:
        return None
    return copy.deepcopy(adaptor.agnostic)


def _first_moments(parts: Parts) -> Tensors:
    """Return the state that the adaptor's optimiser has after its first step, at zero."""
    optimizer = parts.outer_loop.optimizer
    if optimizer is None:
        return {}
    phi = [p for group in optimizer.param_groups for p in group["params"]]
    states = {f"adaptor_optimizer.{i}": first_state(optimizer, p) for i, p in enumerate(phi)}
    return {f"{name}.{k}": v for name, state in states.items() for k, v in state.items()}


class LastLayer:
    """The last layer of a network, to be put back if growing is undone."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.head = network.head
        self.rows = dict(self.head.named_parameters(recurse=False))
        self.outputs, self.mask = network.num_classes, network.unassigned

    def put_back(self) -> None:
        """Put the layer and its weights back; `assign` comes next."""
        network, head = self.network, self.head
        if network.head is not head:  # a method may have replaced it
            network.replace_head(head)
        for name, p in self.rows.items():
            setattr(head, name, p)
        if isinstance(head, nn.Linear):
            head.out_features = self.outputs
        network.num_classes, network.unassigned = self.outputs, self.mask


def _fitted(name: str, old: Tensor, examples: Mapping[str, Tensor]) -> Tensor:
    """Return an entry of the state in the shape that it has now."""
    example = examples.get(name, old)  # samples of the task have no example, and no classes
    if example.shape == old.shape:
        return old
    made = example.clone()
    if name.startswith("memory.column_"):
        made[:-1].fill_(NO_LOGIT)  # samples that were stored have no target for further classes
    corner = tuple(slice(min(a, b)) for a, b in zip(made.shape, old.shape, strict=True))
    made[corner] = old[corner]
    return made
