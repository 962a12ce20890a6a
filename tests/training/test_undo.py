"""A step that fails is undone: the learner is as before, and a retry is the undisturbed step."""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

from dualcba import Learner
from dualcba.methods import method_names
from dualcba.training.interrupts import interrupts

Make = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
Batches = list[tuple[Tensor, Tensor]]
COUNT = 2000 if os.environ.get("DUALCBA_FUZZ") == "full" else 24
FEW = ["er-dual-cba", "derpp-dual-cba", "clser-cba", "rar", "icarl"]


class Bomb(nn.Module):
    """Raises in the chosen forward or backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = self.backwards = -1
        self.error: BaseException = MemoryError("no memory left")

    def forward(self, x: Tensor) -> Tensor:
        self.forwards -= 1
        if self.forwards == 0:
            raise self.error
        if x.requires_grad:
            x.register_hook(self._backward)
        return x

    def _backward(self, grad: Tensor) -> None:
        self.backwards -= 1
        if self.backwards == 0:
            raise self.error


def with_bomb(
    make_learner: Make, make_net: Any, method: str, **options: Any
) -> tuple[Learner, Bomb]:
    bomb, net = Bomb(), make_net()
    net.insert(2, bomb)
    return make_learner(method, net, **options), bomb


def begin(learner: Learner, make_batches: Any, *, announced: bool = True) -> Batches:
    """Teach one task and the first step of the second; return the steps that are left."""
    first, second, _ = make_batches(3)
    for k, batches in enumerate((first, second[:1])):
        if announced:
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    return list(second[1:])


LATER = ("las", "pcr", "gsa", "obc", "er+")  # with one kind of adaptor, which is enough
NAMES = [n for n in method_names() if not n.startswith(LATER) or n.endswith("-dual-cba")]


@pytest.mark.no_cover  # the lines are those of the tests below
@pytest.mark.parametrize("method", NAMES)
def test_a_module_that_raises(
    method: str, make_learner: Make, make_net: Any, make_batches: Any, differ: Differ
) -> None:
    """In each step: in its first forward pass, in its backward pass and in a second forward."""
    disturbed, bomb = with_bomb(make_learner, make_net, method)
    plain, _ = with_bomb(make_learner, make_net, method)
    for x, y in zip_batches(plain, disturbed, make_batches):
        before = disturbed.state_dict()
        for where in ("forwards", "backwards"):
            setattr(bomb, where, 1)
            with pytest.raises((MemoryError, RuntimeError), match="no memory left"):
                disturbed.observe(x, y)
            assert differ(before, disturbed.state_dict()) == []
            bomb.forwards = bomb.backwards = -1
        bomb.forwards = 2
        try:
            with pytest.raises((MemoryError, RuntimeError), match="no memory left"):
                disturbed.observe(x, y)
        except pytest.fail.Exception:  # the step has no second forward pass
            assert differ(before, disturbed.state_dict()) != []
        else:
            assert differ(before, disturbed.state_dict()) == []
            disturbed.observe(x, y)
        bomb.forwards = bomb.backwards = -1
        plain.observe(x, y)
        assert differ(plain.state_dict(), disturbed.state_dict()) == []


def zip_batches(plain: Learner, disturbed: Learner, make_batches: Any) -> Batches:
    begin(plain, make_batches)
    return begin(disturbed, make_batches)


@pytest.mark.parametrize("method", ["er", "er-dual-cba", "clser", "clser-dual-cba", "lucir"])
@pytest.mark.parametrize("part", ["sampler.draw", "outer_loop.adapt", "method.after_step"])
def test_a_part_that_raises(
    method: str, part: str, make_learner: Make, make_batches: Any, differ: Differ, monkeypatch: Any
) -> None:
    learner = make_learner(method)
    x, y = begin(learner, make_batches)[0]
    before = learner.state_dict()
    owner, name = part.split(".")

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(getattr(learner.parts, owner), name, fail)
        if name == "after_step":
            learner.parts.training_step.backup.weights = [
                p.detach() for p in learner.network.parameters()
            ]  # as for a method that has it
        with pytest.raises(MemoryError):
            learner.observe(x, y)
    assert differ(before, learner.state_dict()) == []


def test_repeated_updates_are_undone_together(
    make_learner: Make, make_net: Any, make_batches: Any, differ: Differ
) -> None:
    learner, bomb = with_bomb(make_learner, make_net, "rar-dual-cba", method_options={"repeats": 3})
    for x, y in begin(learner, make_batches)[:2]:
        before = learner.state_dict()
        bomb.backwards = 4  # of the second update
        with pytest.raises((MemoryError, RuntimeError)):
            learner.observe(x, y)
        assert differ(before, learner.state_dict()) == []
        bomb.backwards = -1
        learner.observe(x, y)


@pytest.mark.parametrize("step", [0, 1, 6, 7])
def test_label_evidence_and_boundaries_are_undone(
    step: int, make_learner: Make, make_net: Any, make_batches: Any, differ: Differ
) -> None:
    """Steps 0 and 6 begin an inferred task, 1 and 7 do not."""
    every = [batch for task in make_batches(3) for batch in task]
    disturbed, bomb = with_bomb(make_learner, make_net, "er-dual-cba", boundaries="inferred")
    plain, _ = with_bomb(make_learner, make_net, "er-dual-cba", boundaries="inferred")
    for k, (x, y) in enumerate(every[:10]):
        plain.observe(x, y)
        if k == step:
            before = disturbed.state_dict()
            bomb.forwards = 1
            with pytest.raises(MemoryError):
                disturbed.observe(x, y)
            assert differ(before, disturbed.state_dict()) == []
        disturbed.observe(x, y)
    assert plain.task > 0
    assert differ(plain.state_dict(), disturbed.state_dict()) == []


RELEASED: dict[str, dict[str, bool]] = {
    "ss-il-dual-cba": {"released": True},
    "bic": {"released": True, "merge": True, "negatives": True},
    "lucir": {"released": True},
}
ENDS: list[tuple[str, dict[str, bool]]] = [
    *((method, {}) for method in ("icarl", "bic", "lucir", "er-dual-cba")),
    *RELEASED.items(),
]


@pytest.mark.parametrize(("method", "options"), ENDS)
@pytest.mark.parametrize("call", ["new_task", "end_task"])
def test_the_end_and_the_begin_of_a_task_are_undone(
    method: str,
    options: dict[str, bool],
    call: str,
    make_learner: Make,
    make_batches: Any,
    differ: Differ,
    monkeypatch: Any,
) -> None:
    disturbed, plain = (make_learner(method, method_options=options) for _ in range(2))
    for learner in (disturbed, plain):
        for x, y in begin(learner, make_batches):
            learner.observe(x, y)

    def act(learner: Learner) -> None:
        learner.new_task([4, 5]) if call == "new_task" else learner.end_task()

    name = "begin_task" if call == "new_task" else "end_task"
    done = getattr(disturbed.method, name)

    def fail(*given: Any) -> None:
        done(*given)
        raise MemoryError("no memory left")

    before = disturbed.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(disturbed.method, name, fail)
        with pytest.raises(MemoryError):
            act(disturbed)
    assert differ(before, disturbed.state_dict()) == []
    act(plain)
    act(disturbed)
    assert differ(plain.state_dict(), disturbed.state_dict()) == []


def test_a_task_that_ends_with_nan_is_undone(
    make_learner: Make, make_batches: Any, differ: Any
) -> None:
    learner = make_learner("lucir")
    learner.method.tuning_lr = float("inf")
    for x, y in begin(learner, make_batches):
        learner.observe(x, y)
    before = learner.state_dict()
    with pytest.raises(FloatingPointError, match="not finite at the end of the task"):
        learner.end_task()
    assert differ(before, learner.state_dict()) == []


# ---------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("method", FEW)
def test_ctrl_c_at_any_line(
    method: str, make_learner: Make, make_batches: Any, differ: Any
) -> None:
    """A signal at a random line of the step: undone if `observe` raises, complete if it returns."""
    disturbed, plain = make_learner(method), make_learner(method)
    begin(plain, make_batches)
    left = begin(disturbed, make_batches)
    rng, raised = random.Random(0), 0
    for k in range(COUNT):
        x, y = left[k % len(left)]
        before = disturbed.state_dict()
        completed = interrupted_at(rng.randrange(1, 400), lambda: disturbed.observe(x, y))  # noqa: B023
        if not completed:
            raised += 1
            assert differ(before, disturbed.state_dict()) == []
            disturbed.observe(x, y)
        plain.observe(x, y)
        assert differ(plain.state_dict(), disturbed.state_dict()) == []
    assert raised > 5


def interrupted_at(line: int, call: Callable[[], None]) -> bool:
    """Send SIGINT at the n-th executed line of the package; return whether the call completed."""
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if "dualcba" not in frame.f_code.co_filename or "interrupts" in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == line:
                signal.raise_signal(signal.SIGINT)
        return trace

    completed = False
    try:
        sys.settrace(trace)
        call()
        completed = True
        sys.settrace(None)
        if lines >= line:  # it was sent and has not come: it was deferred
            time.sleep(10)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return completed


def test_a_deferred_signal_arrives_after_the_context() -> None:
    passed = []

    def work() -> None:
        with interrupts:
            interrupts.defer()
            interrupts.defer()
            signal.raise_signal(signal.SIGINT)
            passed.append(True)
        time.sleep(10)  # it arrives here

    with pytest.raises(KeyboardInterrupt):
        work()
    assert passed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals wake nobody on Windows")
def test_a_deferred_signal_wakes_a_loop_that_waits() -> None:
    batches: queue.Queue[None] = queue.Queue()
    timer = threading.Timer(5, batches.put, [None])  # the next batch of a stream
    timer.start()

    def work() -> None:
        with interrupts:
            interrupts.defer()
            signal.raise_signal(signal.SIGINT)
        batches.get()

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work()
    timer.cancel()
    assert time.monotonic() - started < 4


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="nothing is blocked on Windows")
def test_a_deferred_signal_arrives_where_signals_are_blocked() -> None:
    """Workers of Ray have SIGINT blocked, and are cancelled by a call of its handler."""

    def work() -> None:
        with interrupts:
            interrupts.defer()
            _thread.interrupt_main()
        for _ in range(400):
            time.sleep(0.01)  # a blocked signal does not wake it

    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.skipif(sys.platform == "win32", reason="loops have no signal handlers on Windows")
def test_a_signal_handler_of_a_loop_is_called_once() -> None:
    calls = []

    async def work() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, calls.append, True)
        with interrupts:
            interrupts.defer()
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)

    asyncio.run(work())
    assert calls == [True]


def test_a_signal_before_the_deferral_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts:
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_receive_no_signals_and_change_no_handler() -> None:
    handlers = []

    def work() -> None:
        with interrupts:
            interrupts.defer()
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
