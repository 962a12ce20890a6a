"""The checks of the conformance suite.

Each check takes the `Runs` of a function that makes a new learner for a seed, trains learners on a
synthetic stream, and raises an `AssertionError` if a requirement is violated.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualcba.checks.runs import (
    FILE,
    LONG,
    POINTS,
    MakeLearner,
    Reference,
    Runs,
    end_of,
    global_randomness,
)
from dualcba.checks.states import difference, digest
from dualcba.checks.stream import STEPS, Arrival, EndTask, NewTask, play
from dualcba.errors import unknown
from dualcba.learner import Learner

SLACK = 2048  # bytes by which a learner may grow, for example by counters per task
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
        tokens from 0 to 9.
    only, skip
        Names of checks to run or to skip; see `CHECKS`.

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
    runs = Runs(make_learner)
    for name, check in CHECKS.items():
        if (only is None or name in only) and name not in skip:
            try:
                with global_randomness(0):
                    check(runs)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def require(condition: bool, message: str) -> None:
    """Raise an `AssertionError` unless the condition holds, even with `python -O`."""
    if not condition:
        raise AssertionError(message)


def check_shapes(runs: Runs) -> None:
    """`predict` returns int64 labels (n,), `predict_proba` float32 rows (n, C) that sum to 1."""
    learner, material, events = runs.start()
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


def check_purity(runs: Runs) -> None:
    """Prediction changes neither the state nor the training that follows."""
    known, learner = runs.reference, runs.make(0)
    x = known.x.copy()
    for i, event in enumerate(known.events):
        play(learner, [event])
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
    changed = difference(known.end, end_of(learner, known.x))
    require(not changed, f"predicting during training changes what is learnt: {changed}")


def check_determinism(runs: Runs) -> None:
    """The state depends on the seed, and not on the global generators."""
    known, ends = runs.reference, [runs.reference.end]
    for seed, elsewhere in ((0, 2), (1, 1)):
        learner = runs.make(seed)
        with global_randomness(elsewhere):
            ends.append(end_of(play(learner, known.events), known.x))
    changed = difference(ends[0], ends[1])
    require(not changed, f"the same seed gave two states: {changed}")
    learnt = [{k: v for k, v in e.items() if k.startswith(("network", "memory"))} for e in ends]
    require(learnt[0] != learnt[2], "two seeds gave the same network and memory")


def check_state(runs: Runs) -> None:
    """A learner restored to any point of the stream reaches the same final state."""
    known = runs.reference
    for i, snapshot in known.snapshots.items():
        kept = known.kept[i]
        changed = difference(kept, digest(snapshot))
        require(not changed, f"training changed the snapshot taken before event {i}: {changed}")
        where = f"restored to before event {i} of {len(known.events)}"
        other = runs.make(0)
        other.load_state_dict(snapshot)
        _same(kept, other, f"the state of a learner {where} differs from the saved state")
        _goes_on(known, other, i, f"a learner {where}")
        changed = difference(kept, digest(snapshot))
        require(not changed, f"a learner {where} changed the snapshot: {changed}")
    other.load_state_dict(known.snapshots[1])
    _goes_on(known, other, 1, "a used learner, restored to its start,")
    other = runs.make(0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(known.file)
        other.load(Path(folder) / FILE)
    _goes_on(known, other, POINTS[-1], "a learner loaded from a file")


def _goes_on(known: Reference, learner: Learner, i: int, which: str) -> None:
    """Play the events from the i-th on; require the same final state and predictions."""
    end = end_of(play(learner, known.events[i:]), known.x)
    changed = difference(known.end, end)
    require(changed != "answers", f"{which} predicts otherwise")
    require(not changed, f"{which} reaches another final state: {changed}")


def _same(expected: Mapping[str, bytes], learner: Learner, message: str) -> None:
    changed = difference(expected, digest(learner.state_dict()))
    require(not changed, f"{message}: {changed}")


def check_aliasing(runs: Runs) -> None:
    """The learner and the caller share no memory through batches or snapshots."""
    known, learner = runs.reference, runs.make(0)
    for i, event in enumerate(known.events):
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
    changed = difference(known.end, end_of(learner, known.x))
    require(not changed, f"changing x and y after observe has an effect: {changed}")
    for t in learner.state_dict()["tensors"].values():
        t.zero_()
    changed = difference(known.end, end_of(learner, known.x))
    require(not changed, f"changing a snapshot changes the learner: {changed}")


def check_memory(runs: Runs) -> None:
    """The memory of the learner does not grow with the stream.

    A method that reads the current task again may store that task.
    """
    first, *others = runs.long.sizes
    for size in others:
        grown = max(size.state - first.state, size.held - first.held)
        require(
            grown <= SLACK,
            f"from step {first.step} to step {size.step} the learner grew by {grown} bytes"
            + (" in addition to the task that it reads again" if runs.long.rereads else ""),
        )


def check_time(runs: Runs) -> None:
    """Steps late in the stream take about as long as those early in the second task."""
    for attempt in range(1, ATTEMPTS + 1):
        seconds = (runs.long if attempt == 1 else runs.play_long()).seconds
        early = statistics.median(seconds[1 : 1 + LONG // 3])
        late = statistics.median(seconds[-LONG // 3 :])
        if late <= SLOWER * early:
            return
        require(
            attempt < ATTEMPTS,
            f"a step takes {1e3 * late:.2f} ms late in the stream and took {1e3 * early:.2f} ms "
            f"early on, expected at most {SLOWER:g} times as long",
        )


def check_anytime(runs: Runs) -> None:
    """Prediction works at any time: before training, and before, during and after each task."""
    learner, material, events = runs.start(tasks=3)
    _check_answers(learner, material.questions(), "before the first task")
    for event in events:
        play(learner, [event])
        place = {NewTask: "at the start of", Arrival: "during", EndTask: "after"}[type(event)]
        _check_answers(learner, material.questions(3), f"{place} task {learner.task + 1}")


def check_gradient(runs: Runs) -> None:
    """Every trainable parameter changes or gets a nonzero gradient in the second or third task.

    Either is enough. The gradient of a bias before a normalisation layer may be too small to change
    it; a parameter that is fitted at the end of a task gets no gradient during the steps. The first
    task does not count, because the memory then holds only one task. Frozen parameters are
    ignored.
    """
    learner, _, events = runs.start(tasks=3)
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


def check_finite(runs: Runs) -> None:
    """The state never contains NaN or infinite values."""
    learner, _, events = runs.start(tasks=3)
    for i, event in enumerate(events):
        play(learner, [event])
        if i % 2:
            continue
        for name, t in learner.state_dict()["tensors"].items():
            finite = not t.is_floating_point() or bool(t.isfinite().all())
            require(finite, f"{name} holds a value that is not finite after event {i}")
    learner.check_finite()


CHECKS: dict[str, Callable[[Runs], None]] = {
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
