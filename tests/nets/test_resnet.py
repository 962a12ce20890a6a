"""The paper's ResNet-18 and the small networks: shapes and numbers of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dualcba.nets import MLP, ResNet18, make_network


def parameters(channels: int, classes: int, width: int) -> int:
    """Count parameters by the paper: 3×3 stem, four stages of two blocks, a linear layer."""
    total = 9 * channels * width + 2 * width
    before = width
    for stage in range(4):
        w = width * 2**stage
        total += 9 * before * w + 9 * w * w + 4 * w  # first block
        total += 2 * 9 * w * w + 4 * w  # second block
        if stage:
            total += before * w + 2 * w  # 1×1 shortcut and its normalisation
        before = w
    return total + before * classes + classes


@pytest.mark.parametrize(
    ("name", "width", "classes"),
    [("resnet18", 64, 100), ("resnet18", 64, 10), ("resnet18-slim", 20, 100)],
)
def test_parameter_counts(name: str, width: int, classes: int) -> None:
    net = make_network(name, (3, 32, 32), classes)
    assert sum(p.numel() for p in net.parameters()) == parameters(3, classes, width)


def test_the_papers_network_has_eleven_million_parameters() -> None:
    assert parameters(3, 100, 64) == 11_220_132


@pytest.mark.parametrize(
    ("side", "sides"), [(32, [32, 16, 8, 4]), (64, [64, 32, 16, 8]), (8, [8, 4, 2, 1])]
)
def test_stem_of_stride_one_no_max_pool_and_three_halvings(side: int, sides: list[int]) -> None:
    net = ResNet18(3, 10, width=4).eval()
    seen = []
    for block in net.blocks:
        block.register_forward_hook(lambda m, a, out: seen.append(tuple(out.shape[1:])))
    stem = net.conv1(torch.zeros(1, 3, side, side))
    assert stem.shape[2:] == (side, side)
    assert net(torch.zeros(2, 3, side, side)).shape == (2, 10)
    want = [(4 * 2**k, s, s) for k, s in enumerate(sides) for _ in range(2)]
    assert seen == want
    assert not any(isinstance(m, nn.MaxPool2d) for m in net.modules())


def test_no_bias_before_a_normalisation() -> None:
    net = ResNet18(3, 10, width=4)
    assert all(m.bias is None for m in net.modules() if isinstance(m, nn.Conv2d))
    assert net.fc.bias is not None


def test_the_average_pool_comes_before_the_head() -> None:
    """A constant shift of the last feature map shifts the features by the same amount."""
    net = ResNet18(1, 3, width=4).eval()
    maps: list[torch.Tensor] = []
    net.blocks.register_forward_hook(lambda m, a, out: maps.append(out))
    heads: list[torch.Tensor] = []
    net.fc.register_forward_pre_hook(lambda m, a: heads.append(a[0]))
    net(torch.randn(2, 1, 16, 16))
    torch.testing.assert_close(heads[0], maps[0].flatten(2).mean(2))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (17,)])
def test_mlp(shape: tuple[int, ...]) -> None:
    net = MLP(shape, 10, width=32, depth=3)
    inputs = int(torch.tensor(shape).prod())
    hidden = inputs * 32 + 2 * 32 * 32 + 3 * 2 * 32
    assert sum(p.numel() for p in net.parameters()) == hidden + 32 * 10 + 10
    assert net(torch.zeros(4, *shape)).shape == (4, 10)
