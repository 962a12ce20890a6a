"""Class-balanced and herding memories: the kept samples, and valid rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dualcba.memory import Balanced, Herding, herd

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

streams = st.lists(st.integers(0, 4), min_size=1, max_size=60)
sizes = st.integers(1, 13)
batches = st.integers(1, 17)


def feed(memory: Balanced, labels: list[int], batch: int, keys: Ints) -> None:
    """Samples are numbered and their keys given, so the outcome is known."""
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        y = torch.tensor(labels[part])
        x = torch.arange(start, start + len(y), dtype=torch.float32).unsqueeze(1)
        memory.slots(len(y), np.random.default_rng(0))  # counts the samples
        memory.write(torch.from_numpy(keys[part]), x, y, {})


def make(size: int) -> Balanced:
    return Balanced(size, (1,), torch.float32)


def content(memory: Balanced) -> list[int]:
    return [int(i) for i in memory.x[: memory.filled, 0]]


def draw_keys(n: int, size: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(size + 1, 1 << 40, n)


def by_hand(labels: list[int], keys: Ints, size: int) -> set[int]:
    """Return the lowest of all samples by (rank by key within the class, class)."""
    places: Counter[int] = Counter()
    cells = []
    for i in np.argsort(keys, kind="stable"):
        cells.append((places[labels[i]], labels[i], int(i)))
        places[labels[i]] += 1
    return {i for _, _, i in sorted(cells)[:size]}


@given(streams, sizes, batches)
def test_keeps_the_samples_selected_from_the_whole_stream(
    labels: list[int], size: int, batch: int
) -> None:
    memory, keys = make(size), draw_keys(len(labels), size)
    feed(memory, labels, batch, keys)
    assert set(content(memory)) == by_hand(labels, keys, size)


@given(streams, sizes, batches)
def test_rows_are_valid_and_classes_even_at_every_step(
    labels: list[int], size: int, batch: int
) -> None:
    memory, keys = make(size), draw_keys(len(labels), size)
    for start in range(0, len(labels), batch):
        y = torch.tensor(labels[start : start + batch])
        x = torch.arange(start, start + len(y), dtype=torch.float32).unsqueeze(1)
        memory.slots(len(y), np.random.default_rng(0))
        memory.write(torch.from_numpy(keys[start : start + batch]), x, y, {})
        seen = labels[: start + len(y)]
        ids = content(memory)
        assert memory.filled == min(len(seen), size) == len(set(ids))
        assert [labels[i] for i in ids] == memory.y[: memory.filled].tolist()
        assert keys[ids].tolist() == memory.keys[: memory.filled].tolist()
        held, arrived = Counter(labels[i] for i in ids), Counter(seen)
        for a in arrived:
            for b in arrived:
                assert held[a] <= held[b] + 1 or held[b] == arrived[b]


@given(streams, sizes, batches, batches)
def test_the_result_does_not_depend_on_batches(
    labels: list[int], size: int, one: int, other: int
) -> None:
    keys = draw_keys(len(labels), size)
    a, b = make(size), make(size)
    feed(a, labels, one, keys)
    feed(b, labels, other, keys)
    assert set(content(a)) == set(content(b))


def test_within_a_class_every_sample_has_the_same_chance() -> None:
    labels = [0] * 10 + [1] * 6 + [0, 1, 2, 2, 2, 2] * 2
    counts, runs = np.zeros(len(labels)), 800
    for seed in range(runs):
        memory = make(6)
        feed(memory, labels, 7, draw_keys(len(labels), 6, seed))
        counts[content(memory)] += 1
    for c in (0, 1, 2):
        of = counts[np.array(labels) == c]
        n, share = len(of), 2 / len(of)
        chi2 = (n - 1) / n * np.sum((of - runs * share) ** 2) / (runs * share * (1 - share))
        assert stats.chi2.sf(chi2, n - 1) > 1e-4


def test_keys_come_from_the_generator() -> None:
    memory = make(5)
    keys = memory.slots(2000, np.random.default_rng(0))
    assert keys.min() > memory.size
    assert keys.max() < 1 << 40
    assert stats.kstest(keys / (1 << 40), "uniform").pvalue > 1e-4
    assert memory.seen == 2000


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=30), sizes)
def test_a_slot_equal_to_size_is_not_stored(stream: list[tuple[int, bool]], size: int) -> None:
    """The learner uses it for samples that must not be stored."""
    memory, rng = make(size), np.random.default_rng(0)
    wanted = np.array([w for _, w in stream])
    for start in range(0, len(stream), 4):
        w = wanted[start : start + 4]
        slots = np.full(len(w), size)
        slots[w] = memory.slots(int(w.sum()), rng)
        y = torch.tensor([label for label, _ in stream[start : start + 4]])
        x = torch.arange(start, start + len(y), dtype=torch.float32).unsqueeze(1)
        memory.write(torch.from_numpy(slots), x, y, {})
    ids = content(memory)
    assert len(set(ids)) == len(ids) == min(wanted.sum(), size)
    assert wanted[ids].all() if ids else True


def test_continues_from_a_state() -> None:
    labels = [0] * 9 + [1] * 9 + [2] * 9
    keys = draw_keys(27, 8)
    whole, first, second = make(8), make(8), make(8)
    feed(whole, labels, 5, keys)
    feed(first, labels[:15], 5, keys[:15])
    second.load_state_dict(first.state_dict())
    for start in range(15, 27, 5):
        y = torch.tensor(labels[start : start + 5])
        x = torch.arange(start, start + len(y), dtype=torch.float32).unsqueeze(1)
        second.slots(len(y), np.random.default_rng(0))
        second.write(torch.from_numpy(keys[start : start + 5]), x, y, {})
    assert content(second) == content(whole)
    assert second.seen == whole.seen


def test_stores_columns() -> None:
    memory = Balanced(3, (1,), torch.float32, {"logits": (2,)})
    x, y = torch.arange(5.0).unsqueeze(1), torch.tensor([0, 0, 0, 1, 2])
    slots = torch.from_numpy(memory.slots(5, np.random.default_rng(0)))
    memory.write(slots, x, y, {"logits": x.expand(5, 2)})
    kept, labels, columns = memory.read(torch.arange(3))
    assert torch.equal(columns["logits"], kept.expand(3, 2))
    assert sorted(labels.tolist()) == [0, 1, 2]


# ---------------------------------------------------------------------- herding


def herd_by_hand(features: Floats, count: int) -> list[int]:
    """Algorithm 4 of iCaRL, literally."""
    mean = features.mean(0)
    chosen: list[int] = []
    for k in range(1, min(count, len(features)) + 1):
        total = features[chosen].sum(0)
        far = [np.inf if i in chosen else float(np.linalg.norm(mean - (f + total) / k))
               for i, f in enumerate(features)]  # fmt: skip
        chosen.append(int(np.argmin(far)))
    return chosen


group = st.integers(1, 25).filter(lambda n: n != 2)  # two samples are equally close to their mean
lengths = st.lists(group, min_size=1, max_size=5)


@given(lengths, st.integers(1, 6), st.integers(0, 30), st.integers(0, 1000))
def test_herding_order(sizes: list[int], d: int, count: int, seed: int) -> None:
    """Several groups of different lengths at once."""
    features = np.random.default_rng(seed).normal(size=(len(sizes), max(sizes), d))
    padding = np.arange(max(sizes)) >= np.array(sizes)[:, None]
    got = herd(torch.from_numpy(features), torch.from_numpy(padding), count)
    for own, n, order in zip(features, sizes, got.tolist(), strict=True):
        assert order[:n] == herd_by_hand(own[:n], count)


def one_by_one(memory: Herding, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected content after `fill`, computed sample by sample."""
    pool = torch.cat([memory.x[: memory.filled], x])
    labels = torch.cat([memory.y[: memory.filled], y])
    classes = labels.unique().tolist()
    chosen, of = [], []
    for i, label in enumerate(classes):
        quota = max(0, -(-(memory.size - i) // len(classes)))
        own = pool[labels == label]
        if label in y.tolist():
            own = own[herd_by_hand(features(own).numpy(), quota)]
        chosen.append(own[:quota])
        of += [label] * len(own[:quota])
    return torch.cat(chosen), torch.tensor(of)


@given(st.integers(1, 60), st.integers(0, 1000))
def test_all_classes_at_once_equal_one_by_one(size: int, seed: int) -> None:
    """Some old classes appear again, and all classes have different numbers of samples."""
    memory, rng = Herding(size, (2,), torch.float64), np.random.default_rng(seed)
    for task in range(3):
        labels = np.repeat(rng.permutation(7)[:4], rng.integers(3, 15, 4))
        x, y = samples(rng.permutation(labels).tolist(), seed + task)
        want_x, want_y = one_by_one(memory, x, y)
        memory.fill(x, y, features)
        assert torch.equal(memory.x[: memory.filled], want_x)
        assert torch.equal(memory.y[: memory.filled], want_y)


def features(x: Tensor) -> Tensor:
    return torch.cat([x, x**2], 1)


def samples(labels: list[int], seed: int) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(labels), 2)))
    return x, torch.tensor(labels)


