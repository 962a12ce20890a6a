"""IBN as a context around anybody's evaluation: what it sets, and that all is restored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plugin_helpers import bits
from torch import Tensor, nn

from dualcba.plugin import ibn


@pytest.fixture
def net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.BatchNorm1d(3), nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Dropout(0.5)
        )
        net(torch.randn(6, 3) + 2)
    return net


def samples(n: int = 450) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_statistics_are_those_of_the_samples(net: nn.Sequential) -> None:
    x = samples(40)
    with ibn(net, x):
        torch.testing.assert_close(net[0].running_mean, x.mean(0))
        torch.testing.assert_close(net[0].running_var, x.var(0))
        assert not net.training
        assert not net[3].training


def test_a_tensor_an_iterable_and_a_function_give_the_same(net: nn.Sequential) -> None:
    x = samples()  # three batches of 150
    found = []
    for given in (x, x.split(150), lambda: iter(x.split(150))):
        with ibn(net, given):
            found.append(bits(net))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("n", [101, 201, 301])
def test_a_last_batch_of_one_joins_the_one_before(net: nn.Sequential, n: int) -> None:
    x = samples(n)
    found = []
    for given in (lambda: x.split(100), x.split([100] * (n // 100 - 1) + [101])):
        with ibn(net, given):
            found.append(bits(net))
    assert found[0] == found[1]


@pytest.mark.parametrize("training", [True, False])
def test_all_is_restored_after_an_error(net: nn.Sequential, training: bool) -> None:
    net.train(training)
    net[3].train(not training)
    before = bits(net), [m.training for m in net.modules()], net[2].momentum

    def check() -> None:
        assert (bits(net), [m.training for m in net.modules()], net[2].momentum) == before

    def evaluate() -> None:
        with ibn(net, samples()):
            net.train()
            net(samples(5))
            raise KeyError

    with pytest.raises(KeyError):
        evaluate()
    check()
    for bad in (torch.zeros(4, 7), [samples(4), "x"]):  # the estimate itself fails
        with pytest.raises((RuntimeError, TypeError, AttributeError, ValueError)), ibn(net, bad):
            raise AssertionError
        check()


def test_frozen_layers_keep_their_statistics(net: nn.Sequential) -> None:
    net[0].eval()
    frozen, trained = net[0].running_mean.clone(), net[2].running_mean.clone()
    with ibn(net, samples()):
        assert torch.equal(net[0].running_mean, frozen)
        assert not torch.equal(net[2].running_mean, trained)


def test_a_network_in_evaluation_mode_has_its_statistics_estimated(net: nn.Sequential) -> None:
    net.eval()
    before = net[0].running_mean.clone()
    with ibn(net, samples()):
        assert not torch.equal(net[0].running_mean, before)


@pytest.mark.parametrize("given", [samples(1), samples(0), [], list, [samples(1)]], ids=range(5))
def test_without_samples_running_statistics_are_used(net: nn.Sequential, given: Any) -> None:
    before = bits(net)
    with ibn(net, given):
        assert bits(net) == before


def test_a_network_without_such_layers_is_only_put_into_evaluation_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout())
    with ibn(net, samples()):
        assert not net.training
    assert net.training


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((3, samples()), "network is 3, expected an nn.Module"),
        ((nn.Linear(3, 3), 7), "batches is 7, expected a tensor, an iterable of batches or a func"),
        ((nn.Linear(3, 3), lambda: 7), "batches is .*, expected a tensor, an iterable of batches"),
    ],
)
def test_errors_are_one_line(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"), ibn(*given):
        raise AssertionError
