"""The adaptors: inputs, outputs, the corrected classes, and the reset at a new task."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dualcba.adaptors.adaptor import ADAPTORS, WIDTH, Adaptor, class_specific, dual
from dualcba.adaptors.prior import Prior
from dualcba.tasks.class_sets import ClassSets

C = 6
OLD, NEW, UNSEEN = [0, 1, 2], [3, 4], [5]


def sets_after(tasks: int) -> ClassSets:
    """Return the class sets before, in or after the first task."""
    sets = ClassSets(C)
    for classes in [OLD, NEW] if tasks > 1 else [OLD] * tasks:
        sets.new_task(classes)
    return sets


def make(tasks: int = 2, *, seed: int = 0, **options: Any) -> Adaptor:
    """Return an adaptor with non-zero biases, as after training."""
    adaptor = Adaptor(sets_after(tasks), generator=rng(seed), **{"width": 16} | options)
    for name, p in adaptor.named_parameters():
        if name.endswith("bias"):
            p.data.normal_(generator=rng(seed + 1))
    return adaptor


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits(n: int = 5, seed: int = 9) -> Tensor:
    return 2 * torch.randn(n, C, generator=rng(seed))


KINDS: list[dict[str, Any]] = [
    {"agnostic": False, "continual": True},
    {},
    {"divide": True},
    {"specific": "individual"},
    {"specific": "none"},
    {"agnostic": False},
    {"specific": "individual", "agnostic": False},
]
SPACES = ["logit", "probability"]


def mlp(net: torch.nn.Module, x: Tensor) -> Tensor:
    """Return the output of the MLP, in NumPy."""
    w = dict(net.named_parameters())
    hidden = (x @ w["hidden.weight"].T + w["hidden.bias"]).clamp(min=0)
    return hidden @ w["output.weight"].T + w["output.bias"]


# ---------------------------------------------------------------- the strength


@pytest.mark.parametrize("options", KINDS)
def test_a_strength_is_a_factor_of_each_part_and_zero_at_first(options: dict[str, Any]) -> None:
    plain, scaled = make(**options), make(**options, strength=True)
    z = logits()
    assert not scaled(z).any()
    strengths = [p for name, p in scaled.named_parameters() if name.endswith("strength")]
    assert len(strengths) == (plain.specific is not None) + (plain.agnostic is not None)
    for p in strengths:
        p.data.fill_(0.25)
    torch.testing.assert_close(scaled(z), plain(z) / 4)


@pytest.mark.parametrize("continual", [False, True])
def test_the_strength_of_the_class_specific_part_is_reset_with_it(continual: bool) -> None:
    adaptor = make(strength=True, agnostic=not continual, continual=continual)
    for name, p in adaptor.named_parameters():
        if name.endswith("strength"):
            p.data.fill_(0.25)
    reset = adaptor.reset_for_task(rng())
    assert adaptor.specific is not None
    assert any(p is adaptor.specific.strength for p in reset) != continual
    assert adaptor.specific.strength.item() == (0.25 if continual else 0)
    assert adaptor.agnostic is None or adaptor.agnostic.strength.item() == 0.25


def test_a_strength_needs_logit_space() -> None:
    with pytest.raises(ValueError, match="strength is True, expected False unless space is"):
        make(strength=True, space="probability")


# ---------------------------------------------------------------- the prior


def test_the_prior_is_the_centred_log_frequency_of_seen_classes() -> None:
    plain, shifted = make(), make(prior=True)
    assert shifted.prior is not None
    for _ in range(3):
        shifted.prior.update(torch.tensor([0, 0, 0, 3, 4, 4, -1, 5]))  # 5 is unseen
    counts = torch.tensor([3.0, 0, 0, 1, 2])
    want = torch.zeros(C)
    logs = (counts + Prior.RATE).log()
    want[:5] = logs - logs.mean()
    z = logits()
    torch.testing.assert_close(shifted(z) - plain(z), want.expand(5, C), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("tasks", "continual"), [(1, False), (1, True), (2, False)])
def test_the_prior_alone(tasks: int, continual: bool) -> None:
    """Nothing is learnt; without `continual` nothing is corrected in the first task."""
    agnostic = {"agnostic": False}
    options = {"continual": True} if continual else {"specific": "none"}
    adaptor = make(tasks, prior=True, **agnostic, **options)
    learnt = make(tasks, **agnostic, **options)(logits()) if continual else torch.zeros(5, C)
    assert adaptor.prior is not None
    adaptor.prior.update(torch.tensor([0, 0, 1, 3]))
    r = adaptor(logits()) - learnt
    assert bool(r.any()) == (tasks > 1 or continual)
    assert torch.allclose(r.sum(1), torch.zeros(5), atol=1e-5)


def test_the_prior_averages_over_the_steps_of_a_task() -> None:
    prior = Prior(2)
    for k in range(4):
        prior.update(torch.tensor([0] * k))
    assert prior.mean.tolist() == pytest.approx([1.5, 0])  # all steps count alike at first
    for _ in range(200):
        prior.update(torch.tensor([1, 1, 0, -1]))
    assert prior.mean.tolist() == pytest.approx([1, 2], abs=1e-4)
    before = prior.mean.clone()
    prior.update(torch.tensor([0] * 11))
    torch.testing.assert_close(prior.mean, before * 0.9 + torch.tensor([1.1, 0]))
    adaptor = make(prior=True)
    adaptor.prior = prior
    adaptor.reset_for_task(rng())
    assert not prior.mean.any()
    assert not prior.steps.any()


def test_a_prior_needs_logit_space() -> None:
    with pytest.raises(ValueError, match="prior is True, expected False unless space is"):
        make(prior=True, space="probability")


# ---------------------------------------------------------------- numbers of classes and samples


def test_counts_change_the_hidden_bias_of_the_class_agnostic_part() -> None:
    plain, counted = make(specific="none"), make(specific="none", counts=True)
    assert counted.pool is not None
    assert counted.agnostic is not None
    assert plain.agnostic is not None
    counted.pool.copy_(torch.tensor([5.0, 0, 7, 3, 1, 9]))
    z = logits()
    assert torch.equal(counted(z), plain(z))  # their weights are 0 at first
    weights = torch.randn(16, 4, generator=rng(7))
    counted.agnostic.counts.data.copy_(weights)
    sizes = torch.tensor([math.log(1 + n) / 10 for n in (len(OLD), len(NEW), 12, 4)])
    plain.agnostic.net.hidden.bias.data += weights @ sizes
    torch.testing.assert_close(counted(z), plain(z))


def test_without_a_class_agnostic_part_nothing_is_counted() -> None:
    assert make(agnostic=False, counts=True).pool is None


# ---------------------------------------------------------------- the parts, by hand


def test_class_specific_single() -> None:
    adaptor = make(agnostic=False)
    z = logits()
    want = mlp(adaptor.specific.nets[0], z.softmax(1))
    want[:, UNSEEN] = 0
    torch.testing.assert_close(adaptor(z), want)


def test_class_specific_individual() -> None:
    adaptor = make(specific="individual", agnostic=False)
    z = logits()
    p = z.softmax(1)
    want = torch.zeros_like(p)
    for net, side in zip(adaptor.specific.nets, (NEW, OLD), strict=True):
        seen = torch.zeros_like(p)
        seen[:, side] = p[:, side]
        want[:, side] = mlp(net, seen)[:, side]
    torch.testing.assert_close(adaptor(z), want)


@pytest.mark.parametrize("divide", [False, True])
def test_class_agnostic(divide: bool) -> None:
    adaptor = make(specific="none", divide=divide)
    z = logits()
    p = z.softmax(1)
    both = torch.stack([p[:, OLD].sum(1), p[:, NEW].sum(1)], 1)
    r_old, r_new = mlp(adaptor.agnostic.net, both).unbind(1)
    want = torch.zeros_like(p)
    want[:, OLD] = (r_old / (len(OLD) if divide else 1))[:, None]
    want[:, NEW] = (r_new / (len(NEW) if divide else 1))[:, None]
    torch.testing.assert_close(adaptor(z), want)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("specific", ["single", "individual"])
def test_dual_is_the_mean_of_its_parts(space: str, specific: str) -> None:
    both = make(specific=specific, space=space)
    z = logits()
    whole = both(z)
    kept, both.agnostic = both.agnostic, None
    one = both(z)
    both.agnostic, both.specific = kept, None
    torch.testing.assert_close(whole, (one + both(z)) / 2)


@pytest.mark.parametrize("options", KINDS[1:])
def test_the_old_classes_include_all_seen_before(options: dict[str, Any]) -> None:
    """In the third task, the new classes of the second are old."""
    adaptor = make(**options)
    before = adaptor(logits())
    adaptor.sets.new_task(UNSEEN)
    after = adaptor(logits())
    assert bool((after != 0).any(0).all())
    assert not torch.allclose(before, after)


# ---------------------------------------------------------------- class sets


@pytest.mark.parametrize("options", KINDS[1:])
def test_zero_in_the_first_task_and_on_unseen_classes(options: dict[str, Any]) -> None:
    z = logits()
    first = make(1, **options)
    assert torch.equal(first(z), torch.zeros_like(z))
    assert torch.equal(first.adapt(z, first(z)), z)
    later = make(2, **options)(z)
    assert bool((later[:, UNSEEN] == 0).all())
    assert bool((later[:, OLD + NEW] != 0).any(0).all())


@pytest.mark.parametrize("options", KINDS[1:])
def test_probability_space_leaves_the_first_task_alone(options: dict[str, Any]) -> None:
    z = logits()
    first = make(1, space="probability", **options)
    assert torch.equal(first.adapt(z, first(z)), z)


@pytest.mark.parametrize("space", SPACES)
def test_plain_cba_is_applied_from_the_first_task_on(space: str) -> None:
    z = logits()
    adaptor = make(1, agnostic=False, continual=True, space=space)
    assert not torch.allclose(adaptor.adapt(z, adaptor(z)), z)


def test_plain_cba_corrects_all_classes() -> None:
    assert bool((make(1, agnostic=False, continual=True)(logits()) != 0).any(0).all())


@pytest.mark.parametrize("options", KINDS)
def test_probability_space_gives_distributions(options: dict[str, Any]) -> None:
    adaptor = make(2, space="probability", **options)
    z = logits()
    g = adaptor(z)
    torch.testing.assert_close(g.sum(1), torch.ones(len(z)))
    assert bool((g >= 0).all())
    if not adaptor.continual:
        assert bool((g[:, UNSEEN] == 0).all())
    want = (g + z.softmax(1)) / 2
    torch.testing.assert_close(adaptor.adapt(z, g).exp(), want)


def test_shapes_do_not_depend_on_the_task() -> None:
    adaptor = make(1)
    shapes = {n: tuple(p.shape) for n, p in adaptor.named_parameters()}
    adaptor.sets.new_task(NEW)
    adaptor.reset_for_task(rng())
    assert {n: tuple(p.shape) for n, p in adaptor.named_parameters()} == shapes
    assert adaptor(logits(3)).shape == (3, C)


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("options", KINDS)
def test_no_gradient_passes_through_the_input(options: dict[str, Any], space: str) -> None:
    adaptor = make(**options, space=space)
    z = logits().requires_grad_()
    weights = torch.randn(5, C, generator=rng(4))
    (grad,) = torch.autograd.grad((adaptor(z) * weights).sum(), z, allow_unused=True)
    assert grad is None


def test_the_gradient_of_the_network_is_the_adapted_error() -> None:
    """∂CE(z̃)/∂z = softmax(z̃) − y."""
    adaptor = make()
    z, y = logits().requires_grad_(), torch.tensor([0, 1, 2, 3, 4])
    adapted = adaptor.adapt(z, adaptor(z))
    loss = torch.nn.functional.cross_entropy(adapted, y, reduction="sum")
    (grad,) = torch.autograd.grad(loss, z)
    want = adapted.softmax(1) - torch.nn.functional.one_hot(y, C)
    torch.testing.assert_close(grad, want.detach())


# ---------------------------------------------------------------- initialisation and reset


def test_initial_weights_are_xavier_normal_and_biases_zero() -> None:
    sets = ClassSets(100)
    adaptor = Adaptor(sets, specific="individual", generator=rng())
    for name, p in adaptor.named_parameters():
        if name.endswith("bias"):
            assert bool((p == 0).all())
        elif p.numel() > 10_000:
            std = math.sqrt(2 / sum(p.shape))
            assert abs(p.std().item() / std - 1) < 0.03
            assert abs(p.mean().item()) < 0.03 * std
            assert p.abs().max().item() > 2.5 * std  # a uniform distribution has no such tail


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"agnostic": False}, 6 * WIDTH + WIDTH + WIDTH * 6 + 6),
        ({"specific": "none"}, 2 * WIDTH + WIDTH + WIDTH * 2 + 2),
        ({"specific": "individual", "agnostic": False}, 2 * (13 * WIDTH + 6)),
        ({}, (13 * WIDTH + 6) + (5 * WIDTH + 2)),
    ],
)
def test_parameter_counts(options: dict[str, Any], count: int) -> None:
    adaptor = Adaptor(sets_after(1), generator=rng(), **options)
    assert sum(p.numel() for p in adaptor.parameters()) == count


def test_the_generator_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    a = Adaptor(sets_after(1), generator=rng(5))
    torch.manual_seed(2)
    b = Adaptor(sets_after(1), generator=rng(5))
    c = Adaptor(sets_after(1), generator=rng(6))
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
    assert not torch.equal(next(a.parameters()), next(c.parameters()))


@pytest.mark.parametrize("specific", ["single", "individual"])
def test_a_new_task_resets_the_class_specific_part_alone(specific: str) -> None:
    adaptor = make(specific=specific)
    before = {n: p.clone() for n, p in adaptor.named_parameters()}
    void = adaptor.reset_for_task(rng(77))
    owned = {n for n, p in adaptor.named_parameters() if any(p is v for v in void)}
    assert owned == {n for n in before if n.startswith("specific.")}
    for name, p in adaptor.named_parameters():
        assert torch.equal(p, before[name]) == (name not in owned)
        if name in owned and name.endswith("bias"):
            assert bool((p == 0).all())


@pytest.mark.parametrize("options", [{"agnostic": False, "continual": True}, {"specific": "none"}])
def test_nothing_to_reset(options: dict[str, Any]) -> None:
    adaptor = make(**options)
    before = {n: p.clone() for n, p in adaptor.named_parameters()}
    assert adaptor.reset_for_task(rng(77)) == []
    assert all(torch.equal(p, before[n]) for n, p in adaptor.named_parameters())


def test_the_class_sets_are_the_learners_own_state() -> None:
    sets = sets_after(2)
    adaptor = dual(sets, rng())
    assert adaptor.sets is sets
    assert not any("sets" in name or "seen" in name for name in adaptor.state_dict())


def test_names() -> None:
    sets = sets_after(2)
    assert {"cba": class_specific, "dual-cba": dual, "balanced-cba": dual} == ADAPTORS
    cba, both = class_specific(sets, rng()), dual(sets, rng())
    assert (cba.continual, cba.agnostic) == (True, None)
    assert not both.continual
    assert both.specific is not None
    assert both.agnostic is not None
    assert (both.space, both.divide) == ("logit", False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"specific": "double"}, ["specific", "'double'", "'single' or 'individual' or 'none'"]),
        ({"space": "log"}, ["space", "'log'", "'logit' or 'probability'"]),
        ({"specific": "none", "agnostic": False}, ["specific is 'none'", "agnostic is False"]),
        ({"width": 0}, ["width", "0", "at least 1"]),
        ({"continual": True}, ["continual is True", "specific is 'single'"]),
        ({"continual": True, "agnostic": False, "specific": "individual"}, ["continual is True"]),
    ],
)
def test_bad_options_name_the_value(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Adaptor(sets_after(1), generator=rng(), **options)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
