"""The cosine head: its logits, its derivatives, and learners that have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from dualcba import Learner
from dualcba.checks import check_learner
from dualcba.experiments import Spec
from dualcba.nets.heads import CosineHead, cosine_change, cosine_gradients, resize_head

Make = Callable[..., Any]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("learnt", [True, False])
def test_logits_are_scaled_cosines(learnt: bool) -> None:
    head, h = CosineHead(normal(4, 3), 10.0, learnt=learnt), normal(5, 3)
    w, x = head.weight.detach().numpy(), h.numpy()
    want = 10 * (x @ w.T) / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(w, axis=1))
    np.testing.assert_allclose(head(h).detach().numpy(), want, rtol=1e-12)
    assert [name for name, _ in head.named_parameters()] == ["weight", "scale"][: 1 + learnt]


def test_gradients_equal_autograd() -> None:
    head, h, G = CosineHead(normal(4, 3), 10.0), normal(5, 3), normal(5, 4)
    want = torch.autograd.grad((head(h) * G).sum(), list(head.parameters()))
    got = cosine_gradients(h, head.weight.detach(), head.scale.detach(), G)  # type: ignore[union-attr]
    torch.testing.assert_close(got, want)


def test_change_equals_forward_differentiation() -> None:
    head, h = CosineHead(normal(4, 3), 10.0), normal(5, 3)
    weight, scale = (p.detach() for p in head.parameters())
    d_weight, d_scale = normal(4, 3) + 1, torch.tensor(0.3, dtype=torch.float64)
    _, want = torch.func.jvp(
        lambda w, s: functional_call(head, {"weight": w, "scale": s}, (h,)),
        (weight, scale), (d_weight, d_scale),
    )  # fmt: skip
    torch.testing.assert_close(cosine_change(h, weight, scale, d_weight, d_scale), want)


def test_cosines_are_computed_in_full_under_autocast() -> None:
    head, h = CosineHead(normal(4, 3).float(), 10.0), normal(5, 3).float()
    want = head.cosine(h)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head.cosine(h), want)


def test_weights_are_drawn_anew_as_those_of_a_linear_layer() -> None:
    head = CosineHead(normal(4, 3).float(), 10.0)
    torch.manual_seed(0)
    want = nn.Linear(3, 4).weight
    torch.manual_seed(0)
    head.reset_parameters()
    assert torch.equal(head.weight, want)
    assert head.scale == 10.0


@pytest.mark.parametrize("frozen", [True, False])
def test_further_outputs_have_the_bias_of_the_last_one(frozen: bool) -> None:
    head, h = nn.Linear(3, 2).requires_grad_(not frozen), normal(5, 3).float()
    z = head(h)
    resize_head(head, 4)
    assert torch.equal(head(h), z[:, [0, 1, 1, 1]])
    assert [p.requires_grad for p in head.parameters()] == [not frozen] * 2


# ---------------------------------------------------------------------- as an option


@pytest.mark.parametrize("method", ["er", "er-cba", "derpp-dual-cba", "er-ace", "clser", "bic"])
@pytest.mark.parametrize("learnt", [True, False])
def test_every_method_learns_with_a_cosine_head(
    method: str, learnt: bool, make_learner: Make, teach: Make
) -> None:
    learner = teach(make_learner(method, head="cosine", head_scale=8.0, learn_scale=learnt))
    head = learner.network.head
    assert isinstance(head, CosineHead)
    scale = float(torch.as_tensor(head.scale).detach())
    assert (scale != 8.0) == learnt
    assert ("network.module.7.scale" in learner.state_dict()["tensors"]) == learnt
    with learner.evaluating("bn"):
        z = learner.scores(learner.memory.x[:4])
    if method != "bic":  # corrects the logits of new classes
        assert z.abs().max() <= abs(scale) * (1 + 1e-6)


def test_a_learner_with_a_cosine_head_passes_all_checks(make_learner: Make, make_net: Make) -> None:
    def make(seed: int) -> Learner:
        learner: Learner = make_learner(
            "er-dual-cba", make_net(seed), seed=seed, head="cosine", learn_scale=True
        )
        return learner

    check_learner(make, skip=["memory", "time"])


def test_the_weights_are_those_of_the_linear_layer(make_learner: Make, make_net: Make) -> None:
    want = make_net()[7].weight
    assert torch.equal(make_learner(head="cosine").network.head.weight, want)
    assert make_learner(head="cosine").network.head.scale == 10.0


def test_a_frozen_last_layer_stays_frozen(make_learner: Make, make_net: Make) -> None:
    net = make_net(bias=False)
    net[7].weight.requires_grad_(False)
    assert not make_learner("er", net, head="cosine").network.head.weight.requires_grad


BAD = [
    ({"head": "fc"}, "head is 'fc', expected 'linear' or 'cosine'"),
    ({"head_scale": 3.0}, "head_scale is 3.0, expected no value: the head is linear"),
    ({"learn_scale": False}, "learn_scale is False, expected no value: the head is linear"),
    ({"head": "cosine", "head_scale": 0.0}, "head_scale is 0.0, expected a number above 0"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_options_that_do_not_fit(options: dict[str, Any], words: str, make_learner: Make) -> None:
    with pytest.raises(ValueError, match=words):
        make_learner("er", **options)
    with pytest.raises(ValueError, match=words):
        Spec(method="er", **options)


def test_lucir_has_a_cosine_head_of_its_own(make_learner: Make) -> None:
    with pytest.raises(ValueError, match="head is 'cosine', expected 'linear': LUCIR has its own"):
        make_learner("lucir", head="cosine")
    with pytest.raises(ValueError, match="head is 'cosine', expected 'linear': lucir has its own"):
        Spec(method="lucir", head="cosine")


NORMS = [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "options",
    [{"method": "er", "boundaries": "inferred"}, {"method": "er-dual-cba", "num_classes": 4}],
)
def test_a_last_layer_whose_weight_is_no_parameter_is_refused_before_it_changes(
    norm: Any, options: dict[str, Any]
) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), norm(nn.Linear(8, 4)))
    before = {name: p.clone() for name, p in network.named_parameters()}
    words = "weight of the last layer '2' is computed from other parameters, expected a parameter"
    with pytest.raises(ValueError, match=words):
        Learner(network, (4,), dtype=torch.float32, **options)
    with pytest.raises(ValueError, match=r"head.weight is computed from other parameters"):
        resize_head(network[2], 8)
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())


@pytest.mark.parametrize("norm", NORMS)
def test_without_growth_and_adaptor_the_weight_may_be_computed(norm: Any) -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), norm(nn.Linear(8, 4)))
    learner = Learner(network, (4,), 4, dtype=torch.float32, method="er", boundaries="inferred")
    before = network[2].weight.detach().clone()
    learner.observe(torch.eye(4), torch.arange(4))
    assert not torch.equal(before, network[2].weight)


def test_a_bare_linear_layer_cannot_be_replaced() -> None:
    with pytest.raises(ValueError, match="is a bare linear layer that another head replaces"):
        Learner(nn.Linear(4, 3), (4,), 3, dtype=torch.float32, method="er", head="cosine")


def test_a_spec_keeps_its_head() -> None:
    spec = Spec(method="er", head="cosine")
    assert (spec.head_scale, spec.learn_scale) == (10.0, False)
    assert Spec(**spec.to_dict()) == spec
    assert Spec(**Spec(method="er").to_dict()) == Spec(method="er")


@pytest.mark.gpu
@pytest.mark.parametrize("learnt", [True, False])
def test_captured_equals_eager(learnt: bool, make_learner: Make, teach: Make, exact: None) -> None:
    given = {"head": "cosine", "learn_scale": learnt, "device": "cuda", "precision": "fp32"}
    one, two = (
        teach(make_learner("er-dual-cba", engine=engine, **given), steps=8)
        for engine in ("eager", "captured")
    )
    torch.cuda.synchronize()  # a captured step may still run
    for p, q in zip(one.network.parameters(), two.network.parameters(), strict=True):
        torch.testing.assert_close(p, q)
