"""A cache folder of decoded images, memory-mapped when read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualcba.data.disk import explain_full_disk, file_lock
from dualcba.data.readers.decoding import DatasetArrays, ImageFiles, decode_blocks
from dualcba.data.readers.images import ImageShape
from dualcba.parsing import parse_json

VERSION = 1
METADATA = "cache.json"


def decode_to_cache(
    cache: Path,
    metadata: Mapping[str, Any],
    parts: Mapping[str, ImageFiles],
    shape: ImageShape,
    show: bool | None,
) -> DatasetArrays:
    """Return the decoded images, memory-mapped from the folder `cache`.

    The images are decoded on the first call, and again if `metadata` differ from those stored in
    the cache. Several processes may call this at once.

    Parameters
    ----------
    cache
        The folder, written if necessary.
    metadata
        Values on which the cache depends, as JSON values.
    parts, shape, show
        As for `decode_to_memory`.
    """
    if (arrays := open_cache(cache, metadata)) is not None:
        return arrays
    cache.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(cache.with_name(f".{cache.name}.lock"), show):
        if (arrays := open_cache(cache, metadata)) is None:
            _write_cache(cache, metadata, parts, shape, show)
            arrays = open_cache(cache, metadata)
    if arrays is None:
        raise OSError(f"{cache} was written but cannot be read")
    return arrays


def open_cache(cache: Path, metadata: Mapping[str, Any]) -> DatasetArrays | None:
    """Return the arrays of a cache; None if it is missing, damaged or has other metadata."""
    try:
        stored = parse_json((cache / METADATA).read_text())
        if not isinstance(stored, dict) or stored.get("version") != VERSION:
            return None
        if any(stored.get(key) != value for key, value in metadata.items()):
            return None
        arrays: DatasetArrays = {}
        for part in ("train", "test"):
            shape = (stored["count"][part], *stored["shape"])
            arrays[f"{part}_x"] = _map_array(cache / f"{part}_x.npy", np.uint8, shape)
            arrays[f"{part}_y"] = _map_array(cache / f"{part}_y.npy", np.int64, shape[:1])
    except PermissionError:
        raise
    except Exception:  # a damaged file may raise anything; the cache is rewritten
        return None
    return arrays


def _map_array(path: Path, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    # mode "c": torch requires writable memory, and writes do not reach the file
    array: NDArray[Any] = np.load(path, "c", allow_pickle=False)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{path} holds {array.dtype} of shape {array.shape}")
    return array


def _write_cache(
    cache: Path,
    metadata: Mapping[str, Any],
    parts: Mapping[str, ImageFiles],
    shape: ImageShape,
    show: bool | None,
) -> None:
    if cache.exists() and not (cache / METADATA).exists():
        raise ValueError(f"{cache} exists but is not a cache, expected a cache or no such folder")
    temporary = cache.with_name(f".{cache.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    count = {part: len(files.paths) for part, files in parts.items()}
    text = json.dumps({"version": VERSION, "count": count, **metadata}, indent=1)
    try:
        with explain_full_disk(cache):
            for part, files in parts.items():
                _write_images(temporary / f"{part}_x.npy", files.paths, shape, show)
                np.save(temporary / f"{part}_y.npy", files.labels)
            (temporary / METADATA).write_text(text)
        shutil.rmtree(cache, ignore_errors=True)
        os.rename(temporary, cache)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_images(path: Path, images: Sequence[Path], shape: ImageShape, show: bool | None) -> None:
    """Write decoded images to an `.npy` file.

    It does not use a memory map, with which a full disk would crash the process.
    """
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(images), *shape)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in decode_blocks(images, shape, "decode to cache", show):
            file.write(block.tobytes())
