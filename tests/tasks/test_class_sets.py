"""Class sets: new, old and unseen, as masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dualcba.tasks.class_sets import ClassSets


def members(mask: torch.Tensor) -> list[int]:
    return mask.nonzero().flatten().tolist()


def test_before_the_first_task_nothing_is_known() -> None:
    sets = ClassSets(4)
    assert (sets.task, members(sets.new), members(sets.old)) == (-1, [], [])
    assert sets.later == 0


def test_three_tasks() -> None:
    sets = ClassSets(7)
    seen = []
    for classes in ([0, 1], [4], [2, 6]):
        sets.new_task(classes)
        seen.append((sets.task, members(sets.new), members(sets.old), float(sets.later)))
    assert seen == [(0, [0, 1], [], 0.0), (1, [4], [0, 1], 1.0), (2, [2, 6], [0, 1, 4], 1.0)]
    assert members(sets.seen) == [0, 1, 2, 4, 6]


def test_a_class_may_come_back_as_new() -> None:
    sets = ClassSets(4)
    for classes in ([0, 1], [2], [1, 3]):
        sets.new_task(classes)
    assert (members(sets.new), members(sets.old)) == ([1, 3], [0, 2])


def test_what_appears_out_of_turn_counts_as_old() -> None:
    """In a blurry stream, new classes are those of the task, old ones all others seen."""
    sets = ClassSets(5)
    sets.new_task([0, 1])
    sets.appear(torch.tensor([0, 3, 3]))
    assert (members(sets.new), members(sets.old)) == ([0, 1], [3])


@pytest.mark.parametrize("labels", [[-1], [-1, -1, 2], [2, 2, 2, -1], [-1, 0], []])
def test_no_label_is_no_class(labels: list[int]) -> None:
    sets = ClassSets(4)
    sets.new_task([1])
    sets.appear(torch.tensor(labels, dtype=torch.long))
    assert members(sets.seen) == sorted({1, *labels} - {-1})


def test_the_task_that_announced_a_class_follows_what_is_known_of_a_task() -> None:
    """Of classes that are inferred, the last word counts; a later task takes a class over."""
    sets = ClassSets(5)
    owners = []
    for begin, known in (([0, 1], [0, 1, 2]), ([], [3]), ([1], [1])):
        sets.begin(begin)
        sets.set_new(known)
        owners.append(sets.owner.tolist())
    assert owners == [[0, 0, 0, -1, -1], [0, 0, 0, 1, -1], [0, 2, 0, 1, -1]]
    sets.set_new([4])  # so class 1 is still that of the first task
    assert sets.owner.tolist() == [0, 0, 0, 1, 2]


@pytest.mark.gpu
def test_nor_is_it_on_a_gpu() -> None:
    sets = ClassSets(4).cuda()
    sets.appear(torch.tensor([-1, 2, -1, 2]).cuda())
    assert members(sets.seen) == [2]


@pytest.mark.parametrize("classes", [range(2), (0, 1), np.array([0, 1]), [np.int64(0), 1]])
def test_any_sequence_of_whole_numbers(classes: object) -> None:
    sets = ClassSets(3)
    sets.new_task(classes)  # type: ignore[arg-type]
    assert members(sets.new) == [0, 1]


def test_masks_are_changed_in_place() -> None:
    sets = ClassSets(4)
    before = {k: b.data_ptr() for k, b in sets.named_buffers()}
    sets.new_task([0])
    sets.appear(torch.tensor([2]))
    sets.new_task([1])
    assert {k: b.data_ptr() for k, b in sets.named_buffers()} == before


def test_state_round_trip() -> None:
    sets, other = ClassSets(4), ClassSets(4)
    sets.new_task([0, 1])
    sets.new_task([3])
    other.load_state_dict(sets.state_dict())
    assert (other.task, members(other.new), members(other.old)) == (1, [3], [0, 1])
    assert other.later == 1


@pytest.mark.parametrize("classes", [[], [4], [-1], [0, 9], [0.5], [1.0]])
def test_bad_classes_are_named_and_change_nothing(classes: list[int]) -> None:
    sets = ClassSets(4)
    sets.new_task([0])
    before = {k: v.clone() for k, v in sets.state_dict().items()}
    with pytest.raises((ValueError, TypeError)) as caught:
        sets.new_task(classes)
    assert str(classes) in str(caught.value)
    assert "0 to 3" in str(caught.value)
    assert all(torch.equal(v, before[k]) for k, v in sets.state_dict().items())
