"""Random calls of a learner and of the estimator: each works, or is refused and changes nothing.

`DUALCBA_FUZZ=full` makes 10,000 calls of each instead of a sample.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import VALUES, attempts, damage, refused_in_one_line
from odd_values import REFUSED, TAKEN
from torch import Tensor, nn

from dualcba import Learner
from dualcba.estimator import DualCBAClassifier

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and scikit-learn, on odd arguments

CLASSES, FEATURES = 4, 5
EPISODE = 25
"""Calls of one learner, or of one estimator."""

METHODS = [
    "er", "er-cba", "er-dual-cba", "er-ace", "derpp-dual-cba", "clser-cba", "ss-il", "icarl",
    "bic", "lucir",
]  # fmt: skip
ERRORS = (ValueError, TypeError, FloatingPointError, OSError)


def numbers(rng: random.Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(32))


def good_samples(rng: random.Random, n: int) -> Tensor:
    return torch.from_numpy(numbers(rng).normal(size=(n, FEATURES)).astype(np.float32))


def good_labels(rng: random.Random, n: int) -> Tensor:
    return torch.from_numpy(numbers(rng).integers(0, CLASSES, n))


def odd_samples(rng: random.Random) -> Any:
    """Samples that are mostly wrong: in kind, type, shape or values."""
    x = good_samples(rng, rng.choice([1, 2, 8]))
    some = x.clone()
    odd = rng.choice([np.nan, np.inf, -np.inf, 1e6, -1e20, 3e38])
    some[rng.randrange(len(x)), rng.randrange(FEATURES)] = odd
    return rng.choice([
        lambda: rng.choice(list(REFUSED.values()))(x),
        lambda: rng.choice(list(TAKEN.values()))(x),
        lambda: x.to(rng.choice([torch.float16, torch.float64, torch.int64, torch.uint8])),
        lambda: some,
        lambda: rng.choice([x[0], x[:, :3], x[:0], x[None], x.flatten(), x.T]),
        lambda: rng.choice(VALUES),
    ])()  # fmt: skip


def odd_labels(rng: random.Random, n: int) -> Any:
    """Labels that are mostly wrong."""
    y = good_labels(rng, n)
    return rng.choice([
        lambda: rng.choice(list(REFUSED.values()))(y),
        lambda: rng.choice(list(TAKEN.values()))(y),
        lambda: rng.choice([y + 3, y - 1, y[1:], y[:0], y.float(), y > 1, y[None], y * 2**40]),
        lambda: rng.choice(VALUES),
    ])()  # fmt: skip


def refused(call: Callable[[], Any], said: object) -> Exception | None:
    """Call; return the error if there is one, which must be of an accepted kind and one line."""
    try:
        call()
    except Exception as error:
        refused_in_one_line(error, ERRORS, said)
        return error
    return None


# ---------------------------------------------------------------- the learner


def make_learner(rng: random.Random) -> Learner:
    torch.manual_seed(0)
    norm = rng.choice([nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Identity()])
    net = nn.Sequential(nn.Linear(FEATURES, 6), norm, nn.ReLU(), nn.Linear(6, CLASSES))
    return Learner(
        net, (FEATURES,), CLASSES, method=rng.choice(METHODS), buffer=8, batch_size=4, lr=0.05,
        dtype=torch.float32, device="cpu", boundaries=rng.choice(["given", "given", "inferred"]),
    )  # fmt: skip


def damaged_state(learner: Learner, rng: random.Random) -> Any:
    state = learner.state_dict()
    part = rng.choice([state["tensors"], state["meta"], state])
    name = rng.choice(list(part))
    if rng.random() < 0.2:
        del part[name]
    elif isinstance(part[name], Tensor) and rng.random() < 0.7:
        part[name] = rng.choice(list(REFUSED.values()))(part[name])
    else:
        part[name] = rng.choice(VALUES)
    return state


def damaged_file(learner: Learner, rng: random.Random, folder: Path) -> Path:
    path = folder / "damaged.safetensors"
    learner.save(path)
    path.write_bytes(damage(path.read_bytes(), rng))
    return path


def learner_call(learner: Learner, rng: random.Random, folder: Path) -> Callable[[], Any]:
    """Return a random call, with good or with odd arguments."""
    n = rng.choice([1, 2, 4, 8])
    x, y = good_samples(rng, n), good_labels(rng, n)
    saved = folder / "good.safetensors"
    if not saved.exists():
        learner.save(saved)
    return rng.choice([
        lambda: learner.observe(x, y),
        lambda: learner.observe(x, y),
        lambda: learner.observe(x, y, again=rng.random() < 0.5),
        lambda: learner.observe(odd_samples(rng), y),
        lambda: learner.observe(x, odd_labels(rng, n)),
        lambda: learner.observe(odd_samples(rng), odd_labels(rng, n)),
        lambda: learner.new_task(sorted({int(c) for c in y})),
        lambda: learner.new_task(odd_labels(rng, n)),
        lambda: learner.end_task(),
        lambda: learner.predict(x),
        lambda: learner.predict(odd_samples(rng)),
        lambda: learner.predict_proba(x),
        lambda: learner.predict_proba(odd_samples(rng)),
        lambda: learner.load_state_dict(learner.state_dict()),
        lambda: learner.load_state_dict(damaged_state(learner, rng)),
        lambda: learner.load_state_dict(rng.choice(VALUES)),
        lambda: learner.save(folder / "again.safetensors"),
        lambda: learner.save(rng.choice([folder, folder / "again.safetensors" / "x"])),
        lambda: learner.load(saved),
        lambda: learner.load(damaged_file(learner, rng, folder)),
        lambda: learner.load(folder / "missing"),
        lambda: learner.save_agnostic(folder / "part.safetensors", {"seed": 0}),
        lambda: learner.check_finite(),
    ])  # fmt: skip


def goes_on(learner: Learner, rng: random.Random) -> None:
    """The learner still observes and predicts."""
    if learner.parts.tasks.detector is None:
        learner.new_task([0, 1])
    learner.observe(good_samples(rng, 8), good_labels(rng, 8))
    assert bool(learner.predict_proba(good_samples(rng, 3)).isfinite().all())


def test_random_calls_of_a_learner(tmp_path: Path, differ: Any) -> None:
    for episode in range(attempts(150) // EPISODE):
        rng = random.Random(f"learner {episode}")
        learner = make_learner(rng)
        folder = tmp_path / str(episode)
        for k in range(EPISODE):
            call = learner_call(learner, rng, folder)
            before = learner.state_dict()
            refusal = refused(call, ("learner", episode, k, learner.method))
            if refusal is not None:
                assert not differ(before, learner.state_dict()), (episode, k, refusal)
        goes_on(learner, rng)


# ---------------------------------------------------------------- the estimator

PARAMETERS: dict[str, list[Any]] = {
    "network": ["mlp", "resnet18", nn.Linear(FEATURES, CLASSES), nn.Linear(3, 3), nn.ReLU(), None],
    "method": ["er", "er-dual-cba", "lucir", "no such", 3],
    "buffer": [8, 20, 0, -1, 2**70, 1.5, None],
    "batch_size": [4, 8, 0, "4"],
    "lr": [0.05, 0.1, 0, -1, 1e39, "x", np.nan],
    "learner_options": [None, {}, {"width": 8}, {"widht": 8}, {"seed": 3}, 3, {"ibn": "x"}],
    "epochs": [1, 2, 0, "x"],
    "random_state": [0, np.random.RandomState(1), -1, "x"],
}


def estimator_call(model: DualCBAClassifier, rng: random.Random) -> Callable[[], Any]:
    n = rng.choice([8, 12])
    x, y = good_samples(rng, n).numpy(), good_labels(rng, n).numpy()
    y[:CLASSES] = range(CLASSES)
    name = rng.choice(list(PARAMETERS))
    return rng.choice([
        lambda: model.fit(x, y),
        lambda: model.fit(odd_samples(rng), y),
        lambda: model.fit(x, odd_labels(rng, n)),
        lambda: model.partial_fit(x, y, classes=range(CLASSES)),
        lambda: model.partial_fit(x, y),
        lambda: model.partial_fit(odd_samples(rng), y),
        lambda: model.partial_fit(x, odd_labels(rng, n), classes=range(CLASSES)),
        lambda: model.partial_fit(x, y, classes=odd_labels(rng, n)),
        lambda: model.predict(x),
        lambda: model.predict(odd_samples(rng)),
        lambda: model.predict_proba(x),
        lambda: model.predict_proba(odd_samples(rng)),
        lambda: model.score(x, y),
        lambda: model.score(odd_samples(rng), odd_labels(rng, n)),
        lambda: model.set_params(**{name: PARAMETERS[name][0]}),
        lambda: model.set_params(**{name: rng.choice(PARAMETERS[name])}),
        lambda: pickle.loads(pickle.dumps(model)).predict(x),
    ])  # fmt: skip


def state_of(model: DualCBAClassifier) -> tuple[Any, dict[str, Any]]:
    """The attributes by identity, and the state of the learner if there is one."""
    attributes = {name: id(value) for name, value in vars(model).items()}
    nothing = {"meta": None, "tensors": {}}
    return attributes, model.learner_.state_dict() if hasattr(model, "learner_") else nothing


def test_random_calls_of_the_estimator(differ: Any) -> None:
    for episode in range(attempts(150) // EPISODE):
        rng = random.Random(f"estimator {episode}")
        model = DualCBAClassifier(epochs=1, batch_size=4, buffer=8, random_state=0)
        for k in range(EPISODE):
            call = estimator_call(model, rng)
            before = state_of(model)
            refusal = refused(call, ("estimator", episode, k))
            if refusal is not None:
                after = state_of(model)
                assert before[0] == after[0], (episode, k, refusal)
                assert not differ(before[1], after[1]), (episode, k, refusal)
        model.set_params(**{name: values[0] for name, values in PARAMETERS.items()})
        x, y = good_samples(rng, 12).numpy(), np.arange(12) % CLASSES
        assert copy.deepcopy(model).fit(x, y).predict(x).shape == (12,)
