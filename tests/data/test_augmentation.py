"""Resized crops, colour jitter and greyscale compared with torchvision's definitions and Pillow."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from scipy import stats

from dualcba.data.augmentation import (
    FullAugmentation,
    ResizedCrop,
    choose_augmentation,
    crop_and_flip,
    cutmix,
    plain,
    randaugment,
)
from dualcba.data.colour import (
    ADJUSTMENTS,
    ColourJitter,
    adjust_colours,
    colour_columns,
    shift_hue,
    to_grey,
)
from dualcba.data.randaugment import RandAugment, RandAugmentTransform, to_grey_levels
from dualcba.data.resized_crop import base_grid, draw_boxes, grid_columns, resized_crop
from dualcba.data.transforms import Transform

Images = NDArray[np.float64]


def pictures(n: int, size: tuple[int, int] = (8, 8), seed: int = 0) -> NDArray[np.uint8]:
    """Noise, with one black, one white and one grey picture among it."""
    x = np.random.default_rng(seed).integers(0, 256, (n, 3, *size), dtype=np.uint8)
    x[0], x[1] = 0, 255
    x[2] = x[2, :1]
    return x


def base(shape: tuple[int, ...] = (3, 8, 8), name: str = "partial") -> Transform:
    transform = Transform([0.4, 0.5, 0.6], [0.2, 0.3, 0.4], pad=2, flip=True)
    return choose_augmentation(transform, name, shape, torch.uint8)


# ---------------------------------------------------------------------- resized crop


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (9, 5)])
def test_resized_crop_is_that_of_the_box_alone(size: tuple[int, int]) -> None:
    """Torchvision crops, then interpolates the crop: pixels outside of it have no influence."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((40, 3, *size), np.float32))
    boxes = draw_boxes(rng, len(x), size, (0.05, 1.0))
    boxes[0] = 0, 0, *size
    boxes[1] = size[0] - 1, size[1] - 1, 1, 1
    flip = rng.random(len(x)) < 0.5
    params = torch.from_numpy(grid_columns(boxes, flip, size))
    got = resized_crop(x, params, base_grid(size))
    for image, (top, left, h, w), mirrored, out in zip(x, boxes.tolist(), flip, got, strict=True):
        crop = image[None, :, top : top + h, left : left + w]
        want = F.interpolate(crop, size, mode="bilinear", align_corners=False, antialias=True)[0]
        torch.testing.assert_close(out, want.flip(2) if mirrored else want, rtol=0, atol=2e-5)


