"""The checks of the conformance suite.

Each check takes a function that makes a new learner for a seed, trains learners on a synthetic
stream, and raises an `AssertionError` if a requirement is violated.
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

LONG = 20  # steps per task in the checks of memory and time
SLACK = 2048  # bytes by which a learner may grow, such as by counters per task
SLOWER = 3.0  # largest ratio of late to early step time
ATTEMPTS = 3  # of the time check, since the machine may be busy


def check_learner(
    make_learner: MakeLearner,
    *,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
) -> None:
    """Run the checks on a learner; raise an `AssertionError` at the first that fails.

    Parameters
    ----------
    make_learner
        A function that takes a seed and returns a new learner. All randomness of the learner,
        including the initial weights, must come from this seed. A network of tokens must accept
        those from 0 to 9.
    only, skip
        Names of checks to run or to leave out; see `CHECKS`.

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
    """Raise an `AssertionError` unless the condition holds, even with `python -O`."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block, and restore them afterwards.

    A learner must not depend on the global generators.
    """
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
    """`predict` returns int64 labels (n,), `predict_proba` float32 rows (n, C) that sum to 1."""
    learner, material, events = _start(make_learner)
    play(learner, events[: STEPS + 4])
    for n in (1, 5):
        x = material.questions(n)
        _check_answers(learner, x, "in the second task")
        same = torch.equal(learner.predict(x), learner.predict(torch.from_numpy(x)))
        require(same, "predict gave different labels for an array and an equal tensor")


def _check_answers(learner: Learner, x: NDArray[Any], when: str) -> None:
    n, C = len(x), learner.num_classes
    try:
        y, p = learner.predict(x), learner.predict_proba(x)
    except Exception as error:
        raise AssertionError(f"predicting {when} raised {type(error).__name__}: {error}") from error
    require(isinstance(y, Tensor) and isinstance(p, Tensor), f"a prediction {when} is not a tensor")
    require(tuple(y.shape) == (n,), f"predict gave shape {tuple(y.shape)} {when}, expected ({n},)")
    require(y.dtype == torch.int64, f"predict gave {y.dtype} {when}, expected torch.int64")
    require(bool(((y >= 0) & (y < C)).all()), f"predict gave a label outside 0 to {C - 1} {when}")
    wrong = f"predict_proba gave shape {tuple(p.shape)} {when}, expected ({n}, {C})"
    require(tuple(p.shape) == (n, C), wrong)
    require(p.dtype == torch.float32, f"predict_proba gave {p.dtype} {when}, expected float32")
    require(bool(p.isfinite().all()), f"predict_proba gave a value that is not finite {when}")
    require(bool((p >= 0).all()), f"predict_proba gave a negative value {when}")
    off = float((p.sum(1) - 1).abs().max())
    require(off < 1e-4, f"rows of predict_proba do not sum to 1 {when}, error {off:.2g}")
    chosen = p.gather(1, y.unsqueeze(1)).squeeze(1)
    agree = bool(torch.allclose(chosen, p.amax(1), rtol=1e-4, atol=1e-6))
    require(agree, f"predict returned a class that is not the most probable one {when}")


def check_purity(make_learner: MakeLearner) -> None:
    """Prediction changes neither the state nor the training that follows."""
    learner, material, events = _start(make_learner)
    quiet = make_learner(0)
    x = material.questions()
    for i, event in enumerate(events):
        play(learner, [event])
        play(quiet, [event])
        if i % 3 != 1:  # predict after the first step, the start of the second task, and others
            continue
        before, given = digest(learner.state_dict()), x.copy()
        first = learner.predict_proba(x)
        learner.predict(x)
        changed = difference(before, digest(learner.state_dict()))
        require(not changed, f"predict changed the state after event {i}: {changed}")
        require(np.array_equal(x, given), f"predict changed the caller's x after event {i}")
        same = torch.equal(first, learner.predict_proba(x))
        require(same, f"predict_proba gave two results for the same samples after event {i}")
    changed = difference(digest(quiet.state_dict()), digest(learner.state_dict()))
    require(not changed, f"predicting during training changes what is learnt: {changed}")


def check_determinism(make_learner: MakeLearner) -> None:
    """The state depends on the seed, and not on the global generators."""
    _, material, events = _start(make_learner)
    ends, x = [], material.questions()
    for seed, elsewhere in ((0, 1), (0, 2), (1, 1)):
        learner = make_learner(seed)
        with global_randomness(elsewhere):
            play(learner, events)
            answers = learner.predict_proba(x)
        ends.append({**digest(learner.state_dict()), "answers": as_bytes(answers)})
    changed = difference(ends[0], ends[1])
    require(not changed, f"the same seed gave two states: {changed}")
    learnt = [{k: v for k, v in e.items() if k.startswith(("network", "memory"))} for e in ends]
    require(learnt[0] != learnt[2], "two seeds gave the same network and memory")


