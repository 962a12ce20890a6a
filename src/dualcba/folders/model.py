"""The folder of a model: the learner's state, its spec, and the list of files it has seen.

`model.safetensors` is replaced atomically and has a checksum. It records the part of `seen.jsonl`
that belongs to it, so that the two are consistent even if a process is killed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualcba.checkpoint import read_state_file, write_state_file
from dualcba.data import Transform
from dualcba.errors import expected
from dualcba.folders.ledger import Ledger, Saved
from dualcba.learner import Learner
from dualcba.methods.files import check_imported
from dualcba.nets import make_network
from dualcba.options import Readout
from dualcba.randomness import first_weights
from dualcba.training.learner_state import split_estimate, with_estimate
from dualcba.training.unannounced import FIRST_OUTPUTS, unannounced_options

SCHEMA = 1
MODEL, SEEN, LOCK, REPORT = "model.safetensors", "seen.jsonl", "lock", "report.html"

LearnerState = Mapping[str, Any]


@dataclass(frozen=True)
class ModelSpec:
    """The fixed options of a model, from which its learner is made."""

    folder: str
    """The folder of the images, as an absolute path."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int
    flip: bool
    network: str
    method: str
    method_options: dict[str, Any]
    buffer: int
    batch_size: int
    memory_batch: int
    lr: float
    seed: int
    imports: dict[str, str]
    """Files that register the method, with their SHA-256; see `dualcba.methods.files`."""

    readout: Readout = "head"
    """The default is the readout of models of earlier versions."""

    options: dict[str, Any] = field(default_factory=dict)
    """The method and options of a recipe if `method` is the name of one."""

    @property
    def text(self) -> str:
        """A short description."""
        channels, height, width = self.shape
        shape = f"{height}×{width} {'grey' if channels == 1 else 'RGB'}"
        return f"{self.method}, {self.network}, {shape}, memory of {self.buffer}"

    def make_learner(self, device: str) -> Learner:
        """Return a learner for classes that are not announced."""
        check_imported(self.imports)
        with first_weights(self.seed):
            network = make_network(self.network, self.shape, FIRST_OUTPUTS)
        transform = Transform(self.mean, self.std, pad=self.pad, flip=self.flip)
        return Learner(
            network, self.shape, None, buffer=self.buffer, batch_size=self.batch_size,
            memory_batch=self.memory_batch, lr=self.lr, seed=self.seed, transform=transform,
            on_outlier="skip", device=device, **self._method_options(),
        )  # fmt: skip

    def _method_options(self) -> dict[str, Any]:
        named = {"method": self.method, "method_options": self.method_options} | self.options
        return {**unannounced_options(named["method"]), "readout": self.readout, **named}

    @classmethod
    def from_dict(cls, given: Any) -> ModelSpec:
        """Read what `dataclasses.asdict` returned."""
        names = [f.name for f in dataclasses.fields(cls)]
        given = {"readout": "head", "options": {}, **given} if isinstance(given, dict) else given
        if not isinstance(given, dict) or sorted(given) != sorted(names):
            raise ValueError(expected("recipe", given, f"the fields {', '.join(names)}"))
        lists = {name: tuple(given[name]) for name in ("shape", "mean", "std")}
        return cls(**{**given, **lists})


@dataclass(frozen=True)
class Stored:
    """A model as read from disk."""

    spec: ModelSpec
    state: LearnerState
    seen: Saved
    saved_at: float

    def load(self, device: str) -> Learner:
        """Return the learner."""
        learner = self.spec.make_learner(device)
        learner.load_state_dict(self.state)
        return learner


def save_model(folder: Path, spec: ModelSpec, learner: Learner, ledger: Ledger) -> None:
    """Write a model; the previous one stays until the write is complete."""
    seen = ledger.write(folder / SEEN)
    state = with_estimate(learner.state_dict())
    meta = {
        "schema": SCHEMA,
        "recipe": dataclasses.asdict(spec),
        "seen": dataclasses.asdict(seen),
        "saved_at": time.time(),
        "learner": state["meta"],
    }
    write_state_file(folder / MODEL, {"tensors": state["tensors"], "meta": meta})


def read_model(folder: Path) -> Stored:
    """Read a model; no code in it is executed."""
    path = folder / MODEL
    if not path.is_file():
        wanted = "one that `dualcba learn` has saved"
        raise FileNotFoundError(f"{folder} holds no model, expected {wanted}")
    state = read_state_file(path, "saved model")
    meta = state["meta"]
    if not isinstance(meta, dict) or "recipe" not in meta:
        raise ValueError(f"{path} is a saved learner, expected a model of `dualcba learn`")
    if meta.get("schema") != SCHEMA:
        raise ValueError(f"{path} has the schema {meta.get('schema')!r}, expected {SCHEMA}")
    try:
        spec, seen = ModelSpec.from_dict(meta["recipe"]), Saved(**meta["seen"])
        learner = split_estimate({"tensors": state["tensors"], "meta": meta["learner"]})
        return Stored(spec, learner, seen, float(meta["saved_at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a saved model: {error}") from error
