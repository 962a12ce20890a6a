"""MKD against NumPy: distillation of two views, the teacher, and the weights that predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from frontier_helpers import cross_entropies, divergences, inside, log_softmax, numbers
from torch import Tensor

from dualcba import Dataset, Learner
from dualcba.data.augmentation import ResizedCrop
from dualcba.experiments import Spec
from dualcba.losses import Batch, Divergence, identity, inner_batches
from dualcba.methods import Method, check_options, parse_method
from dualcba.methods.ccl_dc import CCLDC
from dualcba.methods.derpp import DERpp
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.mkd import MKD, default_weight
from dualcba.methods.wrapper import Wrapper


def test_derivatives_of_the_divergence_against_numpy() -> None:
    rng = np.random.default_rng(0)
    z, target, s = rng.normal(size=(3, 7, 5))
    T, w, n = 4.0, 1.7, 7
    batch = Batch(*(torch.from_numpy(z) for _ in range(4)))
    term = Divergence(batch, torch.from_numpy(target), T, w)
    p, q = np.exp(log_softmax(target / T)), np.exp(log_softmax(z / T))
    assert term.value(batch.z).item() == pytest.approx(w * divergences(target, z, T).mean())
    np.testing.assert_allclose(term.gradient(batch.z), w * T * (q - p) / n, rtol=1e-12)
    want = w * q * (s - (q * s).sum(1, keepdims=True)) / n
    np.testing.assert_allclose(term.curvature(batch.z, torch.from_numpy(s)), want, rtol=1e-10)


def mkd(learner: Learner) -> MKD:
    assert isinstance(learner.method, MKD)
    return learner.method


@pytest.mark.parametrize(
    ("base", "second", "share"),
    [("er", "raw", 0.0), ("derpp", "raw", 0.0), ("er-ace", "raw", 0.3), ("er", "weak", 0.25)],
)
@pytest.mark.parametrize("forward", ["split", "concat"])
def test_loss_against_numpy(
    base: str, second: str, share: float, forward: str, make_learner: Any, teach: Any
) -> None:
    options = {"alpha": 0.1, "temperature": 3.0, "second": second, "share": share}
    learner = make_learner(f"{base}+mkd-dual-cba", method_options=options, forward=forward)
    method = mkd(learner)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        batches = [new, *mem]
        inner = method.method.loss(new, mem, identity).item()
        others = [replace(b.views[second], columns=b.columns) for b in batches]
        inner *= 1 - share
        inner += share * method.method.loss(others[0], others[1:], identity).item()
        z, raw = (np.concatenate([numbers(v.z) for v in views]) for views in (
            batches, [b.views[second] for b in batches]))  # fmt: skip
        assert not torch.equal(new.x, new.views[second].x)
        method.teacher.train()
        x = [b.x for b in batches]
        x = [torch.cat(x)] if forward == "concat" else x
        target = np.concatenate([numbers(method.teacher(v)[0]) for v in x])
        D = divergences(target, z, 3.0).mean() + divergences(target, raw, 3.0).mean()
        want = inner + 10.0 / 2 * D
        assert method.loss(new, mem, identity).item() == pytest.approx(want, rel=1e-5)

    seen = inside(learner, look)
    teach(learner)
    assert len(seen) == 3


@pytest.mark.parametrize("base", ["er", "derpp", "er-ace", "las"])
def test_two_augmented_views_against_numpy(base: str, make_learner: Any, teach: Any) -> None:
    options = {"alpha": 0.1, "temperature": 3.0, "second": "augmented"}
    learner = make_learner(f"{base}+mkd-dual-cba", method_options=options)
    method = mkd(learner)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        batches = [new, *mem]
        others = [replace(b.views["augmented"], columns=b.columns) for b in batches]
        assert not torch.equal(new.x, others[0].x)
        assert torch.equal(new.y, others[0].y)
        base_loss = method.method.loss(new, mem, identity)
        base_loss = (base_loss + method.method.loss(others[0], others[1:], identity)).item() / 2
        z, z2 = (np.concatenate([numbers(v.z) for v in views]) for views in (batches, others))
        method.teacher.train()
        target = np.concatenate([numbers(method.teacher(b.x)[0]) for b in batches])
        D = divergences(target, z, 3.0).mean() + divergences(target, z2, 3.0).mean()
        want = base_loss + 10.0 / 2 * D
        assert method.loss(new, mem, identity).item() == pytest.approx(want, rel=1e-5)

    seen = inside(learner, look)
    teach(learner)
    assert len(seen) == 3


@pytest.mark.parametrize("forward", ["split", "concat"])
def test_mixed_views_against_numpy(forward: str, make_learner: Any, teach: Any) -> None:
    options = {"alpha": 0.1, "temperature": 3.0, "second": "cutmix"}
    learner = make_learner("er+mkd-dual-cba", method_options=options, forward=forward)
    method = mkd(learner)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        batches = [new, *mem]
        mixed = [b.views["cutmix"] for b in batches]
        method.teacher.train()
        D = 0.0
        for views in (batches, mixed):
            x = [b.x for b in views]
            x = [torch.cat(x)] if forward == "concat" else x
            target = np.concatenate([numbers(method.teacher(v)[0]) for v in x])
            z = np.concatenate([numbers(b.z) for b in views])
            D += divergences(target, z, 3.0).mean()
        want = method.method.loss(new, mem, identity).item() + 10.0 / 2 * D
        assert method.loss(new, mem, identity).item() == pytest.approx(want, rel=1e-5)

    seen = inside(learner, look)
    teach(learner)
    assert len(seen) == 3


@pytest.mark.parametrize("forward", ["split", "concat"])
@pytest.mark.parametrize(
    ("base", "options", "sizes"),
    [
        ("er", {"share": 0.25}, [8, 8]),
        ("derpp", {}, [8, 8, 8]),
        ("las", {}, [8, 8]),
        ("gsa", {"base_mirror": False, "base_own": 3, "base_balanced": 5, "mild": True}, [3, 5, 8]),
    ],
)
def test_a_draw_of_its_own_against_numpy(
    base: str, options: dict[str, Any], sizes: list[int], forward: str, make_learner: Any,
    teach: Any,
) -> None:  # fmt: skip
    options = {"alpha": 0.1, "temperature": 3.0, "own_draw": True, **options}
    learner = make_learner(f"{base}+mkd-dual-cba", method_options=options, forward=forward)
    method = mkd(learner)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        *others, own = mem
        assert [len(b.y) for b in mem] == sizes
        assert [list(b.views) for b in mem] == [[]] * len(others) + [["raw"]]
        stored = learner.memory.y[: learner.memory.filled].unique()
        assert set(own.y.tolist()) <= set(stored.tolist())
        if base == "las":  # it observes its own draws alone
            labels = np.concatenate([numbers(b.y) for b in (new, *others)])
            assert method.method.counts.tolist() == [np.bincount(labels, minlength=6).tolist()]
        batches = [new, own]
        z, raw = (np.concatenate([numbers(v.z) for v in views]) for views in (
            batches, [b.views["raw"] for b in batches]))  # fmt: skip
        y = np.concatenate([numbers(b.y) for b in batches])
        method.teacher.train()
        x = [b.x for b in batches]
        x = [torch.cat(x)] if forward == "concat" else x
        target = np.concatenate([numbers(method.teacher(v)[0]) for v in x])
        D = divergences(target, z, 3.0).mean() + divergences(target, raw, 3.0).mean()
        want = method.method.loss(new, others, identity).item()
        s = options.get("share", 0.0)
        want += (1 - s) * cross_entropies(z, y).mean() + s * cross_entropies(raw, y).mean()
        want += 10.0 / 2 * D
        assert method.loss(new, mem, identity).item() == pytest.approx(want, rel=1e-5)

    seen = inside(learner, look)
    teach(learner)
    assert len(seen) == 3


def test_samples_that_fill_up_a_draw_count_in_no_mean(make_learner: Any, teach: Any) -> None:
    options = {"alpha": 0.1, "temperature": 3.0, "own_draw": True, "base_mirror": False}
    given = {"method_options": options, "buffer": 60, "memory_batch": 40}
    learner = make_learner("gsa+mkd-dual-cba", **given)
    method = mkd(learner)
    filling = []

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        *others, own = mem
        assert own.each is not None
        rows = np.concatenate([np.arange(8), 8 + np.flatnonzero(own.each)])
        filling.append(48 - len(rows))
        batches = [new, own]
        views = batches, [b.views["raw"] for b in batches]
        z, raw = (np.concatenate([numbers(v.z) for v in part])[rows] for part in views)
        y = np.concatenate([numbers(b.y) for b in batches])[rows]
        method.teacher.train()
        target = np.concatenate([numbers(method.teacher(b.x)[0]) for b in batches])[rows]
        D = divergences(target, z, 3.0).mean() + divergences(target, raw, 3.0).mean()
        want = method.method.loss(new, others, identity).item()
        want += cross_entropies(z, y).mean() + 10.0 / 2 * D
        assert method.loss(new, mem, identity).item() == pytest.approx(want, rel=1e-5)

    inside(learner, look)
    teach(learner, 2, 3)
    assert filling[0] > 0 == filling[-1]


def test_the_target_of_a_single_sample_has_the_networks_statistics(
    make_learner: Any, teach: Any, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The teacher has none of its own, and one sample has no batch statistics."""
    learner = teach(make_learner("er+mkd"))
    wanted, found = [], []
    targets = MKD.targets

    def spy(self: MKD, batches: Any) -> Any:
        teacher = deepcopy(self.teacher).eval()
        both = teacher.modules(), learner.network.modules()
        for layer, own in zip(*both, strict=True):
            if hasattr(own, "running_mean"):
                layer.running_mean, layer.running_var = own.running_mean, own.running_var
        wanted.append(teacher(batches[0].x)[0])
        found.append(targets(self, batches)[0][0])
        return targets(self, batches)

    monkeypatch.setattr(MKD, "targets", spy)
    learner.observe(images.train_x[:1], images.train_y[:1])
    torch.testing.assert_close(found[0], wanted[0])
    lent = {id(b) for b in learner.network.buffers()}
    assert not any(id(b) in lent for b in mkd(learner).teacher.buffers())  # borrowed for this pass