def check_state(make_learner: MakeLearner) -> None:
    """A learner restored to any point of the stream reaches the same final state."""
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
        require(not changed, f"training changed the snapshot taken before event {i}: {changed}")
        where = f"restored to before event {i} of {len(events)}"
        other = make_learner(0)
        other.load_state_dict(snapshot)
        _same(kept[i], other, f"the state of a learner {where} differs from the saved state")
        play(other, events[i:])
        _same(end, other, f"a learner {where} reaches another final state")
        require(
            torch.equal(answers, other.predict_proba(x)), f"a learner {where} predicts otherwise"
        )
        changed = difference(kept[i], digest(snapshot))
        require(not changed, f"a learner {where} changed the snapshot: {changed}")
    late = points[-1]
    learner.load_state_dict(snapshots[1])
    message = "a used learner, restored to its start, reaches another final state"
    _same(end, play(learner, events[1:]), message)
    other = make_learner(0)
    with tempfile.TemporaryDirectory() as folder:
        play(learner := make_learner(0), events[:late]).save(Path(folder) / "learner.safetensors")
        other.load(Path(folder) / "learner.safetensors")
    message = "a learner loaded from a file reaches another final state"
    _same(end, play(other, events[late:]), message)


def _same(expected: Mapping[str, bytes], learner: Learner, message: str) -> None:
    changed = difference(expected, digest(learner.state_dict()))
    require(not changed, f"{message}: {changed}")


def check_aliasing(make_learner: MakeLearner) -> None:
    """The learner and the caller share no memory through batches or snapshots."""
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
    require(same, "changing x and y after observe has an effect on predictions")
    for t in learner.state_dict()["tensors"].values():
        t.zero_()
    _same(digest(reference.state_dict()), learner, "changing a snapshot changes the learner")


def check_memory(make_learner: MakeLearner) -> None:
    """The memory of the learner does not grow with the stream.

    A method that reads the current task again may store that task.
    """
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
            + (" in addition to the task that it reads again" if rereads else ""),
        )


def check_time(make_learner: MakeLearner) -> None:
    """Steps late in the stream take about as long as those early in the second task."""
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
    """Prediction works at any time: before training, and before, during and after each task."""
    learner, material, events = _start(make_learner, tasks=3)
    _check_answers(learner, material.questions(), "before the first task")
    for event in events:
        play(learner, [event])
        place = {NewTask: "at the start of", Arrival: "during", EndTask: "after"}[type(event)]
        _check_answers(learner, material.questions(3), f"{place} task {learner.task + 1}")


def check_gradient(make_learner: MakeLearner) -> None:
    """Every trainable parameter changes or gets a nonzero gradient in the second or third task.

    Either is enough. The gradient of a bias before a normalisation layer may be too small to change
    it; a parameter that is fitted at the end of a task gets no gradient during the steps. The first
    task does not count, because the memory then holds only one task. Frozen parameters are
    ignored.
    """
    learner, _, events = _start(make_learner, tasks=3)
    reached: set[str] = set()
    before: dict[str, Tensor] = {}
    for event in events:
        if isinstance(event, NewTask):
            reached |= _end_and_compare(learner, before)
        play(learner, [event])
        if isinstance(event, NewTask) and learner.task > 0:  # a reset is not training
            before = {name: p.detach().clone() for name, p in trainable(learner)}
        elif isinstance(event, Arrival) and learner.task > 0:
            grads = {name: p.grad for name, p in trainable(learner)}
            reached |= {n for n, g in grads.items() if g is not None and bool((g != 0).any())}
    reached |= _end_and_compare(learner, before)
    lost = sorted(before.keys() - reached)
    require(not lost, f"no gradient reaches {', '.join(lost)} in the second or third task")


def _end_and_compare(learner: Learner, before: Mapping[str, Tensor]) -> set[str]:
    """End the task; return the names of the parameters that differ from `before`."""
    learner.end_task()
    now = dict(trainable(learner))
    return {n for n, p in before.items() if n in now and not torch.equal(p, now[n])}


def trainable(learner: Learner) -> list[tuple[str, nn.Parameter]]:
    """Return the names and the trainable parameters of the network, the method and the adaptor."""
    parts = {"network": learner.network, "method": learner.method, "adaptor": learner.adaptor}
    return [
        (f"{part}.{name}", p)
        for part, module in parts.items()
        if module is not None
        for name, p in module.named_parameters()
        if p.requires_grad
    ]


def check_finite(make_learner: MakeLearner) -> None:
    """The state never contains NaN or infinite values."""
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
"""All checks by name, in the order in which they run."""
