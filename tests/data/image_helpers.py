"""Small images and folders of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(value: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> Image.Image:
    """An image of random pixels, of size (width, height)."""
    pixels = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def fill(root: Path, counts: dict[str, int], first: int = 0, **how: Any) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for k in range(count):
            picture(first + k, **how).save(root / name / f"{k:03}.png")
        first += count
    return root


def truncated(path: Path) -> None:
    picture(0, (64, 64)).save(path)
    path.write_bytes(path.read_bytes()[:3000])
