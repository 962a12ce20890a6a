"""The kernel of the augmentation against plain torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dualcba.data.augmentation import FullAugmentation, ResizedCrop, choose_augmentation
from dualcba.data.transforms import Transform
from dualcba.kernels import augment as fused

SIZES = [(32, 32), (8, 8), (9, 5), (64, 64)]


def compare(size: tuple[int, int], device: str) -> None:
    """Crop alone and full augmentation, of bytes and floats."""
    rng = np.random.default_rng(0)
    transform = Transform([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    base = choose_augmentation(transform, "none", (3, *size), torch.uint8)
    pictures = rng.integers(0, 256, (12, 3, *size), dtype=np.uint8)
    pictures[0], pictures[1], pictures[2] = 0, 255, pictures[2, :1]
    for kind in (ResizedCrop(base, (0.2, 1.0)), FullAugmentation(base)):
        params = torch.from_numpy(kind.draw(rng, len(pictures)))
        for x in (torch.from_numpy(pictures), torch.from_numpy(pictures) / 255):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fused, "applies", lambda *_: False)
                want = kind(x, params)
            got = kind.to(device)(x.to(device), params.to(device)).cpu()
            kind.to("cpu")
            torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
            assert (got - want).abs().mean() < 1e-5


def everything(device: str) -> None:
    for size in SIZES[:3]:
        compare(size, device)


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_equals_plain_torch(size: tuple[int, int]) -> None:
    assert fused.applies(torch.zeros(2, 3, *size, device="cuda"))
    compare(size, "cuda")


def test_other_devices_and_images_use_plain_torch() -> None:
    assert not fused.applies(torch.zeros(2, 3, 8, 8))
    assert not fused.applies(torch.zeros(2, 3, 8, 8, device="meta"))


def test_the_kernel_in_tritons_interpreter(interpreted: Callable[[str], None]) -> None:
    """Without a GPU, Triton can interpret the kernel with NumPy."""
    interpreted(
        "import dualcba.kernels.augment as f, tests.kernels.test_augment_kernels as t\n"
        "f.applies = lambda *_: True\n"
        "t.everything('cpu')\n"
    )
