"""The network for a dataset of one's own, if none is given: by its samples and the device."""

from __future__ import annotations

import torch

from dualcba.data import Dataset

CPU_PIXELS = 2_000_000
"""Most pixels of training images, n · H · W, for which a CPU trains a convolutional network: about
a minute with one thread, evaluations included."""


def fitting_network(data: Dataset, device: torch.device) -> tuple[str, str]:
    """Return the name of a network, and why.

    Samples that are not images get `mlp`. So do images on a CPU if there are more than `CPU_PIXELS`
    in the training set, counted once for all channels. Otherwise it is `resnet18-slim`.

    >>> from dualcba.data.readers.digits import digits
    >>> fitting_network(digits(), torch.device("cpu"))[0]
    'resnet18-slim'
    """
    return network_for(data.input_shape, len(data.train_x), device)


def network_for(shape: tuple[int, ...], samples: int, device: torch.device) -> tuple[str, str]:
    """Return the name of a network for so many training samples of a shape, and why."""
    if len(shape) != 3:
        return "mlp", f"samples have the shape {shape}"
    pixels = samples * shape[1] * shape[2]
    if device.type == "cpu" and pixels > CPU_PIXELS:
        return "mlp", f"{pixels} pixels of training images take long on a CPU"
    return "resnet18-slim", "images"