def test_resized_crop_agrees_with_pillow() -> None:
    x = pictures(6, (16, 16))
    rng = np.random.default_rng(1)
    boxes = draw_boxes(rng, len(x), (16, 16), (0.2, 1.0))
    t = ResizedCrop(base((3, 16, 16)), (0.2, 1.0))
    params = grid_columns(boxes, np.zeros(len(x), bool), (16, 16))
    got = 255 * t.augment(torch.from_numpy(x), torch.from_numpy(params)).numpy()
    for image, (top, left, h, w), out in zip(x, boxes.tolist(), got, strict=True):
        crop = Image.fromarray(image.transpose(1, 2, 0)).crop((left, top, left + w, top + h))
        want = np.asarray(crop.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(out - want).max() <= 1.01  # Pillow rounds after each of its two passes


def test_boxes_have_the_areas_and_ratios_that_are_asked_for() -> None:
    boxes = draw_boxes(np.random.default_rng(0), 4000, (200, 200), (0.2, 0.5))
    top, left, h, w = boxes.T
    assert min(top.min(), left.min()) == 0
    assert max((top + h).max(), (left + w).max()) == 200
    share = (h * w / 200**2 - 0.2) / 0.3
    assert stats.kstest(share.clip(0, 1), "uniform").pvalue > 0.01
    ratio = (np.log(w / h) / math.log(4 / 3) + 1) / 2
    assert stats.kstest(ratio.clip(0, 1), "uniform").pvalue > 0.01
    place = top / (200 - h)
    assert stats.kstest(place, "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    ("size", "want"), [((100, 10), [43, 0, 13, 10]), ((10, 100), [0, 43, 10, 13])]
)
def test_the_central_box_where_none_fits(size: tuple[int, int], want: list[int]) -> None:
    boxes = draw_boxes(np.random.default_rng(0), 3, size, (1.0, 1.0))
    assert boxes.tolist() == [want] * 3


# ---------------------------------------------------------------------- colours


def one_image(x: Images, order: list[int], amounts: list[float], grey: bool) -> Images:
    """Torchvision's adjustments of one image (3, H, W) in [0, 1], one after the other."""
    for k in order:
        x = ORACLES[ADJUSTMENTS[k]](x, amounts[k])
    return np.broadcast_to(luma(x), x.shape) if grey else x


def luma(x: Images) -> Images:
    return 0.2989 * x[:1] + 0.587 * x[1:2] + 0.114 * x[2:]


def blend(x: Images, other: Images | float, f: float) -> Images:
    return np.clip(f * x + (1 - f) * other, 0, 1)


def turn(x: Images, shift: float) -> Images:
    def pixel(rgb: NDArray) -> tuple[float, float, float]:
        h, s, v = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb((h + shift) % 1, s, v)

    return np.apply_along_axis(pixel, 0, x)


ORACLES = {
    "brightness": lambda x, f: blend(x, 0.0, f),
    "contrast": lambda x, f: blend(x, luma(x).mean(), f),
    "saturation": lambda x, f: blend(x, luma(x), f),
    "hue": turn,
}


def test_jitter_in_every_order_equals_torchvisions_formulas() -> None:
    rng = np.random.default_rng(0)
    x = pictures(24) / 255
    order = np.array([rng.permutation(4) for _ in x])
    amounts = rng.uniform(-1, 1, (24, 4)) * (0.4, 0.4, 0.4, 0.5) + (1, 1, 1, 0)
    grey = np.arange(24) % 5 == 3
    params = torch.from_numpy(colour_columns(order.argsort(1), amounts, grey))
    got = adjust_colours(torch.from_numpy(x), params).numpy()
    single = adjust_colours(torch.from_numpy(x).float(), params).numpy()
    for k in range(24):
        want = one_image(x[k], order[k].tolist(), amounts[k].tolist(), bool(grey[k]))
        assert np.abs(got[k] - want).max() < 1e-9
        assert np.abs(single[k] - want).max() < 2e-5


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.1, 1 / 3, 0.5])
def test_hue_of_pure_and_equal_channels(shift: float) -> None:
    levels = np.array(np.meshgrid(*[[0.0, 0.25, 0.5, 1.0]] * 3)).reshape(1, 3, 8, 8)
    got = shift_hue(torch.from_numpy(levels), torch.full((1, 1, 1), shift, dtype=torch.float64))
    assert np.abs(got[0].numpy() - turn(levels[0], shift)).max() < 1e-12


@pytest.mark.parametrize(
    ("kind", "enhance"),
    [
        (0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color),
    ],
)  # fmt: skip
@pytest.mark.parametrize("factor", [0.6, 1.0, 1.4])
def test_blends_agree_with_pillow(kind: int, enhance: type, factor: float) -> None:
    x = pictures(6)
    amounts = np.tile([1.0, 1.0, 1.0, 0.0], (6, 1))
    amounts[:, kind] = factor
    params = colour_columns(np.tile(np.arange(4), (6, 1)), amounts, np.zeros(6, bool))
    got = 255 * adjust_colours(torch.from_numpy(x / 255), torch.from_numpy(params)).numpy()
    for image, out in zip(x, got, strict=True):
        want = enhance(Image.fromarray(image.transpose(1, 2, 0))).enhance(factor)
        assert np.abs(out - np.asarray(want).transpose(2, 0, 1)).max() <= 1.3  # whole grey levels


def test_greyscale_agrees_with_pillow() -> None:
    x = pictures(6)
    got = 255 * to_grey(torch.from_numpy(x / 255))[:, 0].numpy()
    for image, out in zip(x, got, strict=True):
        want = np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L"))
        assert np.abs(out - want).max() <= 0.55


