"""Both sides of Theorem 1 against a direct computation by autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dualcba import Dataset, Learner
from dualcba.adaptors.hypergradient import buffer_gradient as single_level
from dualcba.adaptors.hypergradient import hypergradient, inner_gradient, trainable
from dualcba.data import disjoint
from dualcba.evaluation.alignment import Alignment, judge
from dualcba.experiments import Hardware, Run, Spec

Make = Callable[..., Learner]


@pytest.fixture
def prepared(images: Dataset, make_learner: Make, make_batches: Any) -> Callable[..., Any]:
    """A learner in its second task, its recorder and the batch that comes next."""

    def prepare(method: str, **options: Any) -> tuple[Learner, Alignment, Tensor, Tensor]:
        learner = make_learner(method, **options)
        recorder = Alignment(learner, images, disjoint(images, 3), [5, 5, 5])
        first, second, _ = make_batches(3, steps=5)
        for classes, batches in (([0, 1], first), ([2, 3], second[:-1])):
            learner.new_task(classes)
            for x, y in batches:
                learner.observe(x, y)
        return learner, recorder, *second[-1]

    return prepare


def flat(parts: Any) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def buffer_gradient(network: torch.nn.Module, outer: Any) -> tuple[Tensor, Tensor]:
    loss = F.cross_entropy(network(outer.x)[0], outer.y)
    return loss, flat(torch.autograd.grad(loss, list(network.parameters())))


def updated(learner: Learner, new: Any, mem: Any, outer: Any) -> Any:
    """φ after the outer step, by the autograd road and a twin's own optimiser."""
    twin = copy.deepcopy(learner)
    assert twin.adaptor is not None
    assert twin.parts.outer_loop.optimizer is not None
    head = learner.network.head
    grads = hypergradient(
        twin.adaptor,
        learner.method,
        new,
        mem,
        outer,
        head,
        learner.parts.context.lr,
        closed_form=False,
    )
    for p, g in zip(trainable(twin.adaptor), grads, strict=True):
        p.grad = g
    twin.parts.outer_loop.optimizer.step()
    return twin.adaptor


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
@pytest.mark.parametrize("scope", ["", "head."])
def test_both_sides_by_hand(method: str, scope: str, prepared: Callable[..., Any]) -> None:
    learner, recorder, x, y = prepared(method)
    new, mem, outer = recorder.batches(x, y)
    got = {k: v.item() for k, v in recorder.measure(x, y).items()}
    adaptor = updated(learner, new, mem, outer)
    network = copy.deepcopy(learner.network).to(memory_format=torch.contiguous_format)
    theta = list(network.parameters())
    inside = flat([torch.full_like(p, k >= len(theta) - 2) for k, p in enumerate(theta)])
    inside = inside if scope else torch.ones_like(inside)  # the head's are the last two

    loss, G_buf = buffer_gradient(network, outer)
    assert got["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for which in ("with", "without"):
        z = [network(b.x)[0] for b in (new, *mem)]
        r = adaptor(torch.cat(z)).detach() * (which == "with")
        parts = zip(z, r.split([len(part) for part in z]), (new, *mem), strict=True)
        trained = torch.stack([F.cross_entropy(a + b, batch.y) for a, b, batch in parts]).sum()
        G_trn = flat(torch.autograd.grad(trained, theta)) * inside
        moved = copy.deepcopy(network)
        start = torch.nn.utils.parameters_to_vector(theta)
        torch.nn.utils.vector_to_parameters(
            start - learner.parts.context.lr * G_trn, moved.parameters()
        )
        after, G_after = buffer_gradient(moved, outer)
        eta = ((G_after - G_buf) * inside).norm() / (learner.parts.context.lr * G_trn.norm())
        want = {
            "dot": G_buf @ G_trn,
            "norm_trn": G_trn.norm(),
            "lipschitz": eta,
            "bound": learner.parts.context.lr * eta / 2 * G_trn.norm() ** 2,
            "loss_after": after,
        }
        for name, value in want.items():
            assert got[f"{scope}{which}.{name}"] == pytest.approx(value.item(), rel=1e-3), name
        assert got[f"{scope}norm_buf"] == pytest.approx((G_buf * inside).norm().item(), rel=1e-4)


def test_with_and_without_differ_by_the_adaptor_alone(prepared: Callable[..., Any]) -> None:
    learner, recorder, x, y = prepared("er-dual-cba")
    got = recorder.measure(x, y)
    assert got["with.dot"] != got["without.dot"]
    for p in learner.adaptor.parameters():
        p.data.zero_()
    learner.parts.outer_loop.optimizer.param_groups[0]["lr"] = 0.0
    got = recorder.measure(x, y)
    for name in ("dot", "bound", "loss_after"):
        assert got[f"with.{name}"].item() == got[f"without.{name}"].item()


def test_the_batches_are_the_arriving_one_and_draws_from_the_memory(
    prepared: Callable[..., Any],
) -> None:
    learner, recorder, x, y = prepared("derpp-dual-cba")
    new, mem, outer = recorder.batches(x, y)
    assert new.y.tolist() == y.tolist()
    assert [b.rows for b in (new, *mem)] == [slice(0, 8), slice(8, 16), slice(16, 24)]
    known = set(learner.memory.y[: learner.memory.filled].tolist())
    for batch in (*mem, outer):
        assert len(batch.y) == 8
        assert set(batch.y.tolist()) <= known
    again = recorder.batches(x, y)
    assert torch.equal(again[2].z, outer.z)  # by the seed and the step
    learner._step += 1
    assert not torch.equal(recorder.batches(x, y)[2].z, outer.z)


@pytest.mark.parametrize("levels", ["joint", "buffer"])
def test_the_copy_learns_by_the_levels_of_the_learner(
    levels: str, prepared: Callable[..., Any]
) -> None:
    learner, recorder, x, y = prepared("er-dual-cba", levels=levels)
    new, mem, outer = recorder.batches(x, y)
    twin = copy.deepcopy(learner)
    joint = levels == "joint"
    last = (new, mem) if joint else (outer,)
    grads = (inner_gradient if joint else single_level)(twin.adaptor, learner.method, *last)
    for p, g in zip(trainable(twin.adaptor), grads, strict=True):
        p.grad = g
    twin.parts.outer_loop.optimizer.step()
    want = new.z + twin.adaptor(torch.cat([b.z for b in (new, *mem)]))[new.rows]
    assert torch.equal(recorder.adapted(new, mem, outer)(new), want)


def test_where_labelled_samples_lead_a_batch_they_have_no_other_view(images: Dataset) -> None:
    given = {"setting": "semi-0.5", "labelled_batches": "cycled"}
    run = Run(
        Spec(dataset="digits", network="mlp", tasks=2, batch_size=4, eval_every=0, **given),
        images, Hardware(device="cpu"),
    )  # fmt: skip
    recorder = Alignment(run.learner, images, run.stream, [1, 1])
    next(run.steps())
    new, mem, _ = recorder.batches(images.train_x[:8], images.train_y[:8])
    assert [len(b.x) for b in (new, *mem, new.views["strong"])] == [8, 4, 4]
    assert all(isinstance(v, float) for v in recording(images, **given)["with"])


def test_an_adaptor_of_which_nothing_learns_any_more(images: Dataset) -> None:
    """Frozen from the third task on, it is measured as it is."""
    got = recording(images, tasks=3, specific="none", freeze_after=2)
    assert got["task"] == [2, 2, 3, 3]
    assert all(isinstance(v, float) for v in got["with"])


def recording(images: Dataset, **options: Any) -> dict[str, Any]:
    given = {"dataset": "digits", "network": "mlp", "tasks": 2, "batch_size": 4, "eval_every": 0}
    run = Run(Spec(**given | options, record=["alignment"]), images, Hardware(device="cpu"))
    list(run.steps())
    found: dict[str, Any] = run.result()["recordings"]["alignment"]
    return found


def test_where_it_is_measured(images: Dataset) -> None:
    """Two tasks of 18 steps: at the start of the second, and ten steps on."""
    got = recording(images)
    assert (got["every"], got["step"], got["task"]) == (10, [18, 28], [2, 2])
    assert got["alpha"] == pytest.approx([0.03, 0.03])
    assert recording(images, outer_every=7)["step"] == [18, 32]
    assert recording(images, outer_every=12)["step"] == [18, 30]
    for part in (got, got["head"]):
        lists = [v for v in part.values() if isinstance(v, list)]
        assert {len(v) for v in lists} == {2}
        assert all(isinstance(v, float | int) for row in lists for v in row)


def test_without_an_adaptor_there_is_no_with(images: Dataset) -> None:
    got = recording(images, method="er")
    assert got["with"] == got["bound"] == got["head"]["with"] == [None, None]
    assert all(isinstance(v, float) for v in got["without"] + got["bound_without"])
    assert set(judge(got, "without")) == {"aligned", "bound", "falls", "cosine"}
    with pytest.raises(ValueError, match="alignment with the adaptor was not measured"):
        judge(got)


def test_what_a_recording_says_by_hand() -> None:
    one = {
        "with": [2.0, 1.0, 1.0, -1.0], "bound": [1.0, 2.0, 2.0, 1.0],
        "norm_trn": [2.0, 1.0, 1.0, 0.5], "loss_after": [0.9, 0.9, 0.9, 1.0],
        "without": [-3.0, -1.0, 1.0, -1.0], "bound_without": [-4.0, -2.0, 2.0, -1.0],
        "norm_trn_without": [3.0, 1.0, 1.0, 1.0], "loss_after_without": [1.1, 0.9, 1.1, 1.1],
        "norm_buf": [2.0, 2.0, 2.0, 2.0], "loss": [1.0, 1.0, 1.0, 1.0],
    }  # fmt: skip
    assert judge(one) == {"aligned": 0.75, "bound": 0.25, "falls": 1.0, "cosine": 0.125}
    want = {"aligned": 0.25, "bound": 0.75, "falls": 0.25, "cosine": -0.25}
    assert judge(one, "without") == want


def test_one_task_has_no_alignment(images: Dataset) -> None:
    got = recording(images, tasks=1)
    assert got["step"] == got["with"] == got["head"]["without"] == []
    with pytest.raises(ValueError, match="was not measured"):
        judge(got)


def test_a_falling_loss_does_not_imply_the_bound() -> None:
    """What the proof concludes from: L_buf = (η θ₁² + ε θ₂²)/2 falls, and yet the bound fails."""
    eta, epsilon, lr = 1.0, 0.1, 1.0
    theta, G_trn = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.5])
    curvature = torch.tensor([eta, epsilon])
    G_buf, after = curvature * theta, theta - lr * G_trn
    assert (curvature * after**2).sum() < (curvature * theta**2).sum()
    assert G_buf @ G_trn < lr * eta / 2 * G_trn @ G_trn
    assert G_buf @ G_trn >= -lr * eta / 2 * G_trn @ G_trn  # what does follow


