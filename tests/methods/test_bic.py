"""BiC against NumPy: the loss, the held-out samples, and the fit of α and β."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, divergences
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba import Learner
from dualcba.losses import Batch, identity
from dualcba.methods.bic import BiC

Make = Callable[..., Any]
Floats = NDArray[np.float64]


def by_hand(z: Floats, y: Tensor, target: Floats, old: list[int], share: float) -> Floats:
    """The loss of each sample."""
    ce = cross_entropies(z, y.numpy())
    if not old:
        return ce
    return (1 - share) * ce + share * divergences(target[:, old], z[:, old], 2)


def test_loss(bench: Make) -> None:
    b = bench(BiC())
    b.begin([0, 1], [2, 3, 4])
    b.method.alpha[:2], b.method.beta[:2] = 1.5, -0.25  # of the previous task
    new, mem = b.batch([2, 3, 3], 1), b.batch([0, 1, 1, 0], 2)
    alpha, beta = b.method.alpha.numpy(), b.method.beta.numpy()
    want = 0.0
    for batch in (new, mem):
        z = alpha * batch.z.detach().numpy() + beta
        target = alpha * b.method.teacher(batch.x)[0].numpy() + beta
        want += by_hand(z, batch.y, target, [0, 1], 2 / 5).mean()
    assert b.method.loss(new, [mem], identity).item() == pytest.approx(want, abs=1e-6)


def test_first_task_is_cross_entropy_alone(bench: Make) -> None:
    b = bench(BiC())
    b.begin([0, 1])
    new = b.batch([0, 1, 1])
    z = new.z.detach().numpy()
    want = by_hand(z, new.y, z, [], 0.0).mean()
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_unannounced_classes_do_not_change_the_weight_of_distillation(bench: Make) -> None:
    b = bench(BiC())
    b.begin([0, 1], [2, 3])
    new = b.batch([2, 3, 3], 1)
    before = b.method.loss(new, [], identity)
    b.sets.appear(torch.tensor([5]))
    assert torch.equal(b.method.loss(new, [], identity), before)


def second_task(bench: Make) -> Any:
    """In its second task, with 30 exemplars of which 3 are held out."""
    b = bench(BiC(), size=30)
    b.begin([0, 1])
    first = b.batch([0, 1] * 20, 1)
    b.method.loss(first, [], identity)
    b.method.end_task(first.x, first.y)
    b.begin([2, 3])
    return b


def test_held_out_samples_are_not_in_the_loss(bench: Make) -> None:
    b = second_task(bench)
    assert b.method.quota == 3
    held = []
    for step in range(6):  # batches of 6: samples 0, 8 and 16 are held out, not 24
        new = b.batch([2, 3] * 3, 10 + step)
        loss = b.method.loss(new, [], identity)
        slope = torch.autograd.grad(loss, new.z)[0]
        apart = (slope == 0).all(1)
        held += apart.tolist()
        z, target = new.z.detach().numpy(), b.method.teacher(new.x)[0].numpy()
        each = by_hand(z, new.y, target, [0, 1], 0.5)
        assert loss.item() == pytest.approx(each[~apart.numpy()].mean(), abs=1e-6)
    assert np.flatnonzero(held).tolist() == [0, 8, 16]
    b.method.arrived.zero_()
    assert b.method.loss(b.batch([2]), [], identity).item() == 0.0  # a batch that is held out


def test_held_out_exemplars_are_never_drawn(bench: Make) -> None:
    memory = second_task(bench).memory
    assert list(range(30))[memory.validation] == [9, 19, 29]
    rng = np.random.default_rng(0)
    drawn = {int(r) for _ in range(200) for r in memory.draw(8, rng)}
    assert drawn == set(range(30)) - {9, 19, 29}
    assert len(memory.draw(99, rng)) == 27


def test_fit_sees_exactly_what_was_held_out(bench: Make, monkeypatch: Any) -> None:
    b = second_task(bench)
    exemplars = b.memory.x[b.memory.validation].clone()
    data = b.batch([2, 3] * 18, 5)
    given = []
    monkeypatch.setattr(b.method, "fit", lambda z, y: given.append((z, y)))
    b.method.end_task(data.x, data.y)
    ((z, y),) = given
    want = b.network(torch.cat([exemplars, data.x[[0, 8, 16]]]))[0]
    assert torch.allclose(z, want)
    assert y[3:].tolist() == data.y[[0, 8, 16]].tolist()


def test_a_fit_does_not_depend_on_the_previous_fit(bench: Make) -> None:
    b = second_task(bench)
    data, fits = b.batch([0, 1, 2, 3] * 5, 5), []
    for _ in range(2):
        b.method.fit(data.z.detach(), data.y)
        fits.append(torch.stack([b.method.alpha, b.method.beta]))
    assert torch.equal(*fits)


def test_fit_lowers_the_loss_on_validation(bench: Make) -> None:
    """New classes have a bias of 2; β reduces it as far as 250 epochs at 1e-3 allow."""
    b = second_task(bench)
    rng = np.random.default_rng(0)
    y = torch.tensor([0, 1, 2, 3] * 10)
    z = torch.from_numpy(rng.normal(size=(40, 6)))
    z[torch.arange(40), y] += 2.0
    z[:, 4:] = -9.0
    z[:, 2:4] += 2.0

    def loss() -> float:
        q = b.method.correct(z)
        return float(torch.nn.functional.cross_entropy(q, y))

    before = loss()
    b.method.fit(z, y)
    assert loss() < before - 0.05
    alpha, beta = b.method.alpha, b.method.beta
    assert beta[2] < -0.1
    assert b.method.adam.state[b.method.fitted]["step"] == 250 * 10  # of 10 batches
    assert (alpha[2], beta[2]) == (alpha[3], beta[3])
    assert alpha[[0, 1, 4, 5]].tolist() == [1.0] * 4
    assert beta[[0, 1, 4, 5]].tolist() == [0.0] * 4


def test_fit_takes_the_steps_of_adam(bench: Make) -> None:
    """Compare with a fit by autograd and torch's Adam, over all logits at once."""
    b = second_task(bench)
    b.method.epochs = 5
    b.method.alpha[:2], b.method.beta[:2] = 0.8, 0.1
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(10, 6)))
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
    new = torch.tensor([False, False, True, True, False, False])
    each = 1 / torch.tensor([3.0, 2.0, 3.0, 2.0])[y]  # all classes have the same weight
    fixed = b.method.correct(z)
    b.method.fit(z, y)

    free = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([free], lr=1e-3)
    for k in [0, 1, 2] * 5:  # batches of at most 4
        q = torch.where(new, free[0] * z + free[1], fixed)[k::3]
        ce = torch.nn.functional.cross_entropy(q, y[k::3], reduction="none")
        adam.zero_grad()
        ((ce * each[k::3]).sum() / each[k::3].sum()).backward()
        adam.step()
    assert b.method.alpha[2].item() == pytest.approx(free[0].item(), abs=1e-6)
    assert b.method.beta[2].item() == pytest.approx(free[1].item(), abs=1e-6)


