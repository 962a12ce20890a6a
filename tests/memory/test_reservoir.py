"""The reservoir: the kept samples and their probability; batches equal single samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dualcba.memory import Memory, Reservoir, last_wins

Ints = NDArray[np.int64]


def p_value(counts: Ints, streams: int, share: float) -> float:
    """Return the p-value of a chi-square test that each of n items has probability `share`.

    Each stream takes the same number of items, so the counts are negatively correlated as in
    sampling without replacement; the factor (n − 1)/n accounts for it.
    """
    n = len(counts)
    expected = streams * share
    chi2 = (n - 1) / n * np.sum((counts - expected) ** 2) / (expected * (1 - share))
    return float(stats.chi2.sf(chi2, n - 1))


def kept(memory: Memory, n: int, batch: int, rng: np.random.Generator) -> Ints:
    """Return the samples in the memory after a stream of n samples."""
    content = np.full(memory.size + 1, -1)
    memory.seen = 0
    for start in range(0, n, batch):
        ids = np.arange(start, min(start + batch, n))
        content[memory.slots(len(ids), rng)] = ids
    return content[:-1]


@pytest.mark.parametrize(
    ("size", "n", "batch"),
    [(1, 12, 5), (5, 20, 1), (8, 40, 10), (10, 33, 32), (20, 25, 7), (4, 9, 9)],
)
def test_each_sample_is_kept_with_probability_size_over_seen(size: int, n: int, batch: int) -> None:
    rng, streams = np.random.default_rng([size, n, batch]), 4000
    memory = Reservoir(size, (1,))
    counts = np.zeros(n, dtype=np.int64)
    for _ in range(streams):
        content = kept(memory, n, batch, rng)
        assert len(set(content)) == size
        assert content.min() >= 0
        counts[content] += 1
    assert p_value(counts, streams, size / n) > 1e-4


def test_each_slot_holds_each_late_sample_with_the_same_probability() -> None:
    """The slot of a late sample is uniform too, so any part of the memory is a uniform sample."""
    rng, streams = np.random.default_rng(5), 6000
    memory = Reservoir(4, (1,))
    counts = np.zeros((12, 4), dtype=np.int64)
    for _ in range(streams):
        content = kept(memory, 12, 5, rng)
        counts[content, np.arange(4)] += 1
    late = counts[4:]  # the first four go to their own slots
    assert stats.chisquare(late.ravel()).pvalue > 1e-4


def test_the_chi_square_test_detects_a_wrong_reservoir() -> None:
    """With an error of one in the number of samples seen, the same test must fail."""

    class Wrong(Reservoir):
        def slots(self, n: int, rng: np.random.Generator) -> Ints:
            age = self.seen + np.arange(n)
            chosen = np.floor(rng.random(n) * age).astype(np.int64)
            self.seen += n
            slots = np.where(age < self.size, age, np.minimum(chosen, self.size))
            return last_wins(slots, self.size)

    rng, streams = np.random.default_rng(0), 4000
    counts = np.zeros(40, dtype=np.int64)
    for _ in range(streams):
        counts[kept(Wrong(8, (1,)), 40, 10, rng)] += 1
    assert p_value(counts, streams, 8 / 40) < 1e-4


@given(
    size=st.integers(1, 9),
    batches=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_a_batch_equals_one_by_one(size: int, batches: list[int], seed: int) -> None:
    """With the same random numbers: contents, labels, columns, age and generator."""
    n = sum(batches)
    x = torch.arange(n, dtype=torch.uint8).view(-1, 1)
    y = torch.arange(n) * 3
    extra = torch.arange(n).float().view(-1, 1).expand(-1, 2) / 7
    memories, generators = [], []
    for parts in (batches, [1] * n):
        memory, rng, start = Reservoir(size, (1,), columns={"logits": (2,)}), _rng(seed), 0
        for count in parts:
            rows = slice(start, start + count)
            slots = torch.from_numpy(memory.slots(count, rng))
            memory.write(slots, x[rows], y[rows], {"logits": extra[rows]})
            start += count
        memories.append(memory.state_dict())
        generators.append(rng.bit_generator.state)
    assert generators[0] == generators[1]
    for name, value in memories[0].items():
        assert torch.equal(value, memories[1][name]), name


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_same_memory_as_algorithm_r_written_out() -> None:
    """Vitter's algorithm R, sample by sample, from the same uniform numbers."""
    memory, rng, twin = Reservoir(5, (1,)), _rng(3), _rng(3)
    content = kept(memory, 50, 8, rng)
    by_hand: list[int] = []
    for i in range(50):
        j = int(np.floor(twin.random() * (i + 1)))
        if i < 5:
            by_hand.append(i)
        elif j < 5:
            by_hand[j] = i
    assert content.tolist() == by_hand


@pytest.mark.parametrize(("size", "n"), [(1, 8), (3, 20), (5, 6), (10, 32)])
def test_no_slot_is_given_twice_in_a_batch(size: int, n: int) -> None:
    """On a GPU two writes to one slot have no order."""
    memory, rng = Reservoir(size, (1,)), _rng(0)
    for _ in range(50):
        slots = memory.slots(n, rng)
        kept = slots[slots < size]
        assert len(set(kept.tolist())) == len(kept)


