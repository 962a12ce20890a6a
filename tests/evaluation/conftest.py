"""Images that no classifier recognises all of, so that wrong numbers differ from right ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dualcba import Dataset


@pytest.fixture
def hard_images(images: Dataset) -> Dataset:
    """`images` under noise that is larger than they are."""
    rng = np.random.default_rng(5)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (0.3 * x + 0.7 * torch.from_numpy(rng.integers(0, 256, x.shape))).byte()

    return replace(images, train_x=noisy(images.train_x), test_x=noisy(images.test_x))
