"""FixMatch against NumPy: threshold, views, weights; hidden labels have no effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from dualcba import Dataset, Learner, Transform, load_dataset
from dualcba.adaptors.adaptor import ADAPTORS
from dualcba.adaptors.hypergradient import hypergradient
from dualcba.data.randaugment import RandAugment, RandAugmentTransform
from dualcba.experiments import Hardware, Run, Spec, making
from dualcba.losses import Adapt, Batch, identity, inner_batches
from dualcba.methods import Method
from dualcba.methods.clser import CLSER
from dualcba.methods.derpp import DERpp
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.rar import RAR
from dualcba.tasks.class_sets import ClassSets

C, D = 5, 7
CPU = Hardware(device="cpu")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# ---------------------------------------------------------------- the oracle, in plain NumPy


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def ce(z: Floats, y: Ints) -> Floats:
    """Return the cross-entropy of each sample."""
    return np.asarray(-np.log(softmax(z)[np.arange(len(y)), y]))


def mean(values: Floats) -> float:
    """Return the mean, or 0 without values."""
    return float(values.sum() / max(len(values), 1))


def oracle(
    z: Floats, strong: Floats, y: Ints, raw: Floats, *, threshold: float = 0.95, weight: float = 1.0
) -> float:
    """Return the FixMatch term of new samples; `z`, `strong`: logits of the loss, `raw`: of ŷ."""
    known = y >= 0
    p = softmax(raw)
    guess, sure = p.argmax(1), p.max(1) >= threshold
    loss = mean(ce(z[known], y[known]))
    hidden = [ce(strong, guess)[i] if sure[i] else 0.0 for i in np.flatnonzero(~known)]
    return loss + weight * mean(np.array(hidden))


# ---------------------------------------------------------------- the loss


def make_batch(rng: np.random.Generator, n: int, start: int = 0, scale: float = 1.0) -> Batch:
    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    columns = {"logits": normal(n, C), "raw_logits": normal(n, C)}
    y = torch.from_numpy(rng.integers(0, C, n))
    rows = slice(start, start + n)
    return Batch(normal(n, 3), y, scale * normal(n, C), normal(n, D), columns, rows)


def problem(
    method: Method, seed: int = 0, n: int = 8, known: Sequence[bool] | None = None
) -> tuple[Batch, list[Batch], Batch]:
    """Return a new batch with its strong view, memory draws and an outer batch.

    About half of the predictions are confident.
    """
    rng = np.random.default_rng(seed)
    new = make_batch(rng, n, scale=4)
    mask = rng.random(n) < 0.4 if known is None else np.array(known)
    new.y[torch.from_numpy(~mask)] = -1
    mem = [make_batch(rng, 4, n + 4 * i) for i in range(method.draws)]
    new.views = {"strong": make_batch(rng, n, n + 4 * len(mem), scale=2)}
    return new, mem, make_batch(rng, 4)


def arrays(new: Batch) -> tuple[Floats, Floats, Ints]:
    return new.z.numpy(), new.views["strong"].z.numpy(), new.y.numpy()


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 12),
    threshold=st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]),
    weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)
def test_er_with_fixmatch(seed: int, n: int, threshold: float, weight: float) -> None:
    method = FixMatch(ER(), threshold=threshold, weight=weight)
    new, mem, _ = problem(method, seed, n)
    z, strong, y = arrays(new)
    want = oracle(z, strong, y, z, threshold=threshold, weight=weight)
    want += mean(ce(mem[0].z.numpy(), mem[0].y.numpy()))
    assert method.loss(new, mem, identity).item() == pytest.approx(want, abs=1e-6)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 12))
def test_derpp_with_fixmatch(seed: int, n: int) -> None:
    method = FixMatch(DERpp(alpha=0.7, beta=0.3))
    assert (method.draws, method.columns) == (2, ("logits", "raw_logits"))
    new, mem, _ = problem(method, seed, n)
    z, strong, y = arrays(new)
    want = oracle(z, strong, y, z)
    want += 0.7 * np.mean((mem[0].z.numpy() - mem[0].columns["logits"].numpy()) ** 2)
    want += 0.3 * mean(ce(mem[1].z.numpy(), mem[1].y.numpy()))
    assert method.loss(new, mem, identity).item() == pytest.approx(want, abs=1e-6)


def test_the_defaults_are_the_protocols() -> None:
    method = FixMatch(ER())
    assert (method.threshold, method.weight, method.unlabelled) == (0.95, 1.0, True)


@pytest.mark.parametrize("known", [[True] * 6, [False] * 6], ids=["all", "none"])
@pytest.mark.parametrize("base", [ER, DERpp])
def test_batches_without_unlabelled_or_without_labelled(
    known: list[bool], base: type[Method]
) -> None:
    method = FixMatch(base())
    new, _, _ = problem(method, 3, 6, known)
    new.z[0, 2] = 30.0  # at least one unlabelled sample is confident
    z, strong, y = arrays(new)
    want = ce(z, y).mean() if known[0] else oracle(z, strong, y, z)
    assert want > 0
    assert method.loss(new, [], identity).item() == pytest.approx(want, abs=1e-6)


def test_the_threshold_itself_is_enough() -> None:
    new, _, _ = problem(FixMatch(ER()), 0, 1, [False])
    top = float(new.z.softmax(1).max())
    hidden = ce(new.views["strong"].z.numpy(), new.z.argmax(1).numpy())[0]
    for threshold, want in ((top, hidden), (np.nextafter(top, 1), 0.0)):
        loss = FixMatch(ER(), threshold=threshold).loss(new, [], identity)
        assert loss.item() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("base", [ER, DERpp])
def test_the_strong_view_is_adapted_and_the_guess_is_the_raw_networks(base: type[Method]) -> None:
    method = FixMatch(base(), threshold=0.6)
    new, mem, _ = problem(method, 5, 10)
    rows = 10 + 4 * len(mem) + 10
    r = np.random.default_rng(9).normal(size=(rows, C)) * 6
    z, strong, y = arrays(new)
    adapted = z + r[new.rows]
    want = oracle(adapted, strong + r[new.views["strong"].rows], y, z, threshold=0.6)
    wrong = oracle(adapted, strong + r[new.views["strong"].rows], y, adapted, threshold=0.6)
    assert abs(want - wrong) > 0.1  # the two differ clearly
    if base is ER:
        want += mean(ce(mem[0].z.numpy() + r[mem[0].rows], mem[0].y.numpy()))
    else:
        target = mem[0].columns["logits"].numpy()
        want += 0.2 * np.mean((mem[0].z.numpy() + r[mem[0].rows] - target) ** 2)
        want += 0.5 * mean(ce(mem[1].z.numpy() + r[mem[1].rows], mem[1].y.numpy()))
    got = method.loss(new, mem, lambda b: b.z + torch.from_numpy(r)[b.rows])
    assert got.item() == pytest.approx(want, abs=1e-6)


def test_no_gradient_flows_through_the_guess() -> None:
    """∂L/∂z is (p − y)/n_labelled on labelled rows, and 0 on the weak view of the others."""
    method = FixMatch(ER(), threshold=0.6)
    new, _, _ = problem(method, 7, 10)
    z, strong, y = arrays(new)
    weak = new.z.requires_grad_()
    view = new.views["strong"].z.requires_grad_()
    method.loss(new, [], identity).backward()  # type: ignore[no-untyped-call]
    known = y >= 0
    assert 0 < known.sum() < 10
    want = (softmax(z.copy()) - np.eye(C)[y]) * known[:, None] / known.sum()
    assert weak.grad is not None
    np.testing.assert_allclose(weak.grad.numpy(), want, atol=1e-12)
    p = softmax(z)
    share = ((p.max(1) >= 0.6) & ~known) / (~known).sum()
    assert share.sum() > 0
    want = (softmax(strong) - np.eye(C)[p.argmax(1)]) * share[:, None]
    assert view.grad is not None
    np.testing.assert_allclose(view.grad.numpy(), want, atol=1e-12)


# ---------------------------------------------------------------- the outer step


@pytest.mark.parametrize("kind", ["cba", "dual-cba"])
@pytest.mark.parametrize("base", [ER, DERpp])
@pytest.mark.parametrize("known", [None, [True] * 8, [False] * 8], ids=["some", "all", "none"])
def test_closed_form_is_the_autograd_one(
    kind: str, base: type[Method], known: list[bool] | None
) -> None:
    method = FixMatch(base(), threshold=0.5)
    assert method.closed_form
    new, mem, outer = problem(method, 11, 8, known)
    sets = ClassSets(C)
    sets.new_task([0, 1, 2])
    sets.new_task([3, 4])
    adaptor = ADAPTORS[kind](sets, torch.Generator().manual_seed(0), width=8).double()
    head = torch.nn.Linear(D, C).double()
    closed, unrolled = (
        hypergradient(adaptor, method, new, mem, outer, head, 0.3, closed_form=form)
        for form in (True, False)
    )
    for a, b in zip(closed, unrolled, strict=True):
        assert a is not None
        assert b is not None
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-14)
        assert a.abs().max() > 1e-8


def test_the_strong_view_moves_the_adaptor() -> None:
    """Without labels and memory, only the strong view has a loss."""
    method = FixMatch(ER(), threshold=0.0)
    new, _, outer = problem(method, 2, 6, [False] * 6)
    new.views["strong"].rows = slice(6, 12)
    sets = ClassSets(C)
    sets.new_task([0, 1, 2])
    sets.new_task([3, 4])
    adaptor = ADAPTORS["dual-cba"](sets, torch.Generator().manual_seed(0), width=8).double()
    head = torch.nn.Linear(D, C).double()
    grads = hypergradient(adaptor, method, new, [], outer, head, 0.3)
    assert any(g is not None and g.abs().max() > 1e-6 for g in grads)
    method.weight = 0.0
    grads = hypergradient(adaptor, method, new, [], outer, head, 0.3)
    assert all(g is None or g.abs().max() == 0 for g in grads)


# ---------------------------------------------------------------- the views


def test_the_strong_view_is_randaugment_and_cutout_on_the_weak_one() -> None:
    weak = Transform([0.4, 0.5, 0.6], [0.2, 0.3, 0.4], pad=2, flip=True)
    assert FixMatch(ER()).make_transform(weak) is weak
    ((name, strong),) = FixMatch(ER()).make_views(weak).items()
    assert name == "strong"
    assert isinstance(strong, RandAugmentTransform)
    assert (strong.pad, strong.flip) == (2, True)
    augment = strong.randaugment
    assert (augment.operations, augment.magnitudes, augment.cutout) == (2, (10,), True)


def cropped(x: NDArray[np.uint8], place: Ints, pad: int) -> NDArray[np.uint8]:
    top, left, flip = place
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    out = padded[:, top : top + x.shape[1], left : left + x.shape[2]]
    return out[:, :, ::-1] if flip else out


def test_the_strong_view_in_numpy() -> None:
    """Crop, flip, solarize (a simple map), cutout, normalisation."""
    mean_, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    strong = FixMatch(ER()).make_views(Transform(mean_, std, pad=2, flip=True))["strong"]
    assert isinstance(strong, RandAugmentTransform)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 3, 8, 8)).astype(np.uint8)
    params = strong.draw(rng, 12)
    augment: RandAugment = strong.randaugment
    params[:, 3], params[:, 4] = augment.row("identity"), augment.row("solarize")
    got = strong(torch.from_numpy(x), torch.from_numpy(params)).numpy()
    for i in range(12):
        image = cropped(x[i], params[i, :3], 2).astype(np.float64)
        image = np.where(image >= 255 - 255 * 10 / 30, 255 - image, image)
        down, right = params[i, 5:] * 8 // 65536
        image[:, max(down - 2, 0) : down + 2, max(right - 2, 0) : right + 2] = 127
        want = (image / 255 - np.reshape(mean_, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        np.testing.assert_allclose(got[i], want, atol=1e-5)


# ---------------------------------------------------------------- in the learner

Make = Callable[..., Learner]


class Spy:
    """Records the new batch, all adapted logits with their labels, and the loss of each step."""

    def __init__(self, learner: Learner) -> None:
        self.steps: list[tuple[Batch, list[tuple[Floats, Ints]], float]] = []
        self.loss = learner.method.loss
        learner.method.loss = self  # type: ignore[method-assign]

    def __call__(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        loss = self.loss(new, mem, adapt)
        every = inner_batches(new, mem)
        adapted = [(adapt(b).detach().double().numpy(), b.y.numpy()) for b in every]
        self.steps.append((new, adapted, loss.item()))
        return loss


def semi(y: Tensor, seed: int) -> Tensor:
    """About every third sample keeps its label."""
    hide = torch.from_numpy(np.random.default_rng(seed).random(len(y)) > 0.35)
    return torch.where(hide, -1, y)


def teach(learner: Learner, stream: Sequence[Sequence[tuple[Tensor, Tensor]]]) -> None:
    for k, task in enumerate(stream):
        learner.new_task([2 * k, 2 * k + 1])
        for i, (x, y) in enumerate(task):
            learner.observe(x, semi(y, 10 * k + i))


@pytest.mark.parametrize("forward", ["split", "concat"])
@pytest.mark.parametrize("kind", [None, "cba", "dual-cba"])
def test_the_learners_steps_have_the_oracles_loss(
    kind: str | None, forward: str, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner(FixMatch(ER(), threshold=0.25), adaptor=kind, forward=forward)
    spy = Spy(learner)
    teach(learner, make_batches(3, 5)[:2])
    assert len(spy.steps) == 10
    hidden = 0.0
    for new, adapted, loss in spy.steps:
        raw, y = new.z.detach().double().numpy(), new.y.numpy()
        (z, _), *mem, (strong, _) = adapted
        want = oracle(z, strong, y, raw, threshold=0.25)
        hidden += want - oracle(z, strong, y, raw, threshold=2)
        want += sum(mean(ce(*b)) for b in mem)
        assert loss == pytest.approx(want, abs=1e-5)
        assert not torch.equal(new.x, new.views["strong"].x)
    assert hidden > 0.1


def test_views_of_a_step_differ_and_come_from_the_same_samples(
    make_learner: Make, images: Dataset
) -> None:
    """Without a crop or a flip the weak view is the sample itself."""
    learner = make_learner(FixMatch(ER()), transform=Transform(images.mean, images.std))
    spy = Spy(learner)
    learner.new_task([0, 1])
    x, y = images.train_x[:8], torch.full((8,), -1)
    for _ in range(2):
        learner.observe(x, y)
    first, second = (step[0] for step in spy.steps)
    assert torch.equal(first.x, learner.parts.context.transform(x))
    assert torch.equal(first.x, second.x)
    assert not torch.equal(first.views["strong"].x, second.views["strong"].x)


@pytest.mark.parametrize("base", [ER, DERpp])
@pytest.mark.parametrize("labels", ["none", "all"])
def test_streams_with_only_labelled_or_only_unlabelled_samples(
    base: type[Method], labels: str, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner(FixMatch(base()), adaptor="dual-cba")
    for k, task in enumerate(make_batches(3, 4)):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in task:
            learner.observe(x, torch.full_like(y, -1) if labels == "none" else y)
    assert learner.memory.seen == (0 if labels == "none" else 3 * 4 * 8)
    assert all(bool(p.isfinite().all()) for p in learner.network.parameters())


def test_averages_of_the_method_are_updated(
    make_learner: Make, teach: Callable[..., Learner]
) -> None:
    method = CLSER()
    learner = make_learner(FixMatch(method))
    before = method.plastic.head.weight.clone()
    teach(learner, tasks=1)
    assert not torch.equal(method.plastic.head.weight, before)


def test_in_a_repeated_step_labelled_samples_enter_the_memory_once(
    make_learner: Make, images: Dataset
) -> None:
    learner = make_learner(FixMatch(RAR(repeats=3)))
    learner.new_task([0, 1])
    learner.observe(images.train_x[:8], torch.tensor([0, 1, -1, -1] * 2))
    assert learner.memory.seen == 4


@pytest.mark.parametrize("base", [ER, DERpp])
def test_only_labelled_samples_enter_the_memory(
    base: type[Method], make_learner: Make, images: Dataset
) -> None:
    learner = make_learner(FixMatch(base()), buffer=25, adaptor="cba")
    rng = np.random.default_rng(0)
    known: dict[bytes, int] = {}
    for k in range(3):
        learner.new_task([2 * k, 2 * k + 1])
        rows = np.flatnonzero(np.isin(images.train_y.numpy(), [2 * k, 2 * k + 1]))
        for part in rng.permutation(rows).reshape(-1, 8):
            y = semi(images.train_y[part], int(part[0]))
            known |= {
                images.train_x[r].numpy().tobytes(): int(c)
                for r, c in zip(part, y, strict=True)
                if c >= 0
            }
            learner.observe(images.train_x[part], y)
    assert learner.memory.seen == len(known) > 25
    for i in range(25):
        assert known[learner.memory.x[i].numpy().tobytes()] == int(learner.memory.y[i])


def test_derpp_stores_the_logits_of_labelled_samples(make_learner: Make, images: Dataset) -> None:
    learner = make_learner(FixMatch(DERpp()), transform=Transform(images.mean, images.std))
    spy = Spy(learner)
    learner.new_task([0, 1])
    y = torch.tensor([0, -1, 1, -1, -1, 0, 1, -1])
    learner.observe(images.train_x[:8], y)
    stored = learner.memory.column("raw_logits")[:4]
    assert learner.memory.filled == 4
    assert torch.equal(stored, spy.steps[0][0].z.detach()[y >= 0])


def test_other_methods_refuse_samples_without_a_label(make_learner: Make, images: Dataset) -> None:
    learner = make_learner("er")
    learner.new_task([0, 1])
    with pytest.raises(ValueError, match=r"observed y\[1\] is -1, expected a label from 0 to 5"):
        learner.observe(images.train_x[:2], [0, -1])


@pytest.mark.parametrize("base", [ER, DERpp])
def test_state_round_trip_mid_stream(
    base: type[Method], make_learner: Make, make_batches: Any, differ: Any, tmp_path: Any
) -> None:
    def make() -> Learner:
        return make_learner(FixMatch(base(), threshold=0.4), adaptor="dual-cba")

    stream = make_batches(3, 6)[:2]
    events = [(x, semi(y, i)) for i, (x, y) in enumerate(stream[1])]
    through = make()
    teach(through, stream[:1])
    through.new_task([2, 3])
    for x, y in events[:3]:
        through.observe(x, y)
    through.save(tmp_path / "state.safetensors")
    resumed = make()
    resumed.load(tmp_path / "state.safetensors")
    for learner in (through, resumed):
        for x, y in events[3:]:
            learner.observe(x, y)
    assert differ(through.state_dict(), resumed.state_dict()) == []


# ---------------------------------------------------------------- labels that nobody may see


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def semi_spec(method: str, **options: Any) -> Spec:
    return Spec(method=method, setting="semi-0.2", eval_every=10, batch_size=16, **options)


def finish(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the last state and the result, without times and the digest of the data."""
    list(run.steps())
    result = run.result()
    return run.learner.state_dict(), {k: result[k] for k in result if k not in ("seconds", "data")}


