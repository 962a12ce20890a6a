"""The modules of snapshots and exports, each by hand; they keep what they were made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dualcba.methods.er import ER
from dualcba.methods.scorers import Corrected, Logits, NearestMeans
from dualcba.nets import Network

Make = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_logits_are_those_of_evaluation_mode() -> None:
    body = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    network = Network(body, (5,), 3).double()
    x = normal(8, 5)
    network(x)
    logits = Logits(network)
    want = network.eval()(x)[0]
    assert torch.equal(logits(x), want)
    assert torch.equal(logits.whole()(x), want)
    assert not any(p.requires_grad for p in logits.parameters())


def test_a_network_that_is_its_last_layer() -> None:
    layer, x = nn.Linear(5, 3).double(), normal(8, 5)
    logits = Logits(Network(layer, (5,), 3))
    assert torch.equal(logits.whole()(x), layer(x))
    assert torch.equal(logits.features(x), x)


def test_corrected_logits_by_hand(bench: Make) -> None:
    network, x = bench(ER()).network, normal(8, 5)
    alpha, beta = normal(6, seed=1), normal(6, seed=2)
    want = alpha * network(x)[0] + beta
    scorer = Corrected(Logits(network), alpha, beta)
    alpha.zero_()
    beta.zero_()
    torch.testing.assert_close(scorer(x), want)
    assert scorer.merged() is scorer
    torch.testing.assert_close(scorer(x), want)


def test_an_offset_becomes_part_of_the_bias_once(bench: Make) -> None:
    network, x, beta = bench(ER()).network, normal(8, 5), normal(6, seed=2)
    z = network(x)[0]
    scorer = Corrected(Logits(network), torch.ones_like(beta), beta)
    for scores in (scorer.merged(), scorer, scorer.merged()):
        torch.testing.assert_close(scores(x), z + beta)
    assert isinstance(scorer.merged(), Logits)
    assert torch.equal(network(x)[0], z)


def test_the_nearest_mean_of_features_as_they_are(bench: Make) -> None:
    network, x, means = bench(ER()).network, normal(8, 5), normal(6, 4, seed=1)
    has_mean = torch.arange(6) != 2
    h = network(x)[1].detach().numpy()
    want = -((h[:, None] - means.numpy()) ** 2).sum(2)
    want[:, 2] = -np.inf
    scorer = NearestMeans(Logits(network), means, has_mean, normalise=False)
    means.zero_()
    has_mean.fill_(True)
    np.testing.assert_allclose(scorer(x).numpy(), want, rtol=1e-5)
