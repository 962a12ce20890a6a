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
    if len(data.input_shape) != 3:
        return "mlp", f"samples have the shape {data.input_shape}"
    pixels = len(data.train_x) * data.input_shape[1] * data.input_shape[2]
    if device.type == "cpu" and pixels > CPU_PIXELS:
        return "mlp", f"{pixels} pixels of training images take long on a CPU"
    return "resnet18-slim", "images"
