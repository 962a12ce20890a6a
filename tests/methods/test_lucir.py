"""LUCIR against NumPy: cosines, margin ranking, imprinting, training of the head, herding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontier_helpers import cross_entropies
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dualcba import Dataset, Learner
from dualcba.data import Transform, transforms
from dualcba.engine import Captured
from dualcba.losses import identity
from dualcba.methods.lucir import LUCIR
from dualcba.nets.heads import CosineHead
from dualcba.normalization.statistics import evaluation_mode

RELEASED = {"released": True, "frozen": True, "drop": 10}
Make = Callable[..., Any]
Floats = NDArray[np.float64]


def unit(h: Floats) -> Floats:
    return h / np.linalg.norm(h, axis=-1, keepdims=True)


def weights(b: Any) -> Floats:
    return np.asarray(b.method.head.weight.detach().numpy())


def ranking(h: Floats, y: list[int], w: Floats, old: list[int], new: list[int]) -> float:
    """Compute the ranking loss pair by pair."""
    values = []
    for row, label in zip(unit(h), y, strict=True):
        if label in old:
            cosines = unit(w) @ row
            rivals = np.sort(cosines[new])[::-1][:2]
            pairs = [max(0.0, 0.5 - cosines[label] + r) for r in rivals]
            values.append(sum(pairs) / 2)
    return float(np.mean(values)) if values else 0.0


def test_logits_are_scaled_cosines(bench: Make) -> None:
    b = bench(LUCIR(scale=7.0))
    batch = b.batch([0, 1, 2])
    want = 7 * unit(batch.h.detach().numpy()) @ unit(weights(b)).T
    assert np.allclose(batch.z.detach().numpy(), want, atol=1e-6)
    assert b.network.head.bias is None


@pytest.mark.parametrize("tasks", [2, 3])
def test_loss(bench: Make, tasks: int) -> None:
    b = bench(LUCIR())
    b.begin(*[[0, 1], [2], [3, 4, 5]][:tasks])
    fresh, old = ([2], [0, 1]) if tasks == 2 else ([3, 4, 5], [0, 1, 2])
    new, mem = b.batch(fresh * 2, 1), b.batch(old * 2, 2)
    want = 0.0
    for batch in (new, mem):
        z, h, y = batch.z.detach().numpy(), batch.h.detach().numpy(), batch.y.numpy()
        before = b.method.teacher(batch.x)[1].numpy()
        want += cross_entropies(z, y).mean()
        want += 5 * np.sqrt(tasks - 1) * (1 - (unit(h) * unit(before)).sum(1)).mean()
    want += ranking(mem.h.detach().numpy(), mem.y.tolist(), weights(b), old, fresh)
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_first_task_is_cross_entropy_alone(bench: Make) -> None:
    b = bench(LUCIR())
    b.begin([0, 1])
    new = b.batch([0, 1, 1])
    want = F.cross_entropy(new.z, new.y).item()
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_margin_ranking_of_one_new_class_has_a_finite_gradient(bench: Make) -> None:
    b = bench(LUCIR())
    b.begin([0, 1], [2])
    loss = b.method.loss(b.batch([2]), [b.batch([0, 1])], identity)
    for slope in torch.autograd.grad(loss, list(b.network.parameters())):
        assert slope.isfinite().all()


def test_a_class_is_imprinted_by_its_first_batch(bench: Make) -> None:
    b = bench(LUCIR())
    b.begin([0, 1])
    b.method.loss(b.batch([0, 1]), [], identity)
    first = weights(b).copy()
    with torch.no_grad():
        b.method.after_step(None)
    assert np.array_equal(weights(b), first)  # nothing is imprinted in the first task

    b.begin([2, 3])
    new = b.batch([2, 2, 0, 2], 1)
    before = weights(b).copy()
    b.method.loss(new, [], identity)
    with torch.no_grad():
        b.method.after_step(None)
    h = unit(new.h.detach().numpy())[[0, 1, 3]]
    want = unit(h.sum(0)) * np.linalg.norm(before[:2], axis=1).mean()
    assert np.allclose(weights(b)[2], want, atol=1e-6)
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(weights(b)[others], before[others])

    b.method.loss(b.batch([2, 3], 2), [], identity)  # 2 again, 3 for the first time
    with torch.no_grad():
        b.method.after_step(None)
    assert np.allclose(weights(b)[2], want, atol=1e-6)
    assert not np.allclose(weights(b)[3], before[3])


def test_tuning_moves_the_classifier_alone_and_helps(bench: Make) -> None:
    b = bench(LUCIR(), size=12)
    b.begin([0, 1])
    first = b.batch([0, 1] * 10, 1)
    head = [p.clone() for p in b.method.head.parameters()]
    b.method.end_task(first.x, first.y)
    assert all(map(torch.equal, head, b.method.head.parameters()))  # not after the first task
    b.begin([2, 3])
    data = b.batch([2, 3] * 10, 2)
    body = b.network.module[0].weight.clone()

    def loss() -> float:
        x, y, _ = b.memory.read(torch.arange(b.memory.filled))
        return F.cross_entropy(b.network(x)[0], y).item()

    b.method.epochs = 0
    b.method.end_task(data.x, data.y)
    before = loss()
    b.method.epochs = 20
    b.method.end_task(data.x[:0], data.y[:0])
    assert loss() < before
    assert torch.equal(b.network.module[0].weight, body)
    assert all(p.grad is None for p in b.network.parameters())


def test_classifier_is_trained_and_saved(make_learner: Callable[..., Learner], teach: Any) -> None:
    learner = teach(make_learner("lucir"))
    assert isinstance(learner.network.head, CosineHead)
    assert learner.network.head.scale.item() != 10.0
    assert any(name.endswith(".scale") for name in learner.state_dict()["tensors"])


def test_a_bare_linear_layer_is_refused_when_the_learner_is_made() -> None:
    """It has no parent in which its last layer could be replaced."""
    with pytest.raises(ValueError, match="is a bare linear layer that another head replaces"):
        Learner(nn.Linear(5, 4), (5,), 4, method="lucir", dtype=torch.float32)
    inside = nn.Sequential(nn.Linear(5, 4))
    Learner(inside, (5,), 4, method="lucir", dtype=torch.float32, buffer=8)


def test_frozen_weights_of_old_classes_get_no_gradient(bench: Make) -> None:
    free, frozen = bench(LUCIR(scale=4.0)), bench(LUCIR(scale=4.0, frozen=True))
    slopes, losses = [], []
    for b in (free, frozen):
        b.begin([0, 1], [2, 3])
        loss = b.method.loss(b.batch([2, 3, 3], 1), [b.batch([0, 1], 2)], identity)
        losses.append(loss.item())
        slopes.append(torch.autograd.grad(loss, list(b.network.parameters()), allow_unused=True))
    assert losses[0] == pytest.approx(losses[1])
    names = [name for name, _ in free.network.named_parameters()]
    for name, one, two in zip(names, *slopes, strict=True):
        if name.endswith("weight") and one.shape == (6, 4):  # the head
            assert (one[:2] != 0).any()
            assert (two[:2] == 0).all()
            one, two = one[2:], two[2:]
        assert torch.allclose(one, two, atol=1e-6), name


def test_tuning_of_frozen_heads_changes_the_newest_weights_alone(bench: Make) -> None:
    b = bench(LUCIR(frozen=True), size=12)
    b.begin([0, 1])
    first = b.batch([0, 1] * 10, 1)
    b.method.end_task(first.x, first.y)
    b.begin([2, 3])
    data = b.batch([2, 3] * 10, 2)
    weight, scale = weights(b).copy(), b.method.head.scale.item()
    b.method.end_task(data.x, data.y)
    changed = (weights(b) != weight).any(1)
    assert changed.tolist() == [False, False, True, True, False, False]
    assert b.method.head.scale.item() == scale


def test_the_rate_of_the_tuning_falls_after_some_batches(bench: Make) -> None:
    b = bench(LUCIR(drop=5))
    b.method.epochs = 3
    shares = b.method._rate_shares(7)  # two batches of four
    assert shares.flatten().tolist() == pytest.approx([1] * 5 + [0.1])
    b = bench(LUCIR())
    assert (b.method._rate_shares(7) == 1).all()


# ---------------------------------------------------------------- what the released code computes


class Moved(Transform):
    """An augmentation that adds one, whatever it draws."""

    random = True

    def augment(self, x: Tensor, params: Tensor) -> Tensor:
        return x + 1


def slope(loss: Callable[[Floats], float], at: Floats) -> Floats:
    """Differentiate a loss entry by entry."""
    out, step = np.zeros_like(at), 1e-6
    for i in np.ndindex(at.shape):
        nudge = np.zeros_like(at)
        nudge[i] = step
        out[i] = (loss(at + nudge) - loss(at - nudge)) / (2 * step)
    return out


def tuned(
    loss: Callable[[Floats, Floats], float], w: Floats, s: Floats, new: list[int], rates: Any
) -> tuple[Floats, Floats]:
    """Return the weights, of which those of new classes change, and the scale after some steps."""
    w = w.copy()
    for rate in rates:
        dw, ds = slope(lambda v, s=s: loss(v, s), w), slope(lambda v, w=w: loss(w, v), s)
        w[new] -= rate * dw[new]
        s = s - rate * ds
    return w, s


def to_the_end(b: Any, tasks: int, batch_size: int = 8) -> tuple[Any, Floats, Floats]:
    """End tasks with two epochs each; return exemplars, weights and scale before the last."""
    b.method.epochs, b.method.context.batch_size = 2, batch_size
    for k in range(tasks):
        b.begin([2 * k, 2 * k + 1])
        data = b.batch([2 * k, 2 * k + 1] * 5, k)
        before = weights(b).copy(), b.method.head.scale.detach().numpy().copy()
        b.method.end_task(data.x, data.y)
    x, y, _ = b.memory.read(torch.arange(b.memory.filled))
    return (x, y.numpy()), *before


@pytest.mark.parametrize("tasks", [1, 2])
def test_released_tuning_by_hand(bench: Make, tasks: int) -> None:
    """The whole loss, on augmented exemplars, trains the newest weights and the scale."""
    b = bench(LUCIR(released=True, frozen=True, drop=1, scale=2.0), size=8)
    b.method.context.transform = Moved([0.0], [1.0]).double()
    (x, y), w, s = to_the_end(b, tasks)
    h = b.network(x + 1)[1].detach().numpy()
    old, new = ([], [0, 1]) if tasks == 1 else ([0, 1], [2, 3])
    rivals = [c for c in range(6) if c not in old]

    def loss(w: Floats, s: Floats) -> float:
        each = cross_entropies(s * unit(h) @ unit(w).T, y)
        return ranking(h, y.tolist(), w, old, rivals) + each.mean()

    want_w, want_s = tuned(loss, w, s, new, [0.01, 0.001])
    assert np.allclose(weights(b), want_w, atol=1e-8)
    assert b.method.head.scale.item() == pytest.approx(float(want_s), abs=1e-8)
    assert np.abs(want_w - w).max() > 1e-4


@pytest.mark.parametrize("frozen", [False, True])
def test_other_tuning_by_hand(bench: Make, frozen: bool) -> None:
    """Cross-entropy alone, on exemplars as they are, and none after the first task."""
    b = bench(LUCIR(frozen=frozen, drop=1, scale=2.0), size=8)
    b.method.context.transform = Moved([0.0], [1.0]).double()
    (x, y), w, s = to_the_end(b, 2, batch_size=3)
    h = b.network(x)[1].detach().numpy()
    want_w, want_s = w, s
    for k, rate in enumerate([0.01] + [0.001] * 5):
        rows = slice(k % 3, None, 3)  # of the 8 exemplars

        def loss(w: Floats, t: Floats, rows: slice = rows) -> float:
            scale = s if frozen else t  # with frozen weights the scale is constant too
            return float(cross_entropies(scale * unit(h[rows]) @ unit(w).T, y[rows]).mean())

        want_w, want_s = tuned(loss, want_w, want_s, [2, 3] if frozen else list(range(6)), [rate])
    assert np.allclose(weights(b), want_w, atol=1e-8)
    assert b.method.head.scale.item() == pytest.approx(float(want_s), abs=1e-8)


def test_released_ranking_has_rivals_of_later_tasks(bench: Make) -> None:
    b, other = bench(LUCIR(released=True)), bench(LUCIR())
    for one in (b, other):
        one.begin([0, 1], [2])
    mem = b.batch([0, 1, 1, 2], 1)
    h, y = mem.h.detach().numpy(), mem.y.tolist()
    got, less = (one.method.ranking(mem.h, mem.y).item() for one in (b, other))
    assert got != pytest.approx(less, abs=1e-3)
    assert got == pytest.approx(ranking(h, y, weights(b), [0, 1], [2, 3, 4, 5]), abs=1e-9)
    assert less == pytest.approx(ranking(h, y, weights(b), [0, 1], [2]), abs=1e-9)


@pytest.mark.parametrize("tasks", [1, 2])
def test_released_weights_of_later_classes_are_frozen_too(bench: Make, tasks: int) -> None:
    b = bench(LUCIR(released=True, frozen=True))
    b.begin(*[[0, 1], [2, 3]][:tasks])
    new = [0, 1] if tasks == 1 else [2, 3]
    loss = b.method.loss(b.batch([*new, 0, 1], 1), [], identity)
    (got,) = torch.autograd.grad(loss, [b.method.head.weight])
    assert (got != 0).any(1).nonzero().flatten().tolist() == new


def imprinted(h: Floats, before: Floats, old: list[int]) -> Floats:
    return unit(unit(h).mean(0)) * np.linalg.norm(before[old], axis=1).mean()


def test_imprint_uses_all_samples_of_new_classes_once(bench: Make) -> None:
    b = bench(LUCIR(released=True))
    b.begin([0, 1])
    before, first = weights(b).copy(), b.batch([0, 1, 0])
    b.method.preview_task(first.x, first.y)
    assert np.array_equal(weights(b), before)  # nothing is imprinted in the first task

    b.begin([2, 3])
    before, data = weights(b).copy(), b.batch([2, 3, 0, 2, 5, 3, 2], 1)
    b.method.context.good.fill_(False)  # of the last step, which is over
    b.method.preview_task(data.x, data.y)
    b.method.context.good.fill_(True)
    h = data.h.detach().numpy()
    assert np.allclose(weights(b)[2], imprinted(h[[0, 3, 6]], before, [0, 1]), atol=1e-9)
    assert np.allclose(weights(b)[3], imprinted(h[[1, 5]], before, [0, 1]), atol=1e-9)
    others = [0, 1, 4, 5]
    assert np.array_equal(weights(b)[others], before[others])

    after = weights(b).copy()
    b.method.loss(b.batch([2, 3, 0], 2), [], identity)
    with torch.no_grad():
        b.method.after_step(None)
    assert np.array_equal(weights(b), after)


def test_released_steps_imprint_no_class_of_a_later_task(bench: Make) -> None:
    """In a blurry stream its samples come before its task, which imprints it with all of them."""
    b = bench(LUCIR(released=True, frozen=True))
    b.begin([0, 1])
    for labels, classes in (([0, 1, 4], [2, 3]), ([2, 4, 0], [4, 5])):
        before = weights(b).copy()
        b.method.loss(b.batch(labels, 1), [], identity)
        with torch.no_grad():
            b.method.after_step(None)
        assert np.array_equal(weights(b)[4], before[4])
        b.begin(classes)
    before, data = weights(b).copy(), b.batch([4, 4, 2], 2)
    b.method.preview_task(data.x, data.y)
    h = data.h.detach().numpy()
    assert np.allclose(weights(b)[4], imprinted(h[:2], before, [0, 1, 2, 3]), atol=1e-9)


def test_imprint_uses_evaluation_mode(
    make_learner: Callable[..., Learner], teach: Any, images: Dataset
) -> None:
    learner = teach(make_learner("lucir", method_options=RELEASED), tasks=1)
    learner.new_task([2, 3])
    head, rows = learner.network.head, images.train_y == 2
    with torch.no_grad(), evaluation_mode(learner.network):
        x = learner.parts.context.transform(images.train_x[rows])
        h = learner.parts.context.network(x)[1].double().numpy()
    before = head.weight.detach().double().numpy().copy()
    learner.method.preview_task(images.train_x[rows], images.train_y[rows])
    want = imprinted(h, before, [0, 1])
    assert np.allclose(head.weight[2].detach().numpy(), want, atol=1e-5)


@pytest.mark.parametrize("released", [False, True])
def test_herding_on_features(bench: Make, released: bool) -> None:
    """Features that are not normalised select other exemplars."""
    b = bench(LUCIR(released=released), size=4)
    b.begin([0])
    data = b.batch([0] * 12, 3)
    h = b.network(data.x)[1].detach().numpy()
    h = h if released else unit(h)
    picked: list[int] = []
    for _ in range(4):
        left = [i for i in range(12) if i not in picked]
        off = [np.linalg.norm(h.mean(0) - h[[*picked, i]].mean(0)) for i in left]
        picked.append(left[int(np.argmin(off))])
    b.method.end_task(data.x, data.y)
    assert torch.equal(b.memory.x[:4], data.x[picked])


def tuning_calls(learner: Learner) -> list[tuple[Any, ...]]:
    """End a task; return what it gives the engine to run."""
    calls: list[tuple[Any, ...]] = []
    run = learner.method.context.run
    learner.method.context.run = lambda *call: calls.append(call) or run(*call)
    learner.end_task()
    return calls


def test_released_tuning_shuffles_and_keeps_running_statistics(
    make_learner: Callable[..., Learner], teach: Any
) -> None:
    learner = teach(make_learner("lucir", method_options=RELEASED))
    kept = {k: t.clone() for k, t in learner.network.state_dict().items()}
    calls = tuning_calls(learner)
    assert [key for key, *_ in calls] == [("tune", 8), ("tune", 8), ("tune", 4)] * 20
    rows = torch.cat([call[2] for call in calls]).view(20, 20)
    assert torch.equal(rows.sort().values, torch.arange(20).expand(20, 20))
    assert len({tuple(row) for row in rows.tolist()}) == 20
    draws = torch.cat([call[3] for call in calls]).view(20, 20, -1)
    assert (draws[0] != draws[1]).any()
    now = learner.network.state_dict()
    changed = [k for k in kept if not torch.equal(kept[k], now[k])]
    assert changed == ["module.7.weight", "module.7.scale"]  # the head


def test_released_tuning_has_random_numbers_of_its_seed(
    make_learner: Callable[..., Learner], teach: Any
) -> None:
    """A state brings its seed with it, also into a learner that was made with another one."""
    learners = [teach(make_learner("lucir", method_options=RELEASED, seed=s)) for s in (0, 1)]
    loaded = make_learner("lucir", method_options=RELEASED, seed=2)
    loaded.load_state_dict(learners[1].state_dict())
    first, second, third = (tuning_calls(one)[0][2].tolist() for one in (*learners, loaded))
    assert first != second
    assert second == third
    earlier = teach(make_learner("lucir", method_options=RELEASED, seed=0), tasks=1)
    assert tuning_calls(earlier)[0][2].tolist() != first  # each task has its own


def test_released_tuning_normalises_by_batch_statistics() -> None:
    """The features come from a normalisation, so each batch of them has mean 0 and variance 1."""
    body = nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False)
    net, rng = nn.Sequential(*body, nn.Linear(4, 4)), np.random.default_rng(0)
    learner = Learner(
        net, (5,), 4, method="lucir", method_options=RELEASED, dtype=torch.float32, buffer=9,
        batch_size=8, device="cpu",
    )  # fmt: skip
    learner.new_task([0, 1])
    x = torch.from_numpy(rng.normal(2, 3, (8, 5))).float()
    learner.observe(x, torch.tensor([0, 1] * 4))
    seen: list[Tensor] = []
    step = learner.method._head_step
    learner.method._head_step = lambda h, *more: seen.append(h) or step(h, *more)
    learner.end_task()
    assert len(seen) == 20
    for h in seen:
        assert torch.allclose(h.mean(0), torch.zeros(4), atol=1e-5)
        assert torch.allclose(h.var(0, correction=0), torch.ones(4), atol=1e-2)


@pytest.mark.parametrize("boundaries", ["given", "inferred"])
def test_released_tuning_is_that_of_a_network_in_training_mode(
    boundaries: str, make_learner: Callable[..., Learner], make_batches: Any, differ: Any
) -> None:
    """Also if the caller has put it into evaluation mode after the last step."""
    ends = []
    for evaluated in (False, True):
        learner = make_learner("lucir", method_options=RELEASED, boundaries=boundaries)
        for task, batches in enumerate(make_batches(3)):
            if boundaries == "given":
                learner.new_task([2 * task, 2 * task + 1])
            for x, y in batches:
                learner.network.module.train(not evaluated)
                learner.observe(x, y)
            learner.network.module.train(not evaluated)
        learner.end_task()
        ends.append(learner.state_dict())
    assert learner.task == 2
    assert differ(*ends) == []


def test_released_tuning_of_a_single_exemplar(bench: Make) -> None:
    b = bench(LUCIR(**RELEASED), size=5)  # one more than a batch
    b.begin([0, 1])
    data = b.batch([0, 1] * 5)
    b.method.end_task(data.x, data.y)
    assert np.isfinite(weights(b)).all()


def test_released_tuning_can_be_captured(
    make_learner: Callable[..., Learner], teach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing on the host, so calls with equal keys can become one launch."""
    monkeypatch.setattr(transforms, "crop_by_window", transforms.crop_by_gather)  # as on CUDA
    calls = tuning_calls(teach(make_learner("lucir", method_options=RELEASED)))
    assert len({(key, *(t.shape for t in inputs)) for key, _, *inputs in calls}) == 2
    _, fn, *inputs = calls[0]
    with FakeTensorMode(allow_non_fake_inputs=True):
        fn(*(torch.zeros_like(t) for t in inputs))


@pytest.mark.gpu
def test_released_steps_and_tuning_are_captured(
    make_learner: Callable[..., Learner], teach: Any
) -> None:
    ends = []
    for engine in ("eager", "captured"):
        given = {"device": "cuda", "engine": engine, "precision": "fp32"}
        learner = make_learner("lucir", method_options=RELEASED, **given)
        teach(learner, tasks=3, steps=12)
        learner.end_task()
        ends.append(learner.state_dict()["tensors"])
    assert isinstance(learner.parts.engine, Captured)
    assert ("tune", 8) in learner.parts.engine.entries
    assert not learner.parts.engine.refused
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, rtol=1e-3, atol=1e-4, msg=key)


def test_released_is_a_flag() -> None:
    with pytest.raises(ValueError, match="released is 'yes', expected True or False"):
        LUCIR(released="yes")  # type: ignore[arg-type]