@pytest.mark.parametrize(("base", "count"), [("er", 1), ("derpp", 2), ("gsa", 2)])
@pytest.mark.parametrize("augmentation", ["none", "full"])
def test_the_draws_of_the_wrapped_method_are_augmented_mildly(
    base: str, count: int, augmentation: str, make_learner: Any, teach: Any
) -> None:
    options = {"own_draw": True, "mild": True, **({"base_mirror": False} if base == "gsa" else {})}
    given = {"method_options": options, "augmentation": augmentation}
    learner = make_learner(f"{base}+mkd-dual-cba", **given)
    views = learner.parts.context.draw_transforms
    assert {k: t.area for k, t in views.items()} == dict.fromkeys(range(count), (0.6, 1.0))
    calls = []
    augment = ResizedCrop.augment

    def spy(self: ResizedCrop, x: Tensor, params: Tensor) -> Tensor:
        if self in views.values():
            calls.append(augment(self, x, params))
        return augment(self, x, params)

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        for batch, pixels in zip(mem[:-1], calls[-count:], strict=True):
            assert torch.equal(batch.x, views[0].normalize(pixels))
        for batch in (new, mem[-1]):
            assert torch.equal(batch.x, batch.views["raw"].x) == (augmentation == "none")

    seen = inside(learner, look)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResizedCrop, "augment", spy)
        teach(learner)
    assert len(seen) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("base", ["er", "gsa"])
