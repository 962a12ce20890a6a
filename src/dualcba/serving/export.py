"""Write a snapshot to a file that needs no learner: a state dict, `torch.export` or ONNX.

The model includes the learner's preprocessing and normalisation statistics. Everything else that a
program needs, such as the labels, is JSON in the same file, under the name `about.json`:

    classes       the label of each column of the scores
    input_shape   the shape of one raw sample
    dtype         the type of the raw samples: "uint8", "float32", "int32" or "int64"
    step          the number of steps that the learner had made

A state dict has the keys of the network. Its JSON also has `scale` and `shift`: the network's
inputs are `scale` · x + `shift`, by channel, while tokens are unchanged. `hidden` is a mask of the
classes that are not predicted.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from dualcba.data.transforms import Transform
from dualcba.errors import expected, install, reason
from dualcba.io import atomic_write, user_path
from dualcba.methods.scorers import Corrected, Discriminants, Logits, NearestMeans
from dualcba.nets.heads import resize_head
from dualcba.nets.inputs import WHOLE, SeveralInputs
from dualcba.serving.folding import fold_normalization
from dualcba.serving.model import Model
from dualcba.serving.snapshot import Snapshot
from dualcba.tasks.labels import Labels
from dualcba.training.precision import default_modes

META = "about.json"
ONNX_PACKAGES = ("onnx", "onnxscript")


def export_model(snapshot: Snapshot, path: str | Path, *, fold: bool = True) -> None:
    """Write a snapshot to a file, in the format of its suffix.

    Parameters
    ----------
    snapshot
        The model, on any device; the exported model computes in float32.
    path
        `.safetensors`: the state dict of the network, for methods that predict with its logits.
        `.pt2`: a program of `torch.export` that maps raw samples to scores. `.onnx`: the same for
        ONNX runtimes; needs the extra `onnx`.
    fold
        Whether to fold batch normalisation into the layers before it, if possible. If False, a
        state dict has the keys of the original network.
    """
    path = user_path(path)
    if path.suffix not in WRITERS:
        raise ValueError(expected("ending of the file", path.name, " or ".join(WRITERS)))
    if not isinstance(snapshot.model, Model):
        raise ValueError("the snapshot was read from a file, expected a snapshot of a learner")
    if isinstance(snapshot.inputs, SeveralInputs):
        raise ValueError("samples have several inputs, expected one input: use a snapshot")
    with default_modes(torch.device("cpu")):
        content = _content(snapshot, snapshot.model, path.suffix, fold)
    with atomic_write(path) as draft:
        draft.write_bytes(content)


def _content(snapshot: Snapshot, model: Model, ending: str, fold: bool) -> bytes:
    model = copy.deepcopy(model).cpu()
    if len(snapshot.inputs.shape) == 3:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    example = _example(snapshot)
    if fold:
        inputs = example
        if model.trunk is not None:
            model.trunk.module = fold_normalization(
                model.trunk.module, model.trunk.transform(inputs)
            )
            inputs = model.trunk(inputs)
        inputs = model.transform(inputs)
        for part in [m for m in model.modules() if isinstance(m, Logits)]:
            part.trunk = fold_normalization(part.trunk, inputs)
    return WRITERS[ending](model, example, about(snapshot))


def about(snapshot: Snapshot) -> dict[str, Any]:
    """Return the metadata that a program needs besides the model, as JSON types."""
    labels = Labels(None)
    labels.replace(snapshot.classes_)
    return {
        "classes": labels.to_json(),
        "input_shape": list(snapshot.inputs.shape),
        "dtype": str(snapshot.inputs.dtype).removeprefix("torch."),
        "step": snapshot.step,
    }


def _example(snapshot: Snapshot) -> Tensor:
    """Return some raw samples; floats are below 1, because they may stand for tokens."""
    shape, rng = (4, *snapshot.inputs.shape), torch.Generator().manual_seed(0)
    if snapshot.inputs.whole:
        return torch.zeros(shape, dtype=snapshot.inputs.dtype, device="cpu")
    if snapshot.inputs.dtype == torch.uint8:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng, device="cpu")
    return torch.rand(shape, generator=rng, device="cpu")


def _state_dict(model: Model, example: Tensor, meta: dict[str, Any]) -> bytes:
    if model.flip:
        wanted = "one image: write a file ending in .pt2 or .onnx, or learn with test_flip=False"
        found = "the predictions are made by an image and its mirror image"
        raise ValueError(f"{found}, expected {wanted}")
    scorer = model.scorer.merged() if isinstance(model.scorer, Corrected) else model.scorer
    if (
        not isinstance(scorer, Logits)
        or not isinstance(scorer.head, nn.Linear)
        or (model.trunk is not None)
    ):
        kind = type(scorer.head if isinstance(scorer, Logits) else scorer).__name__
        kind = "a frozen trunk and its last layer" if model.trunk is not None else kind
        kind = "class means" if isinstance(scorer, NearestMeans) else kind
        kind = "a discriminant of features" if isinstance(scorer, Discriminants) else kind
        both = isinstance(scorer, NearestMeans | Discriminants) and scorer.both
        wanted = "the last linear layer of one network: write a file ending in .pt2 or .onnx"
        wanted += ", or learn with readout='head'" if both else ""
        raise ValueError(f"the predictions are made by {kind}, expected {wanted}")
    resize_head(scorer.head, len(model.hidden))
    tensors = _unshared(scorer.whole().state_dict())
    meta = {**meta, **_preprocessing(model.transform, example), "hidden": model.hidden.tolist()}
    return save(tensors, {META: json.dumps(meta)})


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors without shared memory, which safetensors does not support."""
    made: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        memory = value.untyped_storage().data_ptr()
        made[name] = (value.clone() if memory in seen else value).contiguous()
        seen.add(memory)
    return made


