"""The five comparison methods in a learner: three tasks, predictions at any time, state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dualcba import Dataset, Learner
from dualcba.checks import check_learner
from dualcba.engine import Captured
from dualcba.methods import METHODS, method_names
from dualcba.nets import make_network
from dualcba.normalization.statistics import evaluation_mode

COMPARISON = ["icarl", "lucir", "bic", "er-ace", "ss-il"]
Make = Callable[..., Learner]


def network(name: str, seed: int = 0) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_network(name, (3, 8, 8), 6)


@pytest.mark.parametrize("method", ["icarl", "lucir", "bic", "ss-il"])
def test_the_teachers_output_does_not_depend_on_other_samples(
    method: str, make_learner: Make, teach: Callable[..., Learner], images: Dataset
) -> None:
    learner = teach(make_learner(method))
    together, alone = (
        learner.method.teacher(learner.parts.context.transform(images.train_x[:n]))[0]
        for n in (8, 2)
    )
    assert torch.allclose(together[:2], alone, atol=1e-5)


def test_those_with_exemplars_take_no_adaptor() -> None:
    assert set(COMPARISON) <= METHODS.keys()
    stiff = COMPARISON[:3]
    assert not [n for n in method_names() if n.startswith(tuple(f"{c}-c" for c in stiff))]
    assert [METHODS[name].adaptable for name in COMPARISON] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("name", COMPARISON)
@pytest.mark.parametrize("net", ["mlp", "resnet18-slim"])
def test_three_tasks_with_predictions_in_the_middle_of_each(
    name: str, net: str, make_learner: Make, make_batches: Any, images: Dataset
) -> None:
    learner = make_learner(name, network(net), ibn=net == "mlp")
    x = images.test_x
    for k, batches in enumerate(make_batches(3, 4)):
        learner.new_task([2 * k, 2 * k + 1])
        for step, (bx, by) in enumerate(batches):
            learner.observe(bx, by)
            if step in (0, 2):
                assert learner.predict_proba(x[:5]).isfinite().all()
                assert learner.predict(x).max() < 6
    learner.end_task()
    assert learner.parts.loss_monitor.values[: learner.step].isfinite().all()
    held = learner.memory.y[: learner.memory.filled]
    assert torch.isin(torch.arange(6), held).all()


@pytest.mark.parametrize("name", COMPARISON)
def test_learns_the_images(
    name: str, make_learner: Make, make_batches: Any, images: Dataset
) -> None:
    learner = make_learner(name, network("mlp"), buffer=30, lr=0.1)
    for k, batches in enumerate(make_batches(3, 40)):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    learner.end_task()
    right = learner.predict(images.test_x) == images.test_y
    assert right.float().mean() > 0.5  # chance is 1/6


@pytest.mark.parametrize("name", COMPARISON)
def test_keeps_the_contract(name: str) -> None:
    def make(seed: int) -> Learner:
        net = network("mlp", seed)
        return Learner(
            net, (3, 8, 8), 6, method=name, buffer=24, batch_size=8, seed=seed, device="cpu"
        )

    check_learner(make, skip=["time"])


@pytest.mark.parametrize("name", COMPARISON)
@pytest.mark.filterwarnings("ignore:observed y is")
def test_classes_may_come_unannounced(name: str, make_learner: Make, images: Dataset) -> None:
    """In a blurry stream, samples may have classes of earlier or later tasks."""
    learner = make_learner(name, network("mlp"))
    rng = np.random.default_rng(0)
    for k in range(3):
        learner.new_task([2 * k, 2 * k + 1])
        for _ in range(4):
            rows = rng.choice(len(images.train_x), 8)
            learner.observe(images.train_x[rows], images.train_y[rows])
            assert learner.predict_proba(images.test_x[:4]).isfinite().all()
    learner.end_task()
    assert learner.parts.loss_monitor.values[: learner.step].isfinite().all()


@pytest.mark.parametrize(
    ("name", "often"), [("icarl", {"means": 3}), ("lucir", {"tune": 20}), ("bic", {"fit": 250})]
)
def test_frequent_work_outside_the_step_can_be_captured(
    name: str, often: dict[str, int], make_learner: Make, teach: Any, images: Dataset
) -> None:
    """The engine runs the same work for the same key, and reads nothing on the host."""
    learner = make_learner(name, network("mlp"), buffer=24)
    teach(learner, tasks=2)
    calls: list[tuple[Any, ...]] = []
    run = learner.method.context.run
    learner.method.context.run = lambda *call: calls.append(call) or run(*call)
    learner.end_task()
    for _ in range(3):
        learner.predict(images.test_x)
    assert Counter(key[0] for key, *_ in calls) == often
    assert len({(key, *(t.shape for t in inputs)) for key, _, *inputs in calls}) == 1
    _, fn, *inputs = calls[0]
    with FakeTensorMode(allow_non_fake_inputs=True), evaluation_mode(learner.network):
        fn(*(torch.zeros_like(t) for t in inputs))


@pytest.mark.parametrize("name", ["icarl", "lucir", "bic"])
def test_the_end_of_a_task_waits_for_its_labels_alone(
    name: str, make_learner: Make, teach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selecting samples by a mask, or one by one, would wait for the device each time."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            seen[name] += 1
            index = args[1] if name in ("index", "index_put_") else ()
            assert not any(t is not None and t.dtype == torch.bool for t in index)
            return func(*args, **kwargs or {})

    learner = teach(make_learner(name, network("mlp"), buffer=24))
    monkeypatch.setattr(F, "one_hot", lambda y, n: (y.unsqueeze(-1) == torch.arange(n)).long())
    seen: Counter[str] = Counter()
    with Watch():
        learner.end_task()
    assert not seen.keys() & {"nonzero", "bincount", "masked_select"}
    assert seen["_local_scalar_dense"] == 0  # one `tolist` says whether all is finite


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMPARISON)
def test_a_captured_step_is_the_eager_one(name: str, make_learner: Make, teach: Any) -> None:
    ends = []
    for engine in ("eager", "captured"):
        learner = make_learner(name, device="cuda", engine=engine, precision="fp32")
        teach(learner, tasks=3, steps=12)
        learner.end_task()
        ends.append(learner.state_dict()["tensors"])
    assert isinstance(learner.parts.engine, Captured)
    assert learner.parts.engine.entries
    assert not learner.parts.engine.refused
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", ["icarl", "lucir", "bic"])
def test_without_rehearsal_exemplars_are_used_at_task_ends_only(
    name: str, make_learner: Make, teach: Any
) -> None:
    learner = teach(make_learner(name, method_options={"rehearse": False}))
    assert learner.memory.filled > 0
    assert learner.parts.sampler.draw(learner.step, 8, np.ones(8, bool)).batches.memory == ()
