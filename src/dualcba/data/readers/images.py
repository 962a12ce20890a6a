"""Read one image, in any format that Pillow supports, as a uint8 array (channels, H, W)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from dualcba.errors import reason

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Pillow logs errors to stderr

ByteArray = NDArray[np.uint8]
ImageShape = tuple[int, int, int]
"""Channels, height and width."""
T = TypeVar("T")

GREY_MODES = {"1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N"}
ALPHA_MODES = {"LA", "PA", "RGBA", "RGBa"}
ORIENTATION = 0x0112  # EXIF tag of a photograph's orientation
UPRIGHT = {  # the operation that turns a photograph of each orientation upright
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
}  # fmt: skip
PHOTO_FORMATS = {"JPEG", "MPO", "WEBP"}  # the EXIF data of other formats may need decoding


def read_image(path: Path, shape: ImageShape | None = None) -> ByteArray:
    """Read an image as a uint8 array (channels, H, W).

    Palettes are converted to colours, transparent pixels to white and 16 bits to 8. Photographs
    are turned upright. With `shape`, the image is scaled to cover it and cropped at the centre.
    """
    return _read(path, lambda image: image_to_array(image, shape))


def is_other_file(path: Path) -> bool:
    """Return whether a file is not an image by its suffix and its content.

    A damaged image has the suffix of an image. A file without a suffix may be an image.
    """
    if not path.suffix or path.suffix.lower() in Image.registered_extensions():
        return False
    try:
        with Image.open(path):
            return False
    except UnidentifiedImageError:
        return True
    except Exception:  # reading it will raise an error with its name
        return False


def _read(path: Path, use: Callable[[Image.Image], T]) -> T:
    """Open an image and call `use` on it; raise a `ValueError` that names the file if it fails."""
    try:
        with Image.open(path) as image:
            return use(image)
    except Exception as error:  # a damaged image may raise anything
        if isinstance(error, OSError) and error.errno is not None:  # a file system error
            raise
        raise ValueError(f"{path} cannot be read as an image: {reason(error)}") from error


def image_to_array(image: Image.Image, shape: ImageShape | None = None) -> ByteArray:
    """Convert a Pillow image to a uint8 array (channels, H, W); see `read_image`.

    >>> image_to_array(Image.new("RGB", (4, 2), (255, 0, 0)))[:, 0, 0].tolist()
    [255, 0, 0]
    >>> image_to_array(Image.new("RGB", (4, 2)), (1, 8, 8)).shape
    (1, 8, 8)
    """
    channels = shape[0] if shape else 1 if image.mode in GREY_MODES else 3
    image.load()  # before reading the orientation: loading a TIFF turns it and resets the tag
    turn = UPRIGHT.get(_orientation(image))
    converted = _convert(image, "L" if channels == 1 else "RGB")
    converted = converted if turn is None else converted.transpose(turn)
    if shape and converted.size != (shape[2], shape[1]):
        converted = ImageOps.fit(converted, (shape[2], shape[1]), Image.Resampling.BILINEAR)
    array = np.asarray(converted, np.uint8)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data may raise anything; the image itself may be intact
        return 1


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """Convert to 8 bits without transparency, in mode `"L"` or `"RGB"`."""
    if image.mode.startswith("I"):  # 16 bits; Pillow would clip them at 255
        high = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(high.clip(0, 255).astype(np.uint8)).convert(mode)
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)


def read_headers(paths: Sequence[Path]) -> list[tuple[int, int, bool]]:
    """Return (height, width, is_grey) of each image without decoding it."""
    return [_read(path, header) for path in paths]


def header(image: Image.Image) -> tuple[int, int, bool]:
    """Return (height, width, is_grey) of an image, which need not be decoded."""
    width, height = image.size
    if image.format in PHOTO_FORMATS and _orientation(image) > 4:  # rotated by 90°
        width, height = height, width
    return height, width, image.mode in GREY_MODES