def poison(data: Dataset, hidden: NDArray[np.bool_], *, within_task: bool) -> Dataset:
    """Replace the hidden labels: by others of the same task, or by any."""
    y = data.train_y.clone()
    rows = torch.from_numpy(np.flatnonzero(hidden))
    shift = torch.from_numpy(np.random.default_rng(5).integers(1, 10, len(rows)))
    y[rows] = y[rows] ^ 1 if within_task else (y[rows] + shift) % 10
    assert not bool((y[rows] == data.train_y[rows]).any())
    return replace(data, train_y=y)


@pytest.mark.parametrize("method", ["er", "derpp-dual-cba"])
def test_hidden_labels_of_the_data_have_no_effect(
    method: str, digits: Dataset, differ: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is built from data with changed hidden labels; the labelled samples are the same."""
    clean = Run(semi_spec(method), digits, CPU)
    known = clean.has_label
    assert known is not None
    monkeypatch.setattr(making, "labelled", lambda *_: known)
    poisoned = Run(semi_spec(method), poison(digits, ~known, within_task=True), CPU)
    (a, one), (b, two) = finish(clean), finish(poisoned)
    assert differ(a, b) == []
    assert one == two


@pytest.mark.parametrize("method", ["er-dual-cba", "derpp"])
def test_hidden_labels_of_a_scheduled_stream_have_no_effect(
    method: str, digits: Dataset, differ: Any
) -> None:
    """The class of a sample may determine its task, and nothing else."""
    clean, poisoned = (Run(semi_spec(method), digits, CPU) for _ in range(2))
    assert poisoned.has_label is not None
    poisoned.data = poison(digits, ~poisoned.has_label, within_task=False)
    (a, one), (b, two) = finish(clean), finish(poisoned)
    assert differ(a, b) == []
    assert one == two


def test_a_changed_visible_label_has_an_effect(digits: Dataset, differ: Any) -> None:
    """A change of a visible label is detected, so the tests above can fail."""
    clean, poisoned = (Run(semi_spec("er"), digits, CPU) for _ in range(2))
    assert poisoned.has_label is not None
    first = np.zeros_like(poisoned.has_label)
    planned = np.concatenate([one.rows.ravel() for epochs in poisoned.schedule for one in epochs])
    first[next(r for r in planned if poisoned.has_label[r])] = True
    poisoned.data = poison(digits, first, within_task=True)
    assert differ(finish(clean)[0], finish(poisoned)[0]) != []


def test_a_run_labels_the_ratio_and_stores_only_labelled_samples(digits: Dataset) -> None:
    run = Run(semi_spec("er"), digits, CPU)
    list(run.steps())
    known = run.has_label
    assert known is not None
    planned = np.concatenate([one.rows.ravel() for epochs in run.schedule for one in epochs])
    assert run.learner.memory.seen == known[planned].sum()
    labelled = {digits.train_x[r].numpy().tobytes() for r in np.flatnonzero(known)}
    memory = run.learner.memory
    assert all(memory.x[i].numpy().tobytes() in labelled for i in range(memory.filled))


def test_cycled_batches_repeat_labelled_samples_and_store_each_once(digits: Dataset) -> None:
    run = Run(semi_spec("er", labelled_batches="cycled"), digits, CPU)
    list(run.steps())
    assert run.has_label is not None
    fresh: set[int] = set()
    for task, (one,) in zip(run.stream, run.schedule, strict=True):
        some, rest = one.rows[:, :16], one.rows[:, 16:]
        assert run.has_label[some].all()
        assert not run.has_label[rest].any()
        assert len(set(rest.ravel())) == rest.size == (~run.has_label[task.train]).sum() // 16 * 16
        counts = np.unique(some, return_counts=True)[1]
        assert counts.max() - counts.min() <= 1  # round and round
        assert one.storable is not None
        fresh |= set(one.rows[one.storable])
        assert one.storable.sum() == len(set(some.ravel()))
    assert run.learner.memory.seen == len(fresh)


def test_labelled_batches_alone_are_those_of_cycled_ones(digits: Dataset) -> None:
    alone, cycled = (
        Run(semi_spec("er", labelled_batches=how), digits, CPU) for how in ("alone", "cycled")
    )
    for (some,), (both,) in zip(alone.schedule, cycled.schedule, strict=True):
        assert some.rows.tolist() == both.rows[:, :16].tolist()
        assert some.storable is not None
        assert both.storable is not None
        assert some.storable.tolist() == both.storable[:, :16].tolist()
    spy = Spy(alone.learner)
    list(alone.steps())
    assert alone.learner.memory.seen == sum(one.storable.sum() for (one,) in alone.schedule)
    for _, adapted, loss in spy.steps:  # ER, and no other term
        assert loss == pytest.approx(sum(mean(ce(*batch)) for batch in adapted), abs=1e-4)


def test_without_unlabelled_samples_their_options_have_no_effect() -> None:
    for name, value in (("unlabelled_samples", "all"), ("pseudo_labels", "raw")):
        with pytest.raises(ValueError, match=f"{name} is '{value}', expected .* batches are alone"):
            semi_spec("er-cba", labelled_batches="alone", **{name: value})


@pytest.mark.parametrize("batches", ["cycled", "alone"])
def test_labelled_samples_that_come_round_can_be_stored_again(
    digits: Dataset, batches: str
) -> None:
    given = {"labelled_batches": batches, "store_again": True}
    run, once = (
        Run(semi_spec("er", **g), digits, CPU) for g in (given, given | {"store_again": False})
    )
    list(run.steps())
    for (one,), (other,) in zip(run.schedule, once.schedule, strict=True):
        assert (one.rows == other.rows).all()
        assert one.storable is not None
        assert one.storable[:, :16].all()
        assert not one.storable[:, 16:].any()
    steps = sum(len(one) for (one,) in run.schedule)
    assert run.learner.memory.seen == 16 * steps > sum(o.storable.sum() for (o,) in once.schedule)


def test_a_mixed_batch_has_no_samples_to_store_again() -> None:
    with pytest.raises(ValueError, match=r"store_again is True, expected False if .* are mixed"):
        semi_spec("er", labelled_batches="mixed", store_again=True)
    with pytest.raises(ValueError, match=r"store_again is True, expected False unless .* semi"):
        Spec(method="er", store_again=True)


def test_all_samples_can_be_the_unlabelled_ones_of_cycled_batches(digits: Dataset) -> None:
    given = {"labelled_batches": "cycled", "unlabelled_samples": "all"}
    run = Run(semi_spec("er", **given), digits, CPU)
    spy = Spy(run.learner)
    list(run.steps())
    assert run.has_label is not None
    fresh: set[int] = set()
    for task, (one,) in zip(run.stream, run.schedule, strict=True):
        some, rest = one.rows[:, :16], one.rows[:, 16:]
        assert run.has_label[some].all()
        assert len(set(rest.ravel())) == rest.size == len(task.train) // 16 * 16
        assert run.has_label[rest].any()
        assert one.storable is not None
        assert not one.storable[:, 16:].any()
        assert one.storable.sum() == len(set(some.ravel()))  # each is stored once
        fresh |= set(one.rows[one.storable])
    assert run.learner.memory.seen == len(fresh)
    for new, adapted, loss in spy.steps:
        (z, y), *mem, (strong, _) = adapted
        hidden = np.concatenate([y[:16], np.full(16, -1)])  # the labels of the others are not used
        view = np.concatenate([np.zeros_like(z[:16]), strong])
        want = oracle(z, view, hidden, new.z.detach().double().numpy())
        assert loss == pytest.approx(want + sum(mean(ce(*b)) for b in mem), abs=1e-4)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 12))
def test_all_samples_of_a_mixed_batch_can_be_unlabelled_ones_too(seed: int, n: int) -> None:
    method = FixMatch(ER(), threshold=0.5, every=True)
    new, mem, _ = problem(method, seed, n)
    z, strong, y = arrays(new)
    want = mean(ce(z[y >= 0], y[y >= 0])) + mean(ce(mem[0].z.numpy(), mem[0].y.numpy()))
    want += oracle(z, strong, np.full(n, -1), z, threshold=0.5)
    assert method.loss(new, mem, identity).item() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("base", [ER, DERpp])
def test_the_pseudo_labels_can_be_compared_with_raw_logits(base: type[Method]) -> None:
    adapted, raw = (FixMatch(base(), threshold=0.6, adapted=a) for a in (True, False))
    new, mem, outer = problem(raw, 5, 10)
    r = torch.from_numpy(np.random.default_rng(9).normal(size=(20 + 4 * len(mem), C)) * 6)
    got, other = (m.loss(new, mem, lambda b: b.z + r[b.rows]).item() for m in (raw, adapted))
    _, strong, y = arrays(new)
    alone = [
        oracle(new.z.numpy(), view, y, new.z.numpy(), threshold=0.6)  # the labelled part is equal
        for view in (strong, strong + r[new.views["strong"].rows].numpy())
    ]
    assert got - other == pytest.approx(alone[0] - alone[1], abs=1e-6)
    sets = ClassSets(C)
    sets.new_task([0, 1, 2])
    sets.new_task([3, 4])
    adaptor = ADAPTORS["dual-cba"](sets, torch.Generator().manual_seed(0), width=8).double()
    head = torch.nn.Linear(D, C).double()
    both = (hypergradient(adaptor, raw, new, mem, outer, head, 0.3, closed_form=c) for c in (0, 1))
    for a, b in zip(*both, strict=True):
        assert a is not None
        assert b is not None
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-14)


def test_a_spec_says_what_the_unlabelled_loss_is() -> None:
    spec = Spec(method="er-dual-cba", setting="semi-0.2")
    assert (spec.unlabelled_samples, spec.pseudo_labels) == ("rest", "adapted")
    assert Spec(method="er", setting="semi-0.2").pseudo_labels is None
    for name, value in (("unlabelled_samples", "all"), ("pseudo_labels", "raw")):
        with pytest.raises(ValueError, match=f"{name} is '{value}', expected .* semi-supervised"):
            Spec(method="er-dual-cba", **{name: value})
    data = load_dataset("digits")
    made = making.make_learner(replace(spec, pseudo_labels="raw"), data, CPU).method
    assert isinstance(made, FixMatch)
    assert (made.adapted, made.every) == (False, False)


def test_cycled_batches_hide_labels_as_well(digits: Dataset, differ: Any) -> None:
    clean, poisoned = (
        Run(semi_spec("er-dual-cba", labelled_batches="cycled"), digits, CPU) for _ in range(2)
    )
    assert poisoned.has_label is not None
    poisoned.data = poison(digits, ~poisoned.has_label, within_task=True)
    assert differ(finish(clean)[0], finish(poisoned)[0]) == []


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("base", [ER, DERpp])
def test_labelled_samples_that_lead_a_batch_need_no_strong_view(
    base: type[Method], later: bool
) -> None:
    """A label behind them is used as well."""
    new, mem, _ = problem(FixMatch(base()), 4, 9, [True] * 4 + [False] * 4 + [later])
    new.z[5:7, 2] = 30.0  # two are confident
    want = FixMatch(base()).loss(new, mem, identity)
    strong = new.views["strong"]
    new.views = {"strong": replace(strong, y=strong.y[4:], z=strong.z[4:], h=strong.h[4:])}
    got = FixMatch(base(), labelled=4).loss(new, mem, identity)
    torch.testing.assert_close(got, want)


def test_labelled_samples_that_lead_a_batch_have_statistics_of_their_own(
    digits: Dataset,
) -> None:
    spec = semi_spec("er", labelled_batches="cycled", network="resnet18-slim")
    run = Run(spec, digits, CPU)
    forwards, n = run.learner.parts.forward_pass, spec.batch_size
    x = torch.randn(2 * n, *digits.input_shape)
    y = torch.zeros(2 * n, dtype=torch.long)
    outputs = []
    for together in (True, False):
        forwards.samplewise = together
        (both,) = forwards.through([x], [y])
        halves = [forwards.outputs(part, y[:n])[0] for part in (x[:n], x[n:])]
        torch.testing.assert_close(both[0], torch.cat(halves), rtol=1e-3, atol=1e-4)
        outputs.append(both[0])
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-4)
    mixed = forwards.outputs(x, y)[0]
    assert not torch.allclose(mixed, outputs[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["er-ace", "ss-il", "icarl", "lucir", "bic"])
def test_a_method_that_is_not_semi_supervised_is_refused(method: str) -> None:
    wanted = f"the setting 'semi-0.2' does not fit the method '{method}', expected a method that"
    with pytest.raises(ValueError, match=wanted):
        Spec(method=method, setting="semi-0.2")


@pytest.mark.parametrize("n", [3, 4])
def test_a_batch_without_unlabelled_samples_is_an_error(n: int) -> None:
    """Without unlabelled samples the strong view is empty, and its batch statistics are NaN."""
    layers = (torch.nn.Flatten(), torch.nn.Linear(192, 8), torch.nn.BatchNorm1d(8))
    network = torch.nn.Sequential(*layers, torch.nn.Linear(8, 4))
    learner = Learner(network, (3, 8, 8), 4, method=FixMatch(ER(), labelled=4), device="cpu")
    learner.new_task([0, 1])
    x, y = torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1, -1, -1])
    with pytest.raises(ValueError, match=f"samples is {n}, expected more than 4, the labelled"):
        learner.observe(x[:n], y[:n])
    learner.observe(x, y)
    assert learner.step == 1


def test_fixmatch_hands_everything_on():
    inner = RAR(repeats=3)
    assert FixMatch(inner).repeats == 3
    hooks = {name for name, member in vars(Method).items() if callable(member)}
    same = {name for name in hooks if getattr(FixMatch, name) is getattr(Method, name)}
    assert {"bind", "make_memory", "terms", "observe", "scores"} <= hooks
    assert same == {"loss"}  # which is the sum of the terms
