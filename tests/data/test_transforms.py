"""Batched crop, flip and normalisation compared with single images in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dualcba import Transform
from dualcba.data.transforms import Mirrored, crop_by_gather, crop_by_window


def one_image(
    x: NDArray, top: int, left: int, flip: int, pad: int, mean: list[float], std: list[float]
) -> NDArray[np.float64]:
    """Zero padding, crop at (top, left), mirror, normalise: one image, in float64."""
    channels, height, width = x.shape
    canvas = np.zeros((channels, height + 2 * pad, width + 2 * pad), dtype=x.dtype)
    canvas[:, pad : pad + height, pad : pad + width] = x
    crop = canvas[:, top : top + height, left : left + width]
    crop = crop[:, :, ::-1] if flip else crop
    values = crop.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)
    return (values - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))


@given(
    n=st.integers(1, 5),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pad=st.integers(0, 4),
    flip=st.booleans(),
    dtype=st.sampled_from([np.uint8, np.float32]),
    seed=st.integers(0, 2**31),
)
def test_each_image_equals_the_numpy_result(
    n: int, channels: int, height: int, width: int, pad: int, flip: bool, dtype: type, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n, channels, height, width)).astype(dtype)
    mean, std = rng.random(channels).tolist(), (0.1 + rng.random(channels)).tolist()
    t = Transform(mean, std, pad=pad, flip=flip)
    params = t.draw(rng, n)
    got = t(torch.from_numpy(x), torch.from_numpy(params))
    assert got.dtype == torch.float32
    assert got.shape == x.shape
    for image, p, out in zip(x, params.tolist(), got.numpy(), strict=True):
        want = one_image(image, *p, pad, mean, std)
        assert out == pytest.approx(want, rel=1e-4, abs=1e-4 * np.abs(want).max(initial=1))
    mirrored = Mirrored(t)(torch.from_numpy(x), torch.from_numpy(params))
    assert torch.equal(mirrored, got.flip(-1))
    plain = t(torch.from_numpy(x)).numpy()
    for image, out in zip(x, plain, strict=True):
        want = one_image(image, pad, pad, 0, pad, mean, std)
        assert out == pytest.approx(want, rel=1e-4, abs=1e-4 * np.abs(want).max(initial=1))


@given(
    n=st.integers(1, 5),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)),
    pad=st.integers(0, 4),
    flip=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_window_and_gather_give_the_same_result(
    n: int, shape: tuple[int, ...], pad: int, flip: bool, dtype: torch.dtype, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.integers(0, 256, (n, *shape))).to(dtype)
    params = torch.from_numpy(Transform([0.5], [0.5], pad=pad, flip=flip).draw(rng, n))
    assert torch.equal(crop_by_window(x, params, pad), crop_by_gather(x, params, pad))


def test_vectors_are_normalised_too() -> None:
    t = Transform([2.0], [4.0])
    x = torch.arange(6.0).view(2, 3)
    torch.testing.assert_close(t(x), (x - 2) / 4)
    assert not t.random


def test_one_number_stands_for_all_channels() -> None:
    x = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    one, three = Transform([0.3], [0.2]), Transform([0.3] * 3, [0.2] * 3)
    torch.testing.assert_close(one(x), three(x))


@pytest.mark.parametrize(("pad", "flip", "sides"), [(4, True, 9), (1, False, 3), (0, True, 1)])
def test_draws_are_uniform(pad: int, flip: bool, sides: int) -> None:
    t = Transform([0.5], [0.5], pad=pad, flip=flip)
    params = t.draw(np.random.default_rng(0), 20_000)
    assert params.shape == (20_000, 3)
    for column, levels in zip(params.T, (sides, sides, 2 if flip else 1), strict=True):
        counts = np.bincount(column, minlength=levels)
        assert len(counts) == levels
        if levels > 1:
            assert stats.chisquare(counts).pvalue > 1e-4
    if sides > 1:
        joint = np.histogram2d(params[:, 0], params[:, 1], bins=sides)[0]
        assert stats.chi2_contingency(joint).pvalue > 1e-4


def test_only_the_generator_decides() -> None:
    t = Transform([0.5], [0.5], pad=2, flip=True)
    a, b = (t.draw(np.random.default_rng(7), 50) for _ in range(2))
    assert np.array_equal(a, b)
    assert t.random
    assert not np.array_equal(a, t.draw(np.random.default_rng(8), 50))


def test_raw_samples_are_not_changed() -> None:
    x = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8)
    kept = x.clone()
    t = Transform([0.5], [0.5], pad=2, flip=True)
    t(x, torch.from_numpy(t.draw(np.random.default_rng(0), 3)))
    assert torch.equal(x, kept)


def test_normalisation_is_no_part_of_a_learners_state() -> None:
    assert Transform([0.5], [0.5]).state_dict() == {}
