"""One image: whatever Pillow reads, as (channels, H, W) bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Pixels = NDArray[np.uint8]
T = TypeVar("T")

GREY = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
ALPHA = {"LA", "PA", "RGBA", "RGBa"}
ORIENTATION = 0x0112  # in a photograph's EXIF data; how to turn it upright:
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
TURNED = {"JPEG", "MPO", "WEBP"}  # formats of photographs; others would be decoded to know
NOT_AN_IMAGE = (SyntaxError, ValueError, TypeError, EOFError, IndexError, struct.error,
                Image.DecompressionBombError)  # fmt: skip


def read_image(path: Path, shape: tuple[int, int, int] | None = None) -> Pixels:
    """An image as (channels, H, W) bytes; with a `shape`, made to fit it.

    Palettes become colours, what is transparent becomes white, 16 bits become 8, a photograph
    is turned upright. Another size is scaled to cover the wanted one and cut at the middle.
    """
    return _read(path, lambda image: pixels(image, shape))


def _read(path: Path, use: Callable[[Image.Image], T]) -> T:
    try:
        with Image.open(path) as image:
            return use(image)
    except OSError as error:
        if error.errno is not None:  # of the file system, not of the image
            raise
        raise ValueError(f"{path} cannot be read as an image: {_line(error)}") from error
    except NOT_AN_IMAGE as error:
        raise ValueError(f"{path} cannot be read as an image: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def pixels(image: Image.Image, shape: tuple[int, int, int] | None = None) -> Pixels:
    """A Pillow image as (channels, H, W) bytes; see `read_image`.

    >>> pixels(Image.new("RGB", (4, 2), (255, 0, 0)))[:, 0, 0].tolist()
    [255, 0, 0]
    >>> pixels(Image.new("RGB", (4, 2)), (1, 8, 8)).shape
    (1, 8, 8)
    """
    channels = shape[0] if shape else 1 if image.mode in GREY else 3
    image.load()  # first: of a TIFF this turns it, and forgets the orientation
    turn = UPRIGHT.get(_orientation(image))
    flat = _flat(image, "L" if channels == 1 else "RGB")
    flat = flat if turn is None else flat.transpose(turn)
    if shape and flat.size != (shape[2], shape[1]):
        flat = ImageOps.fit(flat, (shape[2], shape[1]), Image.Resampling.BILINEAR)
    array = np.asarray(flat, np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except (SyntaxError, ValueError, TypeError, OSError, struct.error):
        return 1  # the image may be sound though its EXIF data are not


def _flat(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        high = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(high.clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)


def probe(paths: Sequence[Path]) -> list[tuple[int, int, bool]]:
    """Height, width and whether grey, from the headers alone."""
    return [_read(path, _header) for path in paths]


def _header(image: Image.Image) -> tuple[int, int, bool]:
    width, height = image.size
    if image.format in TURNED and _orientation(image) > 4:  # lies on its side
        width, height = height, width
    return height, width, image.mode in GREY
