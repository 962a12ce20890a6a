"""The running mean and variance: numbers of any size, batches of any size, constant features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualcba.data.augmentation import plain
from dualcba.data.standardise import Standardise


def fed(x: np.ndarray, sizes: list[int]) -> Standardise:
    t = Standardise(x.shape[1:])
    for part in np.split(x, np.cumsum(sizes)[:-1]):
        t.update(torch.from_numpy(part))
    return t


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_the_statistics_do_not_depend_on_the_batches(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales, means = 10.0 ** rng.integers(-20, 18, 6), 10.0 ** rng.integers(-3, 4, 6)
    x = (scales * (means + rng.normal(size=(sum(sizes), 6)))).astype(np.float32)
    t, exact = fed(x, sizes), x.astype(np.float64)
    assert int(t.count) == len(x)
    assert np.allclose(t.mean, exact.mean(0), rtol=1e-12)
    assert np.allclose(t.squares / t.count, exact.var(0), rtol=1e-6, atol=0)


def test_a_long_stream_far_from_zero_keeps_its_variance() -> None:
    x = (1e5 + np.random.default_rng(0).normal(size=(200_000, 1))).astype(np.float32)
    t = fed(x, [100] * 2000)
    assert float(t.squares / t.count) == pytest.approx(x.astype(float).var(), rel=1e-10)
    z = t(torch.from_numpy(x))
    assert abs(float(z.mean())) < 0.02  # float32 has steps of 0.008 there
    assert float(z.std()) == pytest.approx(1, abs=0.01)


def test_constant_features_become_zero_and_stay_finite() -> None:
    x = np.full((30, 6), [0, 7, 1 / 3, 1e30, 1e-40, -1e6], dtype=np.float32)
    t = fed(x, [1, 9, 20])
    assert (t.squares == 0).all()
    odd = torch.tensor([[1e30] * 6, [-5.0] * 6, [0.0] * 6])
    assert (t(odd) == 0).all()  # a feature is not used before it varies
    t.update(torch.from_numpy(np.vstack([x + 1, x]).astype(np.float32)))
    z = t(torch.from_numpy(x) + 1)
    assert torch.isfinite(z).all()
    assert (z[:, :3].abs() <= np.sqrt(90)).all()
    assert (z[:, 3] == 0).all()  # 1e30 + 1 is 1e30


def test_before_the_first_sample_all_is_zero() -> None:
    assert (Standardise((3,))(torch.ones(2, 3)) == 0).all()


def test_other_views_follow() -> None:
    t = Standardise((2,))
    view = plain(t)
    t.update(torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    assert view(torch.tensor([[3.0, 10.0]])).tolist() == [[1.0, -1.0]]
