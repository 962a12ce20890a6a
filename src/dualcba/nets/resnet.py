"""The paper's ResNet-18 for images of 32 to 64 pixels: 3×3 stem of stride 1, no max-pooling."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from dualcba.kernels.conv_norm import conv_norm

Norm = Callable[[int], nn.Module]


class _Block(nn.Module):
    """A residual block of two 3×3 convolutions."""

    samplewise = True

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = conv_norm(self.conv1, self.bn1, x)
        short = x
        if len(self.shortcut):
            short = conv_norm(self.shortcut[0], self.shortcut[1], x, relu=False)
        return conv_norm(self.conv2, self.bn2, out, short)


class ResNet18(nn.Module):
    """ResNet-18 with `width` base channels: 64 in the paper, 20 in the slim variant.

    >>> net = ResNet18(3, 100)
    >>> sum(p.numel() for p in net.parameters())
    11220132
    """

    samplewise = True

    def __init__(
        self, channels: int, num_classes: int, *, width: int = 64, norm: Norm = nn.BatchNorm2d
    ) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = norm(width)
        blocks: list[nn.Module] = []
        before = width
        for stage, w in enumerate(widths):
            blocks += [_Block(before, w, 1 if stage == 0 else 2, norm), _Block(w, w, 1, norm)]
            before = w
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, num_classes) of images (n, channels, H, W)."""
        out = self.blocks(conv_norm(self.conv1, self.bn1, x))
        return self.fc(out.mean((2, 3)))  # type: ignore[no-any-return]
