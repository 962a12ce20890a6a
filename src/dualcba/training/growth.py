"""Change the number of outputs of a learner in the middle of its stream.

The parts of a learner cannot change their shape. For another number of outputs, all parts are made
again and load the state of the old parts. If an entry of the state has one row or column per class,
new ones are copies of the last one, with random numbers added in last layers; see
`dualcba.tasks.outputs`. So methods, adaptors, memories and optimisers need no code for it. The
network stays the same module; its last layer gets further rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dualcba.adaptors.outer_step import make_adaptor
from dualcba.checkpoint import Tensors
from dualcba.engine.optimizers import first_states
from dualcba.nets import Network
from dualcba.randomness import torch_generator
from dualcba.tasks.class_sets import ClassSets
from dualcba.tasks.outputs import fitted
from dualcba.training.learner_arguments import LearnerArguments
from dualcba.training.learner_state import LOG_P, ROWS, restore_state, save_state
from dualcba.training.parts import Parts, make_parts


class PartsMaker:
    """Makes new parts for a learner, with another number of outputs.

    `given` are the arguments of the learner, before its method has been bound to a network.
    """

    def __init__(self, given: LearnerArguments) -> None:
        self.given = copy.copy(given)
        object.__setattr__(self.given, "base", copy.deepcopy(given.base))

    def resized(
        self, parts: Parts, outputs: int, receive: Callable[[Tensor], Tensor], *, trained: bool
    ) -> Parts:
        """Return new parts with another number of outputs; the caller assigns classes to them.

        The old parts keep their tensors, except for those of the network. `trained` says whether
        the learner has taken a step.
        """
        before = save_state(parts, seed=0, step=0)
        parts.forward_pass.restore_modes()  # layers in evaluation mode count as frozen
        given, engine, network = copy.copy(self.given), parts.engine, parts.context.network
        object.__setattr__(given, "base", copy.deepcopy(self.given.base))
        object.__setattr__(given, "outputs", outputs)
        with engine.scope():
            network.resize(outputs)
            sets, rng = ClassSets(outputs), torch_generator(given.seed, "adaptor")
            loaded = _loaded_part(parts, given)
            adaptor = make_adaptor(given.kind, given, sets, rng, loaded)
            made = make_parts(engine, network, sets, adaptor, rng, given)
        if not parts.guard.waits:
            made.training_step.stay_on_device()
        if parts.tasks.detector is not None:
            made.tasks.detector = parts.tasks.detector.copy()
        examples = {**save_state(made, seed=0, step=0)["tensors"], **_first_moments(made)}
        tensors = {k: fitted(v, examples.get(k, v).shape) for k, v in before["tensors"].items()}
        grown = {k: v for k, v in tensors.items() if v.shape != before["tensors"][k].shape}
        old = parts.context.sets.num_classes
        self._begin_rows(grown, network, old, trained, parts.context.seed)
        restore_state(made, before | {"tensors": tensors}, receive)
        made.context.memory.births = parts.context.memory.births
        made.context.seed = parts.context.seed  # may be the seed of a loaded state
        return made

    def _begin_rows(
        self, tensors: Tensors, network: Network, old: int, trained: bool, seed: int
    ) -> None:
        """Set the new rows of last layers to what the last row has learnt plus random numbers.

        Random numbers are drawn like the initial weights of `nn.Linear`, and are equal for all
        copies of a layer. What a row has learnt is its difference from its initial values. These
        are unknown for rows of the given network: there the whole row counts as learnt after the
        first step, and nothing before it.
        """
        outputs = network.num_classes
        if outputs <= old:
            return
        drawn, first = (_drawn(network, n, seed) for n in (outputs, old))
        for name, rows in drawn.items():
            for key, value in tensors.items():
                layer = key.startswith(("network.", "method.")) and key.endswith(f".{name}")
                if not (layer and value.shape == rows.shape):
                    continue
                if old > self.given.outputs:
                    value[old:] -= first[name][-1].to(value)
                elif not trained:
                    value[old:] = 0
                value[old:] += rows[old:].to(value)


def _drawn(network: Network, outputs: int, seed: int) -> Tensors:
    """Return the initial random numbers of a last layer with this number of outputs."""
    weight = network.head.weight
    assert isinstance(weight, Tensor)
    bound, rng = weight.shape[1] ** -0.5, torch_generator(seed, "head", outputs)
    shapes = {"weight": (outputs, weight.shape[1]), "bias": (outputs,)}
    return {
        name: torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=rng)
        for name, shape in shapes.items()
    }


def _loaded_part(parts: Parts, given: LearnerArguments) -> Any:
    """Return a copy of the class-agnostic part, if it was loaded from a file."""
    adaptor = parts.outer_loop.adaptor
    if adaptor is None or given.agnostic_from is None:
        return None
    return copy.deepcopy(adaptor.agnostic)


def _first_moments(parts: Parts) -> Tensors:
    """Return the entries of the adaptor's optimiser state after its first step, all zero."""
    optimizer = parts.outer_loop.optimizer
    return {} if optimizer is None else first_states("adaptor_optimizer", optimizer)


def widened(state: Mapping[str, Any], parts: Parts) -> dict[str, Any]:
    """Return a state with the shapes of new parts, which have more inputs or outputs.

    Missing values are those of the new parts; stored samples are padded with zeros.
    """
    examples = {**save_state(parts, seed=0, step=0)["tensors"], **_first_moments(parts)}
    shape = parts.context.network.input_shape
    tensors = {}
    for name, value in state["tensors"].items():
        kept = name.startswith("task_data.") and name.endswith(".x")
        example = value.new_zeros(len(value), *shape) if kept else examples.get(name, value)
        tensors[name] = _placed(value, example)
    return {**state, "tensors": tensors, **_fitting_estimate(state)}


def _fitting_estimate(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `estimate`, without cached values that depend on the number of outputs."""
    estimate = state.get("estimate")
    if estimate is None or LOG_P not in estimate["tensors"]:
        return {} if estimate is None else {"estimate": estimate}
    kept = {name: t for name, t in estimate["tensors"].items() if name not in ROWS}
    return {"estimate": {**estimate, "tensors": kept}}


def _placed(value: Tensor, example: Tensor) -> Tensor:
    """Return a copy of the example with its first rows, columns and so on set to the values.

    >>> _placed(torch.tensor([[1, 2]]), torch.zeros(2, 3)).tolist()
    [[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if value.shape == example.shape:
        return value
    placed = example.detach().clone()
    placed[tuple(slice(n) for n in value.shape)] = value
    return placed


class LastLayer:
    """Remembers the last layer of a network, to restore it if growing is undone."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.head = network.head
        self.rows = dict(self.head.named_parameters(recurse=False))
        self.outputs = network.num_classes

    def put_back(self) -> None:
        """Restore the layer and its weights."""
        network, head = self.network, self.head
        if network.head is not head:  # a method may have replaced it
            network.replace_head(head)
        for name, p in self.rows.items():
            setattr(head, name, p)
        if isinstance(head, nn.Linear):
            head.out_features = self.outputs
        network.num_classes = self.outputs
