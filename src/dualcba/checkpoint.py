"""Collect the state of modules and optimisers as named tensors, and store it in a file."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from dualcba.engine.torch_private import load_optimizer_state, optimizer_state
from dualcba.io import atomic_write
from dualcba.parsing import parse_json

Tensors = dict[str, Tensor]
Copy = Callable[[Tensor], Tensor]
"""Returns a copy of a tensor."""

DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
NO_DIGEST = "0" * 64

TYPES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""The names of tensor types in safetensors files, widest type first."""

UNREADABLE = (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, AssertionError)
"""The errors that damaged files raise in the readers of safetensors and JSON."""


def collect_tensors(
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    copy: Copy = torch.clone,
) -> Tensors:
    """Return copies of all state, named `<module>.<entry>` and `<optimizer>.<index>.<field>`."""
    live = {f"{part}.{k}": v for part, m in modules.items() for k, v in m.state_dict().items()}
    for name, optimizer in optimizers.items():
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for i, p in enumerate(params):  # `optimizer.state_dict()` would import torch's compiler
            entries = optimizer.state.get(p, {})
            live |= {f"{name}.{i}.{k}": v for k, v in entries.items() if v is not None}
    return {k: copy(v.detach()) for k, v in live.items()}


def load_tensors(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> None:
    """Load what `collect_tensors` returned into modules and optimisers."""
    for part, module in modules.items():
        module.load_state_dict(entries_of(tensors, part))
    for name, optimizer in optimizers.items():
        params = [p for group in optimizer.param_groups for p in group["params"]]
        entries: dict[int, Tensors] = {}
        for key, value in entries_of(tensors, name).items():
            i, _, field = key.partition(".")
            entries.setdefault(int(i), {})[field] = _laid_out_as(params[int(i)], value)
        groups = optimizer_state(optimizer)["param_groups"]
        load_optimizer_state(optimizer, {"state": entries, "param_groups": groups})


def _laid_out_as(p: Tensor, value: Tensor) -> Tensor:
    """Return a copy of a value in the memory format of its parameter; fused kernels need it."""
    return torch.empty_like(p).copy_(value) if value.shape == p.shape else value.clone()


def entries_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """Return the entries whose names start with `<part>.`, without that prefix.

    >>> sorted(entries_of({"a.x": torch.ones(1), "a.y": torch.ones(1), "b.x": torch.ones(1)}, "a"))
    ['x', 'y']
    """
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def check_dense(given: Mapping[str, Any]) -> None:
    """Raise unless all entries are ordinary tensors with values, by name."""
    for name, t in given.items():
        if not isinstance(name, str) or not isinstance(t, Tensor):
            raise ValueError(
                f"the state's entry {name!r} is a {type(t).__name__}, expected a tensor"
            )
        if t.layout != torch.strided or t.is_meta or t.is_quantized or t.is_nested:
            kind = "quantised" if t.is_quantized else f"on {t.device}, {t.layout}"
            raise ValueError(f"the state's entry {name!r} is {kind}, expected a dense tensor")


def check_same_layout(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Raise unless both have the same entries, each of the same shape and dtype."""
    for name in sorted(own.keys() | given.keys()):
        if name not in given:
            raise ValueError(f"the state has no entry {name!r}, expected {_describe(own[name])}")
        if name not in own:
            raise ValueError(f"the state has an entry {name!r}, expected none of this name")
        if own[name].shape != given[name].shape or own[name].dtype != given[name].dtype:
            found, wanted = _describe(given[name]), _describe(own[name])
            raise ValueError(f"the state's entry {name!r} is {found}, expected {wanted}")


def _describe(t: Tensor) -> str:
    return f"{t.dtype} of shape {tuple(t.shape)}"


def write_state_file(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state to a safetensors file: `tensors`, and `meta` as JSON in the header.

    The header also has the SHA-256 of the file, computed with 64 zeros in its place. The content is
    never copied as a whole, and other threads can run while it is digested and written.
    """
    tensors = {k: v.contiguous().cpu() for k, v in state["tensors"].items()}
    order = sorted(tensors, key=lambda name: (_rank(tensors[name]), name))
    fields = {"dualcba": json.dumps(state["meta"]), "sha256": NO_DIGEST}
    header = _header_of({name: tensors[name] for name in order}, fields)
    parts = [_bytes_of(tensors[name]) for name in order]
    digest = hashlib.sha256(header)
    for part in parts:
        digest.update(part)
    with atomic_write(path) as draft, draft.open("wb", buffering=0) as file:
        sealed = f'"sha256":"{digest.hexdigest()}"'.encode()
        _write_all(file, memoryview(DIGEST.sub(sealed, header, count=1)))
        for part in parts:
            _write_all(file, part)


def read_state_file(path: Path, what: str = "saved learner") -> dict[str, Any]:
    """Return the tensors and the metadata of a file written by `write_state_file`.

    Raises if the content does not match its SHA-256; files of earlier versions have none. `what`
    describes the expected content in error messages.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected a {what}")
    content = path.read_bytes()  # not mapped: another process may truncate the file
    try:
        header = _header(content)
        own, damaged = "dualcba" in header, not _intact(content, header)
        if own and not damaged:
            return {"tensors": load(content), "meta": parse_json(header["dualcba"])}
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read as a {what}: {reason}") from error
    if not own:
        raise ValueError(f"{path} is not a {what}")
    raise ValueError(f"{path} is damaged, expected a {what} that matches its SHA-256")


def _rank(tensor: Tensor) -> int:
    """Return the position of a tensor's type in a file: widest first, so that all are aligned."""
    if tensor.dtype not in TYPES:
        wanted = ", ".join(str(dtype) for dtype in TYPES)
        raise ValueError(f"a tensor of the state is {_describe(tensor)}, expected one of {wanted}")
    return list(TYPES).index(tensor.dtype)


def _header_of(tensors: Tensors, fields: Mapping[str, str]) -> bytes:
    """Return the header of a safetensors file with these tensors in this order, and its size."""
    entries: dict[str, Any] = {"__metadata__": dict(fields)}
    end = 0
    for name, t in tensors.items():
        start, end = end, end + t.nbytes
        kind, shape = TYPES[t.dtype], list(t.shape)
        entries[name] = {"data_offsets": [start, end], "dtype": kind, "shape": shape}
    text = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the host, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _write_all(file: io.FileIO, part: memoryview) -> None:
    """Write all bytes; a single call of `write` may write only some."""
    while part:
        part = part[file.write(part) :]


def _header(content: bytes) -> dict[str, str]:
    """Return the text fields in the header of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= len(content) - 8:
        raise ValueError(f"{len(content)} bytes, expected a complete safetensors file")
    header = parse_json(content[8 : 8 + size])
    fields = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    return fields if isinstance(fields, dict) else {}


def _intact(content: bytes, header: Mapping[str, str]) -> bool:
    """Whether the content matches the SHA-256 in its header; an old header without one is fine."""
    if header.keys() == {"dualcba"}:  # an earlier version
        return True
    field = DIGEST.search(content)
    if field is None or header.keys() != {"dualcba", "sha256"}:
        return False
    digest = hashlib.sha256()
    for part in (
        content[: field.start(1)],
        NO_DIGEST.encode(),
        memoryview(content)[field.end(1) :],
    ):
        digest.update(part)
    return digest.hexdigest().encode() == field[1] == header["sha256"].encode()