def test_scores_apply_every_correction(bench: Make) -> None:
    b = bench(BiC())
    b.method.alpha.copy_(torch.arange(6.0))
    b.method.beta.copy_(torch.arange(6.0) / 10)
    batch: Batch = b.batch([0, 1])
    want = batch.z.detach().numpy() * np.arange(6) + np.arange(6) / 10
    assert np.allclose(b.method.scores(batch.x).detach().numpy(), want, atol=1e-6)


def test_corrects_from_the_second_task_on(make_learner: Callable[..., Learner], teach: Any) -> None:
    learner = teach(make_learner("bic"), tasks=1)
    learner.end_task()
    assert learner.method.alpha.tolist() == [1.0] * 6  # type: ignore[union-attr, operator]
    learner = teach(make_learner("bic"), tasks=2)
    learner.end_task()
    alpha = learner.method.alpha.tolist()  # type: ignore[union-attr, operator]
    assert alpha[2] == alpha[3] != 1.0
    assert alpha[:2] == alpha[4:] == [1.0, 1.0]


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_the_ratio_may_follow_the_number_of_tasks(bench: Make, tasks: int) -> None:
    b = bench(BiC(ratio="tasks"))
    b.begin(*[[0, 1], [2, 3], [4, 5]][:tasks])
    new = b.batch([2 * tasks - 2, 2 * tasks - 1, 2 * tasks - 1], 1)
    old, share = list(range(2 * tasks - 2)), {1: 0.0, 2: 1 / 2, 3: 1 / 3}[tasks]
    target = b.method.teacher(new.x)[0].numpy()
    each = by_hand(new.z.detach().numpy(), new.y, target, old, share)
    assert b.method.loss(new, [], identity).item() == pytest.approx(each.mean(), abs=1e-6)


def test_the_fit_may_weigh_all_samples_equally(bench: Make) -> None:
    b = bench(BiC(balanced=False), size=30)
    b.begin([0, 1], [2, 3])
    data = b.batch([0] * 6 + [2], 5)
    weights: list[torch.Tensor] = []

    def run(key: Any, fn: Any, *inputs: torch.Tensor) -> None:
        weights.append(inputs[3])

    b.method.context.run = run
    b.method.fit(data.z.detach(), data.y)
    parts = weights[0].squeeze(2)
    assert parts.sum(1).tolist() == pytest.approx([1.0] * len(parts))
    for part in parts:
        used = part[part > 0]
        assert used.tolist() == pytest.approx([1 / len(used)] * len(used))


def test_other_ratios_are_refused() -> None:
    with pytest.raises(ValueError, match="ratio is 'half', expected 'classes' or 'tasks'"):
        BiC(ratio="half")


