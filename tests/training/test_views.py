"""Other views of new samples and memory draws, as a method declares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dualcba import Dataset, Learner, Method, Transform
from dualcba.checks import check_learner
from dualcba.data.augmentation import FullAugmentation, crop_and_flip, plain, randaugment
from dualcba.engine.packet import pack, unpack
from dualcba.losses import Adapt, Batch, CrossEntropy, Term, inner_batches, total
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.training.draws import BatchDraws

Make = Callable[..., Any]
NAMES = ["raw", "again", "crop", "strong"]


class Chain(Method):
    """Cross-entropy of the training view, the raw samples, and a chain of views of both batches."""

    memory_views = True

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        return {
            "raw": plain(transform),
            "again": transform,
            "crop": crop_and_flip(transform, (0.6, 1.0)),
            "strong": randaugment(transform, 2, 10, source="crop"),
        }

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        return [CrossEntropy(batch) for batch in inner_batches(new, mem)]


class ChainByLoss(Chain):
    """The same, differentiated by autograd."""

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        return total(self.terms(new, mem), adapt)


def batches_of_a_step(
    learner: Learner, images: Dataset
) -> tuple[Tensor, BatchDraws[Tensor], Batch, list[Batch]]:
    """Return new samples, what a step draws for them, and the batches that it makes of both."""
    x, y = images.train_x[:8], images.train_y[:8]
    drawn = learner.parts.sampler.draw(learner.step, len(x), np.ones(len(x), bool))
    packet, layout = pack(drawn)
    on_device = unpack(torch.from_numpy(packet), layout).batches
    new, mem = learner.parts.forward_pass.inner_batches(x, y, on_device)
    return x, on_device, new, mem


@pytest.mark.parametrize("forward", ["split", "concat", "sources"])
def test_new_samples_and_memory_draws_have_all_views(
    forward: str, make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner(Chain(), forward=forward, augmentation="full"))
    x, drawn, new, mem = batches_of_a_step(learner, images)
    views = learner.parts.forward_pass.views
    stored = learner.memory.x[drawn.memory[0].rows]
    sides = ((new, x, drawn.views), (mem[0], stored, drawn.memory[0].views))
    for batch, raw, params in sides:
        assert list(batch.views) == NAMES
        got = {name: view.x for name, view in batch.views.items()}
        assert torch.equal(got["raw"], views["raw"].normalize(raw))
        assert isinstance(views["again"], FullAugmentation)
        torch.testing.assert_close(got["again"], views["again"](raw, params["again"]))
        assert not torch.allclose(got["again"], batch.x)  # draws of its own
        pixels = views["crop"].augment(raw, params["crop"])
        torch.testing.assert_close(got["crop"], views["crop"].normalize(pixels))
        strong = views["strong"].augment(pixels, params["strong"])
        torch.testing.assert_close(got["strong"], views["strong"].normalize(strong))
        assert all(torch.equal(view.y, batch.y) for view in batch.views.values())
    rows = [b.rows for b in inner_batches(new, mem)]
    assert [(r.start, r.stop) for r in rows] == [(8 * k, 8 * k + 8) for k in range(10)]


def test_with_concat_each_view_has_its_own_statistics(
    make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner(Chain(), forward="concat"))
    _, _, new, mem = batches_of_a_step(learner, images)
    for name in ("", *NAMES):
        one, two = (b.views[name] if name else b for b in (new, mem[0]))
        alone, _ = learner.network(torch.cat([one.x, two.x]))
        torch.testing.assert_close(torch.cat([one.z, two.z]), alone, rtol=1e-4, atol=1e-5)


def test_by_source_a_batch_and_its_views_share_statistics(
    make_learner: Make, teach: Make, images: Dataset
) -> None:
    learner = teach(make_learner(Chain(), forward="sources"))
    _, _, new, mem = batches_of_a_step(learner, images)
    for batch in (new, *mem):
        parts = [batch, *(batch.views[name] for name in NAMES)]
        together, _ = learner.network(torch.cat([b.x for b in parts]))
        torch.testing.assert_close(torch.cat([b.z for b in parts]), together, rtol=1e-4, atol=1e-5)


def test_by_source_without_views_each_batch_is_alone(
    make_learner: Make, teach: Make, differ: Make
) -> None:
    split, sources = (teach(make_learner("er-dual-cba", forward=f)) for f in ("split", "sources"))
    assert differ(split.state_dict(), sources.state_dict()) == []


@pytest.mark.parametrize("adaptor", ["cba", "dual-cba"])
def test_the_closed_form_covers_views_of_the_memory(
    adaptor: str, make_learner: Make, teach: Make
) -> None:
    one, two = (teach(make_learner(method(), adaptor=adaptor)) for method in (Chain, ChainByLoss))
    for (name, p), q in zip(one.adaptor.named_parameters(), two.adaptor.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("tracking", ["all", "labelled", "memory"])
def test_views_are_tracked_with_all_only(tracking: str, make_learner: Make, teach: Make) -> None:
    learner = teach(make_learner(Chain(), tracking=tracking), tasks=1)
    # five steps: the first without a memory; ten batches with it, one or two of them tracked
    count = {"all": 5 + 4 * 10, "labelled": 1 + 4 * 2, "memory": 5 + 4}[tracking]
    assert int(learner.network.module[1].num_batches_tracked) == count


def make_chain(make_learner: Make, make_net: Make) -> Callable[[int], Learner]:
    return lambda seed: make_learner(
        Chain(), make_net(seed), adaptor="dual-cba", seed=seed, augmentation="full"
    )


def test_a_method_with_views_passes_all_checks(make_learner: Make, make_net: Make) -> None:
    check_learner(make_chain(make_learner, make_net), skip=["memory", "time"])


def test_the_augmentation_of_a_learner(make_learner: Make, teach: Make, differ: Make) -> None:
    plain_, partial, default, full = (
        teach(make_learner("er", **given)).state_dict()
        for given in (*({"augmentation": name} for name in ("none", "partial")), {},
                      {"augmentation": "full"})
    )  # fmt: skip
    assert differ(partial, default) == []
    assert "network.module.0.weight" in differ(plain_, partial)
    assert "network.module.0.weight" in differ(full, partial)


def test_rar_augments_after_the_full_augmentation(make_learner: Make, teach: Make) -> None:
    learner = teach(make_learner("rar", augmentation="full"))
    assert learner.parts.context.transform.base.columns == FullAugmentation.columns
    assert not learner.parts.context.transform.base.flip  # RAR has no flip


def test_fixmatch_adds_its_strong_view_to_the_full_augmentation(
    make_learner: Make, teach: Make
) -> None:
    learner = teach(make_learner(FixMatch(ER()), adaptor="cba", augmentation="full"))
    strong = learner.parts.forward_pass.views["strong"]
    assert strong.draw(np.random.default_rng(0), 3).shape == (3, FullAugmentation.columns + 4)


@pytest.mark.parametrize("method", ["rar", "gsa", FixMatch(ER())])
def test_the_strong_augmentation_before_that_of_a_method(
    method: Any, make_learner: Make, teach: Make
) -> None:
    own = {"method_options": {"own": 4, "balanced": 8}} if method == "gsa" else {}
    assert teach(make_learner(method, augmentation="strong", **own)).step > 0


def test_full_is_refused_for_vectors(vectors: Make) -> None:
    wanted = r"augmentation is 'full' for torch.float32 samples of shape \(5,\), expected 'none' or"
    with pytest.raises(ValueError, match=wanted):
        vectors(augmentation="full")


@pytest.mark.gpu
def test_views_are_captured(make_learner: Make, teach: Make, exact: None) -> None:
    for options in ({}, {"forward": "concat"}, {"forward": "sources"}):
        given = {"adaptor": "dual-cba", "device": "cuda", "precision": "fp32", **options}
        one, two = (
            teach(make_learner(Chain(), engine=engine, augmentation="full", **given), steps=8)
            for engine in ("eager", "captured")
        )
        torch.cuda.synchronize()  # a captured step may still run
        for p, q in zip(one.network.parameters(), two.network.parameters(), strict=True):
            torch.testing.assert_close(p, q)
