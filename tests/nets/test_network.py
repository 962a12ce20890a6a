"""The wrapper of networks: features, logits and the search for the head."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from dualcba.engine.torch_private import has_forward_hooks
from dualcba.nets import NETWORKS, Network, make_network
from dualcba.plugin import BiasAdaptor


class Unordered(nn.Module):
    """The last layer is not the last one created."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.inside = nn.ModuleDict({"a": nn.Linear(4, 8)})

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inside["a"](x).relu())  # type: ignore[no-any-return]


def test_logits_and_the_features_of_the_head() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    net = Network(module, (4,), 3)
    x = torch.randn(5, 4)
    z, h = net(x)
    assert torch.equal(z, module(x))
    assert torch.equal(h, module[1](module[0](x)))
    torch.testing.assert_close(h @ net.head.weight.T + net.head.bias, z)
    assert net.head is module[2]


def test_gradients_reach_features_and_logits() -> None:
    net = Network(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (4,), 3)
    z, h = net(torch.randn(5, 4))
    (z.sum() + h.sum()).backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_nested_head_is_found() -> None:
    net = Network(nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))), (4,), 3)
    assert net.head_name == "0.1"


def test_the_head_may_be_the_whole_network() -> None:
    net = Network(nn.Linear(4, 3), (4,), 3, head="")
    z, h = net(torch.ones(2, 4))
    assert torch.equal(h, torch.ones(2, 4))
    assert z.shape == (2, 3)
    assert Network(nn.Linear(4, 3), (4,), 3).head is not None


def test_a_head_can_be_named() -> None:
    assert Network(Unordered(), (4,), 3, head="out").head_name == "out"


def test_a_head_that_was_not_created_last_is_found_or_an_error() -> None:
    """The head is found, or the error names the layer to specify."""
    try:
        net = Network(Unordered(), (4,), 3)
    except ValueError as error:
        assert "inside.a" in str(error)  # noqa: PT017
    else:
        assert net.head_name == "out"


def test_the_check_of_the_network_does_not_change_it() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).train()
    before = copy.deepcopy(module.state_dict())
    Network(module, (4,), 3)
    assert module.training
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_half_precision_outputs_become_float32() -> None:
    net = Network(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (4,), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, h = net(torch.randn(2, 4))
    assert (z.dtype, h.dtype) == (torch.float32, torch.float32)
    z, h = net.double()(torch.randn(2, 4).double())
    assert (z.dtype, h.dtype) == (torch.float64, torch.float64)


def test_a_head_can_be_replaced() -> None:
    net = Network(nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))), (4,), 3)
    new = nn.Linear(8, 3, bias=False)
    net.replace_head(new)
    z, h = net(torch.randn(2, 4))
    assert net.head is new
    assert torch.equal(z, new(h))


@pytest.mark.parametrize(
    ("module", "head", "words"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.ReLU()),
            None,
            ["Sequential", "no linear layer", "expected"],
        ),
        (nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten()), None, ["no linear layer"]),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), None, ["'0'", "not the out", "(n, 3)"]),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)), "0", ["'0'", "not the out"]),
        (nn.Sequential(nn.Linear(4, 7)), None, ["'0'", "7", "expected 3"]),
        (nn.Sequential(nn.Linear(9, 3)), None, ["inputs of shape (4,)"]),
        (nn.Sequential(nn.Linear(4, 3)), "fc", ["linear layer", "'fc'", "0"]),
        (Unordered(), "outt", ["'outt'", "did you mean 'out'"]),
    ],
)
def test_networks_that_do_not_fit(module: nn.Module, head: str | None, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Network(module, (4,), 3, head=head)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert not any(has_forward_hooks(m) for m in module.modules())


class ByKeyword(nn.Module):
    """Calls its last layer by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(input=self.inside(x).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize("cosine", [False, True])
def test_a_last_layer_may_be_called_by_keyword(cosine: bool) -> None:
    module, x = ByKeyword(), torch.randn(5, 4)
    network = Network(module, (4,), 3)
    if cosine:
        network.use_cosine_head(2.0, learnt=False)
    z, h = network(x)
    assert torch.equal(z, module(x))
    assert torch.equal(h, module.inside(x).relu())
    assert not has_forward_hooks(network.head)
    if not cosine:
        adaptor = BiasAdaptor(module.out, torch.optim.SGD(module.parameters(), lr=0.1))
        assert all(map(torch.equal, adaptor.outputs(module, x), (z, h)))


class InPlace(nn.Module):
    """Normalises its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x[:, 0].mul_(2.0)  # a view of it; zeros stay zeros
        return self.out(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("inference", [False, True])
def test_a_network_that_changes_its_input_is_refused(inference: bool) -> None:
    module = InPlace()
    words = "the network changes its input in place, expected an unchanged input"
    with torch.inference_mode(inference), pytest.raises(ValueError, match=words):
        Network(module, (4,), 3)


def test_changes_of_what_a_layer_returned_are_accepted() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    with torch.inference_mode():
        assert Network(module, (4,), 3).head_name == "2"


def test_no_hooks_remain_on_the_module() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    first, second = Network(module, (4,), 3), Network(module, (4,), 3)
    for net in (first, second):
        z, h = net(torch.ones(2, 4))
        assert torch.equal(h, torch.ones(2, 4))
        assert torch.equal(z, module(h))
    with pytest.raises(RuntimeError):
        first(torch.ones(2, 5))
    assert not any(has_forward_hooks(m) for m in module.modules())
    assert b"dualcba" not in pickle.dumps(module)


def test_hooks_of_the_caller_are_called() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].register_forward_pre_hook(lambda _, args: (2 * args[0],))
    assert torch.equal(Network(module, (4,), 3)(torch.ones(2, 4))[1], torch.full((2, 4), 2.0))


def test_a_copy_returns_its_own_features() -> None:
    net = Network(nn.Sequential(nn.Linear(4, 3)), (4,), 3)
    twin = copy.deepcopy(net)
    del net
    x = torch.randn(2, 4)
    assert torch.equal(twin(x)[1], x)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_by_name(name: str) -> None:
    net = Network(make_network(name, (1, 8, 8), 10), (1, 8, 8), 10)
    z, h = net(torch.zeros(2, 1, 8, 8))
    assert z.shape == (2, 10)
    assert h.shape[1] == net.head.weight.shape[1]  # type: ignore[union-attr]


def test_unknown_networks_and_shapes() -> None:
    with pytest.raises(ValueError, match="unknown network 'resnet-18', did you mean 'resnet18'"):
        make_network("resnet-18", (3, 32, 32), 10)
    for name in ("resnet18", "resnet18-slim"):
        with pytest.raises(ValueError, match=r"\(64,\), expected \(channels, height, width\)"):
            make_network(name, (64,), 10)
