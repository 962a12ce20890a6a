"""The checks: each takes a function from a seed to a fresh learner and feeds one a made-up stream.

What is violated becomes an `AssertionError` that says so.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.checks.states import as_bytes, difference, digest, held_bytes
from dualcba.checks.stream import STEPS, Arrival, EndTask, Event, Material, NewTask, play
from dualcba.errors import unknown
from dualcba.learner import Learner

MakeLearner = Callable[[int], Learner]

LONG = 20  # where growth is looked for
SLACK = 2048  # bytes: counters, a number per task
SLOWER = 3.0
ATTEMPTS = 3  # a machine may be busy


def check_learner(
    make_learner: MakeLearner,
    *,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
) -> None:
    """Run every check, or only some; stops at the first that fails.

    Parameters
    ----------
    make_learner
        Gives a fresh learner for a seed; everything random about it comes from that seed.
    only, skip
        Names of checks, as in `CHECKS`.

    >>> from dualcba.nets import MLP
    >>> def make(seed):
    ...     _ = torch.manual_seed(seed)
    ...     return Learner(MLP((6,), 4, width=16), (6,), 4, dtype=torch.float32, buffer=16,
    ...                    batch_size=8, method="er-cba", seed=seed, device="cpu")
    >>> check_learner(make, only=["shapes", "determinism"])
    """
    for name in [*(only or ()), *skip]:
        if name not in CHECKS:
            raise ValueError(unknown("check", name, CHECKS))
    for name, check in CHECKS.items():
        if (only is None or name in only) and name not in skip:
            try:
                with global_randomness(0):
                    check(make_learner)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def require(condition: bool, message: str) -> None:
    """Raise an `AssertionError` unless the condition holds, also where asserts are off."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Other global generators than usual; a learner must not depend on them. Restored after."""
    numbers, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(numbers)
            np.random.set_state(legacy)  # noqa: NPY002


def _start(make_learner: MakeLearner, **stream: int) -> tuple[Learner, Material, list[Event]]:
    learner = make_learner(0)
    material = Material(learner)
    return learner, material, material.stream(**stream)


def check_shapes(make_learner: MakeLearner) -> None:
    """`predict` gives (n,) int64 labels, `predict_proba` (n, C) float32 rows that sum to 1."""
    learner, material, events = _start(make_learner)
    play(learner, events[: STEPS + 4])
    for n in (1, 5):
        x = material.questions(n)
        _check_answers(learner, x, "in the second task")
        same = torch.equal(learner.predict(x), learner.predict(torch.from_numpy(x)))
        require(same, "predict answers differently for an array and a tensor of the same values")


def _check_answers(learner: Learner, x: NDArray[Any], when: str) -> None:
    n, C = len(x), learner.num_classes
    try:
        y, p = learner.predict(x), learner.predict_proba(x)
    except Exception as error:
        raise AssertionError(f"predicting {when} raised {type(error).__name__}: {error}") from error
    require(isinstance(y, Tensor) and isinstance(p, Tensor), f"an answer {when} is no tensor")
    require(tuple(y.shape) == (n,), f"predict gave shape {tuple(y.shape)} {when}, expected ({n},)")
    require(y.dtype == torch.int64, f"predict gave {y.dtype} {when}, expected torch.int64")
    require(bool(((y >= 0) & (y < C)).all()), f"predict gave a label outside 0 to {C - 1} {when}")
    wrong = f"predict_proba gave shape {tuple(p.shape)} {when}, expected ({n}, {C})"
    require(tuple(p.shape) == (n, C), wrong)
    require(p.dtype == torch.float32, f"predict_proba gave {p.dtype} {when}, expected float32")
    require(bool(p.isfinite().all()), f"predict_proba gave a value that is not finite {when}")
    require(bool((p >= 0).all()), f"predict_proba gave a negative value {when}")
    off = float((p.sum(1) - 1).abs().max())
    require(off < 1e-4, f"rows of predict_proba are off their sum of 1 by {off:.2g} {when}")
    chosen = p.gather(1, y.unsqueeze(1)).squeeze(1)
    agree = bool(torch.allclose(chosen, p.amax(1), rtol=1e-4, atol=1e-6))
    require(agree, f"predict chose another class than the most probable one {when}")


def check_purity(make_learner: MakeLearner) -> None:
    """Predicting changes no byte of the state, and nothing of what is learnt afterwards."""
    learner, material, events = _start(make_learner)
    quiet = make_learner(0)
    x = material.questions()
    for i, event in enumerate(events):
        play(learner, [event])
        play(quiet, [event])
        if i % 3 != 1:  # the first step, the beginning of the second task and some between
            continue
        before, given = digest(learner.state_dict()), x.copy()
        first = learner.predict_proba(x)
        learner.predict(x)
        changed = difference(before, digest(learner.state_dict()))
        require(not changed, f"predict changed the state after event {i}: {changed}")
        require(np.array_equal(x, given), f"predict changed the caller's x after event {i}")
        same = torch.equal(first, learner.predict_proba(x))
        require(same, f"predict_proba gave two answers to one question after event {i}")
    changed = difference(digest(quiet.state_dict()), digest(learner.state_dict()))
    require(not changed, f"a learner that predicts on the way learns otherwise: {changed}")