@pytest.mark.filterwarnings("ignore:observed y is")
def test_the_loss_is_that_of_a_step_with_what_the_method_observes(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner("las-dual-cba")
    recorder = Alignment(learner, images, disjoint(images, 3), [5, 5, 5])
    learner.new_task([0, 1])
    batches = make_batches(1, steps=2)[0]
    for x, y in batches:
        learner.observe(x, y)
    learner.new_task([2, 3])
    before, seen = learner.state_dict(), []
    method: Any = learner.method
    own = type(method).loss

    def spy(new: Any, mem: Any, adapt: Any) -> Tensor:
        joint = torch.cat([new.y, *(batch.y for batch in mem)])
        seen.append((method.counts.sum(0).tolist(), torch.bincount(joint, minlength=6).tolist()))
        return own(method, new, mem, adapt)

    method.loss = spy
    recorder.before_step(*batches[0])
    assert seen
    assert all(counted == there for counted, there in seen)
    del method.loss
    after = learner.state_dict()
    assert all(torch.equal(t, after["tensors"][k]) for k, t in before["tensors"].items())


@pytest.mark.parametrize(
    ("method", "message"),
    [("gsa", "gsa chooses its memory draws by labels"), ("er-balanced-cba", "'balanced'")],
)
def test_other_draws_than_those_of_a_step_are_refused(method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spec(method=method, record=["alignment"])
