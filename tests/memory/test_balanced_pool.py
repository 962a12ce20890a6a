"""Draws balanced over the classes of a memory and a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dualcba.memory import Pool, Reservoir

CLASSES = 7


def make_pool(stored: list[int], batch: list[int], size: int = 30) -> tuple[Pool, Tensor]:
    """A pool whose samples hold their own row; empty rows of the memory have the label 0."""
    memory = Reservoir(size, (2,), torch.float32, {"logits": (CLASSES,)})
    memory.y[: len(stored)] = torch.tensor(stored, dtype=torch.long)
    memory.x[:] = torch.arange(size + 1.0)[:, None]
    memory.column_logits[:] = torch.arange(size + 1.0)[:, None]
    y = torch.tensor(batch, dtype=torch.long)
    x = (size + torch.arange(float(len(batch))))[:, None].expand(-1, 2)
    return Pool(memory, torch.tensor([len(stored)]), y, CLASSES), x


def stratified(n: int, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy((np.arange(n) + rng.random(n)) / n)


def test_every_class_is_drawn_equally_often_and_every_sample_of_a_class() -> None:
    pool, _ = make_pool([0] * 12 + [3] * 2 + [5], [6, 6, 6, -1, 5, -1])
    rng = np.random.default_rng(0)
    rows = torch.cat([pool.balanced_rows(stratified(10, rng)) for _ in range(4000)])
    assert pool.labels[rows].min() >= 0
    by_class = torch.bincount(pool.labels[rows], minlength=CLASSES) / len(rows)
    present = torch.tensor([1.0, 0, 0, 1, 0, 1, 1]) / 4
    torch.testing.assert_close(by_class, present, atol=0.005, rtol=0)
    by_row = torch.bincount(rows, minlength=len(pool.labels)) / len(rows)
    each = (present / pool.counts.clamp(min=1))[pool.labels.clamp(min=0)] * (pool.labels >= 0)
    torch.testing.assert_close(by_row, each, atol=0.004, rtol=0)


@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_the_classes_of_one_draw_are_nearly_even(n: int) -> None:
    pool, _ = make_pool([4] * 20 + [1], [2, 2, 0])
    rng = np.random.default_rng(n)
    for _ in range(50):
        counts = torch.bincount(pool.labels[pool.balanced_rows(stratified(n, rng))], minlength=5)
        even = n / 4
        assert counts[3] == 0
        assert all(even - 1.5 <= counts[c] <= even + 1.5 for c in (0, 1, 2, 4))


@pytest.mark.parametrize(
    ("stored", "batch", "want"),
    [([], [2], [30]), ([2], [-1], [0]), ([], [-1, 5, -1], [31]), ([1], [6], [0, 30])],
)
def test_few_samples(stored: list[int], batch: list[int], want: list[int]) -> None:
    """Empty rows of the memory and samples without a label are never drawn."""
    pool, _ = make_pool(stored, batch)
    u = torch.tensor([0.0, 0.4999, 0.5, 1 - 2**-53, 1.0], dtype=torch.float64)
    assert sorted(set(pool.balanced_rows(u).tolist())) == want


def test_samples_are_read_from_the_memory_and_from_the_batch() -> None:
    pool, x = make_pool([0, 1, 2], [3, 4])
    rows = torch.tensor([31, 0, 30, 2])
    samples, labels, columns = pool.read(rows, x)
    assert samples[:, 1].tolist() == rows.tolist()
    assert labels.tolist() == [4, 0, 3, 2]
    assert pool.is_new(rows).tolist() == [True, False, True, False]
    assert columns["logits"][pool.memory.size > rows, 0].tolist() == [0, 2]
