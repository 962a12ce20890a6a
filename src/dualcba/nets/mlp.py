"""A multi-layer perceptron with batch normalisation, for vectors and small images on a CPU."""

from __future__ import annotations

import math

from torch import Tensor, nn


class MLP(nn.Module):
    """`depth` hidden layers of `width` units with batch normalisation, then a linear layer.

    >>> import torch
    >>> MLP((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    samplewise = True

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, width: int = 256, depth: int = 2
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(input_shape)
        for _ in range(depth):
            layers += [nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
            inputs = width
        self.hidden = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, num_classes) of inputs (n, *input_shape)."""
        return self.fc(self.hidden(x))  # type: ignore[no-any-return]