def check_determinism(make_learner: MakeLearner) -> None:
    """The same seed gives the same state, whatever the global generators hold; another does not."""
    _, material, events = _start(make_learner)
    ends, x = [], material.questions()
    for seed, elsewhere in ((0, 1), (0, 2), (1, 1)):
        learner = make_learner(seed)
        with global_randomness(elsewhere):
            play(learner, events)
            answers = learner.predict_proba(x)
        ends.append({**digest(learner.state_dict()), "answers": as_bytes(answers)})
    changed = difference(ends[0], ends[1])
    require(not changed, f"one seed gave two states: {changed}")
    learnt = [{k: v for k, v in e.items() if k.startswith(("network", "memory"))} for e in ends]
    require(learnt[0] != learnt[2], "two seeds gave the same network and memory")


def check_state(make_learner: MakeLearner) -> None:
    """A learner put back to any point of the stream goes on to the same end."""
    learner, material, events = _start(make_learner)
    second = STEPS + 1  # where the second task begins
    points = [0, 1, 1 + STEPS // 2, second, second + 1, second + 3]
    snapshots, kept = {}, {}
    for i, event in enumerate(events):
        if i in points:
            snapshots[i] = learner.state_dict()
            kept[i] = digest(snapshots[i])
        play(learner, [event])
    end, x = digest(learner.state_dict()), material.questions()
    answers = learner.predict_proba(x)
    for i, snapshot in snapshots.items():
        changed = difference(kept[i], digest(snapshot))
        require(not changed, f"learning on changed the snapshot taken before event {i}: {changed}")
        where = f"put back before event {i} of {len(events)}"
        other = make_learner(0)
        other.load_state_dict(snapshot)
        _same(kept[i], other, f"a state {where} is not the state that was saved")
        play(other, events[i:])
        _same(end, other, f"a learner {where} ends otherwise")
        require(
            torch.equal(answers, other.predict_proba(x)), f"a learner {where} answers otherwise"
        )
        changed = difference(kept[i], digest(snapshot))
        require(not changed, f"a learner {where} changed the snapshot itself: {changed}")
    late = points[-1]
    learner.load_state_dict(snapshots[1])
    _same(end, play(learner, events[1:]), "a used learner, put back to its start, ends otherwise")
    other = make_learner(0)
    with tempfile.TemporaryDirectory() as folder:
        play(learner := make_learner(0), events[:late]).save(Path(folder) / "learner.safetensors")
        other.load(Path(folder) / "learner.safetensors")
    _same(end, play(other, events[late:]), "a learner loaded from a file ends otherwise")


def _same(expected: Mapping[str, bytes], learner: Learner, message: str) -> None:
    changed = difference(expected, digest(learner.state_dict()))
    require(not changed, f"{message}: {changed}")


def check_aliasing(make_learner: MakeLearner) -> None:
    """The learner keeps no hold of the caller's arrays, nor the caller of the learner's."""
    learner, material, events = _start(make_learner)
    reference, x = play(make_learner(0), events), material.questions()
    for i, event in enumerate(events):
        if not isinstance(event, Arrival):
            play(learner, [event])
            continue
        arrays = event.x.copy(), event.y.copy()
        tensors = [torch.from_numpy(a) for a in arrays]
        learner.observe(*(arrays if i % 2 else tensors))
        kept = np.array_equal(arrays[0], event.x) and np.array_equal(arrays[1], event.y)
        require(kept, f"observe changed the caller's arrays at event {i}")
        for array in arrays:
            array[:] = 0
    _same(digest(reference.state_dict()), learner, "changing x and y after observe has an effect")
    same = torch.equal(reference.predict_proba(x), learner.predict_proba(x))
    require(same, "changing x and y after observe has an effect on the answers")
    for t in learner.state_dict()["tensors"].values():
        t.zero_()
    _same(digest(reference.state_dict()), learner, "changing a snapshot changes the learner")


def check_memory(make_learner: MakeLearner) -> None:
    """What the learner holds does not grow with the stream, but for a task that is read again."""
    learner, _, events = _start(make_learner, steps=LONG, tasks=3)
    rereads = learner.method.rereads_task
    sizes, arrived = [], 0
    for event in events:
        play(learner, [event])
        if not isinstance(event, Arrival):
            arrived = 0
            continue
        arrived += event.x.nbytes + event.y.nbytes
        if learner.task > 0 and learner.step - learner.task_starts[-1] in (LONG // 4, LONG):
            state = sum(t.nbytes for t in learner.state_dict()["tensors"].values())
            own = arrived if rereads else 0
            held = held_bytes(learner, leaving_out=(learner.parts.engine,))  # it may hold graphs
            sizes.append((learner.step, state - own, held - own))
    step, state, held = sizes[0]
    for later, more_state, more_held in sizes[1:]:
        grown = max(more_state - state, more_held - held)
        require(
            grown <= SLACK,
            f"from step {step} to step {later} the learner grew by {grown} bytes"
            + (" beyond the task that it reads again" if rereads else ""),
        )


def check_time(make_learner: MakeLearner) -> None:
    """A step late in the stream takes no longer than one early in the second task."""
    for attempt in range(1, ATTEMPTS + 1):
        learner, _, events = _start(make_learner, steps=LONG, tasks=3)
        seconds: list[float] = []
        for event in events:
            begun = time.perf_counter()
            play(learner, [event])
            if isinstance(event, Arrival) and learner.task > 0:
                _wait(learner)
                seconds.append(time.perf_counter() - begun)
        early = statistics.median(seconds[1 : 1 + LONG // 3])
        late = statistics.median(seconds[-LONG // 3 :])
        if late <= SLOWER * early:
            return
        require(
            attempt < ATTEMPTS,
            f"a step takes {1e3 * late:.2f} ms late in the stream and took {1e3 * early:.2f} ms "
            f"early on, expected at most {SLOWER:g} times as long",
        )


def _wait(learner: Learner) -> None:
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)


def check_anytime(make_learner: MakeLearner) -> None:
    """It answers whenever asked: untrained, before, within and after every task."""
    learner, material, events = _start(make_learner, tasks=3)
    _check_answers(learner, material.questions(), "before the first task")
    for event in events:
        play(learner, [event])
        place = {NewTask: "at the start of", Arrival: "within", EndTask: "after"}[type(event)]
        _check_answers(learner, material.questions(3), f"{place} task {learner.task + 1}")


def check_gradient(make_learner: MakeLearner) -> None:
    """Every trainable parameter moves, or is reached by a gradient, in the course of a later task.

    Either is enough: a bias before a normalisation gets a gradient too small to move it, and what
    is fitted at the end of a task moves without one in the steps. Later tasks are the second and
    the third, since only then a memory need hold several. Frozen parameters do not count.
    """
    learner, _, events = _start(make_learner, tasks=3)
    reached: set[str] = set()
    before: dict[str, Tensor] = {}
    for event in events:
        if isinstance(event, NewTask):
            reached |= _end_and_compare(learner, before)
        play(learner, [event])
        if isinstance(event, NewTask) and learner.task > 0:  # what is reset here has not learnt
            before = {name: p.detach().clone() for name, p in trainable(learner)}
        elif isinstance(event, Arrival) and learner.task > 0:
            grads = {name: p.grad for name, p in trainable(learner)}
            reached |= {n for n, g in grads.items() if g is not None and bool((g != 0).any())}
    reached |= _end_and_compare(learner, before)
    lost = sorted(before.keys() - reached)
    require(not lost, f"no gradient reaches {', '.join(lost)} in the second and the third task")


def _end_and_compare(learner: Learner, before: Mapping[str, Tensor]) -> set[str]:
    """End the task; which parameters are not what they were."""
    learner.end_task()
    now = dict(trainable(learner))
    return {n for n, p in before.items() if n in now and not torch.equal(p, now[n])}


def trainable(learner: Learner) -> list[tuple[str, nn.Parameter]]:
    """Every parameter of the network, the method and the adaptor that learns, by name."""
    parts = {"network": learner.network, "method": learner.method, "adaptor": learner.adaptor}
    return [
        (f"{part}.{name}", p)
        for part, module in parts.items()
        if module is not None
        for name, p in module.named_parameters()
        if p.requires_grad
    ]


def check_finite(make_learner: MakeLearner) -> None:
    """No number in the state ever is NaN or infinite."""
    learner, _, events = _start(make_learner, tasks=3)
    for i, event in enumerate(events):
        play(learner, [event])
        if i % 2:
            continue
        for name, t in learner.state_dict()["tensors"].items():
            finite = not t.is_floating_point() or bool(t.isfinite().all())
            require(finite, f"{name} holds a value that is not finite after event {i}")
    learner.check_finite()


CHECKS: dict[str, Callable[[MakeLearner], None]] = {
    "determinism": check_determinism,
    "shapes": check_shapes,
    "purity": check_purity,
    "state": check_state,
    "aliasing": check_aliasing,
    "memory": check_memory,
    "time": check_time,
    "anytime": check_anytime,
    "gradient": check_gradient,
    "finite": check_finite,
}
"""Every check by name, in the order in which they run."""
