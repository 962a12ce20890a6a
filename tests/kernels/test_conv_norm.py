"""Fused convolution, normalisation, residual and ReLU; joint forward passes; cast weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba import Learner
from dualcba.kernels import conv_norm as fused
from dualcba.kernels.conv_norm import applies, conv_norm, folds
from dualcba.nets import Network, ResNet18
from dualcba.normalization.layers import convert_normalization
from dualcba.normalization.statistics import batch_norms, grouped_statistics, without_tracking

Make = Callable[..., Learner]
LAST = torch.channels_last

CASES = [  # channels, samples, size, parts, residual, ReLU
    (64, 8, 4, 2, True, True),
    (20, 6, 5, 3, False, True),
    (130, 4, 3, 1, True, False),
    (64, 10, 2, 5, False, False),
]


def layers(channels: int, seed: int = 0) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    torch.manual_seed(seed)
    conv = nn.Conv2d(8, channels, 3, padding=1, bias=False)
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    nn.init.normal_(norm.bias)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return conv, norm


def reference(
    conv: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None, parts: int, relu: bool
) -> Tensor:
    out = torch.cat([norm(part) for part in conv(x).chunk(parts)])
    out = out if residual is None else out + residual
    return F.relu(out) if relu else out


def compare(case: tuple[Any, ...], device: str, *, training: bool = True) -> None:
    """Compare fused and plain layers: outputs, gradients and running statistics."""
    channels, n, side, parts, shortcut, relu = case
    conv, norm = (m.to(device, memory_format=LAST) for m in layers(channels))
    twin = copy.deepcopy(norm)
    parts = parts if training else 1
    norm.train(training), twin.train(training)
    x = (torch.randn(n, 8, side, side, device=device) + 3).to(memory_format=LAST)
    short = torch.randn(n, channels, side, side, device=device).to(memory_format=LAST)
    given = short.clone() if shortcut else None
    got, want = [], []
    for out, layer in ((got, norm), (want, twin)):
        inputs = [t.clone().requires_grad_(training) for t in (x, given) if t is not None]
        residual = inputs[1] if shortcut else None
        conv.zero_grad()
        with torch.set_grad_enabled(training):
            if layer is norm:
                with grouped_statistics([norm], parts):
                    y = conv_norm(conv, norm, inputs[0], residual, relu=relu)
            else:
                y = reference(conv, twin, inputs[0], residual, parts, relu)
        out.append(y.detach())
        if training:
            (y * torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)).sum().backward()
            out += [t.grad for t in inputs] + [conv.weight.grad]
            out += [layer.weight.grad, layer.bias.grad]
        out += [layer.running_mean, layer.running_var, layer.num_batches_tracked]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)


def untouched(device: str) -> None:
    """`without_tracking` leaves the running statistics unchanged."""
    conv, norm = (m.to(device, memory_format=LAST) for m in layers(20))
    before = [b.clone() for b in norm.buffers()]
    x = torch.randn(4, 8, 5, 5, device=device).to(memory_format=LAST)
    with without_tracking([norm]):
        conv_norm(conv, norm, x)
    assert all(torch.equal(a, b) for a, b in zip(before, norm.buffers(), strict=True))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_without_kernels_the_layers_are_called(case: tuple[Any, ...], training: bool) -> None:
    compare(case, "cpu", training=training)


@pytest.mark.gpu
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_do_what_the_layers_do(case: tuple[Any, ...], training: bool) -> None:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    conv, norm = (m.to("cuda", memory_format=LAST) for m in layers(case[0]))
    assert applies(norm, conv(torch.zeros(2, 8, 4, 4, device="cuda").to(memory_format=LAST)))
    compare(case, "cuda", training=training)
    torch.backends.cudnn.allow_tf32 = before


def test_only_cudnn_convolutions_are_folded(monkeypatch: Any) -> None:
    conv = nn.Conv2d(4, 8, 3, bias=False).to(torch.bfloat16)
    norm, x = nn.BatchNorm2d(8).eval(), torch.zeros(2, 4, 6, 6)
    monkeypatch.setattr(fused, "applies", lambda *_: True)

    def taken(bf16: bool) -> bool:
        monkeypatch.setattr(fused, "has_bfloat16", lambda _: bf16)
        with torch.no_grad():
            return folds(conv, norm, x)

    assert taken(True)
    assert not taken(False)
    with torch.backends.cudnn.flags(enabled=False):
        assert not taken(True)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_without_tracking_no_statistics_change(device: str) -> None:
    untouched(device)


def test_the_kernels_in_tritons_interpreter(interpreted: Callable[[str], None]) -> None:
    """Without a GPU, Triton can interpret the kernels with NumPy."""
    code = (
        "import dualcba.kernels.conv_norm as f, tests.kernels.test_conv_norm as t\n"
        "f.applies = lambda norm, x: True\n"
        "for case in t.CASES:\n"
        "    t.compare(case, 'cpu'), t.compare(case, 'cpu', training=False)\n"
        "t.untouched('cpu')\n"
    )
    interpreted(code)


def error(net: nn.Module, exact: nn.Module, x: Tensor, fused: bool, monkeypatch: Any) -> float:
    """Return the relative squared error of the gradients to those in float64."""
    if not fused:
        monkeypatch.setattr("dualcba.kernels.conv_norm.applies", lambda norm, x: False)
    twin = copy.deepcopy(net)
    with torch.autocast("cuda", dtype=torch.bfloat16), grouped_statistics(batch_norms(twin), 2):
        twin(x).float().logsumexp(1).mean().backward()
    far = sum(
        float((p.grad.double() - q.grad).square().sum())
        for p, q in zip(twin.parameters(), exact.parameters(), strict=True)
    )
    return far / sum(float(q.grad.square().sum()) for q in exact.parameters())


@pytest.mark.gpu
def test_gradients_are_as_exact_as_without_the_kernels(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    net = ResNet18(3, 10, width=32).to("cuda", memory_format=LAST)
    x = torch.randn(32, 3, 32, 32, device="cuda")
    exact = copy.deepcopy(net).double()
    with grouped_statistics(batch_norms(exact), 2):
        exact(x.double()).logsumexp(1).mean().backward()
    with_kernels = error(net, exact, x, True, monkeypatch)
    without = error(net, exact, x, False, monkeypatch)
    assert with_kernels < 1.5 * without


@pytest.mark.gpu
def test_scores_are_as_exact_with_the_normalisation_in_the_weights(monkeypatch: Any) -> None:
    torch.manual_seed(0)
    net = Network(ResNet18(3, 10, width=32), (3, 32, 32), 10).to("cuda", memory_format=LAST)
    for _ in range(20):
        net(3 + torch.randn(64, 3, 32, 32, device="cuda"))  # for realistic running statistics
    net.eval()
    x = (3 + torch.randn(64, 3, 32, 32, device="cuda")).to(memory_format=LAST)
    assert folds(net.module.conv1.to(torch.bfloat16), net.module.bn1, x) is False  # grad enabled
    net.module.conv1.float()
    errors = []
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(x.double())[0]
        for folded in (True, False):
            if not folded:
                monkeypatch.setattr("dualcba.kernels.conv_norm.folds", lambda conv, norm, x: False)
            with net.cast_weights(torch.bfloat16), torch.autocast("cuda", dtype=torch.bfloat16):
                errors.append(float((net(x)[0] - exact).norm() / exact.norm()))
    assert errors[0] != errors[1]  # both variants ran
    assert errors[0] < 1.5 * errors[1]


# ---------------------------------------------------------------- joint forward passes


@pytest.mark.parametrize("norm", ["bn", "cn"])
@pytest.mark.parametrize("method", ["er", "er-dual-cba", "derpp-cba", "clser-dual-cba"])
def test_a_joint_forward_pass_equals_separate_ones(
    method: str, norm: str, make_learner: Make, make_net: Any, teach: Any
) -> None:
    losses = []
    for together in (True, False):
        learner = make_learner(method, network=convert_normalization(make_net(), norm))
        assert learner.network.samplewise
        learner.parts.forward_pass.samplewise = together
        teach(learner, tasks=2, steps=6)
        losses.append(learner.parts.loss_monitor.values[: learner.step])
        losses.append(torch.cat([b.flatten().float() for b in learner.network.buffers()]))
    torch.testing.assert_close(losses[0], losses[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(losses[1], losses[3], rtol=1e-3, atol=1e-4)


class Mixing(nn.Module):
    """A layer in which the samples of a batch interact."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("part", "samplewise"),
    [
        (nn.ReLU(), True),
        (nn.BatchNorm1d(4), True),
        (nn.BatchNorm1d(4, track_running_stats=False), False),
        (Mixing(), False),
    ],
)
def test_networks_in_which_samples_may_interact_are_not_samplewise(
    part: nn.Module, samplewise: bool
) -> None:
    net = Network(nn.Sequential(nn.Linear(3, 4), part, nn.Linear(4, 2)), (3,), 2)
    assert net.samplewise is samplewise


