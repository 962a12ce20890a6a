"""Single images in many formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_helpers import picture
from PIL import Image

from dualcba.data.readers.images import header, read_image


def test_fitting_keeps_the_proportions(tmp_path: Path) -> None:
    """A vertical bar at the centre keeps its width when the sides are cropped."""
    wide = np.zeros((30, 90, 3), np.uint8)
    wide[:, 40:50] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    out = read_image(tmp_path / "wide.png", (3, 30, 30))
    assert (out[0, 0] > 127).sum() == 10


@pytest.mark.parametrize("kind", ["RGBA", "P", "LA", "RGB"])
def test_what_is_transparent_becomes_white(tmp_path: Path, kind: str) -> None:
    image = Image.new(kind if kind != "P" else "P", (4, 4), 0)
    path = tmp_path / "clear.png"
    image.save(path, **({"transparency": 0} if kind == "P" else {}))
    if kind == "RGB":
        image.save(path, transparency=(0, 0, 0))
    assert read_image(path, (3, 4, 4)).min() == 255


def test_half_transparent(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (200, 100, 0, 128)).save(tmp_path / "half.png")
    assert abs(read_image(tmp_path / "half.png").astype(int)[:, 0, 0] - [227, 177, 127]).max() <= 1


def test_palettes_become_colours(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 4), (250, 10, 20)).convert("P", palette=Image.Palette.ADAPTIVE)
    red.save(tmp_path / "red.png")
    assert read_image(tmp_path / "red.png")[:, 1, 1].tolist() == [250, 10, 20]


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "jpg", "webp", "tif", "ppm"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    Image.new("RGB", (6, 4), (200, 200, 200)).save(tmp_path / f"x.{suffix}")
    out = read_image(tmp_path / f"x.{suffix}", (3, 4, 6))
    assert out.shape == (3, 4, 6)
    assert abs(out.astype(int) - 200).max() <= 1


@pytest.mark.parametrize("suffix", ["jpg", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    """Compared with `ImageOps.exif_transpose`."""
    from PIL import ImageOps

    image, path = picture(1, (16, 8)), tmp_path / f"photo.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif)
    with Image.open(path) as saved:
        height, width, _ = header(saved)
        upright = ImageOps.exif_transpose(saved)
        assert (width, height) == upright.size
        np.testing.assert_array_equal(read_image(path).transpose(1, 2, 0), np.asarray(upright))


def test_damaged_exif_data_do_not_matter(tmp_path: Path) -> None:
    picture(1).save(tmp_path / "x.jpg", exif=b"Exif\0\0nonsense")
    assert read_image(tmp_path / "x.jpg").shape == (3, 6, 8)