def test_merged_exemplars_are_not_held_out(bench: Make, monkeypatch: Any) -> None:
    b = bench(BiC(merge=True), size=30)
    b.begin([0, 1])
    first = b.batch([0, 1] * 20, 1)
    b.method.loss(first, [], identity)
    b.method.end_task(first.x, first.y)
    b.begin([2, 3])
    assert b.method.draws == 0
    own, held = [], []
    for step in range(6):
        new = b.batch([0, 2, 1, 3, 3, 2], 10 + step)
        slope = torch.autograd.grad(b.method.loss(new, [], identity), new.z)[0]
        own += [x for x, y in zip(new.x, new.y, strict=True) if y > 1]
        held += [x for x, apart in zip(new.x, (slope == 0).all(1), strict=True) if apart]
    assert torch.equal(torch.stack(held), torch.stack(own)[[0, 8, 16]])
    given: list[torch.Tensor] = []
    monkeypatch.setattr(b.method, "embed", lambda x: (given.append(x), torch.zeros(len(x), 4))[1:])
    monkeypatch.setattr(b.method, "fit", lambda z, y: None)
    monkeypatch.setattr(b.memory, "fill", lambda *_: None)
    b.method.end_task(torch.stack(own), torch.tensor([2, 3, 3, 2] * 6))
    assert torch.equal(given[0][3:], torch.stack(held))
    exemplars = b.memory.x[b.memory.validation]
    assert torch.equal(given[0][:3], exemplars)
    b.method.negatives = True  # of floats here: the sign changes
    b.method.end_task(torch.stack(own), torch.tensor([2, 3, 3, 2] * 6))
    assert torch.equal(given[1][:3], -exemplars)
    assert torch.equal(given[1][3:], given[0][3:])


CORRECTION = [[1.5, 1.25], [-0.25, 0.5]]
"""α and β of the old classes; an offset that all have would cancel."""


def released(bench: Make) -> Any:
    """In its second task, as in the released code, with 30 exemplars."""
    b = bench(BiC(ratio="tasks", balanced=False, merge=True, released=True), size=30)
    b.begin([0, 1])
    first = b.batch([0, 1] * 20, 1)
    b.method.end_task(first.x, first.y)
    b.method.alpha[:2], b.method.beta[:2] = torch.tensor(CORRECTION)
    b.begin([2, 3])
    return b


def test_released_corrects_the_newest_classes_alone(bench: Make) -> None:
    b = released(bench)
    assert (b.method.alpha == 1).all()
    assert (b.method.beta == 0).all()
    new = b.batch([2, 3, 0, 1, 1], 1)
    seen, old = [0, 1, 2, 3], [0, 1]
    z = new.z.detach().numpy()[:, seen]
    alpha, beta = np.array(CORRECTION)
    target = alpha * b.method.teacher(new.x)[0].numpy()[:, old] + beta
    each = by_hand(z, new.y, target, old, 1 / 2)
    used = np.array([False, True, True, True, True])  # the first new sample is held out
    want = each[used].mean()
    assert b.method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_released_fits_over_the_seen_classes(bench: Make) -> None:
    b = released(bench)
    data = b.batch([0, 1, 2, 3] * 5, 5)
    fits = []
    for shift in (0.0, 50.0):  # of the classes that have not been seen
        z = data.z.detach().clone()
        z[:, 4:] += shift
        b.method.fit(z, data.y)
        fits.append(torch.stack([b.method.alpha, b.method.beta]))
    assert torch.equal(*fits)
    assert fits[0][0, 2] != 1


def test_released_memory_has_shares_of_tasks(bench: Make) -> None:
    b = released(bench)
    data = b.batch([2, 3] * 20, 5)
    b.method.end_task(data.x, data.y)
    labels = b.memory.y[:30].tolist()
    assert labels[:15] == [0, 1] * 7 + [0]
    new = [label for label in labels[15:] if label > 1]
    assert len(new) == 9  # of 40 samples and 27 exemplars that are not held out, in proportion
    assert b.memory.owner[:30].tolist() == [0] * 15 + [1] * 15


def test_released_memory_stores_negatives_of_exemplars() -> None:
    options = {"merge": True, "negatives": True, "released": True}
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    learner = Learner(net, (1, 2, 2), 4, buffer=8, method="bic", method_options=options)
    for label in (0, 1):
        learner.new_task([label])
        x = torch.full((8, 1, 2, 2), 10 + label, dtype=torch.uint8)
        learner.observe(x, torch.full((8,), label))
        learner.end_task()
    values = learner.memory.x[:8].flatten(1)[:, 0].tolist()
    assert values == [10, 10, 10, 10, 11, 246, 11, 246]  # 246 is −10 modulo 256


NEGATIVES = {"merge": True, "negatives": True}


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5,), torch.float32), ({"a": (3,), "b": (2,)}, {"a": torch.uint8, "b": torch.float32})],
)
def test_negatives_are_those_of_bytes_alone(shape: Any, dtype: Any) -> None:
    """Rows of several inputs are bytes, but what they hold need not be."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 4)

        def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
            return cast(Tensor, self.last(torch.cat([*x, *named.values()], 1).float()))

    wanted = "the dtype of samples is 'torch.float32', expected torch.uint8 with negatives"
    with pytest.raises(ValueError, match=wanted):
        Learner(Joined(), shape, 4, dtype=dtype, method="bic", method_options=NEGATIVES)


def test_released_needs_merged_exemplars() -> None:
    with pytest.raises(ValueError, match="released is True, expected False, or merge=True"):
        BiC(released=True)