def rows_of(memory: Herding, label: int) -> Tensor:
    filled = slice(memory.filled)
    return memory.x[filled][memory.y[filled] == label]


@given(st.integers(1, 20), st.integers(1, 12))
def test_classes_share_the_rows(size: int, per_class: int) -> None:
    memory = Herding(size, (2,), torch.float64)
    for task in range(4):
        x, y = samples([2 * task, 2 * task + 1] * per_class, task)
        memory.fill(x, y, features)
        y = memory.y[: memory.filled]
        counts = np.bincount(y.numpy(), minlength=2 * task + 2)
        assert y.tolist() == sorted(y.tolist())
        assert memory.filled <= size
        assert counts.max() - counts.min() <= 1
        if per_class * (2 * task + 2) >= size and counts.max() < per_class:
            assert memory.filled == size


def test_selects_by_herding_and_drops_the_last() -> None:
    memory = Herding(12, (2,), torch.float64)
    x, y = samples([0, 1] * 15, 0)
    memory.fill(x, y, features)
    own = x[y == 0]
    order = herd_by_hand(features(own).numpy(), 6)
    assert torch.equal(rows_of(memory, 0), own[order])
    memory.fill(*samples([2, 3] * 15, 1), features)
    assert torch.equal(rows_of(memory, 0), own[order[:3]])


