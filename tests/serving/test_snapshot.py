"""Snapshots: they answer as the learner does, in other threads and processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner, Method
from dualcba.estimator import DualCBAClassifier
from dualcba.methods import Context
from dualcba.methods.clser import frozen_copy
from dualcba.methods.er import ER
from dualcba.methods.mkd import MKD
from dualcba.methods.scorers import Corrected, Logits
from dualcba.nets import MLP

Make = Callable[..., Learner]
Teach = Callable[..., Learner]

WAYS: dict[str, dict[str, Any]] = {
    "er": {},
    "er-dual-cba": {},
    "derpp-cba": {"ibn": True},
    "er+mkd": {"ibn": True},
    "er+ccl-dc": {"ibn": True},
    "icarl": {"ibn": True},
    "bic": {},
    "lucir": {},
    "gsa": {"readout": "lda", "ibn": True},
    "clser": {"readout": "ncm", "ibn": True},
    "er-ace": {"head": "cosine", "readout": "both"},
    "ss-il": {"seen_only": True},
}


LOW = ("er-dual-cba", "er+ccl-dc", "icarl", "clser", "er-ace")
"""Methods whose snapshots are also made in bfloat16."""


@pytest.mark.parametrize(
    ("method", "precision"), [*((name, "fp32") for name in WAYS), *((name, "bf16") for name in LOW)]
)
def test_a_snapshot_answers_as_the_learner_and_keeps_doing_so(
    method: str, precision: str, images: Dataset, make_learner: Make, teach: Teach, differ: Any
) -> None:
    learner = teach(make_learner(method, precision=precision, **WAYS[method]), tasks=2)
    before = learner.state_dict()
    snapshot, x = learner.snapshot(), images.test_x
    assert differ(before, learner.state_dict()) == []
    answers = learner.predict_proba(x)
    assert torch.equal(snapshot.predict_proba(x), answers)
    assert torch.equal(snapshot.predict(x), learner.predict(x))
    assert torch.equal(snapshot.logits(x).softmax(1), answers)
    teach(learner, tasks=1)
    assert not torch.equal(learner.predict_proba(x), answers)
    assert torch.equal(snapshot.predict_proba(x), answers)
    assert snapshot.step == before["meta"]["step"]


def test_a_snapshot_between_two_exact_estimates_answers_as_predict(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    learner = make_learner("er-dual-cba", buffer=300)
    learner.new_task(range(6))
    for x, y in make_batches(1)[0] * 3:
        learner.observe(x, y)
        assert torch.equal(
            learner.snapshot().predict_proba(images.test_x), learner.predict_proba(images.test_x)
        )


def test_labels_of_any_type_go_along() -> None:
    torch.manual_seed(0)
    learner = Learner(MLP((4,), 2, width=8), (4,), dtype=torch.float32, batch_size=4, ibn=True)
    with pytest.raises(ValueError, match="the learner has no class yet"):
        learner.snapshot()
    learner.new_task(["owl", ("a", 1), "cat"])
    x = torch.rand(6, 4)
    learner.observe(x, ["owl", ("a", 1), "cat"] * 2)
    snapshot = pickle.loads(pickle.dumps(learner.snapshot()))
    assert snapshot.classes_ == learner.classes_ == ["owl", ("a", 1), "cat"]
    assert snapshot.predict(x).tolist() == learner.predict(x).tolist()
    assert torch.equal(snapshot.predict_proba(x), learner.predict_proba(x))


@pytest.mark.parametrize("announced", [True, False])
def test_an_estimator_has_snapshots_with_its_labels(announced: bool) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), np.array(["b", "a", "c"])[np.arange(60) % 3]
    classes = ["a", "b", "c", "d"] if announced else None
    clf = DualCBAClassifier(random_state=0).partial_fit(X, y, classes=classes)
    snapshot = clf.snapshot()
    assert snapshot.classes_ == clf.classes_.tolist()
    assert snapshot.predict(X).tolist() == clf.predict(X).tolist()
    assert isinstance(snapshot.predict_proba(X), np.ndarray)
    np.testing.assert_allclose(snapshot.predict_proba(X), clf.predict_proba(X), atol=1e-6)


def test_samples_are_checked_as_the_learner_checks_them(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner("er"), tasks=1)
    snapshot = learner.snapshot()
    for x in (images.test_x.float(), images.test_x[0], "cat"):
        messages = []
        for one in (learner, snapshot):
            with pytest.raises(ValueError, match="expected") as caught:
                one.predict(x)  # type: ignore[arg-type]
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_a_method_with_scores_of_its_own_needs_a_scorer(make_learner: Make) -> None:
    class Mine(Method):
        def terms(self, new: Any, mem: Any) -> Any:
            raise NotImplementedError

        def scores(self, x: Tensor) -> Tensor:
            return 2 * super().scores(x)

    learner = make_learner(Mine())
    learner.new_task([0, 1])
    with pytest.raises(ValueError, match="the method Mine has scores of its own, expected"):
        learner.snapshot()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("readout", ["head", "ncm", "both", "lda", "both-lda", "debiased"])
def test_outputs_of_other_weights_go_along(
    readout: str, wrapped: bool, images: Dataset, make_learner: Make, teach: Teach
) -> None:
    class First(ER):
        """Predicts with the weights of the beginning."""

        def bind(self, context: Context) -> None:
            super().bind(context)
            self.first = frozen_copy(context.network).eval()

        def outputs(self, x: Tensor) -> Any:
            return self.first(x)

    class Known(First):
        def scorer(self) -> nn.Module:
            return Logits(self.first)

    class Doubled(Known):
        def scores(self, x: Tensor) -> Tensor:
            return 2 * super().scores(x)

        def scorer(self) -> nn.Module:
            return Corrected(super().scorer(), torch.tensor(2.0), torch.tensor(0.0))

    def taught(method: Method) -> Learner:
        return teach(make_learner(MKD(method) if wrapped else method, readout=readout))

    learner = taught(Known())
    wanted = learner.predict_proba(images.test_x)
    torch.testing.assert_close(learner.snapshot().predict_proba(images.test_x), wanted)
    with pytest.raises(ValueError, match="the method First has scores of its own, expected a"):
        taught(First()).snapshot()
    if readout == "head":
        taught(Doubled()).snapshot()
    else:
        words = "the scorer of the method Doubled is Corrected, expected Logits, for snapshots"
        with pytest.raises(ValueError, match=words):
            taught(Doubled()).snapshot()


def test_threads_predict_with_snapshots_while_another_learns(
    images: Dataset, make_learner: Make, make_batches: Any
) -> None:
    """What is learnt is that of a learner alone, and each snapshot gives one answer."""
    batches = [b for task in make_batches(1) for b in task] * 3
    learner, alone = make_learner("er-dual-cba"), make_learner("er-dual-cba")
    for one in (learner, alone):
        one.new_task(range(6))
    stop, failures, taken = threading.Event(), [], []

    def serve() -> None:
        try:
            while not stop.is_set() or len(taken) < 4:
                snapshot = learner.snapshot()
                first = snapshot.predict_proba(images.test_x)
                assert all(
                    torch.equal(snapshot.predict_proba(images.test_x), first) for _ in range(3)
                )
                taken.append((snapshot.step, first))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for x, y in batches:
        learner.observe(x, y)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    for x, y in batches:
        alone.observe(x, y)
    both = [one.state_dict()["tensors"] for one in (learner, alone)]
    assert all(torch.equal(t, both[1][name]) for name, t in both[0].items())
    assert all(0 <= step <= len(batches) for step, _ in taken)


def test_another_process_predicts_with_a_snapshot(
    images: Dataset, make_learner: Make, teach: Teach, tmp_path: Path
) -> None:
    snapshot = teach(make_learner("er-dual-cba"), tasks=2).snapshot()
    (tmp_path / "snapshot.pkl").write_bytes(pickle.dumps((snapshot, images.test_x)))
    code = (
        "import pickle, sys, torch\n"
        "torch.set_num_threads(1)\n"
        "with open(sys.argv[1], 'rb') as file: snapshot, x = pickle.load(file)\n"
        "print(snapshot.predict_proba(x).double().sum(0).tolist(), snapshot.predict(x).tolist())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "snapshot.pkl")]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    x = images.test_x
    sums, answers = snapshot.predict_proba(x).double().sum(0).tolist(), snapshot.predict(x).tolist()
    assert out.strip() == f"{sums} {answers}"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_snapshot_on_a_gpu_and_its_copy_on_the_host(
    precision: str, images: Dataset, make_learner: Make, teach: Teach, exact: None
) -> None:
    learner = teach(make_learner("er-dual-cba", device="cuda", precision=precision), tasks=2)
    snapshot, x = learner.snapshot(), images.test_x
    rough = {"rtol": 1e-2, "atol": 2e-2 if precision == "bf16" else 1e-4}
    answers = learner.predict_proba(x)
    torch.testing.assert_close(snapshot.predict_proba(x), answers, **rough)
    torch.testing.assert_close(snapshot.to("cpu").predict_proba(x), answers, **rough)
    copy = pickle.loads(pickle.dumps(snapshot))
    assert torch.equal(copy.predict_proba(x), snapshot.predict_proba(x))
