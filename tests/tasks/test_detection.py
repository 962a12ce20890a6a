"""Boundary-free: tasks and new classes from labels alone, beside what was known all along."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dualcba import Dataset, Learner, load_dataset
from dualcba.data import Task, batches, blurry
from dualcba.experiments import Hardware, Run, Spec
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.tasks.class_sets import ClassSets
from dualcba.tasks.detection import TaskDetector, split

Labels = NDArray[np.int64]
Make = Callable[..., Learner]
CPU = Hardware(device="cpu")

# ---------------------------------------------------------------- disjoint streams


@st.composite
def disjoint_streams(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], list[Labels]]]]:
    """Every batch has all classes of its task; how often is anyone's guess, but for the first."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes = rng.permutation(sum(sizes) + draw(st.integers(0, 3))).tolist()
    stream = []
    for t, size in enumerate(sizes):
        own, classes = classes[:size], classes[size:]
        steps, n = draw(st.integers(2, 6)), draw(st.integers(max(8, size), 40))
        share = np.ones(size) if t == 0 else draw(st.sampled_from([1.0, 20.0])) ** -np.arange(size)
        task = []
        for _ in range(steps):
            rest = rng.choice(own, n - size, p=share / share.sum())
            if t == 0:
                rest = np.resize(own, n - size)
            task.append(rng.permutation(np.concatenate([own, rest])))
        stream.append((own, task))
    return len(classes) + sum(sizes), stream


def follow(sets: ClassSets, boundaries: TaskDetector, y: Labels) -> bool:
    """What the learner does with a batch's labels."""
    boundary, new = boundaries.update(y)
    (sets.begin if boundary else sets.set_new)(sorted(new))
    return boundary


@given(stream=disjoint_streams())
def test_equals_known_boundaries_from_the_first_batch_of_each_task(
    stream: tuple[int, list[tuple[list[int], list[Labels]]]],
) -> None:
    C, tasks = stream
    known, inferred, boundaries = ClassSets(C), ClassSets(C), TaskDetector(C)
    for own, task in tasks:
        known.new_task(own)
        for k, y in enumerate(task):
            assert follow(inferred, boundaries, y) == (k == 0)
            for sets in (known, inferred):
                sets.appear(torch.from_numpy(y))
            for name, value in known.state_dict().items():
                assert torch.equal(value, inferred.state_dict()[name]), name
            assert torch.equal(known.old, inferred.old)


def test_late_and_rare_classes_of_a_task_join_when_they_appear() -> None:
    boundaries = TaskDetector(8)
    for _ in range(5):
        boundaries.update(np.tile([0, 1], 10))
    assert boundaries.update(np.tile([2, 3], 10)) == (True, frozenset({2, 3}))
    for _ in range(30):
        assert boundaries.update(np.tile([2, 3], 10)) == (False, frozenset({2, 3}))
    assert boundaries.update(np.array([2, 3] * 9 + [5])) == (False, frozenset({2, 3, 5}))
    assert boundaries.update(np.tile([2, 3], 10)) == (False, frozenset({2, 3, 5}))


def test_a_rare_class_of_a_task_is_its_own_from_its_first_label_on() -> None:
    """Six labels of it alone are no sign of another task."""
    detector = TaskDetector(6)
    for classes in ([0, 1] * 8, [2] * 16, [2] * 15 + [3], [3] * 6):
        detector.update(np.array(classes))
    assert (detector.number, detector.new) == (2, {2, 3})


def test_strays_of_any_earlier_task_are_not_new() -> None:
    detector = TaskDetector(6)
    for classes in ([0, 1] * 16, [2, 3] * 16, [4, 5] * 16, [4, 0, 5, 4]):
        detector.update(np.array(classes))
    assert (detector.number, detector.new) == (3, {4, 5})


