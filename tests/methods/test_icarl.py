"""iCaRL against NumPy: targets, loss, class means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dualcba import Learner
from dualcba.losses import identity
from dualcba.methods.icarl import ICaRL

Make = Callable[..., Any]
Floats = NDArray[np.float64]


def sigmoid(z: Floats) -> Floats:
    return 1 / (1 + np.exp(-z))


def unit(h: Floats) -> Floats:
    return h / np.linalg.norm(h, axis=-1, keepdims=True)


def by_hand(z: Floats, y: list[int], teacher: Floats, old: list[int], seen: list[int]) -> float:
    """Compute the loss sample by sample and class by class."""
    total = 0.0
    for row, label, output in zip(z, y, teacher, strict=True):
        for c in seen:
            t = sigmoid(output[c]) if c in old else float(c == label)
            total -= t * np.log(sigmoid(row[c])) + (1 - t) * np.log(1 - sigmoid(row[c]))
    return total / len(y)


def test_loss(bench: Make) -> None:
    b = bench(ICaRL())
    b.begin([0, 1], [2, 3])
    new, mem = b.batch([2, 3, 3], 1), b.batch([0, 1, 1, 0], 2)
    x, z = torch.cat([new.x, mem.x]), torch.cat([new.z, mem.z]).detach().numpy()
    teacher = b.method.teacher(x)[0].numpy()
    want = by_hand(z, [2, 3, 3, 0, 1, 1, 0], teacher, [0, 1], [0, 1, 2, 3])
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_an_unannounced_class_is_in_the_loss(bench: Make) -> None:
    b = bench(ICaRL())
    b.begin([0, 1], [2, 3])
    new = b.batch([2, 5], 1)
    z, teacher = new.z.detach().numpy(), b.method.teacher(new.x)[0].numpy()
    want = by_hand(z, [2, 5], teacher, [0, 1], [0, 1, 2, 3, 5])
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_first_task_has_labels_only(bench: Make) -> None:
    b = bench(ICaRL())
    b.begin([0, 1])
    new = b.batch([0, 1, 1], 1)
    want = by_hand(new.z.detach().numpy(), [0, 1, 1], np.zeros((3, 6)), [], [0, 1])
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_a_class_first_seen_in_this_task_is_not_old(bench: Make) -> None:
    """The teacher does not know the class, although the class sets contain it now."""
    b = bench(ICaRL())
    b.begin([0, 1], [2, 3])
    b.sets.appear(torch.tensor([5]))
    targets = b.method.targets(b.batch([5, 2]).x, torch.tensor([5, 2]))
    assert targets[:, 2:].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


def test_logits_decide_before_any_class_has_a_mean(bench: Make) -> None:
    b = bench(ICaRL())
    x = b.batch([0, 1, 2]).x
    b.method.before_scores()
    assert torch.equal(b.method.scores(x), b.network(x)[0])


def test_running_means_replace_missing_exemplars(bench: Make) -> None:
    b = bench(ICaRL(decay=0.5))
    b.begin([0, 1])
    batches = [b.batch([0, 1, 1], 1), b.batch([1, 1, 0], 2)]
    sums = np.zeros((6, 4))
    for batch in batches:
        b.method.loss(batch, [], identity)
        sums *= 0.5
        for h, label in zip(unit(batch.h.detach().numpy()), batch.y, strict=True):
            sums[label] += h
    b.method.before_scores()
    x = b.batch([0] * 5, 3).x
    scores = b.method.scores(x).detach().numpy()
    means = unit(sums[:2])
    want = -8 * ((unit(b.network(x)[1].detach().numpy())[:, None] - means) ** 2).sum(2)
    assert np.allclose(scores[:, :2], want, atol=1e-6)
    assert np.isneginf(scores[:, 2:]).all()


def test_a_new_task_begins_with_no_running_means(bench: Make) -> None:
    b = bench(ICaRL())
    b.begin([0, 1])
    b.method.loss(b.batch([0, 1]), [], identity)
    assert b.method.sums.any()
    b.begin([2, 3])
    assert not b.method.sums.any()
    assert not b.method.counts.any()


def test_exemplars_are_chosen_by_directions(bench: Make, monkeypatch: Any) -> None:
    b = bench(ICaRL())
    b.begin([0, 1])
    data, given = b.batch([0, 1] * 5), []
    monkeypatch.setattr(b.memory, "fill", lambda x, y, features: given.append(features(x)))
    b.method.end_task(data.x, data.y)
    assert torch.allclose(given[0].norm(dim=1), torch.ones(10).double())


def test_the_embedding_does_not_depend_on_other_samples(
    make_learner: Callable[..., Learner], teach: Any, images: Any
) -> None:
    learner = teach(make_learner("icarl"))
    together, alone = (learner.method.embed(images.train_x[:n])[1] for n in (8, 1))
    assert torch.allclose(together[:1], alone, atol=1e-5)
    assert learner.network.module.training


def test_many_samples_are_embedded_in_parts(bench: Make, monkeypatch: Any) -> None:
    b = bench(ICaRL())
    x = b.batch([0] * 8).x
    monkeypatch.setattr("dualcba.methods.exemplars.CHUNK", 3)
    for found, want in zip(b.method.embed(x), b.network(x), strict=True):
        torch.testing.assert_close(found, want)


def test_exemplars_replace_running_means(bench: Make) -> None:
    b = bench(ICaRL(), size=6)
    b.begin([0, 1])
    data = b.batch([0, 1] * 10, 1)
    b.method.loss(data, [], identity)
    b.method.end_task(data.x, data.y)
    assert b.memory.y[: b.memory.filled].tolist() == [0, 0, 0, 1, 1, 1]
    b.shake(3)  # means use the current network
    b.method.before_scores()
    h = unit(b.network(b.memory.x[:6])[1].detach().numpy())
    want = unit(np.stack([h[:3].mean(0), h[3:].mean(0)]))
    assert np.allclose(b.method.means[:2].numpy(), want, atol=1e-6)
    assert b.method.has_mean.tolist() == [True, True, False, False, False, False]


def test_old_and_new_classes_are_told_apart_within_a_task(
    make_learner: Callable[..., Learner], teach: Any, images: Any
) -> None:
    learner = teach(make_learner("icarl", buffer=24), tasks=2, steps=20)
    seen = images.test_y < 4
    right = learner.predict(images.test_x[seen]) == images.test_y[seen]
    assert right[images.test_y[seen] < 2].float().mean() > 0.6  # exemplars
    assert right[images.test_y[seen] >= 2].float().mean() > 0.6  # running means


def test_needs_a_sample_of_every_class(make_learner: Callable[..., Learner]) -> None:
    with pytest.raises(ValueError, match=r"buffer is 5, expected at least 6"):
        make_learner("icarl", buffer=5)


def test_the_loss_may_be_a_mean_over_classes(bench: Make) -> None:
    losses = []
    for mean in (False, True):
        b = bench(ICaRL(class_mean=mean))
        b.begin([0, 1], [2, 3])
        losses.append(b.method.loss(b.batch([2, 3, 3], 1), [b.batch([0, 1], 2)], identity).item())
    assert losses[1] == pytest.approx(losses[0] / 4)  # four classes are seen


def test_features_that_are_not_normalised(bench: Make, monkeypatch: Any) -> None:
    b = bench(ICaRL(normalise=False))
    b.begin([0, 1])
    data = b.batch([0, 1, 1] * 4)
    b.method.end_task(data.x, data.y)
    b.begin([2, 3])
    for batch in (steps := [b.batch([2, 2], 5), b.batch([2], 6)]):
        b.method.loss(batch, [], identity)  # a running mean
    h = torch.cat([batch.h for batch in steps]).detach().numpy()
    b.method.before_scores()
    stored = b.network(b.memory.x[: b.memory.filled])[1].detach().numpy()
    labels = b.memory.y[: b.memory.filled].numpy()
    weights = np.array([0.9, 0.9, 1.0]) / 2.8
    means = np.stack([stored[labels == 0].mean(0), stored[labels == 1].mean(0), weights @ h])
    x = b.batch([0] * 5, 3).x
    want = -((b.network(x)[1].detach().numpy()[:, None] - means) ** 2).sum(2)
    scores = b.method.scores(x).detach().numpy()
    assert np.allclose(scores[:, :3], want, atol=1e-5)
    assert np.isneginf(scores[:, 3:]).all()
    given: list[torch.Tensor] = []
    monkeypatch.setattr(b.memory, "fill", lambda x, y, features: given.append(features(x)))
    b.method.end_task(data.x, data.y)
    assert torch.allclose(given[0], b.network(data.x)[1])


def test_flags_are_true_or_false() -> None:
    with pytest.raises(ValueError, match="normalise is 'no', expected True or False"):
        ICaRL(normalise="no")  # type: ignore[arg-type]
