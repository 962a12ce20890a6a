"""The complete state of a run between two steps, for checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dualcba.checkpoint import Copy, Tensors, entries_of, read_state_file
from dualcba.data.dataset import DataOrigin
from dualcba.errors import expected, shown
from dualcba.evaluation import Evaluator, Recorder
from dualcba.experiments.run import Run
from dualcba.experiments.spec import Spec, content_of
from dualcba.training.learner_state import save_state

SCHEMA = 1
"""The version of the content of a checkpoint."""

WHAT = "checkpoint of a run"

UNFIT = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""Errors of checkpoints that cannot be used."""


def run_state(run: Run, copy: Copy = torch.clone) -> dict[str, Any]:
    """Return a copy of the state of a run, made by `copy`: `tensors` by name, and `meta`.

    On a GPU, only the run's engine may use the copies before the device has finished.
    """
    learner, parts = run.learner, _parts(run)
    own = save_state(learner.parts, seed=learner.seed, step=learner.step, wait=False, copy=copy)
    tensors: Tensors = {f"learner.{name}": tensor for name, tensor in own["tensors"].items()}
    states = {}
    with run.engine.scope():
        for name, part in parts.items():
            states[name] = part.state_dict()
            copies = {k: copy(v) for k, v in states[name]["tensors"].items()}
            tensors |= {f"{name}.{k}": v for k, v in copies.items()}
    meta = {
        **_identity(run.spec, run.data.origin),
        "taken": run.taken,
        "seconds": dict(run.seconds),
        "gpu_memory": run.cost()["gpu_memory"] or 0,
        "learner": own["meta"],
        "parts": {name: state["meta"] for name, state in states.items()},
    }
    return {"tensors": tensors, "meta": meta}


def _parts(run: Run) -> dict[str, Evaluator | Recorder]:
    """Return the evaluator and the recorders of a run by name."""
    recorders = {f"recorder.{name}": recorder for name, recorder in run.recorders.items()}
    return {"evaluator": run.evaluator, **recorders}


def _identity(spec: Spec, origin: DataOrigin) -> dict[str, Any]:
    """Return the fields that a checkpoint and the run that loads it must share, as JSON values."""
    import dualcba

    fields = {"spec": content_of(spec.to_dict()), "data": asdict(origin)}
    known: dict[str, Any] = json.loads(json.dumps(fields))
    return {"checkpoint": SCHEMA, "dualcba": dualcba.__version__, **known}


def read_run_state(path: Path, spec: Spec, origin: DataOrigin) -> dict[str, Any]:
    """Read a checkpoint; raise an error unless it is valid for this spec, data and version."""
    state = read_state_file(path, WHAT)
    meta, wanted = state["meta"], _identity(spec, origin)
    if not isinstance(meta, dict) or "checkpoint" not in meta:
        raise ValueError(f"{path} is not a {WHAT}")
    for name in ("checkpoint", "dualcba"):
        if meta[name] != wanted[name]:
            raise ValueError(
                f"{path} is of another version: {name} {shown(meta[name])}, "
                f"expected {wanted[name]!r}"
            )
    if not DataOrigin.from_dict(meta["data"]).same_as(origin):
        raise ValueError(f"{path} is of other data: {shown(meta['data'])}, expected {origin}")
    for name in sorted(wanted["spec"].keys() | meta["spec"].keys()):
        found, own = meta["spec"].get(name), wanted["spec"].get(name)
        if found != own:
            raise ValueError(f"{path} is of another run: {expected(name, found, repr(own))}")
    return state


def load_run_state(run: Run, state: Mapping[str, Any]) -> None:
    """Load a state into a new run. If this raises, discard the run."""
    meta, tensors = state["meta"], state["tensors"]
    taken = meta["taken"]
    if type(taken) is not int or not 0 < taken <= run.total:
        raise ValueError(expected("taken", taken, f"a number of batches up to {run.total}"))
    learner = {"tensors": entries_of(tensors, "learner"), "meta": meta["learner"]}
    run.learner.load_state_dict(learner)
    with run.engine.scope():
        for name, part in _parts(run).items():
            given = {"tensors": entries_of(tensors, name), "meta": meta["parts"][name]}
            part.load_state_dict(given)
    run.taken = taken
    run.seconds = {name: float(meta["seconds"][name]) for name in run.seconds}
    run.peak = int(meta["gpu_memory"])
    if run.held is not None:
        torch.cuda.reset_peak_memory_stats(run.learner.device)
