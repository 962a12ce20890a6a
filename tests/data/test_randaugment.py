"""RandAugment compared with the operations of Pillow, image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch._subclasses.fake_tensor import FakeTensorMode

from dualcba.data import Transform
from dualcba.data.randaugment import (
    OPERATIONS,
    RandAugment,
    RandAugmentTransform,
    make_tables,
    source_pixels,
)
from dualcba.engine.packet import pack, unpack

MOVES = OPERATIONS[1:6]
BLENDS = OPERATIONS[6:10]
SIZES = [(32, 32), (20, 27), (64, 64), (3, 3)]
Pixels = NDArray[np.uint8]


def pictures(size: tuple[int, int], channels: int = 3) -> Pixels:
    """(5, channels, H, W): noise, dark noise, a smooth picture, one grey level, two grey levels."""
    rng = np.random.default_rng(1)
    shape = (channels, *size)
    noise = rng.integers(0, 256, shape)
    dark = rng.integers(40, 90, shape)
    y, x = np.mgrid[: size[0], : size[1]] / max(size)
    smooth = np.stack([127 + 100 * np.sin(3 * x + 2 * c * y + c) for c in range(channels)])
    flat = np.full(shape, 77)
    two = rng.choice([10, 200], shape, p=[0.9, 0.1])
    return np.stack([noise, dark, smooth, flat, two]).astype(np.uint8)


def to_pillow(picture: Pixels) -> Image.Image:
    return Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))


def from_pillow(image: Image.Image) -> Pixels:
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def by_pillow(name: str, image: Image.Image, magnitude: int, sign: int) -> Image.Image:
    """The operation as Pillow does it, with the usual ranges over 31 bins."""
    w, h = image.size
    level = sign * magnitude / 30

    def affine(*matrix: float) -> Image.Image:
        return image.transform((w, h), Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)

    return {
        "identity": lambda: image,
        "shear-x": lambda: affine(1, 0.3 * level, 0, 0, 1, 0),
        "shear-y": lambda: affine(1, 0, 0, 0.3 * level, 1, 0),
        "translate-x": lambda: affine(1, 0, int(150 / 331 * w * level), 0, 1, 0),
        "translate-y": lambda: affine(1, 0, 0, 0, 1, int(150 / 331 * h * level)),
        "rotate": lambda: image.rotate(30 * level),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(1 + 0.9 * level),
        "color": lambda: ImageEnhance.Color(image).enhance(1 + 0.9 * level),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(1 + 0.9 * level),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * level),
        "posterize": lambda: ImageOps.posterize(image, 8 - round(magnitude / 7.5)),
        "solarize": lambda: ImageOps.solarize(image, 255 - 255 * magnitude / 30),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
    }[name]()


def augmented(augment: RandAugment, x: Pixels, *rows: int) -> Pixels:
    params = torch.tensor([rows] * len(x))
    return augment(torch.from_numpy(x), params).numpy()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("magnitude", [0, 1, 5, 10, 14, 15, 22, 30])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows(name: str, magnitude: int, sign: int) -> None:
    augment = RandAugment(magnitude=magnitude)
    for size in SIZES:
        for channels in (3, 1):
            x = pictures(size, channels)
            ours = augmented(augment, x, augment.row(name, sign))
            theirs = np.stack(
                [from_pillow(by_pillow(name, to_pillow(p), magnitude, sign)) for p in x]
            )
            off = np.abs(ours.astype(int) - theirs)
            if name in BLENDS:  # single precision: another compiler may round a product differently
                assert off.max() <= 1
                assert (off > 0).mean() < 0.01
            else:
                assert off.max() == 0


@pytest.mark.parametrize("name", [*MOVES, *BLENDS])
def test_the_sign_reverses_the_operation(name: str) -> None:
    augment, x = RandAugment(magnitude=20), pictures((32, 32))[:1]
    plus, minus = (augmented(augment, x, augment.row(name, sign)) for sign in (1, -1))
    assert (plus != x).mean() > 0.2
    assert (minus != x).mean() > 0.2
    assert (plus != minus).mean() > 0.2


def test_a_mixed_batch_is_its_images_one_by_one() -> None:
    augment = RandAugment(operations=2, magnitude=[5, 14, 30], cutout=True)
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.integers(0, 256, (64, 3, 16, 16), dtype=np.uint8))
    params = torch.from_numpy(augment.draw(rng, 64))
    whole = augment(x, params)
    single = torch.cat([augment(x[i : i + 1], params[i : i + 1]) for i in range(64)])
    assert torch.equal(whole, single)
    assert torch.equal(whole, augment(x.contiguous(memory_format=torch.channels_last), params))


def test_operations_follow_each_other() -> None:
    two, one = RandAugment(2, magnitude=12), RandAugment(1, magnitude=12)
    x = pictures((32, 32))
    rows = two.row("rotate"), two.row("equalize")
    assert np.array_equal(
        augmented(two, x, *rows), augmented(one, augmented(one, x, rows[0]), rows[1])
    )


def test_shape_type_and_input_left_alone() -> None:
    augment = RandAugment()
    x = torch.from_numpy(pictures((20, 27)))
    before = x.clone()
    out = augment(x, torch.from_numpy(augment.draw(np.random.default_rng(0), len(x))))
    assert out.shape == x.shape
    assert out.dtype == torch.uint8
    assert torch.equal(x, before)


def test_the_same_generator_gives_the_same_images() -> None:
    augment, x = RandAugment(2, 10, cutout=True), torch.from_numpy(pictures((32, 32)))
    first, again, other = (
        augment(x, torch.from_numpy(augment.draw(np.random.default_rng(seed), len(x))))
        for seed in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_operations_and_signs_are_uniform() -> None:
    n = 56_000
    augment = RandAugment(operations=2, magnitude=14)
    params = augment.draw(np.random.default_rng(0), n)
    assert params.shape == (n, 2)
    assert params.dtype == np.int64
    for column in params.T:  # 28 rows, 2000 draws each: five standard deviations are 220
        assert np.abs(np.bincount(column, minlength=28) - n / 28).max() < 220
    pairs = np.bincount(params[:, 0] * 28 + params[:, 1], minlength=28 * 28)
    assert np.abs(pairs - n / 28**2).max() < 50  # the second does not depend on the first
    names = {augment.row(name, sign) for name in OPERATIONS for sign in (1, -1)}
    assert names == set(range(28))


def test_several_magnitudes_are_each_drawn_and_applied() -> None:
    augment = RandAugment(magnitude=range(1, 11))
    params = augment.draw(np.random.default_rng(0), 10_000)
    assert np.unique(params).tolist() == list(range(280))
    x = pictures((32, 32))
    for magnitude in (1, 10):
        ours = augmented(augment, x, augment.row("rotate", 1, magnitude))
        alone = RandAugment(magnitude=magnitude)
        assert np.array_equal(ours, augmented(alone, x, alone.row("rotate")))


def test_parameters_can_be_packed() -> None:
    params = RandAugment(2, 10, cutout=True).draw(np.random.default_rng(0), 7)
    packet, layout = pack({"a": params})
    assert np.array_equal(unpack(torch.from_numpy(packet), layout)["a"].numpy(), params)


def test_color_leaves_one_channel_alone() -> None:
    augment, x = RandAugment(magnitude=30), pictures((16, 16), 1)
    assert np.array_equal(augmented(augment, x, augment.row("color")), x)


def test_the_grey_of_two_channels_is_their_mean_rounded() -> None:
    augment = RandAugment(magnitude=30)
    x = torch.tensor([10, 21], dtype=torch.uint8).view(1, 2, 1, 1)  # 16 + 0.1 · (−6, 5)
    out = augment(x, torch.tensor([[augment.row("color", sign=-1)]]))
    assert out.flatten().tolist() == [15, 16]


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 3), (8, 8)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_small_images_and_other_numbers_of_channels(shape: tuple[int, int], channels: int) -> None:
    augment = RandAugment(cutout=True)
    x = torch.from_numpy(pictures(shape, channels))
    for row in range(28):
        params = torch.tensor([[row, 40_000, 3]] * len(x))
        assert augment(x, params).shape == x.shape


def test_cutout_greys_a_square_of_half_the_side() -> None:
    augment = RandAugment(cutout=True)
    x = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
    row, middle = augment.row("identity"), 1 << 15
    params = torch.tensor([[row, middle, middle], [row, 0, 0], [row, 65_535, middle]])
    out = augment(x, params)
    assert sorted(out.unique().tolist()) == [0, 127]
    want = torch.zeros_like(out)
    want[0, :, 8:24, 8:24] = 127
    want[1, :, :8, :8] = 127
    want[2, :, 23:, 8:24] = 127
    assert torch.equal(out, want)


def test_cutout_centres_are_uniform() -> None:
    params = RandAugment(cutout=True).draw(np.random.default_rng(0), 20_000)
    pixel = params[:, 1:] * 32 // 65_536
    for column in pixel.T:  # 625 each: five standard deviations are 123
        assert np.abs(np.bincount(column, minlength=32) - 625).max() < 123


def test_tables_are_made_once_for_a_size() -> None:
    augment = RandAugment()
    for size in ((8, 8), (8, 8), (8, 9)):
        augmented(augment, pictures(size), 0)
    assert len(augment._tables) == 2


def test_tables_of_magnitude_zero_change_nothing() -> None:
    tables = make_tables([0], 6, 5, torch.device("cpu"))
    assert torch.equal(tables.source, torch.arange(30).expand(28, -1))
    assert tables.factor.unique().tolist() == [1.0]
    plain = [i for i, name in enumerate(OPERATIONS) if name != "solarize"]  # 255 becomes 0 there
    levels = tables.levels.view(14, 2, 256)[plain]
    assert torch.equal(levels, torch.arange(256).to(torch.uint8).expand_as(levels))


def test_outside_is_marked() -> None:
    assert source_pixels((1, 0, 0, 0, 1, -1), 2, 2).tolist() == [4, 4, 0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"magnitude": 31}, "magnitude is 31, expected 0 to 30"),
        ({"magnitude": [3, -1]}, r"magnitude is \[3, -1\], expected 0 to 30"),
        ({"magnitude": []}, r"magnitude is \[\], expected 0 to 30"),
        ({"operations": 0}, "operations is 0, expected a whole number of at least 1"),
    ],
)
def test_impossible_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandAugment(**options)


def test_other_inputs_than_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float32 of shape \(3, 8, 8\)"):
        RandAugment()(torch.zeros(1, 3, 8, 8), torch.zeros(1, 1, dtype=torch.long))


# ---------------------------------------------------------------------- as a transform


def test_transform_crops_then_augments_then_normalises() -> None:
    base = Transform([0.4, 0.5, 0.6], [0.2, 0.3, 0.4], pad=4, flip=True)
    augment = RandAugment(magnitude=14)
    both = RandAugmentTransform(base, augment)
    x = torch.from_numpy(pictures((32, 32)))
    params = torch.from_numpy(both.draw(np.random.default_rng(0), len(x)))
    want = base.normalize(augment(base.augment(x, params[:, :3]), params[:, 3:]))
    assert torch.equal(both(x, params), want)
    assert torch.equal(both(x), base(x))  # no augmentation at test time


def test_transform_without_flip_still_crops() -> None:
    both = RandAugmentTransform(
        Transform([0.5], [0.5], pad=4, flip=True), RandAugment(), flip=False
    )
    params = both.draw(np.random.default_rng(0), 500)
    assert both.random
    assert set(params[:, 0]) == set(range(9))
    assert set(params[:, 2]) == {0}


def test_transform_without_a_crop() -> None:
    both = RandAugmentTransform(Transform([0.5], [0.5]), RandAugment())
    x = torch.from_numpy(pictures((8, 8)))
    params = torch.from_numpy(both.draw(np.random.default_rng(0), len(x)))
    assert params.shape == (5, 4)
    assert torch.equal(both.augment(x, params), both.randaugment(x, params[:, 3:]))


def test_transform_without_a_crop_still_flips() -> None:
    both = RandAugmentTransform(Transform([0.5], [0.5], flip=True), RandAugment())
    x = torch.from_numpy(pictures((8, 8)))
    params = torch.tensor([[0, 0, 1, both.randaugment.row("identity")]] * len(x))
    assert torch.equal(both.augment(x, params), x.flip(3))


def test_transform_after_another_one() -> None:
    first = RandAugmentTransform(Transform([0.5], [0.5], pad=2, flip=True), RandAugment(2))
    both = RandAugmentTransform(first, RandAugment(cutout=True), flip=False)
    x = torch.from_numpy(pictures((8, 8)))
    params = torch.from_numpy(both.draw(np.random.default_rng(0), len(x)))
    assert params.shape == (5, both.columns) == (5, 8)
    assert set(params[:, 2].tolist()) == {0}  # no flip, nor of the first
    once = first.augment(x, params[:, :5])
    assert torch.equal(both.augment(x, params), both.randaugment(once, params[:, 5:]))
    assert first.flip
    assert first.base.flip


def test_nothing_is_read_back_from_the_device() -> None:
    augment = RandAugment(operations=2, cutout=True)
    x = torch.from_numpy(pictures((8, 8)))
    params = torch.from_numpy(augment.draw(np.random.default_rng(0), len(x)))
    augment(x, params)  # makes the tables, as the first steps do before a graph is captured
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:  # has shapes only, no values to read
        assert augment(fake.from_tensor(x), fake.from_tensor(params)).shape == x.shape


@pytest.mark.gpu
def test_cuda_gives_the_same_images_and_can_be_captured() -> None:
    augment = RandAugment(operations=2, magnitude=[5, 14, 30], cutout=True)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (96, 3, 32, 32), dtype=np.uint8))
    params = torch.from_numpy(augment.draw(rng, 96))
    on_device = x.cuda(), params.cuda()
    off = (augment(*on_device).cpu().int() - augment(x, params).int()).abs()
    assert (off > 0).float().mean() < 0.001
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = augment(*on_device)
    graph.replay()
    assert torch.equal(out, augment(*on_device))