def test_fills_up_in_order_first() -> None:
    memory, rng = Reservoir(10, (1,)), _rng(0)
    assert memory.slots(4, rng).tolist() == [0, 1, 2, 3]
    assert (memory.seen, memory.filled) == (4, 4)
    assert memory.slots(6, rng).tolist() == [4, 5, 6, 7, 8, 9]
    memory.slots(7, rng)
    assert (memory.seen, memory.filled) == (17, 10)


@pytest.mark.parametrize(
    ("slots", "want"),
    [
        ([3, 1, 3], [9, 1, 3]),
        ([2, 2, 2], [9, 9, 2]),
        ([9, 9], [9, 9]),
        ([0, 9, 0, 9], [9, 9, 0, 9]),
        ([4], [4]),
        ([], []),
    ],
)
def test_last_wins(slots: list[int], want: list[int]) -> None:
    assert last_wins(np.array(slots, dtype=np.int64), spare=9).tolist() == want


@given(st.lists(st.integers(0, 5), max_size=12))
def test_last_wins_as_a_loop_would(slots: list[int]) -> None:
    content: dict[int, int] = {}
    for i, s in enumerate(slots):
        content[s] = i
    out = last_wins(np.array(slots, dtype=np.int64), spare=5)
    written = {int(s): i for i, s in enumerate(out) if s != 5}
    assert written == {s: i for s, i in content.items() if s != 5}
    used = out[out != 5]
    assert len(set(used.tolist())) == len(used)  # no slot twice: index_copy_ is then exact


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize(("filled", "n"), [(10, 3), (10, 10), (6, 32), (1, 4), (30, 1)])
def test_draws_are_without_replacement(filled: int, n: int) -> None:
    memory, rng = Reservoir(30, (1,)), _rng(0)
    memory.slots(filled, rng)
    for _ in range(20):
        rows = memory.draw(n, rng)
        assert len(rows) == min(n, filled)
        assert len(set(rows.tolist())) == len(rows)
        assert rows.min() >= 0
        assert rows.max() < filled


@pytest.mark.parametrize(("size", "n"), [(12, 4), (20, 19), (7, 1)])
def test_draws_are_uniform(size: int, n: int) -> None:
    memory, rng, times = Reservoir(size, (1,)), _rng(1), 5000
    memory.slots(3 * size, rng)
    counts = np.zeros(size, dtype=np.int64)
    for _ in range(times):
        counts[memory.draw(n, rng)] += 1
    assert p_value(counts, times, n / size) > 1e-4


def test_read_gives_what_was_written() -> None:
    memory = Reservoir(4, (3, 2, 2), columns={"logits": (5,), "raw_logits": (5,)})
    x = torch.randint(0, 256, (3, 3, 2, 2), dtype=torch.uint8)
    y, logits, raw = torch.tensor([7, 8, 9]), torch.randn(3, 5), torch.randn(3, 5)
    memory.write(torch.tensor([2, 4, 0]), x, y, {"logits": logits, "raw_logits": raw})
    got_x, got_y, columns = memory.read(torch.tensor([0, 2]))
    assert torch.equal(got_x, x[[2, 0]])
    assert got_y.tolist() == [9, 7]
    assert torch.equal(columns["logits"], logits[[2, 0]])
    assert torch.equal(columns["raw_logits"], raw[[2, 0]])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_storage_is_allocated_once(dtype: torch.dtype) -> None:
    memory, rng = Reservoir(6, (2,), dtype), _rng(0)
    before = {k: b.data_ptr() for k, b in memory.named_buffers()}
    for _ in range(5):
        slots = torch.from_numpy(memory.slots(4, rng))
        memory.write(slots, torch.ones(4, 2, dtype=dtype), torch.ones(4, dtype=torch.long), {})
    assert {k: b.data_ptr() for k, b in memory.named_buffers()} == before
    assert memory.x.dtype == dtype
    assert memory.x.shape == (7, 2)


def test_samples_that_are_not_kept_do_not_change_the_state() -> None:
    a, b = Reservoir(2, (1,)), Reservoir(2, (1,))
    for memory, value in ((a, 5), (b, 6)):
        x = torch.full((1, 1), value, dtype=torch.uint8)
        memory.write(torch.tensor([2]), x, torch.tensor([value]), {})
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_the_number_of_seen_samples_is_in_the_state() -> None:
    memory, other, rng = Reservoir(3, (1,)), Reservoir(3, (1,)), _rng(0)
    memory.slots(11, rng)
    other.load_state_dict(memory.state_dict())
    assert other.seen == 11
    assert other.slots(6, _rng(4)).tolist() == memory.slots(6, _rng(4)).tolist()


@pytest.mark.parametrize("size", [0, -1, -200])
def test_a_buffer_holds_at_least_one(size: int) -> None:
    with pytest.raises(ValueError, match=f"buffer is {size}, expected"):
        Reservoir(size, (1,))


def test_a_memory_must_implement_slots() -> None:
    with pytest.raises(NotImplementedError):
        Memory(2, (1,)).slots(1, _rng(0))


def test_a_buffer_that_nothing_can_hold_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"buffer is \d+, expected fewer samples: .* GiB$"):
        Reservoir(2**60, (3, 32, 32))
