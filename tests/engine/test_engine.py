"""Engines: eager anywhere; captured on CUDA gives what eager gives."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner
from dualcba.data import disjoint
from dualcba.engine import Captured, Eager, make_engine, resolve_device
from dualcba.engine.threads import threads as torch_threads
from dualcba.evaluation import Evaluator
from dualcba.experiments import Hardware, Run, Spec, run_all
from dualcba.methods import method_names
from dualcba.nets import ResNet18

Make = Callable[..., Learner]
METHODS = ["er", "er-cba", "er-dual-cba"]
CPU = torch.device("cpu")

# ---------------------------------------------------------------- anywhere


def test_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device(CPU) == CPU
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "mps", "meta", "", "cpu:a", "cuda:-1"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(ValueError, match=f"device is '{name}', expected 'auto', 'cpu'"):
        resolve_device(name)


def test_more_devices_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"device is 'cuda:64', expected one of the \d+ CUDA"):
        resolve_device("cuda:64")


def test_overlapping_contexts_leave_new_threads_the_number_of_before() -> None:
    """A thread begins with the number that was set last, in any thread."""
    entered, second, left = (threading.Event() for _ in range(3))
    found: list[int] = []

    def first_call() -> None:
        with torch_threads(1):
            entered.set()
            second.wait(10)
        left.set()

    def second_call() -> None:
        entered.wait(10)
        with torch_threads(1), torch_threads(1):
            second.set()
            left.wait(10)
            found.append(torch.get_num_threads())
        found.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        calls = [threading.Thread(target=call) for call in (first_call, second_call)]
        for thread in calls:
            thread.start()
        for thread in calls:
            thread.join()
        last = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        last.start()
        last.join()
    finally:
        torch.set_num_threads(before)
    assert found == [1, 3, 3]


def test_engines_by_name() -> None:
    assert isinstance(make_engine("auto", CPU), Eager)
    assert isinstance(make_engine("eager", CPU), Eager)
    with pytest.raises(ValueError, match=r"engine is 'captured', expected 'eager' on .*cpu"):
        make_engine("captured", CPU)
    with pytest.raises(ValueError, match="engine is 'quick', expected 'auto' or 'eager'"):
        make_engine("quick", CPU)


def test_eager_runs_what_it_is_given() -> None:
    engine = Eager(CPU)
    out = torch.zeros(3)
    engine.run("key", lambda x: out.add_(x), torch.ones(3))
    assert out.tolist() == [1, 1, 1]
    engine.run("host", lambda x: out.add_(x), np.arange(3))
    assert out.tolist() == [1, 2, 3]
    with engine.scope():
        engine.reset()


@pytest.mark.parametrize(
    ("batch_size", "known", "beside"), [(8, True, True), (1, True, False), (8, False, False)]
)
def test_an_outer_draw_waits_where_forwards_may_meet(
    batch_size: int,
    known: bool,
    beside: bool,
    make_learner: Make,
    teach: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lone sample reads the running statistics that the inner forward moves; a module of a class
    that is not known may keep something of its own: such forwards must not run at once."""
    calls: list[str] = []

    def branch(_: Eager) -> Any:
        calls.append("branch")
        return nullcontext()

    monkeypatch.setattr(Eager, "branch", branch)
    monkeypatch.setattr(Eager, "join_branch", lambda _: calls.append("join"))
    learner = make_learner(batch_size=batch_size)
    assert learner.parts.forward_pass.samplewise
    learner.parts.forward_pass.samplewise = known
    teach(learner)
    # one in each of ten steps for the weights; of five steps every second has an outer batch
    assert calls == ["branch", "join"] * (10 + 3 * beside)


# ---------------------------------------------------------------- on CUDA


def on_cuda(make_learner: Make, method: str, engine: str, **options: Any) -> Learner:
    given: dict[str, Any] = {"device": "cuda", "precision": "fp32", "lr": 0.03, "buffer": 24}
    return make_learner(method, engine=engine, **given | options)


def stream(make_batches: Any, steps: int = 20) -> list[list[tuple[Tensor, Tensor]]]:
    """Three tasks of twenty steps: sixty in all."""
    return make_batches(3, steps=steps)  # type: ignore[no-any-return]