def test_a_captured_draw_of_its_own(base: str, make_learner: Any, teach: Any, exact: None) -> None:
    options = {"own_draw": True, **({"base_mirror": False, "mild": True} if base == "gsa" else {})}
    ends = []
    for engine in ("eager", "captured"):
        device = {"device": "cuda", "engine": engine, "precision": "fp32"}
        learner = make_learner(f"{base}+mkd-dual-cba", method_options=options, **device)
        ends.append(teach(learner, 3, 8).state_dict()["tensors"])
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=1e-3, atol=1e-4, msg=name)


def test_a_draw_of_its_own_around_a_method_with_views(make_learner: Any) -> None:
    message = "own_draw is True around a method with the views mirrored, expected False"
    with pytest.raises(ValueError, match=message):
        make_learner("gsa+mkd", method_options={"own_draw": True})


def test_views_of_new_and_memory_samples(make_learner: Any, teach: Any, images: Dataset) -> None:
    learner = make_learner("er+mkd-dual-cba")
    transform = learner.parts.context.transform

    def look(new: Batch, mem: list[Batch], outer: Batch) -> None:
        assert [b.rows.start for b in inner_batches(new, mem)] == [0, 8, 16, 24]
        stored = learner.memory.x.flatten(1).tolist()
        pixels = (mem[0].views["raw"].x - transform.shift.view(-1, 1, 1)) * 255
        pixels = pixels / transform.scale.view(-1, 1, 1)
        for sample, label in zip(pixels.round().flatten(1).tolist(), mem[0].y, strict=True):
            assert learner.memory.y[stored.index(sample)] == label
        assert not torch.equal(mem[0].x, mem[0].views["raw"].x)
        assert torch.equal(mem[0].y, mem[0].views["raw"].y)

    seen = inside(learner, look)
    teach(learner)
    assert seen


