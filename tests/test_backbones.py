"""Learners over any backbone: without normalisation, tokens, several inputs, frozen trunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner, Transform
from dualcba.checks import check_learner
from dualcba.checks.stream import Material, play
from dualcba.checks.suite import digest
from dualcba.engine.captured import Captured
from dualcba.nets import freeze

KINDS = ["er", "er-cba", "er-dual-cba", "er-balanced-cba"]
TOKENS, LENGTH, CLASSES = 10, 6, 4


class Transformer(nn.Module):
    """Attention over tokens, with LayerNorm."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.place = nn.Parameter(torch.randn(LENGTH, 8))
        self.encode = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8 * LENGTH, outputs)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.encode(self.embed(ids) + self.place).flatten(1))  # type: ignore[no-any-return]


class Several(nn.Module):
    """Tokens, a vector and an image."""

    def __init__(self, outputs: int = CLASSES) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        self.vector = nn.Linear(5, 8)
        self.image = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8))
        self.out = nn.Linear(8, outputs)

    def forward(self, ids: Tensor, vector: Tensor, image: Tensor) -> Tensor:
        h = self.embed(ids).mean(1) + self.vector(vector) + self.image(image)
        return self.out(h.relu())  # type: ignore[no-any-return]


def convolution(outputs: int = CLASSES) -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, outputs)
    )
    return freeze(net)


def vectors(norm: Callable[[], nn.Module], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), norm(), nn.ReLU(), nn.Linear(16, outputs))


@dataclass
class Backbone:
    make: Callable[[int], nn.Module]
    shape: Any
    dtype: Any
    cached: bool = False
    transform: Transform | None = None

    def learner(self, method: str, *, grows: bool = False, **given: Any) -> Learner:
        torch.manual_seed(given.get("seed", 0))
        more = {"outer_every": 2, "width": 16} if method.endswith("cba") else {}
        options = {"method": method, "buffer": 24, "batch_size": 8, "lr": 0.1, "device": "cpu"}
        options |= {"dtype": self.dtype, "cache_features": self.cached, "transform": self.transform}
        options |= {**more, **given}
        outputs = 2 if grows else CLASSES
        return Learner(self.make(outputs), self.shape, None if grows else outputs, **options)


BACKBONES = {
    "no norm": Backbone(lambda c: vectors(nn.Identity, c), (5,), torch.float32),
    "LayerNorm": Backbone(lambda c: vectors(lambda: nn.LayerNorm(16), c), (5,), torch.float32),
    "tokens": Backbone(Transformer, (LENGTH,), torch.int64),
    "dict": Backbone(
        Several,
        {"image": (3, 2, 2), "ids": (LENGTH,), "vector": (5,)},
        {"image": torch.uint8, "ids": torch.int32, "vector": torch.float32},
    ),
    "tuple": Backbone(
        Several,
        ((LENGTH,), (5,), (3, 2, 2)),
        (torch.int64, torch.float32, torch.float32),
    ),
    "frozen": Backbone(
        convolution, (3, 5, 5), torch.uint8, cached=True, transform=Transform([0.5], [0.16])
    ),
}
NEW = ["tokens", "dict", "tuple", "frozen"]


def parts_of(learner: Learner, x: Any) -> Any:
    """Samples as a caller gives them: a tuple or dict where there are several inputs."""
    shape = learner.inputs.given_shape
    if isinstance(shape, dict):
        unpacked = learner.inputs.unpack(torch.from_numpy(x))
        return dict(zip(shape, (p.numpy() for p in unpacked), strict=True))
    if not isinstance(shape[0], int):
        return tuple(learner.inputs.unpack(torch.from_numpy(x)))
    return x


def teach(learner: Learner, steps: int = 12) -> tuple[Any, Tensor]:
    """Teach two tasks of two classes; samples and labels of all, to ask about."""
    material = Material(learner)
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for _ in range(steps):
            batch = material.batch(classes)
            learner.observe(parts_of(learner, batch.x), batch.y)
    asked = material.batch(range(CLASSES), 40)
    return parts_of(learner, asked.x), torch.from_numpy(asked.y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_learns_with_every_adaptor(name: str, kind: str) -> None:
    learner = BACKBONES[name].learner(kind)
    x, y = teach(learner, steps=20)
    assert (learner.predict(x) == y).float().mean() > 0.7, "chance is 0.25"
    assert learner.predict_proba(x).shape == (40, CLASSES)


@pytest.mark.parametrize("name", ["tokens", "dict", "frozen"])
def test_checks_of_learners(name: str) -> None:
    make = BACKBONES[name].learner
    check_learner(lambda seed: make("er-dual-cba", seed=seed), skip=["time", "memory"])


@pytest.mark.parametrize("name", NEW)
def test_a_saved_learner_goes_on(name: str, tmp_path: Path) -> None:
    learner, other = (BACKBONES[name].learner("derpp-dual-cba", seed=s) for s in (0, 1))
    events = Material(learner).stream()
    play(learner, events[:9])
    learner.save(tmp_path / "state.safetensors")
    other.load(tmp_path / "state.safetensors")
    for one in (learner, other):
        play(one, events[9:])
    assert digest(learner.state_dict()) == digest(other.state_dict())


@pytest.mark.parametrize("name", NEW)
def test_classes_that_nobody_announced(name: str, tmp_path: Path) -> None:
    known, names = BACKBONES[name].learner("er-dual-cba"), np.array(["a", "b", "c", "d"])
    grown, again = (
        BACKBONES[name].learner("er-dual-cba", grows=True, boundaries="inferred", seed=s)
        for s in (0, 1)
    )
    material = Material(known)
    for classes in ([0, 1], [1, 2], [2, 3]):
        for _ in range(10):
            batch = material.batch(classes)
            grown.observe(parts_of(grown, batch.x), names[batch.y])
    assert grown.classes_ == sorted(grown.classes_, key=grown.classes_.index)
    assert set(grown.classes_) == set(names)
    assert grown.network.num_classes == 8
    asked = material.batch(range(CLASSES), 40)
    x = parts_of(grown, asked.x)
    assert (grown.predict(x) == names[asked.y]).mean() > 0.6
    grown.save(tmp_path / "grown.safetensors")
    again.load(tmp_path / "grown.safetensors")
    assert torch.equal(grown.predict_proba(x), again.predict_proba(x))


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ["er", "derpp-dual-cba", "er-balanced-cba"])
@pytest.mark.parametrize("name", BACKBONES)
def test_a_captured_learner_equals_an_eager_one(name: str, kind: str) -> None:
    given = {"device": "cuda", "precision": "fp32"}
    make = BACKBONES[name].learner
    eager, captured = (make(kind, engine=e, **given) for e in ("eager", "captured"))
    (x, _), _ = (teach(learner, steps=30) for learner in (eager, captured))
    assert isinstance(captured.parts.engine, Captured)
    assert captured.parts.engine.entries
    assert not captured.parts.engine.refused
    if BACKBONES[name].cached:
        assert any(key[0] == "trunk" for key in captured.parts.engine.entries)  # type: ignore[index]
    a, b = eager.state_dict()["tensors"], captured.state_dict()["tensors"]
    for key in ("memory.y", "memory._extra_state", "sets.seen"):
        assert torch.equal(a[key], b[key]), key
    torch.testing.assert_close(b["memory.x"], a["memory.x"], rtol=1e-4, atol=1e-5)
    for key, value in a.items():
        if key.startswith(("network.", "adaptor.")):
            torch.testing.assert_close(b[key], value, rtol=1e-3, atol=1e-4, msg=key)
    torch.testing.assert_close(
        captured.predict_proba(x), eager.predict_proba(x), rtol=1e-2, atol=1e-3
    )