def _preprocessing(transform: Transform, example: Tensor) -> dict[str, list[float]]:
    """Return `scale` and `shift` of a transform, by channel."""
    scale = transform.scale / 255 if example.dtype == torch.uint8 else transform.scale
    found = {"scale": scale.tolist(), "shift": transform.shift.tolist()}
    if not torch.allclose(Affine(**found)(example), transform(example)):
        name = type(transform).__name__
        wanted = "a scale and a shift, or a file ending in .pt2 or .onnx"
        raise ValueError(expected("preprocessing", name, wanted))
    return found


class Affine(nn.Module):
    """`scale` · x + `shift`, by channel; tokens are unchanged."""

    def __init__(self, scale: list[float], shift: list[float]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs of the network."""
        if x.dtype in WHOLE:
            return x
        shape = (-1, *[1] * (x.dim() - 2))
        scale, shift = self.scale.view(shape), self.shift.view(shape)  # type: ignore[operator]
        return torch.addcmul(shift, x.to(scale.dtype), scale)


def _torch_export(model: Model, example: Tensor, meta: dict[str, Any]) -> bytes:
    program = _traced(model, example)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={META: json.dumps(meta)})
    return buffer.getvalue()


def _onnx(model: Model, example: Tensor, meta: dict[str, Any]) -> bytes:
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise ImportError(f"{missing[0]} is not installed, expected {install('onnx')}")
    program = _traced(model, example)
    try:
        with _quietly():
            made = torch.onnx.export(
                program, input_names=["samples"], output_names=["scores"], dynamo=True,
                verbose=False,
            )  # fmt: skip
    except Exception as error:
        raise ValueError(f"the model cannot be written as ONNX: {reason(error)}") from error
    assert made is not None
    made.model.metadata_props[META] = json.dumps(meta)
    return made.model_proto.SerializeToString()  # type: ignore[no-any-return]


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings that only the maintainers of the exporter can act on."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _traced(model: Model, example: Tensor) -> torch.export.ExportedProgram:
    """Trace a model with `torch.export`, for any number of samples."""
    batch = {0: torch.export.Dim("batch", min=1)}
    try:
        with torch.no_grad():
            return torch.export.export(model, (example,), dynamic_shapes=(batch,))
    except Exception as error:  # a network may do anything
        raise ValueError(f"torch.export cannot trace the model: {reason(error)}") from error


WRITERS = {".safetensors": _state_dict, ".pt2": _torch_export, ".onnx": _onnx}
"""The function that writes a file, by its suffix."""