def learn(learner: Learner, tasks: list[list[tuple[Tensor, Tensor]]]) -> list[float]:
    """Teach a stream; the losses of its steps."""
    for k, batches in enumerate(tasks):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    torch.cuda.synchronize()
    return learner.parts.loss_monitor.values[: learner.step].cpu().tolist()


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", method_names())
def test_captured_equals_eager(method: str, make_learner: Make, make_batches: Any) -> None:
    """Two hundred steps of a residual network, every method with every adaptor."""

    def make(engine: str) -> Learner:
        torch.manual_seed(0)
        return on_cuda(make_learner, method, engine, network=ResNet18(3, 6, width=16))

    eager, captured = make("eager"), make("captured")
    tasks = stream(make_batches, steps=67)
    want, got = learn(eager, tasks), learn(captured, tasks)
    assert len(want) == 201
    assert got == pytest.approx(want, rel=1e-4)
    assert isinstance(captured.parts.engine, Captured)
    assert captured.parts.engine.entries  # something was replayed
    assert not captured.parts.engine.refused
    a, b = eager.state_dict(), captured.state_dict()
    assert a["meta"] == b["meta"]
    for name in ("memory.x", "memory.y", "memory._extra_state", "sets.seen", "weights_rng"):
        assert torch.equal(a["tensors"][name], b["tensors"][name]), name
    for name, value in a["tensors"].items():
        if name.startswith(("network.", "adaptor.")):
            torch.testing.assert_close(b["tensors"][name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", METHODS)
def test_cuda_equals_cpu(method: str, make_learner: Make, make_batches: Any) -> None:
    """The same draws on every device: the same memory, and losses apart by rounding only."""
    cpu = make_learner(method, lr=0.03, buffer=24)
    gpu = on_cuda(make_learner, method, "captured")
    tasks = stream(make_batches, steps=5)
    for k, batches in enumerate(tasks):
        cpu.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            cpu.observe(x, y)
    got = learn(gpu, tasks)
    assert got == pytest.approx(cpu.parts.loss_monitor.values[:15].tolist(), rel=1e-2)
    assert torch.equal(gpu.memory.x[:-1].cpu(), cpu.memory.x[:-1])
    assert torch.equal(gpu.memory.y[:-1].cpu(), cpu.memory.y[:-1])


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("method", METHODS)
def test_answering_changes_no_byte(
    method: str, engine: str, images: Dataset, make_learner: Make, make_batches: Any, differ: Any
) -> None:
    learner = on_cuda(make_learner, method, engine)
    learn(learner, stream(make_batches, steps=8))
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=10)
    before = learner.state_dict()
    for kind in ("start", "anytime", "end", "end", "both"):  # often enough to be captured
        learner.predict(images.test_x)
        learner.predict_proba(images.test_x)
        evaluator.evaluate(kind)
    evaluator.result()
    assert differ(before, learner.state_dict()) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", METHODS)
def test_answering_in_between_does_not_change_what_is_learnt(
    method: str, images: Dataset, make_learner: Make, make_batches: Any, differ: Any
) -> None:
    silent, talkative = (on_cuda(make_learner, method, "captured") for _ in range(2))
    evaluator = Evaluator(talkative, images, disjoint(images, 3), batch_size=10)
    for k, batches in enumerate(stream(make_batches, steps=10)):
        for learner in (silent, talkative):
            learner.new_task([2 * k, 2 * k + 1])
            for x, y in batches:
                learner.observe(x, y)
                if learner is talkative:
                    evaluator.evaluate("anytime")
    assert differ(silent.state_dict(), talkative.state_dict()) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_captured_evaluation_counts_as_predict_does(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    exact = {"ibn": True, "ibn_refresh": "full"}  # as evaluation estimates it
    learner = on_cuda(make_learner, "er-dual-cba", "captured", **exact)
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=10)
    for k, batches in enumerate(stream(make_batches, steps=6)):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
            evaluator.evaluate("end")
            right = (learner.predict(images.test_x) == images.test_y).numpy()
            want = [int(right[t.test].sum()) for t in disjoint(images, 3)]
            counts = evaluator.counts["ibn"][-1][:-1].cpu().numpy()  # of (task, class) pairs
            assert np.bincount(evaluator.pair_task, counts, 3).tolist() == want


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_two_evaluators_of_one_learner_do_not_mix(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    learner = on_cuda(make_learner, "er", "captured")
    learn(learner, stream(make_batches, steps=6))
    one = Evaluator(learner, images, disjoint(images, 3), batch_size=10)
    two = Evaluator(learner, images, disjoint(images, 2), batch_size=10)
    for _ in range(4):
        for evaluator in (one, two):
            evaluator.evaluate("end")
    learner.parts.engine.finish()
    for evaluator in (one, two):
        assert len({tuple(c.tolist()) for c in evaluator.counts["bn"]}) == 1
    total = one.counts["bn"][-1][:3].sum()
    assert torch.equal(total, two.counts["bn"][-1][:2].sum())


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_learners_on_streams_of_their_own_equal_single_runs(
    make_learner: Make, make_batches: Any, differ: Any
) -> None:
    tasks = stream(make_batches)

    def make(seed: int) -> Learner:
        return on_cuda(make_learner, "er-dual-cba", "captured", seed=seed)

    alone = []
    for seed in range(3):
        learner = make(seed)
        learn(learner, tasks)
        alone.append(learner.state_dict())
    together = [make(seed) for seed in range(3)]
    for k, batches in enumerate(tasks):
        for learner in together:
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            for learner in together:
                learner.observe(x, y)
    torch.cuda.synchronize()
    for learner, want in zip(together, alone, strict=True):
        assert differ(learner.state_dict(), want) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_runs_abreast_equal_single_runs(images: Dataset) -> None:
    specs = [
        Spec(method=m, seed=s, tasks=3, batch_size=8, buffer=20, network="mlp", eval_every=5)
        for m in ("er", "er-dual-cba")
        for s in (0, 1)
    ]
    hardware = Hardware(device="cuda", engine="captured", precision="fp32")
    results = []
    for abreast in (1, 4):
        done = {}
        for run, complete in run_all(specs, lambda _: images, hardware, abreast=abreast):
            if complete:
                result = run.result()
                spent = ("seconds", "cost")  # time and memory, which they share
                done[run.spec.name] = {k: v for k, v in result.items() if k not in spent}
        results.append(done)
    assert results[0] == results[1]


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", METHODS)
def test_a_state_moves_between_engines(method: str, make_learner: Make, make_batches: Any) -> None:
    """Captured up to the middle, then eager and captured go on alike."""
    tasks = stream(make_batches, steps=8)
    first = on_cuda(make_learner, method, "captured")
    learn(first, tasks[:2])
    state = first.state_dict()
    losses = []
    for engine in ("eager", "captured"):
        learner = on_cuda(make_learner, method, engine)
        learn(learner, tasks[:1])  # graphs of another life
        learner.load_state_dict(state)
        learner.new_task([4, 5])
        for x, y in tasks[2]:
            learner.observe(x, y)
        torch.cuda.synchronize()
        losses.append(learner.parts.loss_monitor.values[16:24].cpu().tolist())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_a_captured_step_never_waits_for_the_device(make_learner: Make, make_batches: Any) -> None:
    learner = on_cuda(make_learner, "er-dual-cba", "captured")
    tasks = stream(make_batches, steps=12)
    learn(learner, tasks[:2])
    pairs = [(x.cuda(), y.cuda()) for x, y in tasks[1]]
    learner.new_task([4, 5])
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "a prototype feature"
            torch.cuda.set_sync_debug_mode("error")
        for x, y in pairs:
            learner.observe_on_device(x, y)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_nan_loss_is_found(make_learner: Make, make_batches: Any) -> None:
    learner = on_cuda(make_learner, "er", "captured", lr=1e30)
    learn(learner, stream(make_batches, steps=4)[:1])
    with pytest.raises(FloatingPointError, match="step 1 in task 1; the last finite loss was un"):
        learner.check_finite()


@pytest.mark.gpu
def test_what_cannot_be_captured_goes_on_eagerly(
    make_learner: Make, make_net: Any, make_batches: Any
) -> None:
    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(x.sum().isfinite())  # asks the device

    plain, network = make_net(), make_net()
    network.insert(3, Waits())
    learner = on_cuda(make_learner, "er", "captured", network=network)
    with pytest.warns(UserWarning, match="cannot be captured"):
        got = learn(learner, stream(make_batches, steps=6))
    assert isinstance(learner.parts.engine, Captured)
    assert learner.parts.engine.refused
    eager = on_cuda(make_learner, "er", "eager", network=copy.deepcopy(plain))
    want = learn(eager, stream(make_batches, steps=6))
    assert got == pytest.approx(want, rel=1e-2)


@pytest.mark.gpu
def test_bf16_learns(images: Dataset, make_learner: Make, make_batches: Any) -> None:
    learner = on_cuda(make_learner, "er-dual-cba", "captured", precision="bf16", lr=0.1)
    losses = learn(learner, stream(make_batches, steps=40))
    assert np.isfinite(losses).all()
    right = learner.predict(images.test_x) == images.test_y
    assert right.float().mean() > 0.5


@pytest.mark.gpu
def test_a_copy_of_a_captured_learner_goes_on_alike(make_learner: Make, make_batches: Any) -> None:
    learner = settled(make_learner, make_batches)
    copied = copy.deepcopy(learner)
    assert isinstance(copied.parts.engine, Captured)
    assert not copied.parts.engine.entries
    tasks = stream(make_batches, steps=8)
    before = [learner.parts.engine.entries, *(p.clone() for p in learner.network.parameters())]
    got = learn(copied, [tasks[2]])
    assert learner.parts.engine.entries is before[0]
    assert all(
        torch.equal(p, q) for p, q in zip(learner.network.parameters(), before[1:], strict=True)
    )
    assert got == pytest.approx(learn(learner, [tasks[2]]), rel=1e-2)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_a_copy_is_complete_before_its_first_step(
    make_learner: Make, make_batches: Any, differ: Any
) -> None:
    """Whatever the caller's stream is busy with, and although the first learner is gone."""
    tasks, ends = stream(make_batches, steps=8), []
    for busy in (False, True):
        learner = settled(make_learner, make_batches)
        if busy:
            torch.cuda._sleep(400_000_000)
        learner = copy.deepcopy(learner)
        learn(learner, [tasks[2]])
        ends.append(learner.state_dict())
    assert differ(*ends) == []


# The captured engine works on a stream of its own, and the host runs ahead of it. These tests hold
# that stream up, so that whatever does not wait for it, or is not kept for it, shows every time.


def hold_up(learner: Learner, cycles: int = 400_000_000) -> None:
    """Keep the learner's stream busy for some tenths of a second."""
    with learner.parts.engine.scope():
        torch.cuda._sleep(cycles)


def settled(make_learner: Make, make_batches: Any, method: str = "er-dual-cba") -> Learner:
    """In its second task, with all graphs captured."""
    learner = on_cuda(make_learner, method, "captured")
    learn(learner, stream(make_batches, steps=12)[:2])
    return learner


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_a_snapshot_waits_for_the_steps_before_it(
    make_learner: Make, make_batches: Any, differ: Any
) -> None:
    learner = settled(make_learner, make_batches)
    hold_up(learner)
    learner.observe(*stream(make_batches)[1][0])
    early = learner.state_dict()
    torch.cuda.synchronize()
    assert differ(early, learner.state_dict()) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_the_search_for_nan_waits_for_the_steps_before_it(
    make_learner: Make, make_batches: Any
) -> None:
    learner = settled(make_learner, make_batches, "er")
    with learner.parts.engine.scope():
        learner.network.head.weight.data.fill_(torch.nan)  # type: ignore[union-attr,operator]
    hold_up(learner)
    learner.observe(*stream(make_batches)[1][0])
    with pytest.raises(FloatingPointError, match="step 25 in task 2"):
        learner.check_finite()


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_answers_wait_for_what_the_caller_is_still_writing(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    learner = settled(make_learner, make_batches)
    want = learner.predict_proba(images.test_x)
    ready, x = images.test_x.cuda(), torch.zeros_like(images.test_x, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    x.copy_(ready)
    assert torch.equal(learner.predict_proba(x), want)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_accuracy_waits_for_its_counts(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    learner = settled(make_learner, make_batches)
    evaluator = Evaluator(learner, images, disjoint(images, 3), batch_size=10)
    hold_up(learner)
    evaluator.evaluate("end")
    early = evaluator.accuracy()
    torch.cuda.synchronize()
    assert early == evaluator.accuracy()


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_batches_are_kept_until_they_are_learnt(
    where: str, make_learner: Make, make_batches: Any
) -> None:
    """A batch given to `observe` may be gone at once; its memory must not be used again so soon."""
    tasks = stream(make_batches)
    losses, memories = [], []
    for held_up in (False, True):
        learner = settled(make_learner, make_batches, "er")
        if held_up:
            hold_up(learner)
        for x, y in tasks[1]:
            learner.observe(x.to(where, copy=True), y.to(where, copy=True))
            junk = torch.full((64, 3, 8, 8), 255, dtype=torch.uint8, device="cuda")
            del junk
        torch.cuda.synchronize()
        losses.append(learner.parts.loss_monitor.values[24:44].cpu().tolist())
        memories.append(learner.state_dict()["tensors"]["memory.x"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert torch.equal(*memories)


@pytest.mark.gpu
def test_a_network_is_kept_until_its_last_step_is_done() -> None:
    """A network that was on the GPU may be dropped with its learner while steps are queued."""

    def learner() -> Learner:
        net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4)).cuda()
        return Learner(net, (512,), 4, dtype=torch.float32, method="er", device="cuda", lr=0.3)

    x, y = torch.randn(32, 512), torch.arange(32) % 2
    for held_up in (False, True):  # the first only so that nothing below is done for the first time
        one = learner()
        one.new_task([0, 1])
        one.observe(x, y)
        torch.cuda.synchronize()
        if held_up:
            hold_up(one)
        one.observe(x, y)
        done = torch.cuda.Event()
        assert isinstance(one.parts.engine, Captured)
        done.record(one.parts.engine.stream)
        del one
        junk = [torch.ones(512, 512, device="cuda") for _ in range(32)]
        if held_up:
            assert not done.query()  # else this shows nothing
        torch.cuda.synchronize()
        assert all(bool((t == 1).all()) for t in junk)


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("options", [{"epochs": 3}, {"boundaries": "inferred"}])
def test_a_run_that_lags_behind_still_learns_its_own_rows(
    options: dict[str, Any], images: Dataset, differ: Any
) -> None:
    """The rows of one pass must be there until its last step, whatever the next pass brings."""
    common = {"method": "er", "tasks": 3, "batch_size": 8, "buffer": 20, "network": "mlp"}
    given = Spec(**common, eval_every=0, **options)  # type: ignore[arg-type]
    states = []
    for held_up in (False, True):
        run = Run(given, images, Hardware(device="cuda", engine="captured", precision="fp32"))
        for step in run.steps():
            if held_up and step % 6 == 3:  # six steps are one pass
                hold_up(run.learner)
        states.append(run.learner.state_dict())
    assert differ(*states) == []


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "options", [{"levels": "joint"}, {"levels": "buffer"}, {"freeze_after": 2}]
)
def test_ablations_are_captured(
    options: dict[str, Any], make_learner: Make, make_batches: Any
) -> None:
    eager, captured = (
        on_cuda(make_learner, "er-dual-cba", e, **options) for e in ("eager", "captured")
    )
    tasks = stream(make_batches)
    want, got = learn(eager, tasks[:2]), learn(captured, tasks[:2])
    assert got == pytest.approx(want, rel=1e-4)
    adaptor = captured.adaptor
    assert adaptor is not None
    assert adaptor.agnostic is not None
    before = [p.detach().cpu() for p in adaptor.agnostic.parameters()]
    captured.new_task([4, 5])
    for x, y in tasks[2]:
        captured.observe(x, y)
    torch.cuda.synchronize()
    after = [p.detach().cpu() for p in adaptor.agnostic.parameters()]
    stood = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert all(stood) if "freeze_after" in options else not any(stood)
    assert isinstance(captured.parts.engine, Captured)
    assert captured.parts.engine.entries
    assert not captured.parts.engine.refused


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("method", ["er-dual-cba", "derpp-dual-cba"])
@pytest.mark.parametrize(
    "options",
    [
        {"outer_draw": "balanced", "outer_loss": "ce", "targets": "raw", "outer_warmup": 3},
        {"outer_loss": "adjusted", "prior": True},
        {"outer_draw": "balanced", "outer_loss": "adjusted", "strength": True, "counts": True},
        {"specific": "none", "agnostic": False, "prior": True},
        {"specific": "individual", "strength": True, "prior": True, "counts": True},
    ],
)
def test_ingredients_are_captured(
    options: dict[str, Any], method: str, make_learner: Make, make_batches: Any
) -> None:
    eager, captured = (on_cuda(make_learner, method, e, **options) for e in ("eager", "captured"))
    tasks = stream(make_batches)
    want, got = learn(eager, tasks), learn(captured, tasks)
    assert got == pytest.approx(want, rel=1e-4)
    assert isinstance(captured.parts.engine, Captured)
    assert captured.parts.engine.entries
    assert not captured.parts.engine.refused
