"""Features of a frozen trunk in the memory: the same results as with samples, in less time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner, Transform
from dualcba.nets import ResNet18, freeze

NORMALISED = Transform([0.4], [0.2])


def network() -> nn.Module:
    torch.manual_seed(0)
    return freeze(ResNet18(3, 6, width=4))


def make(*, cached: bool, method: str = "er-dual-cba", **given: Any) -> Learner:
    more = {"outer_every": 2, "width": 16} if method.endswith("cba") else {}
    options = {"buffer": 20, "batch_size": 8, "lr": 0.1, "device": "cpu", **more, **given}
    return Learner(
        network(), (3, 8, 8), 6, method=method, cache_features=cached, transform=NORMALISED,
        **options,
    )  # fmt: skip


class Passes:
    """Counts the samples that pass a layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.samples = 0
        layer.register_forward_hook(self)  # type: ignore[arg-type]

    def __call__(self, layer: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        self.samples += len(args[0])


@pytest.mark.parametrize(
    "method",
    ["er", "er-cba", "er-dual-cba", "er-balanced-cba", "derpp-dual-cba", "clser-cba", "icarl"],
)
def test_the_results_are_those_of_samples(method: str, teach: Any, images: Dataset) -> None:
    slow, fast = (teach(make(cached=cached, method=method)) for cached in (False, True))
    a, b = slow.state_dict()["tensors"], fast.state_dict()["tensors"]
    for name in ("weight", "bias"):
        torch.testing.assert_close(
            b[f"network.module.head.{name}"], a[f"network.module.fc.{name}"],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
    assert torch.equal(a["memory.y"], b["memory.y"])
    for key, value in a.items():
        if key.startswith("adaptor."):
            torch.testing.assert_close(b[key], value, rtol=1e-3, atol=1e-4, msg=key)
    for learner in (slow, fast):
        learner.end_task()
    torch.testing.assert_close(
        fast.predict_proba(images.test_x), slow.predict_proba(images.test_x), rtol=1e-3, atol=1e-4
    )


class Early(nn.Module):
    """Its last layer is nested, and was made first."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = nn.ModuleDict({"out": nn.Linear(7, 2)})
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.LayerNorm(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify["out"](self.body(x))  # type: ignore[no-any-return]


def grown(*, cached: bool, images: Dataset) -> Tensor:
    torch.manual_seed(0)
    net = freeze(Early(), "classify.out")
    learner = Learner(
        net, (3, 8, 8), last_layer="classify.out", cache_features=cached, buffer=20, batch_size=8,
        boundaries="inferred", outer_every=2, width=16, device="cpu",
    )  # fmt: skip
    for k in range(0, 48, 8):
        learner.observe(images.train_x[k : k + 8], images.train_y[k : k + 8].tolist())
    assert net.classify["out"].out_features == 8  # six classes, by doubling
    assert learner.network.head is net.classify["out"]
    assert learner.network.head_name == ("head" if cached else "classify.out")
    return learner.predict_proba(images.test_x)


def test_a_nested_last_layer_grows_as_it_does_with_samples(images: Dataset) -> None:
    slow, fast = (grown(cached=cached, images=images) for cached in (False, True))
    assert fast.shape == (30, 6)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-4)


def test_each_sample_passes_the_trunk_once(teach: Any, images: Dataset) -> None:
    learner = make(cached=True)
    trunk = learner.parts.trunk
    assert trunk is not None
    passes = Passes(trunk.module.conv1)  # type: ignore[arg-type]
    teach(learner)
    assert passes.samples == 2 * 5 * 8
    learner.predict(images.test_x)
    assert passes.samples == 2 * 5 * 8 + len(images.test_x)  # IBN has nothing to estimate


def test_the_memory_has_features(teach: Any, images: Dataset) -> None:
    learner = teach(make(cached=True))
    assert learner.memory.x.dtype == torch.float32
    assert learner.memory.x.shape == (21, 32)
    assert (learner.input_shape, learner.dtype) == ((3, 8, 8), torch.uint8)


def test_the_given_network_stays_whole(teach: Any, images: Dataset) -> None:
    net = network()
    modes = [m.training for m in net.modules()]
    options = {"buffer": 20, "batch_size": 8, "transform": NORMALISED}
    learner = teach(Learner(net, (3, 8, 8), 6, cache_features=True, **options))
    assert [m.training for m in net.modules()] == modes
    net.eval()
    with torch.no_grad():
        z = net(NORMALISED(images.test_x))
    torch.testing.assert_close(z.softmax(1), learner.predict_proba(images.test_x))
    assert learner.network.head is net.get_submodule("fc")


def test_training_mode_of_the_network_has_no_effect(teach: Any) -> None:
    learner = make(cached=True)
    assert learner.parts.trunk is not None
    before = copy.deepcopy(learner.parts.trunk.state_dict())
    learner.parts.trunk.train()
    teach(learner)
    for name, value in learner.parts.trunk.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_state_has_the_trunk(teach: Any, images: Dataset) -> None:
    learner = teach(make(cached=True))
    other = Learner(
        freeze(ResNet18(3, 6, width=4)), (3, 8, 8), 6, cache_features=True, buffer=20,
        batch_size=8, lr=0.1, outer_every=2, width=16, transform=NORMALISED,
    )  # fmt: skip
    other.load_state_dict(learner.state_dict())
    asked = images.test_x
    assert torch.equal(other.predict_proba(asked), learner.predict_proba(asked))
    with pytest.raises(ValueError, match="saved with cache_features True, expected False"):
        make(cached=False).load_state_dict(learner.state_dict())


def test_a_copy(teach: Any, images: Dataset) -> None:
    learner = teach(make(cached=True))
    other, asked = copy.deepcopy(learner), images.test_x
    assert torch.equal(other.predict_proba(asked), learner.predict_proba(asked))


def test_two_learners_share_a_trunk() -> None:
    trunk = network()
    heads = [copy.copy(trunk) for _ in range(2)]
    for net in heads:
        net._modules = dict(trunk._modules)
        net.fc = nn.Linear(32, 6)
        Learner(net, (3, 8, 8), 6, cache_features=True)  # without a warning


def trained_block() -> nn.Module:
    net = network()
    net.get_submodule("conv1").requires_grad_(True)
    return net


def training_mode() -> nn.Module:
    net = network()
    net.get_submodule("bn1").train()
    return net


class Scaled(nn.Module):
    """Reads a weight of its last layer, so it cannot do without this layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(192, 6)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.out.weight.mean() if isinstance(self.out, nn.Linear) else 2.0
        return self.out(x.flatten(1) * scale + 1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("net", "given", "message"),
    [
        (trained_block, {}, "conv1.weight requires a gradient, expected a frozen trunk"),
        (training_mode, {}, "bn1 is in training mode, expected a frozen trunk"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 6)), {}, "0 is in training mode"),
        (Scaled, {}, "without its last layer 'out' the network does not return"),
        (network, {"transform": Transform([0.0], [1.0], pad=1)}, "the augmentation is random"),
        (network, {"augmentation": "full"}, "the augmentation is random, expected none"),
    ],
)
def test_what_cannot_be_cached_is_refused(net: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Learner(net(), (3, 8, 8), 6, cache_features=True, **given)
    assert "\n" not in str(caught.value)


def test_a_bare_layer_has_no_trunk() -> None:
    with pytest.raises(ValueError, match="bare linear layer, expected a frozen trunk"):
        Learner(nn.Linear(5, 6), (5,), 6, cache_features=True, dtype=torch.float32)
