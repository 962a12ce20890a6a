"""Classes that nobody announced: a learner without `num_classes` grows with its labels."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner
from dualcba.methods import method_names
from dualcba.nets.heads import resize_head

Batches = list[list[tuple[Tensor, Tensor]]]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
NAMES = ["owl", ("a", 1), 700, "dog", None, 2.5]
"""Labels of the six classes of `images`."""

FEW = ["er-dual-cba", "derpp-balanced-cba", "clser-cba", "er-ace", "er+mkd-dual-cba"]


def labels(y: Tensor) -> list[Any]:
    return [NAMES[k] for k in y.tolist()]


@pytest.fixture
def growing(images: Dataset, make_net: Any) -> Callable[..., Learner]:
    """A learner that begins with a few outputs."""

    def make(method: Any = "er-dual-cba", net: nn.Module | None = None, **given: Any) -> Learner:
        options: dict[str, Any] = {
            "buffer": 20, "batch_size": 8, "lr": 0.05, "device": "cpu",
            "transform": images.transform(),
        }  # fmt: skip
        if str(method).endswith("cba"):
            options |= {"outer_every": 2, "width": 8}
        if str(method).startswith("gsa"):
            options |= {"method_options": {"own": 4, "balanced": 8}}
        if net is None:
            net = with_outputs(make_net(), 2)
        return Learner(net, (3, 8, 8), **({"method": method} | options | given))

    return make


def with_outputs(net: nn.Module, outputs: int) -> nn.Module:
    """Give a network another number of outputs."""
    resize_head(net[-1], outputs)  # type: ignore[index]
    return net


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))


def teach(learner: Learner, stream: Batches, *, tasks: int = 3) -> Learner:
    inferred = learner.parts.tasks.detector is not None
    for k, batches in enumerate(stream[:tasks]):
        if not inferred:
            learner.new_task(NAMES[2 * k : 2 * k + 2])
        for x, y in batches:
            learner.observe(x, labels(y))
    return learner


# ---------------------------------------------------------------- what growing does


@pytest.mark.parametrize("method", method_names())
def test_every_method_grows_and_its_state_continues_in_a_fresh_learner(
    method: str, growing: Any, make_batches: Any, images: Dataset, differ: Differ
) -> None:
    stream = make_batches(3, 3)
    learner = teach(growing(method), stream)
    assert learner.classes_ == NAMES
    assert learner.network.num_classes == 8
    state = learner.state_dict()
    assert all(bool(t.isfinite().all()) for t in state["tensors"].values() if t.is_floating_point())
    other = growing(method)
    other.load_state_dict(state)
    assert differ(state, other.state_dict()) == []
    for one in (learner, other):
        one.observe(*(stream[0][0][0], labels(stream[0][0][1])))
        one.end_task()
    assert differ(learner.state_dict(), other.state_dict()) == []
    shares = other.predict_proba(images.test_x)
    assert shares.shape == (len(images.test_x), 6)
    assert torch.equal(shares, learner.predict_proba(images.test_x))


FIXED = [*FEW, "rar", "icarl", "lucir", "bic", "ss-il", "las-cba", "pcr", "gsa", "obc", "er+ccl-dc"]


@pytest.mark.parametrize("method", FIXED)
def test_the_steps_are_those_of_a_learner_that_knew_the_number_of_outputs(
    method: str, growing: Any, make_batches: Any, make_net: Any, images: Dataset, differ: Differ
) -> None:
    stream = make_batches(3, 3)
    learner = teach(growing(method, with_outputs(make_net(), 8)), stream)
    known = growing(method, with_outputs(make_net(), 8), num_classes=8, seen_only=True)
    for k, batches in enumerate(stream):
        known.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            known.observe(x, y)
    assert differ(learner.state_dict(), known.state_dict()) == ["meta"]  # the labels
    shares = known.predict_proba(images.test_x)
    assert torch.equal(learner.predict_proba(images.test_x), shares[:, :6])
    assert bool((shares[:, 6:] == 0).all())


@pytest.mark.parametrize("optimizer", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_new_outputs_continue_the_one_without_a_class(
    optimizer: Any, growing: Any, make_batches: Any, images: Dataset
) -> None:
    stream = make_batches(3, 4)
    learner = teach(growing("derpp-cba", with_outputs(small(), 4), **optimizer), stream, tasks=1)
    old = learner.state_dict()["tensors"]
    learner.new_task(["dog", "cat"])
    new = learner.state_dict()["tensors"]
    spare, made = old["network.module.1.weight"][3], new["network.module.1.weight"]
    assert torch.equal(made[:4], old["network.module.1.weight"])
    assert len(made) == 8
    assert bool(((made[4:] - spare).abs() <= 192**-0.5).all())
    assert len(made[4:].unique(dim=0)) == 4
    columns = new["memory.column_logits"]
    assert torch.equal(columns[:, 4:], old["memory.column_logits"][:, 3:].expand(-1, 4))
    moments = [k for k in old if k.startswith("optimizer.") and old[k].shape == (4, 192)]
    assert moments
    for name in moments:
        assert torch.equal(new[name], old[name][[0, 1, 2, 3, 3, 3, 3, 3]])


def test_all_copies_of_the_last_layer_grow_alike(growing: Any, make_batches: Any) -> None:
    learner = growing("clser", with_outputs(small(), 4))
    learner.new_task("abcdef")
    rows = [n[1].weight for n in (learner.network.module, learner.method.stable.module)]
    assert len(rows[0]) == 8
    assert torch.equal(*rows)


def test_classes_one_by_one_with_inferred_boundaries(
    growing: Any, images: Dataset, make_net: Any
) -> None:
    learner = growing("er-dual-cba", boundaries="inferred")
    for k in (4, 0, 5, 1, 3, 2):
        own = (images.train_y == k).nonzero().flatten()
        for rows in own.split(8):
            learner.observe(images.train_x[rows], [f"class {k}"] * len(rows))
    assert learner.classes_ == [f"class {k}" for k in (4, 0, 5, 1, 3, 2)]
    assert learner.task == 5
    assert set(learner.predict(images.test_x)) <= set(learner.classes_)


def test_a_class_that_was_not_in_its_given_task_joins_it(growing: Any, images: Dataset) -> None:
    learner = growing("er")
    learner.new_task(["a"])
    learner.observe(images.train_x[:4], ["a", "b", "a", "c"])
    assert learner.class_sets.new.tolist() == [True, True, True, False]
    assert learner.class_sets.owner.tolist() == [0, 0, 0, -1]
    assert bool((learner.predict_proba(images.test_x).sum(1) - 1 < 1e-5).all())


def test_nothing_is_made_anew_while_nothing_grows(growing: Any, images: Dataset) -> None:
    learner = growing("er", with_outputs(small(), 4))
    learner.new_task([0, 1])
    parts, head = learner.parts, learner.network.head.weight
    learner.observe(images.train_x[:4], np.array([0, 1, 2, 2]))
    learner.observe(images.train_x[:4], torch.tensor([1, 0, 2, 2]))
    assert learner.parts is parts
    learner.observe(images.train_x[:2], [30, 0])
    assert learner.parts is not parts
    assert tuple(learner.network.head.weight.shape) == (8, 192)
    assert head.shape == (4, 192)


@pytest.mark.parametrize("grow", ["observe", "add_classes", "load"])
def test_a_network_in_evaluation_mode_is_trained_after_it_has_grown(
    grow: str, growing: Any, make_net: Any, images: Dataset, differ: Differ
) -> None:
    x, states = images.train_x[:8], []
    grown = growing()
    grown.new_task(NAMES)
    for evaluates in (False, True):
        net = with_outputs(make_net(), 2)
        learner = growing(net=net)
        learner.new_task(NAMES[:2])
        learner.observe(x, NAMES[:2] * 4)
        if evaluates:
            net.eval()
        if grow == "load":
            learner.load_state_dict(grown.state_dict())
        elif grow == "add_classes":
            learner.add_classes(NAMES)
        for _ in range(2):
            learner.observe(x, [*NAMES[:4], *NAMES[:4]])
        assert net.training
        states.append((learner.state_dict(), learner.predict_proba(x)))
    assert differ(states[0][0], states[1][0]) == []
    assert torch.equal(states[0][1], states[1][1])


def test_a_bare_linear_network_grows(growing: Any) -> None:
    net = nn.Linear(3, 2)
    learner = Learner(net, (3,), dtype=torch.float32, method="er", buffer=4, device="cpu")
    learner.new_task("abc")
    learner.observe(torch.eye(3), ["a", "b", "c"])
    assert net.out_features == 4
    assert set(learner.predict(torch.eye(3))) <= set("abc")


@pytest.mark.parametrize("method", ["er", "er+mkd", "clser-dual-cba"])
@pytest.mark.parametrize("steps", [0, 2])
def test_hidden_layers_as_wide_as_the_new_head_stay_as_they_are(method: str, steps: int) -> None:
    torch.manual_seed(0)
    hidden = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    net = nn.Sequential(*hidden, nn.Linear(16, 2))
    learner = Learner(
        net, (4,), dtype=torch.float32, method=method, buffer=8, batch_size=4, device="cpu",
        boundaries="inferred",
    )  # fmt: skip
    for _ in range(steps):
        learner.observe(torch.rand(4, 4), [0, 1, 0, 1])
    before = {k: v.clone() for k, v in learner.state_dict()["tensors"].items()}
    learner.add_classes(range(9))
    after = learner.state_dict()["tensors"]
    assert net[-1].out_features == 16  # type: ignore[union-attr]
    same = [k for k, v in before.items() if after[k].shape == v.shape]
    assert sum("network" in k for k in same) > 4
    assert all(torch.equal(after[k], before[k]) for k in same)


def test_announced_labels_have_their_order_and_are_not_predicted_unseen(
    growing: Any, images: Dataset
) -> None:
    learner = growing("er", boundaries="inferred")
    learner.add_classes(["c", "b", "a"])
    learner.add_classes(["b"])
    learner.observe(images.train_x[:4], ["a", "b", "a", "b"])
    assert learner.classes_ == ["c", "b", "a"]
    assert bool((learner.predict_proba(images.test_x)[:, 0] == 0).all())


def test_a_fixed_number_of_classes_is_as_before(make_learner: Any, images: Dataset) -> None:
    learner = make_learner("er")
    assert learner.classes_ == list(range(6))
    with pytest.raises(
        ValueError, match="num_classes is 6, expected a learner without num_classes"
    ):
        learner.add_classes([7])
    learner.new_task([0])
    with pytest.raises(ValueError, match=r"observed y\[0\] is 6, expected a label from 0 to 5"):
        learner.observe(images.train_x[:2], [6, 0])


# ---------------------------------------------------------------- undone


@pytest.mark.parametrize("method", ["er-dual-cba", "derpp-cba", "lucir", "er+mkd", "clser"])
@pytest.mark.parametrize("boundaries", ["given", "inferred"])
def test_a_failed_step_undoes_the_growth(
    method: str, boundaries: str, growing: Any, make_batches: Any, images: Dataset, differ: Differ,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stream = make_batches(3, 3)
    learner, other = (
        teach(growing(method, boundaries=boundaries), stream, tasks=1) for _ in range(2)
    )
    before, head = learner.state_dict(), learner.network.head
    rows, parts = dict(head.named_parameters()), learner.parts
    x, y = stream[1][0]

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(type(learner.method), "loss", fails)
        with pytest.raises(MemoryError):
            learner.observe(x, labels(y))
    assert differ(before, learner.state_dict()) == []
    assert learner.parts is parts
    assert learner.network.head is head
    assert all(p is rows[name] for name, p in head.named_parameters())
    assert learner.classes_ == NAMES[:2]
    for one in (learner, other):
        one.observe(x, labels(y))
    assert differ(learner.state_dict(), other.state_dict()) == []


def test_a_task_that_cannot_begin_undoes_the_growth(
    growing: Any, make_batches: Any, differ: Differ, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = teach(growing("er-dual-cba"), make_batches(3, 3), tasks=1)
    before = learner.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(type(learner.method), "begin_task", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            learner.new_task(["x", "y", "z"])
    assert differ(before, learner.state_dict()) == []


@pytest.mark.parametrize("on_outlier", ["raise", "skip"])
def test_a_refused_batch_brings_no_class(on_outlier: str) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    learner = Learner(
        net, (3,), dtype=torch.float32, method="er", buffer=4, device="cpu",
        boundaries="inferred", on_outlier=on_outlier,
    )  # fmt: skip
    learner.observe(torch.eye(3), ["a", "b", "a"])
    wild = torch.full((2, 3), 1e9)
    if on_outlier == "raise":
        with pytest.raises(FloatingPointError):
            learner.observe(wild, ["c", "d"])
    else:
        learner.observe(wild, ["c", "d"])
        assert learner.outliers == 1
    assert learner.classes_ == ["a", "b"]
    assert net[2].out_features == 4


# ---------------------------------------------------------------- limits and labels


def test_a_limit_is_refused_before_any_training(growing: Any, images: Dataset) -> None:
    learner = growing("er", boundaries="inferred", max_classes=3)
    learner.observe(images.train_x[:2], ["a", "b"])
    before = learner.state_dict()
    wanted = "number of classes is 4, expected at most max_classes 3: the label 'd' is new"
    for call in (lambda: learner.observe(images.train_x[:3], ["a", "c", "d"]),
                 lambda: learner.add_classes(["c", "d"])):  # fmt: skip
        with pytest.raises(ValueError, match=wanted):
            call()
    assert learner.classes_ == ["a", "b"]
    assert learner.state_dict()["meta"] == before["meta"]
    learner.observe(images.train_x[:2], ["a", "c"])


def test_exemplars_of_every_class_need_room(growing: Any, images: Dataset) -> None:
    learner = growing("icarl", buffer=2)
    with pytest.raises(ValueError, match="at most the buffer's 2: the label 'c' is new"):
        learner.new_task("abc")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([[1], [2]], r"label 0 is \[1\], expected a hashable value that equals itself"),
        ([float("nan"), 1], "label 0 is nan, expected a hashable value that equals itself"),
        (["a"], r"shape of observed y is \(1,\), expected \(2,\)"),
        ("ab", r"shape of observed y is \(\), expected \(2,\)"),
        (np.zeros((2, 1)), r"shape of observed y is \(2, 1\), expected \(2,\)"),
    ],
)
def test_what_is_no_label_is_refused(growing: Any, images: Dataset, y: Any, words: str) -> None:
    learner = growing("er", boundaries="inferred")
    with pytest.raises(ValueError, match=words):
        learner.observe(images.train_x[:2], y)
    assert learner.classes_ == []


def test_arguments_that_do_not_fit(make_net: Any) -> None:
    with pytest.raises(ValueError, match="max_classes is 9, expected None: num_classes is 6"):
        Learner(make_net(), (3, 8, 8), 6, method="er", max_classes=9)
    with pytest.raises(ValueError, match="outputs of the last layer '1' is 1, expected at least 2"):
        Learner(nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), (3, 8, 8), method="er")
    learner = Learner(make_net(), (3, 8, 8), method="er", device="cpu")
    with pytest.raises(
        ValueError, match="the learner has no class yet, expected observe or new_task"
    ):
        learner.predict(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="expected at least one label"):
        learner.new_task([])


# ---------------------------------------------------------------- states


def test_a_grown_learner_is_saved_and_loaded(
    growing: Any, make_batches: Any, images: Dataset, differ: Differ, tmp_path: Path
) -> None:
    learner = teach(growing(), make_batches(3, 3))
    learner.save(tmp_path / "grown.safetensors")
    other = growing()
    other.load(tmp_path / "grown.safetensors")
    assert other.classes_ == NAMES
    assert differ(learner.state_dict(), other.state_dict()) == []


def test_a_state_of_fewer_classes_is_loaded_back(
    growing: Any, make_batches: Any, differ: Differ
) -> None:
    stream = make_batches(3, 3)
    learner = teach(growing("derpp-dual-cba"), stream, tasks=1)
    before = learner.state_dict()
    teach(learner, stream)
    after = learner.state_dict()
    learner.load_state_dict(before)
    assert learner.classes_ == NAMES[:2]
    assert learner.network.head.weight.shape[0] == 4
    assert differ(before, learner.state_dict()) == []
    learner.load_state_dict(after)
    assert differ(after, learner.state_dict()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["meta"].pop("classes"), "num_classes of the saved learner was given"),
        (lambda s: s["meta"].update(classes="ab"), "expected a list of labels"),
        (lambda s: s["meta"].update(classes=["a"] * 6), "expected labels without duplicates"),
        (lambda s: s["meta"].update(classes=list("abc")), "expected torch.*shape"),
        (lambda s: s["meta"].update(classes=list("abcde")), "expected no class without a label"),
        (lambda s: s["meta"].update(classes=[{}] * 6), "expected a str, an int"),
        (lambda s: s["meta"].update(classes=list("abcdefghijk")), "at most max_classes 10"),
        (lambda s: s["tensors"]["memory.y"].fill_(7), "'memory.y' has 7"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_changes(
    change: Any, words: str, growing: Any, make_batches: Any, differ: Differ
) -> None:
    state = teach(growing(max_classes=10), make_batches(3, 3)).state_dict()
    other = growing(max_classes=10)
    before = other.state_dict()
    change(state)
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(state)
    assert differ(before, other.state_dict()) == []
    assert other.network.head.weight.shape[0] == 2


def test_a_state_of_a_growing_learner_does_not_fit_a_fixed_one(
    growing: Any, make_learner: Any
) -> None:
    with pytest.raises(ValueError, match="num_classes of the saved learner was not given"):
        make_learner().load_state_dict(growing().state_dict())


# ---------------------------------------------------------------- on a device


def test_the_path_of_a_gpu_grows_too(growing: Any, make_batches: Any, images: Dataset) -> None:
    stream = make_batches(3, 3)
    learner, other = growing("derpp-dual-cba"), growing("derpp-dual-cba")
    other.parts.training_step.stay_on_device()
    a, b = (teach(one, stream).predict_proba(images.test_x) for one in (learner, other))
    assert not other.parts.guard.waits
    assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["er", "derpp-dual-cba", "clser-cba", "lucir"])
def test_captured_steps_are_captured_again(
    method: str, growing: Any, make_batches: Any, images: Dataset, exact: None
) -> None:
    stream = make_batches(3, 8)
    captured, eager = growing(method, device="cuda"), growing(method, device="cuda", engine="eager")
    a, b = (teach(one, stream).predict_proba(images.test_x) for one in (captured, eager))
    assert captured.parts.engine.entries  # type: ignore[attr-defined]
    assert captured.network.num_classes == 8
    assert torch.allclose(a, b, atol=1e-3)


def test_a_loaded_learner_grows_with_the_seed_of_its_state(
    growing: Callable[..., Learner], make_batches: Any, differ: Differ
) -> None:
    stream = make_batches(3, steps=3)
    first = teach(growing("er", boundaries="inferred"), stream, tasks=1)
    other = growing("er", boundaries="inferred", seed=7)
    other.load_state_dict(first.state_dict())
    assert other.seed == 0
    for learner in (first, other):
        for x, y in stream[1]:
            learner.observe(x, labels(y))
    assert differ(first.state_dict(), other.state_dict()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_a_state_that_is_refused_leaves_the_handlers_of_signals(
    growing: Callable[..., Learner], make_batches: Any
) -> None:
    stream = make_batches(3, steps=3)
    state = teach(growing("er", boundaries="inferred"), stream, tasks=1).state_dict()
    state["meta"]["step"] = -5
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ValueError, match="'step' is -5"):
        growing("er", boundaries="inferred").load_state_dict(state)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
