"""Read an exported model as a `Snapshot`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dualcba.errors import expected, install, reason
from dualcba.io import user_path
from dualcba.nets.inputs import DTYPES, WHOLE, make_inputs
from dualcba.serving.export import META, Affine
from dualcba.serving.folding import fold, pairs
from dualcba.serving.snapshot import Snapshot
from dualcba.tasks.labels import Labels, as_array
from dualcba.training.precision import default_modes

Scores = Callable[[Tensor], Tensor]

TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
"""The types of raw samples, by their names in `about.json`."""


def load_model(path: str | Path, network: nn.Module | None = None) -> Snapshot:
    """Load a file written by `export`; the model predicts on a CPU.

    Parameters
    ----------
    path
        A file ending in `.safetensors`, `.pt2` or `.onnx`; the last one needs the extra `onnx`.
    network
        For a state dict: a network of the same architecture with one output per class. The weights
        are loaded into a copy of it.
    """
    path = user_path(path)
    if path.suffix not in READERS:
        raise ValueError(expected("ending of the file", path.name, " or ".join(READERS)))
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected an exported model")
    if (network is None) == (path.suffix == ".safetensors"):
        wanted = "an nn.Module" if network is None else "None: the file has the network"
        raise ValueError(expected(f"network for {path.name}", network, wanted))
    with default_modes(torch.device("cpu")):
        scores, text = READERS[path.suffix](path, network)
    if not text:
        raise ValueError(f"{path} has no {META}, expected an exported model")
    meta = json.loads(text)
    names = Labels(None).from_json(meta["classes"])
    numbers = names == list(range(len(names))) and all(type(name) is int for name in names)
    labels = None if numbers else as_array(names)  # False and 0.0 equal 0
    inputs = make_inputs(tuple(meta["input_shape"]), TYPES[meta["dtype"]])
    return Snapshot(scores, len(names), inputs, labels=labels, step=meta["step"])


def _state_dict(path: Path, network: nn.Module | None) -> tuple[Scores, str]:
    assert network is not None
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = (file.metadata() or {}).get(META, "")
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as a state dict: {reason(error)}") from error
    meta: Mapping[str, Any] = json.loads(text or "{}")
    if not meta:
        return network, ""
    return _Restored(_fitting(network, tensors, meta), meta), text


def _fitting(
    network: nn.Module, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> nn.Module:
    """Load weights into a copy of the network, whose normalisation is folded if theirs is."""
    made = copy.deepcopy(network).cpu().eval().requires_grad_(False)
    kind = TYPES[meta["dtype"]]
    shape, kind = (2, *meta["input_shape"]), kind if kind in WHOLE else torch.float32
    example = torch.zeros(shape, dtype=kind, device="cpu")
    try:
        for pair in pairs(made, example):
            if f"{pair[1]}.running_mean" not in tensors:
                fold(made, pair)
        made.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError(f"the network does not fit the state dict: {reason(error)}") from error
    return made


class _Restored(nn.Module):
    """A network with preprocessing, as `scale` and `shift`, and classes that are not predicted."""

    def __init__(self, network: nn.Module, meta: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs = Affine(meta["scale"], meta["shift"])
        self.network = network
        self.register_buffer("hidden", torch.tensor(meta["hidden"]))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network(self.inputs(x))
        return scores.masked_fill(self.hidden, -torch.inf)  # type: ignore[arg-type]


def _program(path: Path, network: nn.Module | None) -> tuple[Scores, str]:
    extra = {META: ""}
    try:
        with torch.device("cpu"):  # torch fails to read it under another default device
            program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # torch raises many kinds
        raise ValueError(f"{path} cannot be read by torch.export: {reason(error)}") from error
    return program.module(), extra[META]


def _onnx(path: Path, network: nn.Module | None) -> tuple[Scores, str]:
    if find_spec("onnxruntime") is None:
        raise ImportError(f"onnxruntime is not installed, expected {install('onnx')}")
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"{path} cannot be read by onnxruntime: {reason(error)}") from error
    text = session.get_modelmeta().custom_metadata_map.get(META, "")

    def scores(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"samples": x.numpy()})[0])

    return scores, text


READERS = {".safetensors": _state_dict, ".pt2": _program, ".onnx": _onnx}
"""The function that reads a file, by its suffix."""