@pytest.mark.parametrize("name", ["dict", "tuple"])
def test_a_state_with_an_infinite_input_is_refused(name: str) -> None:
    learner = BACKBONES[name].learner("er")
    teach(learner, steps=2)
    state = learner.state_dict()
    for part in learner.inputs.unpack(state["tensors"]["memory.x"][:-1]):
        if part.is_floating_point():
            part[0] = torch.inf
    with pytest.raises(ValueError, match=r"'memory.x' has .* expected finite numbers"):
        learner.load_state_dict(state)


# ---------------------------------------------------------------- samples of these kinds


def test_tokens_are_stored_as_they_are() -> None:
    learner = BACKBONES["tokens"].learner("er")
    learner.new_task([0])
    learner.observe([[1, 2, 3, 4, 5, 9]], [0])
    assert learner.memory.x.dtype == torch.int64
    assert learner.memory.x[0].tolist() == [1, 2, 3, 4, 5, 9]
    with pytest.raises(ValueError, match=r"dtype of observed x is .* expected torch.int64"):
        learner.observe([[0.5] * LENGTH], [0])


def test_a_token_that_the_network_does_not_know_changes_nothing() -> None:
    learner = BACKBONES["tokens"].learner("er-dual-cba")
    teach(learner, steps=2)
    before = digest(learner.state_dict())
    with pytest.raises(IndexError):
        learner.observe([[TOKENS] * LENGTH], [0])
    assert digest(learner.state_dict()) == before


@pytest.mark.parametrize("on_outlier", ["raise", "skip", "clip"])
@pytest.mark.parametrize("on_device", [False, True])
def test_an_outlier_in_one_of_several_inputs(on_outlier: str, on_device: bool) -> None:
    learner = BACKBONES["dict"].learner("er", on_outlier=on_outlier)
    if on_device:
        learner.parts.training_step.stay_on_device()
    x, y = teach(learner, steps=2)
    bad = {k: v.copy() for k, v in x.items()}
    bad["vector"][3, 2] = 1e6
    if on_outlier == "raise" and not on_device:
        with pytest.raises(FloatingPointError, match="value of 1e"):
            learner.observe(bad, y)
    else:
        learner.observe(bad, y)
        assert learner.outliers == (on_outlier != "raise")
    vectors_ = learner.inputs.unpack(learner.memory.x)[2]
    assert vectors_.abs().max() < 100


@pytest.mark.parametrize("method", ["rar", "gsa", "er+ccl-dc"])
@pytest.mark.parametrize("name", NEW)
def test_methods_that_augment_images_are_refused(name: str, method: str) -> None:
    with pytest.raises(ValueError, match="augments images, expected another method") as caught:
        BACKBONES[name].learner(method)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "method", ["pcr", "icarl", "lucir", "bic", "clser", "ss-il", "er+mkd", "gsa"]
)
@pytest.mark.parametrize("name", ["tokens", "frozen"])
def test_other_methods_take_them(name: str, method: str) -> None:
    given = {"method_options": {"mirror": False}} if method == "gsa" else {}
    learner = BACKBONES[name].learner(method, **given)
    x, _ = teach(learner, steps=3)
    learner.end_task()
    assert learner.predict(x).shape == (40,)


def test_a_transform_of_tokens_is_refused() -> None:
    for given in (Transform([0.5], [1.0]), Transform([0.0], [1.0], flip=True)):
        with pytest.raises(ValueError, match="a transform was given, expected none for whole"):
            BACKBONES["tokens"].learner("er", transform=given)
    for name in ("full", "strong"):
        wanted = f"augmentation is '{name}', expected 'none' or 'partial'"
        with pytest.raises(ValueError, match=wanted):
            BACKBONES["dict"].learner("er", augmentation=name)