def test_a_class_may_be_new_again() -> None:
    boundaries = TaskDetector(6)
    for classes in ([0, 1], [2, 3], [0, 4]):
        assert boundaries.update(np.tile(classes, 10)) == (True, frozenset(classes))
        assert boundaries.update(np.tile(classes, 10)) == (False, frozenset(classes))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_small_batches_take_six_labels_to_see_a_task(size: int) -> None:
    rng = np.random.default_rng(0)
    boundaries, found = TaskDetector(6), []
    for task in range(3):
        for k in range(120 // size):
            boundary, new = boundaries.update(rng.integers(2 * task, 2 * task + 2, size))
            if boundary:
                found.append((task, k))
            if k * size > 10:
                assert new == {2 * task, 2 * task + 1}
    assert found == [(0, 0)] + [(task, -(-6 // size) - 1) for task in (1, 2)]


# ---------------------------------------------------------------- blurry streams


def blurry_labels(C: int, T: int, n: int, percent: float, size: int, seed: int) -> Iterator[Any]:
    """The labels of each batch, by the package's own streams, and the task's classes."""
    y = np.repeat(np.arange(C), n // C)
    rows = np.arange(len(y)).reshape(T, -1)
    groups = np.arange(C).reshape(T, -1)
    stream = [Task(tuple(g.tolist()), r, r[:1]) for g, r in zip(groups, rows, strict=True)]
    rng = np.random.default_rng(seed)
    for task in blurry(stream, percent, rng) if percent else stream:
        for batch in batches(task, size, rng):
            yield frozenset(task.classes), y[batch]


def score(C: int, *stream: Any) -> tuple[int, float]:
    """How many boundaries were declared, and in which share of the steps `new` was right."""
    boundaries, right = TaskDetector(C), []
    for classes, y in blurry_labels(C, *stream):
        right.append(boundaries.update(y)[1] == classes)
    return boundaries.number, float(np.mean(right))


@pytest.mark.parametrize(("percent", "least"), [(0, 0.99), (10, 0.98), (30, 0.97)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_hundred_classes(percent: int, least: float, seed: int) -> None:
    number, right = score(100, 10, 50_000, percent, 32, seed)
    assert number == 10
    assert right >= least


@pytest.mark.parametrize(("percent", "least"), [(0, 0.99), (10, 0.97), (30, 0.95)])
def test_few_classes_in_small_batches(percent: int, least: float) -> None:
    """As Split-Digits: a task is 28 batches of ten, of which three are strays."""
    scores = [score(10, 5, 1440, percent, 10, seed) for seed in range(20)]
    assert [number for number, _ in scores] == [5] * 20
    assert np.mean([right for _, right in scores]) >= least
    assert np.min([right for _, right in scores]) >= least - 0.05


def test_strays_do_not_stay() -> None:
    """At the end of each task `new` is exactly the task's own, every time."""
    for seed in range(5):
        boundaries, ends = TaskDetector(10), {}
        for classes, y in blurry_labels(10, 5, 1440, 30, 10, seed):
            ends[classes] = boundaries.update(y)[1]
        assert all(classes == new for classes, new in ends.items())


# ---------------------------------------------------------------- labels that are not there


def test_samples_without_a_label_say_nothing() -> None:
    with_, without = TaskDetector(6), TaskDetector(6)
    rng = np.random.default_rng(0)
    for task in range(3):
        for _ in range(10):
            y = rng.integers(2 * task, 2 * task + 2, 12)
            hidden = rng.permutation(np.concatenate([y, np.full(20, -1)]))
            assert with_.update(hidden) == without.update(y)


def test_before_the_first_label_nothing_is_new() -> None:
    boundaries = TaskDetector(4)
    assert boundaries.update(np.full(5, -1)) == (True, frozenset())
    assert boundaries.update(np.full(5, -1)) == (False, frozenset())
    assert boundaries.update(np.array([-1, 2, 3, 2])) == (False, frozenset({2, 3}))
    assert boundaries.number == 1


def test_a_learner_may_begin_without_labels(make_learner: Make, images: Dataset) -> None:
    learner = make_learner(FixMatch(ER()), adaptor="dual-cba", boundaries="inferred")
    x = images.train_x[:8]
    learner.observe(x, [-1] * 8)
    assert (learner.task, learner.class_sets.new.tolist()) == (0, [False] * 6)
    learner.observe(x, [0, 1] * 4)
    assert (learner.task, learner.class_sets.new.tolist()) == (0, [True, True] + [False] * 4)


@pytest.mark.parametrize(
    ("first", "known"),
    [
        ([0, 1] * 3 + [0], False),  # 7 labels
        ([0, 1] * 4, True),
        ([0, 1] * 3 + [2, 3, 4], True),  # a third are their class's only one
        ([0, 1] * 3 + [2, 3, 4, 5], False),
    ],
)
def test_a_task_is_over_only_where_enough_of_it_is_known(first: list[int], known: bool) -> None:
    boundaries = TaskDetector(8)
    boundaries.update(np.array(first))
    assert boundaries.update(np.array([6, 7] * 4))[0] == known


def test_a_task_of_which_too_little_was_known_goes_on_with_what_came() -> None:
    boundaries = TaskDetector(6)
    came = [boundaries.update(np.array(y))[0] for y in ([0, 1], [2, 3] * 4, [4, 5] * 4)]
    assert came == [True, False, True]


def test_a_class_that_is_new_no_longer_leaves_the_sets(
    make_learner: Make, images: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(boundaries="inferred")
    learner.observe(images.train_x[:8], np.array([0, 1] * 4))
    assert learner.parts.tasks.detector is not None
    monkeypatch.setattr(learner.parts.tasks.detector, "update", lambda y: (False, frozenset({1})))
    learner.observe(images.train_x[:8], np.array([0, 1] * 4))
    assert learner.class_sets.new.tolist() == [False, True] + [False] * 4


# ---------------------------------------------------------------- the split


def test_split_takes_the_frequent_ones() -> None:
    counts = np.array([30, 2, 0, 25, 1, 3, 0, 28, 2, 1])
    assert np.flatnonzero(split(counts, np.zeros(10))).tolist() == [0, 3, 7]
    assert not split(np.zeros(4, dtype=np.int64), np.zeros(4)).any()
    assert split(np.array([3, 3, 3]), np.zeros(3)).all()
    assert split(np.array([7, 5, 4, 4]), np.full(4, -2.0)).all()  # no group stands out


def test_split_prefers_what_is_likelier_to_be_new_among_equals() -> None:
    prior = np.array([-2.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert split(np.array([1, 1, 0, 0, 0, 0]), prior).tolist() == [False, True] + [False] * 4


def test_a_stray_may_be_just_half_as_likely() -> None:
    assert split(np.array([2, 1, 1]), np.zeros(3)).tolist() == [True, False, False]


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=12), seed=st.integers(0, 99))
@example(counts=[10] + [1] * 90, seed=0)  # one class is likelier, but of more than half strays
def test_split_is_the_most_likely_of_all_splits(counts: list[int], seed: int) -> None:
    """By trying every k, with the formula written out in plain Python."""
    prior = 1.0 if seed % 2 else -2.0
    order = sorted(range(len(counts)), key=lambda c: -counts[c])
    present, total = sum(c > 0 for c in counts), sum(counts)

    def fit(k: int) -> float:
        own = sum(counts[c] for c in order[:k])
        rest = total - own
        if own < rest or own / k < 2 * rest / max(len(counts) - k, 1):
            return -math.inf
        value = own * math.log(own / k) + prior * k
        return value if not rest else value + rest * math.log(rest / (len(counts) - k))

    got = split(np.array(counts), np.full(len(counts), prior))
    if not total:
        assert not got.any()
        return
    assert fit(int(got.sum())) == pytest.approx(max(fit(k) for k in range(1, present + 1)))
    assert min(np.array(counts)[got]) >= max(np.array(counts)[~got], default=0)


# ---------------------------------------------------------------- state


def test_state_round_trip_at_every_step() -> None:
    stream = [y for _, y in blurry_labels(10, 5, 400, 30, 3, 0)]
    through = TaskDetector(10)
    waiting = 0
    for y in stream:
        other = TaskDetector(10)
        other.load_state_dict(json.loads(json.dumps(through.state_dict())))
        assert other.update(y) == through.update(y)
        assert other.state_dict() == through.state_dict()
        waiting += through.evidence > 0
    assert waiting > 5  # some were taken with evidence pending


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="number of counts is 4, expected 5, one per class"):
        TaskDetector(5).load_state_dict(TaskDetector(4).state_dict())


# ---------------------------------------------------------------- class sets


def members(mask: torch.Tensor) -> list[int]:
    return mask.nonzero().flatten().tolist()


def test_new_classes_change_in_place() -> None:
    sets = ClassSets(6)
    sets.new_task([0, 1])
    sets.new_task([2, 1])
    before = {k: b.data_ptr() for k, b in sets.named_buffers()}
    sets.set_new([2, 3])
    assert (sets.task, members(sets.new), members(sets.old)) == (1, [2, 3], [0, 1])
    assert sets.owner.tolist() == [0, 0, 1, 1, -1, -1]  # 1 belongs to the first task again
    assert {k: b.data_ptr() for k, b in sets.named_buffers()} == before
    other = ClassSets(6)
    other.load_state_dict(sets.state_dict())
    for one in (sets, other):
        one.set_new([2])
        assert one.owner.tolist() == [0, 0, 1, -1, -1, -1]


# ---------------------------------------------------------------- in the learner


def teach(learner: Learner, stream: Any, *, say: bool) -> None:
    for k, task in enumerate(stream):
        if say:
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in task:
            learner.observe(x, y)


@pytest.mark.parametrize("method", ["er", "er-cba", "er-dual-cba", "derpp-dual-cba", "ss-il"])
def test_bit_identical_to_known_boundaries_on_a_disjoint_stream(
    method: str, make_learner: Make, make_batches: Any, differ: Any
) -> None:
    known = make_learner(method)
    inferred = make_learner(method, boundaries="inferred")
    teach(known, make_batches(3, 6), say=True)
    teach(inferred, make_batches(3, 6), say=False)
    assert inferred.task_starts == known.task_starts == [0, 6, 12]
    state = inferred.state_dict()
    state["meta"].pop("boundaries")
    assert differ(known.state_dict(), state) == []


def test_a_boundary_resets_omega(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba", boundaries="inferred")
    stream = make_batches(3, 6)
    teach(learner, stream[:2], say=False)
    assert learner.adaptor is not None
    specific = learner.adaptor.specific
    assert specific is not None
    before = [p.detach().clone() for p in specific.parameters()]

    def moved() -> float:
        pairs = zip(before, specific.parameters(), strict=True)
        return max(float((a - b).detach().abs().max()) for a, b in pairs)

    learner.observe(*stream[1][0])
    assert (learner.task, moved() < 0.05) == (1, True)  # a step of Adam
    learner.observe(*stream[2][0])
    assert (learner.task, moved() > 0.2) == (2, True)  # drawn anew


def test_new_task_is_not_the_callers_to_say(make_learner: Make) -> None:
    learner = make_learner("er", boundaries="inferred")
    with pytest.raises(ValueError, match="boundaries are inferred from the labels, expected no"):
        learner.new_task([0, 1])
    assert learner.task == -1


def test_learn_needs_the_labels_on_the_host(make_learner: Make, images: Dataset) -> None:
    learner = make_learner("er", boundaries="inferred")
    with pytest.raises(ValueError, match="labels is None, expected y on the host"):
        learner.observe_on_device(images.train_x[:8], images.train_y[:8])


def test_an_unknown_kind_of_boundaries(make_learner: Make) -> None:
    with pytest.raises(ValueError, match="boundaries is 'guessed', expected 'given' or 'inferred'"):
        make_learner("er-cba", boundaries="guessed")
    with pytest.raises(ValueError, match=r"boundaries is 'infered', .*did you mean 'inferred'"):
        Spec(boundaries="infered")


def test_a_learner_goes_on_after_the_end_of_a_stream(make_learner: Make, make_batches: Any) -> None:
    learner = make_learner(boundaries="inferred")
    stream = make_batches(3, 4)
    teach(learner, stream[:1], say=False)
    learner.end_task()
    teach(learner, stream[:1], say=False)
    assert (learner.task, learner.step, members(learner.class_sets.new)) == (1, 8, [0, 1])


@pytest.mark.parametrize("cut", [3, 5, 6, 7])
def test_learner_state_round_trip(
    cut: int, make_learner: Make, images: Dataset, differ: Any, tmp_path: Any
) -> None:
    """Batches of four: at some cuts evidence is pending."""
    rng = np.random.default_rng(0)
    y = images.train_y.numpy()
    parts = [rng.choice(np.flatnonzero(y // 2 == t), 4) for t in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    through, resumed = (make_learner(boundaries="inferred") for _ in range(2))
    for rows in parts[:cut]:
        through.observe(images.train_x[rows], images.train_y[rows])
    through.save(tmp_path / "state.safetensors")
    resumed.load(tmp_path / "state.safetensors")
    for learner in (through, resumed):
        for rows in parts[cut:]:
            learner.observe(images.train_x[rows], images.train_y[rows])
    assert differ(through.state_dict(), resumed.state_dict()) == []


def test_states_of_the_other_kind_are_refused(make_learner: Make) -> None:
    one, two = make_learner(), make_learner(boundaries="inferred")
    with pytest.raises(ValueError, match="boundaries of the state is 'inferred', expected 'given'"):
        one.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match="boundaries of the state is 'given', expected 'inferred'"):
        two.load_state_dict(one.state_dict())


# ---------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def result(data: Dataset, **options: Any) -> tuple[Run, dict[str, Any]]:
    run = Run(Spec(**{"method": "er-dual-cba", "eval_every": 20, **options}), data, CPU)
    list(run.steps())
    return run, run.result()


@pytest.mark.parametrize("method", ["er-cba", "er-dual-cba"])
def test_a_disjoint_run_gives_what_it_gives_with_known_boundaries(
    method: str, digits: Dataset
) -> None:
    (one, known), (two, inferred) = (
        result(digits, method=method, boundaries=b) for b in ("given", "inferred")
    )
    assert one.learner.task_starts == two.learner.task_starts
    for part in ("scores", "accuracy_matrix", "anytime"):
        assert known[part] == inferred[part]


@pytest.mark.parametrize("setting", ["blurry-10", "blurry-30", "semi-0.2"])
def test_other_settings_come_close(setting: str, digits: Dataset) -> None:
    accuracy: dict[str, list[float]] = {"given": [], "inferred": []}
    for boundaries, found in accuracy.items():
        for seed in range(3):
            run, got = result(digits, setting=setting, boundaries=boundaries, seed=seed)
            found.append(got["scores"]["ibn"]["acc"])
            assert len(run.learner.task_starts) == 5
            assert np.shape(got["accuracy_matrix"]["bn"]) == (5, 5)
            assert got["anytime"]["task"] == sorted(got["anytime"]["task"])
    assert abs(np.mean(accuracy["given"]) - np.mean(accuracy["inferred"])) < 5


def test_scores_belong_to_the_streams_tasks_whatever_the_learner_thinks(digits: Dataset) -> None:
    """Batches of two: the learner sees a boundary some steps after the stream has it."""
    run, got = result(digits, batch_size=2, boundaries="inferred", eval_every=1, tasks=[2, 2])
    steps = [len(rows) for (rows,) in run.schedule]
    assert got["anytime"]["task"] == [0] * steps[0] + [1] * steps[1]
    assert run.learner.task_starts == [0, steps[0] + 2]


def test_from_the_command_line_and_a_file(dualcba: Callable[..., Any], tmp_path: Any) -> None:
    file = tmp_path / "x.toml"
    file.write_text('method = "er-dual-cba"\nboundaries = "inferred"\neval_every = 0\n')
    args = ["--method", "er-dual-cba", "--boundaries", "inferred", "--eval-every", 0]
    found = []
    for name, given_ in {"a": [file], "b": args}.items():
        got = dualcba("run", *given_, "--device", "cpu", "--json", "--out", name)
        assert got.code == 0, got.err
        (one,) = json.loads(got.out)
        assert one["spec"]["boundaries"] == "inferred"
        found.append(one["accuracy_matrix"])
    assert found[0] == found[1]
    got = dualcba("run", "--boundaries", "none", "--out", "c")
    assert (got.code, len(got.lines)) == (2, 1)
    assert "boundaries is 'none', expected 'given' or 'inferred'" in got.err


@pytest.mark.parametrize("labels", [8, 79, 80, 84, 200])
def test_a_state_is_the_same_after_loading(labels: int) -> None:
    detector, loaded = TaskDetector(6), TaskDetector(6)
    for start in range(0, labels, 4):
        detector.update(np.arange(start, min(start + 4, labels)) % 4)
    loaded.load_state_dict(detector.state_dict())
    assert loaded.state_dict() == detector.state_dict()
    assert loaded.update(np.array([4, 4])) == detector.update(np.array([4, 4]))
    assert loaded.state_dict() == detector.state_dict()
