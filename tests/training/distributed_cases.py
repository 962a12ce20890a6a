"""What one process and two ranks train alike; run as a script, it is one of the ranks.

usage: RANK=r DEVICE=d python distributed_cases.py FOLDER
"""

from __future__ import annotations

import copy
import os
import pickle
import sys
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dualcba import Learner, Transform
from dualcba.engine import Ranks
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.normalization.layers import convert_normalization
from dualcba.normalization.statistics import without_tracking
from dualcba.normalization.synchronized import Groups, synchronized_statistics

RANKS, DEVICE = 2, os.environ.get("DEVICE", "cpu")
CLASSES, SHAPE = 6, (3, 8, 8)
SIZES = (8, 5)  # of the batches of a task, so that shares are uneven
TINY = (8, 2, 3)  # one sample on a rank; batch normalisation would magnify rounding errors
KINDS = ("", "-cba", "-dual-cba", "-balanced-cba")
NAMES = ["owl", "cat", "dog", "ant", "bee", "fox"]


def network(seed: int = 0, outputs: int = CLASSES, *, norm: bool = True) -> nn.Module:
    """A convolution, a normalisation, a linear head; its weights depend on the seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=not norm),
        nn.BatchNorm2d(6) if norm else nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 12, bias=not norm),  # a bias would be trained by rounding errors
        nn.BatchNorm1d(12) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Linear(12, outputs),
    )


@dataclass(frozen=True)
class Case:
    """A learner, and how its stream goes."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    floats: bool = False
    norm: bool = True
    grows: bool = False
    on_device: bool = False  # take the path of a GPU
    epochs: int = 1

    def learner(self, initial: int = 0, **given: Any) -> Learner:
        """Return the learner; `initial` is the seed of its network."""
        options: dict[str, Any] = {"buffer": 21, "batch_size": 8, "lr": 0.05, "device": DEVICE}
        options |= {"engine": "eager", "precision": "fp32"}
        if self.method.endswith("cba"):
            options |= {"outer_every": 2, "width": 16}
        if self.floats:
            options["dtype"] = torch.float32
        else:
            options["transform"] = Transform([0.5] * 3, [0.25] * 3, pad=1, flip=True)
        options |= self.options | given
        net = network(initial, 2 if self.grows else CLASSES, norm=self.norm)
        number = None if self.grows else CLASSES
        learner = Learner(net, SHAPE, number, method=self.method, **options)
        if self.on_device:
            learner.parts.training_step.stay_on_device()
        return learner

    def samples(self) -> tuple[Tensor, Tensor]:
        """Return noise around one random picture per class."""
        rng = np.random.default_rng(99)
        y = np.tile(np.arange(CLASSES), 24)
        x = rng.uniform(40, 215, (CLASSES, *SHAPE))[y] + rng.normal(0, 25, (len(y), *SHAPE))
        images = torch.from_numpy(x.clip(0, 255).astype(np.uint8))
        return images / 255 if self.floats else images, torch.from_numpy(y)

    def batches(self, task: int) -> list[tuple[Tensor, Tensor]]:
        """Return the batches of a task with two new classes."""
        x, y = self.samples()
        own = ((y // 2) == task).nonzero().flatten()
        rng = np.random.default_rng(task)
        sizes = (SIZES if self.norm else TINY) * self.epochs
        rows = [rng.choice(own, n, replace=False) for n in sizes]
        return [(x[r], y[r]) for r in rows]

    def teach(self, learner: Learner, tasks: range, rank: int = 0, ranks: int = 1) -> list[Tensor]:
        """Teach some tasks to one rank; return its predictions after each, under BN and IBN."""
        found = []
        for task in tasks:
            if learner.parts.tasks.detector is None:
                new = [2 * task, 2 * task + 1]
                learner.new_task([NAMES[c] for c in new] if self.grows else new)
            for x, y in self.batches(task):
                own = slice(len(x) * rank // ranks, len(x) * (rank + 1) // ranks)
                labels = [NAMES[c] for c in y[own]] if self.grows else y[own]
                learner.observe(x[own], labels)
            found += self.predictions(learner)
        learner.end_task()
        return found

    def predictions(self, learner: Learner) -> list[Tensor]:
        """Return scores under BN and IBN, and probabilities."""
        x = self.samples()[0][:30]
        found = [learner.predict_proba(x)]
        for statistics in ("bn", "ibn"):
            with learner.evaluating(statistics):
                found.append(learner.scores(x.to(learner.device)).cpu())
        return found


CASES: dict[str, Case] = {
    **{base + kind: Case(base + kind) for base in ("er", "derpp", "er-ace") for kind in KINDS},
    **{m: Case(m) for m in ("ss-il-cba", "clser-dual-cba", "gsa", "bic", "er+mkd")},
    "long": Case("er-dual-cba", {"outer_every": 1, "lr": 0.02}, epochs=10),
    "inferred, without batch statistics": Case(
        "er-dual-cba", {"boundaries": "inferred"}, norm=False
    ),
    "floats, Adam, path of a GPU": Case(
        "derpp-cba", {"optimizer": "adamw", "lr": 0.005}, floats=True, on_device=True
    ),
    "concatenated, nearest mean, momentum": Case(
        "er-balanced-cba",
        {"forward": "concat", "readout": "ncm", "momentum": 0.9, "lr": 0.01, "memory_batch": 5},
    ),
    "growing": Case("derpp-dual-cba", grows=True),
}
"""Learners that two ranks train as one process does."""

RESUMED = CASES["derpp-dual-cba"]
"""What is saved after one task, and loaded for the others."""


def normalised(rank: int) -> list[Tensor]:
    """Return a layer's outputs, gradients and statistics, of shares of two groups of 3 samples."""
    torch.manual_seed(0)
    layer, ranks = nn.BatchNorm2d(4), Ranks(torch.device("cpu"))
    x, weights = torch.randn(6, 4, 2, 2), torch.randn(6, 4, 2, 2)
    own = ranks.own_rows(x, [3, 3]).requires_grad_()
    with synchronized_statistics([layer], Groups(ranks, 3, 2, cumulative=True)):
        y = layer(own)
        with without_tracking([layer]):
            assert torch.equal(layer(own), y)
    (ranks.own_rows(weights, [3, 3]) * y).sum().backward()
    assert own.grad is not None
    of_layer = [ranks.sum_(p.grad) for p in layer.parameters() if p.grad is not None]
    whole = [ranks.all_rows(t.detach(), [3, 3]) for t in (y, own.grad)]
    return [*whole, *of_layer, *layer.buffers()]


def refused(case: Case, **given: Any) -> str:
    """Return the error of making a learner."""
    try:
        case.learner(distributed=True, **given)
    except (ValueError, RuntimeError) as error:
        return str(error)
    raise AssertionError("no error")


def error_of(call: Any, *args: Any) -> str:
    """Return the error of a call."""
    try:
        call(*args)
    except (ValueError, TypeError, RuntimeError, FloatingPointError, OSError) as error:
        return str(error)
    raise AssertionError("no error")


def failures(rank: int) -> dict[str, Any]:
    """Return the errors of calls that fail on one rank or on all, and whether anything changed."""
    learner = Case("er-dual-cba", floats=True).learner(distributed=True)
    x, y = torch.rand(4, *SHAPE), torch.tensor([0, 1, 0, 1])
    found = {"no task": error_of(learner.observe, x, y)}
    learner.new_task([0, 1])
    learner.observe(x, y)
    before = learner.state_dict()
    bad = x.clone()
    bad[0, 0, 0, 0] = 1e9
    found |= {
        "classes": error_of(learner.new_task, [2, 3 + rank]),
        "shape": error_of(learner.observe, x[:, :, : 8 - rank], y),
        "outlier": error_of(learner.observe, bad if rank else x, y),
        "call": error_of(*((learner.observe, x, y) if rank else (learner.new_task, [2, 3]))),
        "pickle": error_of(pickle.dumps, learner),
        "copy": copy.deepcopy(learner).memory.ranks is learner.memory.ranks,
        "file": error_of(learner.load, f"missing-{rank}.safetensors"),
        "changed": [
            name
            for name, t in learner.state_dict()["tensors"].items()
            if not torch.equal(t, before["tensors"][name])
        ],
    }
    return found


def refusals(rank: int) -> dict[str, str]:
    """Return the errors of learners that cannot be distributed, or differ between ranks."""
    er = Case("er")
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(192, CLASSES))
    ada = convert_normalization(network(), "adab2n")
    given: dict[str, Any] = {"buffer": 4, "device": "cpu", "distributed": True}
    fixmatch = FixMatch(ER(), labelled=2)
    return {
        "seed": refused(er, seed=rank),
        "engine": refused(er, engine="captured"),
        "dropout": error_of(lambda: Learner(dropout, SHAPE, CLASSES, method="er", **given)),
        "adab2n": error_of(lambda: Learner(ada, SHAPE, CLASSES, method="er", **given)),
        "fixmatch": error_of(lambda: Learner(network(), SHAPE, CLASSES, method=fixmatch, **given)),
    }


def alone() -> list[tuple[str, str]]:
    """Return the warnings of learners that are not distributed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Case("er").learner()
    return [(str(w.message), Path(w.filename).name) for w in caught]


def resumed(folder: Path, rank: int) -> dict[str, Any]:
    """Save and load between tasks, and load what one process saved."""
    learner = RESUMED.learner(distributed=True)
    RESUMED.teach(learner, range(1), rank, RANKS)
    learner.save(folder / "half-of-two.safetensors")
    states = {}
    for name in ("half-of-two", "half-of-one"):
        other = RESUMED.learner(7, distributed=True, seed=5)
        other.load(folder / f"{name}.safetensors")
        RESUMED.teach(other, range(1, 3), rank, RANKS)
        states[name] = other.state_dict()
    share = {"rows": len(learner.memory.x), "size": learner.memory.size}
    return {"states": states, "share": share}


def main(folder: Path) -> None:
    """Run everything on this rank."""
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", f"file://{folder}/join", timedelta(seconds=60), world_size=RANKS, rank=rank
    )
    found: dict[str, Any] = {}
    for name, case in CASES.items() if DEVICE == "cpu" else list(CASES.items())[:8]:
        learner = case.learner(rank, distributed=True)  # all get the weights of rank 0
        found[name] = case.teach(learner, range(3), rank, RANKS), learner.state_dict()
    if DEVICE == "cpu":
        found["normalised"], found["alone"] = normalised(rank), alone()
        found["failures"], found["refusals"] = failures(rank), refusals(rank)
        found["resumed"] = resumed(folder, rank)
    torch.save(found, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