def test_a_repeated_class_is_selected_again_from_all_samples() -> None:
    memory = Herding(8, (2,), torch.float64)
    x, y = samples([0, 1] * 5, 0)
    memory.fill(x, y, features)
    held = rows_of(memory, 0).clone()
    more, labels = samples([0, 0, 0, 2, 2], 1)
    memory.fill(more, labels, features)
    own = torch.cat([held, more[labels == 0]])
    order = herd_by_hand(features(own).numpy(), 3)
    assert torch.equal(rows_of(memory, 0), own[order])


def test_nothing_is_written_while_a_task_runs() -> None:
    memory = Herding(4, (2,), torch.float64)
    x, y = samples([0, 1], 0)
    slots = memory.slots(2, np.random.default_rng(0))
    memory.write(torch.from_numpy(slots), x, y, {})
    assert memory.filled == 0
    assert not memory.x.any()


def test_an_empty_task_changes_nothing() -> None:
    memory = Herding(4, (2,), torch.float64)
    x, y = samples([], 0)
    memory.fill(x, y, features)
    assert memory.filled == 0
    memory.fill(*samples([0, 1] * 5, 0), features)
    before = memory.x.clone()
    memory.fill(x, y, features)
    assert torch.equal(memory.x, before)


@pytest.mark.parametrize(("filled", "held"), [(0, []), (9, []), (10, [9]), (31, [9, 19, 29])])
def test_validation_rows(filled: int, held: list[int]) -> None:
    memory = Herding(40, (2,), held_out=10)
    memory.seen = filled
    assert list(range(filled))[memory.validation] == held
    drawn = memory.draw(99, np.random.default_rng(0))
    assert sorted(drawn) == sorted(set(range(filled)) - set(held))
    plain = Herding(40, (2,))
    plain.seen = filled
    assert len(plain.draw(99, np.random.default_rng(0))) == filled


def test_herding_continues_from_a_state() -> None:
    memory, other = Herding(9, (2,), torch.float64), Herding(9, (2,), torch.float64)
    memory.fill(*samples([0, 1] * 5, 0), features)
    other.load_state_dict(memory.state_dict())
    for m in (memory, other):
        m.fill(*samples([2, 3] * 5, 1), features)
    assert torch.equal(memory.x, other.x)
    assert memory.filled == other.filled == 9