def test_a_box_may_be_as_high_as_the_image_or_as_wide() -> None:
    *_, height, width = draw_boxes(np.random.default_rng(0), 4000, (8, 8), (0.2, 1.0)).T
    high, wide = (height == 8) & (width < 8), (width == 8) & (height < 8)
    assert high.sum() > 100
    assert stats.binomtest(int(high.sum()), int(high.sum() + wide.sum())).pvalue > 0.01


def test_the_only_box_with_the_area_of_a_square_image_is_the_image() -> None:
    """Also where ten tries find no box."""
    boxes = draw_boxes(np.random.default_rng(0), 500, (40, 40), (1.0, 1.0))
    assert (boxes == [0, 0, 40, 40]).all()


@pytest.mark.parametrize("name", ["full", "strong"])
def test_crops_have_a_fifth_of_the_area_or_more(name: str) -> None:
    params = base((3, 64, 64), name).draw(np.random.default_rng(3), 3000)
    assert 0.19 < np.abs(params[:, 1] * params[:, 4]).min() < 0.22  # half sides, of 1


def test_randaugment_without_flips_has_crops_without_flips() -> None:
    crop = ResizedCrop(base(), (0.2, 1.0))
    for flip in (True, False):
        t = RandAugmentTransform(crop, RandAugment(), flip=flip)
        half_x = t.draw(np.random.default_rng(0), 50)[:, 1]
        assert (half_x < 0).any() == flip


def test_rectangles_of_cutmix_fit_images_that_are_not_square() -> None:
    view = cutmix(base((3, 4, 16)))
    _, top, bottom, left, right = view.draw(np.random.default_rng(0), 200).T
    assert (top.min(), bottom.max(), left.min(), right.max()) == (0, 4, 0, 16)
    assert (top <= bottom).all()
    assert (left <= right).all()


def test_no_jitter_changes_nothing() -> None:
    params = torch.from_numpy(ColourJitter(jitter=0.0, grey=0.0).draw(np.random.default_rng(0), 9))
    x = torch.from_numpy(pictures(9)) / 255
    assert torch.equal(adjust_colours(x, params), x)


def test_the_parameters_have_torchvisions_distributions() -> None:
    n = 6000
    params = ColourJitter().draw(np.random.default_rng(0), n)
    blends = params[:, :21].reshape(n, 7, 3)
    jittered = params[:, 21] != 0
    assert stats.binomtest(int(jittered.sum()), n, 0.8).pvalue > 0.01
    grey = blends[:, 6, 0] == 0
    assert stats.binomtest(int(grey.sum()), n, 0.2).pvalue > 0.01
    assert stats.binomtest(int((grey & ~jittered).sum()), n, 0.2 * 0.2).pvalue > 0.01
    assert stats.kstest(params[jittered, 21] * 5 + 0.5, "uniform").pvalue > 0.01
    used = (blends[jittered, :6, 0] != 1).astype(int)
    assert (used.sum(1) == 3).all()
    before = np.bincount(used[:, :3].sum(1), minlength=4)  # the place of the hue in the order
    assert stats.chisquare(before).pvalue > 0.01
    first = np.where(used[:, 0] == 1, 0, 3)
    one = blends[jittered, :6][np.arange(len(used)), first]
    kind = np.where(one[:, 1] != 0, 1, np.where(one[:, 2] != 0, 2, 0))
    assert stats.chisquare(np.bincount(kind)).pvalue > 0.01
    assert stats.kstest((one[:, 0] - 0.6) / 0.8, "uniform").pvalue > 0.01


# ---------------------------------------------------------------------- by name, and as views


def test_full_acts_on_pixels_and_normalises_last() -> None:
    t = base(name="full")
    assert isinstance(t, FullAugmentation)
    x = pictures(12)
    params = t.draw(np.random.default_rng(3), len(x))
    assert params.shape == (12, t.columns)
    got = t(torch.from_numpy(x), torch.from_numpy(params))
    pixels = resized_crop(
        torch.from_numpy(x / 255).float(), torch.from_numpy(params[:, :6]), base_grid((8, 8))
    )
    pixels = adjust_colours(pixels, torch.from_numpy(params[:, 6:]))
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
    torch.testing.assert_close(got, (pixels - mean) / std)
    assert torch.equal(t(torch.from_numpy(x)), base()(torch.from_numpy(x)))  # at test time


