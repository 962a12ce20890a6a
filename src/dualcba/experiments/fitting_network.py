"""The default network for the user's own data, chosen by samples and device."""

from __future__ import annotations

import torch

from dualcba.data import Dataset

CPU_PIXELS = 2_000_000
"""The largest number of training pixels, n · H · W, for a convolutional network on a CPU.

Training then takes about a minute with one thread, including evaluation.
"""


def fitting_network(data: Dataset, device: torch.device) -> tuple[str, str]:
    """Return the name of a network, and the reason.

    It is `mlp` for samples that are not images, and for images on a CPU if the training set has
    more than `CPU_PIXELS` pixels, with all channels counted once; otherwise `resnet18-slim`.


    >>> from dualcba.data.readers.digits import digits
    >>> fitting_network(digits(), torch.device("cpu"))[0]
    'resnet18-slim'
    """
    return network_for(data.input_shape, len(data.train_x), device)


def network_for(shape: tuple[int, ...], samples: int, device: torch.device) -> tuple[str, str]:
    """Return the network for a number of training samples of some shape, and the reason."""
    if len(shape) != 3:
        return "mlp", f"samples have the shape {shape}"
    pixels = samples * shape[1] * shape[2]
    if device.type == "cpu" and pixels > CPU_PIXELS:
        return "mlp", f"{pixels} pixels of training images take long on a CPU"
    return "resnet18-slim", "images"
