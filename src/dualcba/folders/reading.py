"""Read files of a growing folder as images."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dualcba.data.readers.images import ByteArray, ImageShape, header, image_to_array
from dualcba.errors import reason
from dualcba.folders.watching import File, mark_of

LARGEST_SIDE = 32
"""Larger images are scaled to this height and width, unless a size is given."""


class ChangedError(Exception):
    """A file was changed or removed since it was found."""


@dataclass(frozen=True)
class Content:
    """The bytes of a file and their SHA-256."""

    file: File
    data: bytes
    sha256: str


@dataclass(frozen=True)
class Sample:
    """An image that is ready to be learnt."""

    file: File
    sha256: str
    image: ByteArray
    since: float
    """The time when it was read, on the monotonic clock."""


def read_content(root: Path, file: File) -> Content:
    """Read a file; raise a `ChangedError` if it was changed or removed."""
    path = root / file.path
    try:
        data = path.read_bytes()
        same = mark_of(path) == file.mark and len(data) == file.mark[0]
    except FileNotFoundError:
        same = False
    if not same:
        raise ChangedError(file.path)
    return Content(file, data, hashlib.sha256(data).hexdigest())


def decode(data: bytes, shape: ImageShape | None = None) -> ByteArray:
    """Return an image as a uint8 array; raise a ValueError if it is not an image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about large images or odd metadata
            with Image.open(io.BytesIO(data)) as image:
                return image_to_array(image, shape)
    except Exception as error:  # a damaged image may raise anything
        raise ValueError(_why(data, error)) from None


def _why(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    return reason(error).replace("<_io.BytesIO object at ", "").split(" 0x")[0].splitlines()[0]


Header = tuple[int, int, bool]
"""Height, width, and whether an image is grey."""


def read_header(data: bytes) -> Header | None:
    """Return the size of an image and whether it is grey, or None if it is not an image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return header(image)
    except Exception:  # a damaged image may raise anything
        return None


def fitting_shape(headers: Sequence[Header], size: int | None, colour: str) -> ImageShape:
    """Return the channels, height and width for images with these headers.

    Without `size`, it is the most common size, at most 32 × 32. `colour` is `grey`, `rgb` or `auto`
    (grey if all images are).


    >>> fitting_shape([(8, 8, True), (300, 400, True), (8, 8, True)], None, "auto")
    (1, 8, 8)
    >>> fitting_shape([(300, 400, False)], None, "auto")
    (3, 32, 32)
    """
    grey = all(is_grey for _, _, is_grey in headers) if colour == "auto" else colour == "grey"
    sizes = Counter((height, width) for height, width, _ in headers)
    height, width = min(sizes, key=lambda s: (-sizes[s], s))
    if size is None:
        return 1 if grey else 3, min(height, LARGEST_SIDE), min(width, LARGEST_SIDE)
    return 1 if grey else 3, size, size