def test_half_of_the_images_are_flipped() -> None:
    params = base(name="full").draw(np.random.default_rng(0), 4000)
    assert stats.binomtest(int((params[:, 1] < 0).sum()), 4000, 0.5).pvalue > 0.01


def test_none_and_partial() -> None:
    x = torch.from_numpy(pictures(4))
    none, partial = base(name="none"), base()
    assert not none.random
    assert torch.equal(none(x), partial(x))
    assert (partial.pad, partial.flip, partial.columns) == (2, True, 3)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((64,), torch.float32), ((1, 8, 8), torch.uint8), ((3, 8, 8), torch.float32)],
)
def test_full_needs_colour_images(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="augmentation is 'full' for torch") as caught:
        choose_augmentation(Transform([0.0], [1.0]), "full", shape, dtype)
    assert "\n" not in str(caught.value)
    assert "(3, height, width)" in str(caught.value)


@pytest.mark.parametrize(("shape", "dtype"), [((64,), torch.uint8), ((3, 8, 8), torch.float32)])
def test_strong_needs_uint8_images(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="augmentation is 'strong' for torch") as caught:
        choose_augmentation(Transform([0.0], [1.0]), "strong", shape, dtype)
    assert "(channels, height, width)" in str(caught.value)


def test_strong_is_a_crop_and_then_randaugment() -> None:
    strong, crop = base(name="strong"), ResizedCrop(base(), (0.2, 1.0))
    x = torch.from_numpy(pictures(6))
    params = torch.from_numpy(strong.draw(np.random.default_rng(0), 6))
    levels = to_grey_levels(crop.augment(x, params[:, : crop.columns]))
    want = RandAugment(2, 10, cutout=True)(levels, params[:, crop.columns :].long())
    assert torch.equal(strong(x, params), crop.normalize(want))
    assert not torch.equal(want, levels)


def test_views_of_a_transform() -> None:
    full = base(name="full")
    x = torch.from_numpy(pictures(5))
    assert torch.equal(plain(full)(x), base(name="none")(x))
    crop = crop_and_flip(full, (0.6, 1.0), source="first")
    assert crop.source == "first"
    rng = np.random.default_rng(0)
    pixels = crop.augment(x, torch.from_numpy(crop.draw(rng, 5)))
    strong = randaugment(full, 3, 15)
    params = torch.from_numpy(strong.draw(rng, 5))
    got = strong.augment(pixels, params)
    want = RandAugment(3, 15)(to_grey_levels(pixels), params[:, 3:])
    assert torch.equal(got, want)


def test_cutmix_against_numpy() -> None:
    x = pictures(200, (9, 5))
    view = cutmix(base((3, 9, 5)))
    params = view.draw(np.random.default_rng(0), len(x))
    assert params.shape == (200, view.columns)
    got = view.augment(torch.from_numpy(x), torch.from_numpy(params)).numpy()
    want, shares = x.copy(), []
    for image, (other, top, bottom, left, right) in zip(want, params, strict=True):
        box = slice(int(top), int(bottom)), slice(int(left), int(right))
        image[:, box[0], box[1]] = x[int(other * len(x))][:, box[0], box[1]]
        shares.append((bottom - top) * (right - left) / 45)
    assert np.array_equal(got, want)
    assert 0.25 < np.mean(shares) < 0.4  # half, less what is outside of the image
    assert max(shares) <= 1
    assert torch.equal(
        view.normalize(torch.from_numpy(x)), base((3, 9, 5)).normalize(torch.from_numpy(x))
    )


def test_resized_crops_of_vectors_are_refused() -> None:
    vectors = choose_augmentation(Transform([0.0], [1.0]), "partial", (64,), torch.float32)
    with pytest.raises(ValueError, match=r"shape of one sample is \(64,\), expected \(channels"):
        crop_and_flip(vectors, (0.6, 1.0))
    with pytest.raises(ValueError, match=r"expected \(channels, height, width\) for CutMix"):
        cutmix(vectors)
    with pytest.raises(ValueError, match=r"a sample for RandAugment is 'torch\.float32 of"):
        randaugment(vectors, 1, 1)
