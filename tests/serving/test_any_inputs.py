"""Snapshots and exports of learners over tokens, several inputs and a frozen trunk."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner
from dualcba.nets import ResNet18, freeze
from dualcba.serving import export_model, load_model

OPTIONS: dict[str, Any] = {"buffer": 20, "batch_size": 8, "method": "er", "device": "cpu"}


class Words(nn.Module):
    """A mean of embeddings, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(30, 8), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits."""
        return self.last(self.embedding(words).mean(1))  # type: ignore[no-any-return]


class WithNumbers(Words):
    """The same, with further numbers in the place of some features."""

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:  # type: ignore[override]
        """Return logits."""
        h = self.embedding(words).mean(1)
        return self.last(torch.cat([h[:, :6], numbers], 1))  # type: ignore[no-any-return]


def words(n: int) -> Tensor:
    return torch.randint(0, 30, (n, 5), generator=torch.Generator().manual_seed(n))


def taught(learner: Learner, samples: Any, n: int) -> Learner:
    learner.new_task([0, 1, 2])
    learner.observe(samples, torch.arange(n) % 3)
    return learner


def test_tokens(tmp_path: Path) -> None:
    learner = taught(Learner(Words(), (5,), 3, dtype=torch.int64, **OPTIONS), words(8), 8)
    x = words(50)
    wanted = learner.predict_proba(x)
    assert torch.allclose(learner.snapshot().predict_proba(x), wanted)
    for name, network in (("words.pt2", None), ("words.safetensors", Words())):
        learner.export(tmp_path / name)
        read = load_model(tmp_path / name, network)
        assert torch.allclose(read.predict_proba(x), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="dtype of given x"):
        read.predict(x.float())


def test_several_inputs(tmp_path: Path) -> None:
    shapes = {"words": (5,), "numbers": (2,)}
    types = {"words": torch.int64, "numbers": torch.float32}
    learner = Learner(WithNumbers(), shapes, 3, dtype=types, **OPTIONS)
    samples = {"words": words(8), "numbers": torch.ones(8, 2)}
    taught(learner, samples, 8)
    snapshot = pickle.loads(pickle.dumps(learner.snapshot()))
    assert torch.allclose(snapshot.predict_proba(samples), learner.predict_proba(samples))
    with pytest.raises(ValueError, match="samples have several inputs, expected one input"):
        learner.export(tmp_path / "words.pt2")


def test_a_frozen_trunk(tmp_path: Path, images: Dataset, teach: Any) -> None:
    torch.manual_seed(0)
    network = freeze(ResNet18(3, 6, width=4))
    learner = teach(Learner(network, (3, 8, 8), 6, cache_features=True, **OPTIONS))
    wanted = learner.predict_proba(images.test_x)
    snapshot = learner.snapshot()
    assert torch.allclose(snapshot.predict_proba(images.test_x), wanted, atol=1e-6)
    export_model(snapshot, tmp_path / "model.pt2")
    read = load_model(tmp_path / "model.pt2")
    assert torch.allclose(read.predict_proba(images.test_x), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="made by a frozen trunk and its last layer"):
        export_model(snapshot, tmp_path / "model.safetensors")