def test_adab2n_is_not_samplewise(make_learner: Make, make_net: Any) -> None:
    learner = make_learner("er", network=convert_normalization(make_net(), "adab2n"))
    assert not learner.network.samplewise


def test_a_cumulative_average_continues_over_parts() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 3)
    apart, together = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    for k, part in enumerate(x.chunk(4)):
        apart.momentum = 1 / (k + 1)
        apart(part)
    for start in (0, 2):
        together.momentum = 1 / (start + 1)
        with grouped_statistics([together], 2, cumulative=True):
            together(x.chunk(2)[start // 2])
        assert together.momentum == 1 / (start + 1)
    assert "forward" not in vars(together)
    for a, b in zip(apart.buffers(), together.buffers(), strict=True):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------- weights cast at once


def taught(net: Network, x: Tensor, lowered: bool) -> tuple[Any, Tensor]:
    """Return a copy with gradients, and its logits; weights cast together or by autocast."""
    twin = copy.deepcopy(net)
    at_once = twin.cast_weights(torch.bfloat16) if lowered else nullcontext()
    with torch.autocast("cpu", dtype=torch.bfloat16), at_once:
        z, _ = twin(x)
    z.sum().backward()
    return twin, z


def test_cast_weights_equal_autocast() -> None:
    torch.manual_seed(0)
    net = Network(ResNet18(3, 5, width=8), (3, 8, 8), 5)
    x = torch.randn(4, 3, 8, 8)
    grads = []
    for lowered in (True, False):
        twin, z = taught(net, x, lowered)
        grads.append([z.detach(), *(p.grad for p in twin.parameters())])
        assert all(p.dtype == torch.float32 for p in twin.parameters())
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_frozen_weights_have_no_gradient_when_cast() -> None:
    net = Network(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,), 2)
    net.module[0].requires_grad_(False)
    with net.cast_weights(torch.bfloat16), torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.ones(2, 3))[0].sum().backward()
    assert net.module[0].weight.grad is None
    assert net.module[2].weight.grad is not None


def test_a_shared_weight_is_cast_in_both_places() -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    net = Network(nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), one, nn.Linear(4, 2)), (4,), 2)
    x, outputs = torch.randn(3, 4), []
    for lowered in (True, False):
        twin, z = taught(net, x, lowered)
        outputs.append((z, twin.module[0].weight.grad))
    for a, b in zip(*outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