@pytest.mark.filterwarnings("ignore:observed y is")
def test_the_teacher_is_a_moving_average(make_learner: Any, teach: Any, images: Dataset) -> None:
    learner = teach(make_learner("er+mkd", method_options={"alpha": 0.2}))
    before = [numbers(p) for p in mkd(learner).teacher.parameters()]
    learner.observe(images.train_x[:8], images.train_y[:8])
    now = [numbers(p) for p in mkd(learner).teacher.parameters()]
    theta = [numbers(p) for p in learner.network.parameters()]
    for old, new, student in zip(before, now, theta, strict=True):
        np.testing.assert_allclose(new, 0.8 * old + 0.2 * student, rtol=1e-5, atol=1e-7)
    counts = [m.num_batches_tracked for m in mkd(learner).teacher.modules()
              if hasattr(m, "num_batches_tracked")]  # fmt: skip
    assert not any(bool(c) for c in counts)  # no running statistics


@pytest.mark.parametrize("statistics", ["bn", "ibn"])
@pytest.mark.parametrize(("predict", "part"), [("average", 0.5), ("teacher", 1.0)])
def test_predictions_use_averaged_weights(
    predict: str, part: float, statistics: str, make_learner: Any, teach: Any, images: Dataset,
    differ: Any,
) -> None:  # fmt: skip
    """IBN estimates its statistics for these weights: a learner that has them predicts the same."""
    given = {"ibn": statistics == "ibn", "method_options": {"predict": predict}}
    learner = teach(make_learner("er+mkd", **given))
    before = learner.state_dict()
    answers = learner.predict_proba(images.test_x)
    assert differ(before, learner.state_dict()) == []
    other = make_learner("er+mkd", ibn=statistics == "ibn", method_options={"predict": "student"})
    other.load_state_dict(before)
    student = other.predict_proba(images.test_x)
    with torch.no_grad():
        for p, q in zip(other.network.parameters(), mkd(learner).teacher.parameters(), strict=True):
            p.copy_((1 - part) * p + part * q)
    other.parts.context.network.eval()
    other._predictor.forget()
    torch.testing.assert_close(other.predict_proba(images.test_x), answers, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(student, answers, atol=1e-3)


def test_names_and_options() -> None:
    assert default_weight(0.01) == pytest.approx(5.5)
    assert default_weight(1e-4) == 0
    method = parse_method("derpp+mkd-dual-cba")[0](alpha=0.05, base_alpha=0.3)
    assert isinstance(method, MKD)
    assert isinstance(method.method, DERpp)
    assert (method.alpha, method.method.alpha, method.draws) == (0.05, 0.3, 2)
    assert parse_method("derpp+mkd")[0] is parse_method("derpp+mkd-cba")[0]
    spec = Spec(method="er-ace+mkd-cba", method_options={"temperature": 2.0})
    assert (spec.adaptor, spec.name) == ("cba", Spec.name.fget(spec))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"no option 'beta', expected one of alpha, temperature"):
        check_options("derpp+mkd", {"beta": 0.5})
    check_options("derpp+mkd", {"base_beta": 0.5})
    with pytest.raises(ValueError, match=r"option .base_beta. of .derpp\+mkd. is -1, expected"):
        check_options("derpp+mkd", {"base_beta": -1})
    with pytest.raises(ValueError, match=r"^base_own is 0, expected a whole number of at least 1"):
        check_options("gsa+mkd", {"base_own": 0})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("er+mdk", "unknown wrapper in the method 'er[+]mdk' 'mdk', did you mean 'mkd'"),
        ("icarl+mkd", "method is 'icarl[+]mkd', expected another base: mkd can wrap er, derpp"),
        ("er+mkd+mkd", "method is 'er[+]mkd[+]mkd', expected one wrapper after [+]: mkd or ccl-dc"),
        ("ex+mkd", "unknown method 'ex[+]mkd', did you mean 'er[+]mkd'"),
    ],
)
def test_names_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0, expected a number above 0, at most 1"),
        ({"alpha": "0.1"}, "alpha is '0.1', expected a number above 0, at most 1"),
        ({"temperature": "4"}, "temperature is '4', expected a number above 0"),
        ({"temperature": 1e200}, r"temperature is 1e\+200, expected a number from 1e-37 to 3e\+38"),
        ({"weight": 10**400}, r"weight is 10+, expected a number of at most 3e\+38"),
        ({"temperature": 0.0}, "temperature is 0.0, expected a number above 0"),
        ({"weight": -1}, "weight is -1, expected a number of at least 0"),
        ({"predict": "both"}, "predict"),
        ({"second": "both"}, "second"),
        ({"own_draw": 64}, "own_draw is 64, expected True or False"),
        ({"mild": True}, "mild is True, expected False, or own_draw=True"),
        ({"share": 1.0}, "share is 1.0, expected a number from 0 to below 1"),
        ({"share": "half"}, "share is 'half', expected a number"),
        ({"share": 0.5, "second": "cutmix"}, "share is 0.5, expected 0 with 'cutmix'"),
        (
            {"own_draw": True, "second": "cutmix"},
            "second is 'cutmix', expected 'raw' or 'weak' with",
        ),
        ({"own_draw": True, "second": "augmented"}, "second is 'augmented', expected 'raw' or"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MKD(ER(), **options)


def test_semi_supervised_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'semi-0.2' does not fit the method 'er\+mkd'"):
        Spec(method="er+mkd", setting="semi-0.2")


def test_a_wrapper_hands_everything_on() -> None:
    hooks = {name for name, member in vars(Method).items() if callable(member)}
    assert hooks - vars(Wrapper).keys() == {"loss"}  # which is the sum of the terms


@pytest.mark.parametrize("wrapper", [MKD, CCLDC, FixMatch])
def test_a_wrapper_calls_the_hooks_that_it_defines_too(
    wrapper: Any, make_learner: Any, teach: Any, images: Dataset
) -> None:
    calls: list[str] = []

    class Base(ER):
        def observe(self, new: Batch, mem: Sequence[Batch]) -> None:
            calls.append("observe")

        def after_step(self, noise: Tensor | None) -> None:
            calls.append("after_step")

        @contextmanager
        def predicting(self) -> Iterator[None]:
            calls.append("predicting")
            yield
            calls.append("predicted")

    learner = teach(make_learner(wrapper(Base())), tasks=1, steps=2)
    learner.predict(images.test_x[:4])
    assert calls == ["observe", "after_step"] * 2 + ["predicting", "predicted"]
