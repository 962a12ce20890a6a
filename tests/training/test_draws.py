"""What a step draws ahead: from which generator, in what shape, and into one packet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import Learner, Transform
from dualcba.engine.packet import pack, unpack
from dualcba.training.draws import StepDraws
from dualcba.training.loss_monitor import RECENT

Make = Callable[..., Learner]
Teach = Callable[..., Learner]

ALL = np.ones(8, dtype=bool)


@pytest.mark.parametrize(("method", "count"), [("er", 1), ("derpp", 2)])
def test_as_many_memory_draws_as_the_method_asks_for(
    method: str, count: int, make_learner: Make, teach: Teach
) -> None:
    drawn = teach(make_learner(method)).parts.sampler.draw(0, 8, ALL)
    assert [draw.rows.shape for draw in drawn.batches.memory] == [(8,)] * count
    assert [draw.augment.shape for draw in drawn.batches.memory] == [(8, 3)] * count  # type: ignore[union-attr]
    assert drawn.batches.new_augment is not None
    assert drawn.batches.new_augment.shape == (8, 3)


def test_none_from_an_empty_memory(make_learner: Make) -> None:
    assert make_learner("er").parts.sampler.draw(0, 8, ALL).batches.memory == ()


@pytest.mark.parametrize("wanted", [False, True])
def test_the_outer_batch_is_drawn_only_if_asked_for(
    wanted: bool, make_learner: Make, teach: Teach
) -> None:
    drawn = teach(make_learner()).parts.sampler.draw(0, 8, ALL, outer_batch=wanted)
    assert (drawn.batches.outer_batch is not None) == wanted


def test_a_transform_without_randomness_draws_nothing(make_learner: Make, teach: Teach) -> None:
    learner = teach(make_learner("er", transform=Transform([0.0], [1.0])))
    before = learner.parts.sampler.rng["augmentation"].bit_generator.state
    drawn = learner.parts.sampler.draw(0, 8, ALL)
    assert drawn.batches.new_augment is None
    assert drawn.batches.memory[0].augment is None
    assert learner.parts.sampler.rng["augmentation"].bit_generator.state == before


def test_what_is_not_storable_goes_to_the_spare_row(make_learner: Make) -> None:
    learner = make_learner("er", buffer=20)
    storable = np.array([True, False] * 4)
    slots = learner.parts.sampler.draw(0, 8, storable).slots
    assert slots.tolist() == [0, 20, 1, 20, 2, 20, 3, 20]


def test_the_loss_has_its_place_in_the_ring(make_learner: Make) -> None:
    sampler = make_learner("er").parts.sampler
    assert sampler.draw(RECENT + 3, 8, ALL).loss_slot.tolist() == [3]


def test_a_packet_gives_the_draws_back(make_learner: Make, teach: Teach) -> None:
    drawn = teach(make_learner("derpp-dual-cba")).parts.sampler.draw(4, 8, ALL, outer_batch=True)
    packet, layout = pack(drawn)
    assert isinstance(hash(layout), int)
    got = unpack(torch.from_numpy(packet), layout)
    assert isinstance(got, StepDraws)
    assert pack(_as_arrays(got))[1] == layout
    assert np.array_equal(pack(_as_arrays(got))[0], packet)


def _as_arrays(tree: Any) -> Any:
    """The same tree with arrays for tensors."""
    if isinstance(tree, torch.Tensor):
        return tree.numpy()
    if isinstance(tree, tuple):
        return tuple(_as_arrays(part) for part in tree)
    if isinstance(tree, dict):
        return {name: _as_arrays(part) for name, part in tree.items()}
    if tree is None:
        return None
    fields = tree.__dataclass_fields__
    return type(tree)(**{name: _as_arrays(getattr(tree, name)) for name in fields})
