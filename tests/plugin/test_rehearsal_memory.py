"""The rehearsal memory of the plug-in: draws, updates, state and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dualcba.plugin import RehearsalMemory

Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


def filled(size: int = 6, n: int = 20, seed: int = 0) -> RehearsalMemory:
    memory = RehearsalMemory(size, seed=seed)
    for k in range(0, n, 4):
        y = torch.arange(k, k + 4)
        memory.update(y[:, None].repeat(1, 2), y % 3)
    return memory


def test_samples_keep_their_labels_shape_and_type() -> None:
    memory = filled()
    for x, y in (memory.draw(4), memory.samples(), memory.draw_balanced(9, *memory.draw(2))):
        assert x.dtype == torch.int64
        assert x.shape == (len(y), 2)
        assert torch.equal(x[:, 0] % 3, y)
    assert len(memory) == 6
    assert len(memory.draw(100)[1]) == 6
    assert len(set(memory.draw(6)[0][:, 0].tolist())) == 6  # without replacement


def test_every_sample_is_stored_with_the_same_probability() -> None:
    found = np.zeros(20)
    for seed in range(200):
        x, _ = filled(seed=seed).samples()
        found[x[:, 0].numpy()] += 1
    expected = 200 * 6 / 20
    assert abs(found - expected).max() < 5 * (expected * 0.7) ** 0.5


def test_a_balanced_draw_has_each_class_of_memory_and_batch() -> None:
    memory = filled()
    y = torch.tensor([7, 8])
    _, labels = memory.draw_balanced(10, torch.zeros(2, 2, dtype=torch.int64), y)
    assert labels.unique(return_counts=True)[1].tolist() == [2] * 5
    assert labels.unique().tolist() == [0, 1, 2, 7, 8]


def test_each_balanced_draw_and_the_order_after_each_update_are_other_ones() -> None:
    memory, drawn, orders = filled(n=3000), set(), set()
    x, y = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0])
    for _ in range(10):
        drawn.add(tuple(memory.draw_balanced(6, x, y)[0][:, 0].tolist()))
        order = memory.samples()[0]
        assert torch.equal(order, memory.samples()[0])
        orders.add(tuple(order[:, 0].tolist()))
        memory.update(x, y)  # one of 3,000 samples is hardly ever stored
    assert len(drawn) > 1
    assert len(orders) > 5
    assert len({frozenset(order) for order in orders}) == 1


def test_a_balanced_draw_has_the_same_samples_whatever_the_numbers_of_the_classes() -> None:
    small, large = RehearsalMemory(20, seed=1), RehearsalMemory(20, seed=1)
    names = torch.tensor([3, 10, 2**40, 2**62])
    x, y = torch.arange(40.0)[:, None], torch.arange(40) % 4
    drawn = []
    for memory, labels in ((small, y), (large, names[y])):
        memory.update(x[:30], labels[:30])
        drawn.append(memory.draw_balanced(50, x[30:], labels[30:]))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(names[drawn[0][1]], drawn[1][1])


def test_it_changes_no_tensor_of_the_caller_and_keeps_none() -> None:
    memory, x = RehearsalMemory(4), torch.ones(4, 2, requires_grad=True)
    memory.update(x, [0, 1, 0, 1])
    stored = memory.samples()[0]
    assert not stored.requires_grad
    with torch.no_grad():
        x.zero_()
    assert bool((memory.samples()[0] == 1).all())


def test_a_saved_memory_goes_on_with_the_same_draws(differ: Differ) -> None:
    for n in (0, 20):
        one, two = filled(n=n, seed=4), RehearsalMemory(6, seed=9)
        two.load_state_dict(one.state_dict())
        for memory in (one, two):
            memory.update(torch.ones(3, 2, dtype=torch.int64), torch.tensor([1, 1, 1]))
            memory.draw(2)
        assert not differ(one.state_dict(), two.state_dict())
        assert torch.equal(one.samples()[0], two.samples()[0])


X, Y = torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0, 1])

BAD: list[tuple[Callable[[RehearsalMemory], Any], str]] = [
    (
        lambda m: m.update(X.float(), Y),
        "dtype of the samples is torch.float32, expected torch.int6",
    ),
    (
        lambda m: m.update(X[:, :1], Y),
        r"shape of one sample is \(1,\), expected \(2,\), as in the m",
    ),
    (
        lambda m: m.update(X[:0], Y[:0]),
        r"x is \(0, 2\), expected a tensor of shape \(n, ...\), n of",
    ),
    (lambda m: m.update([[1, 2]], Y), r"x is \[\[1, 2\]\], expected a tensor of shape"),
    (lambda m: m.update(X, Y[:1]), r"shape of observed y is \(1,\), expected \(2,\)"),
    (lambda m: m.update(X, Y - 1), r"observed y\[0\] is -1, expected a label of at least 0"),
    (lambda m: m.draw(0), "n is 0, expected a whole number of at least 1"),
    (lambda m: m.draw_balanced(2, X, Y - 1), r"observed y\[0\] is -1, expected a label"),
    (lambda m: m.load_state_dict({}), "the state has no entry 'tensors', expected the result of"),
    (
        lambda m: m.load_state_dict(filled(5).state_dict()),
        "size of the state's memory is 5, expected 6",
    ),
    (
        lambda m: m.load_state_dict(other_shape()),
        r"the state's entry 'memory.x' is torch.int64 of shape \(7, 3\), expected torch.int64",
    ),
    (
        lambda m: m.load_state_dict(changed(m, rng={"state": 1})),
        "rng is {'state': 1}, expected the state of a PCG64",
    ),
]


def other_shape() -> dict[str, Any]:
    memory = RehearsalMemory(6)
    memory.update(torch.zeros(2, 3, dtype=torch.int64), Y)
    return memory.state_dict()


def changed(memory: RehearsalMemory, **meta: Any) -> dict[str, Any]:
    state = memory.state_dict()
    return {**state, "meta": {**state["meta"], **meta}}


@pytest.mark.parametrize(("call", "text"), BAD)
def test_calls_that_do_not_fit_are_one_line_and_change_nothing(
    call: Any, text: str, differ: Differ
) -> None:
    memory = filled()
    before = memory.state_dict()
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
        call(memory)
    assert not differ(before, memory.state_dict())


def test_an_empty_memory_says_so() -> None:
    with pytest.raises(ValueError, match=r"^size is 0, expected a whole number of at least 1$"):
        RehearsalMemory(0)
    for name in ("draw", "samples"):
        with pytest.raises(ValueError, match=r"^the memory is empty, expected update\(x, y\) befo"):
            getattr(RehearsalMemory(3), name)(*[1] * (name == "draw"))
