"""A dataset in memory: raw samples, labels, and how to normalise and augment the samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dualcba.data.transforms import Transform
from dualcba.errors import at_least, expected
from dualcba.tasks.labels import no_mask

IntArray = NDArray[np.int64]
"""Labels, or indices of samples."""

DIGEST_BLOCK = 1 << 24  # bytes hashed at a time
LONGEST_NUMBER = 8  # bytes: the longest dtype of torch
NO_NUMBERS = {
    dtype for name in ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2")
    if (dtype := getattr(torch, name, None)) is not None
}  # fmt: skip
"""Dtypes of torch that cannot be converted to float32."""


@dataclass(frozen=True)
class DataOrigin:
    """The origin of the data of a result."""

    name: str
    path: str | None
    """The absolute path of a folder or an `.npz` file; None for a named dataset or arrays."""
    digest: str
    """See `Dataset.digest`."""

    def __str__(self) -> str:
        return f"digest {self.digest[:12]}" + (f" of {self.path}" if self.path else "")

    def same_as(self, other: DataOrigin) -> bool:
        """Return whether path and digest are the same."""
        return (self.path, self.digest) == (other.path, other.digest)

    @classmethod
    def from_dict(cls, content: Any) -> DataOrigin:
        """Read the value of `data` in a result or a plan."""
        wanted = {"name": str, "path": str | None, "digest": str}
        if not isinstance(content, dict) or content.keys() != wanted.keys():
            raise ValueError("has a wrong 'data', expected name, path and digest")
        for field, kind in wanted.items():
            if not isinstance(content[field], kind):
                raise ValueError(f"has {field!r} of 'data' that is not text, expected text")
        return cls(**content)


@dataclass(frozen=True)
class Dataset:
    """Training and test samples with their labels.

    Samples are stored unnormalised, as uint8 images (n, channels, H, W) or float32 arrays (n, ...).
    `mean`, `std`, `pad` and `flip` are the arguments of `Transform`.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    mean: Sequence[float]
    std: Sequence[float]
    pad: int = 0
    flip: bool = False
    memory_mapped: bool = False
    """Whether `train_x` is a memory-mapped file."""
    path: str | None = None
    """The absolute path of the folder or `.npz` file it was loaded from."""
    validation: float = 0.0
    """The fraction of the training data held out as test data; see `validation_split`."""
    whole: Dataset | None = None
    """The dataset that it is a split of, if `validation` is not 0."""
    class_names: tuple[str, ...] | None = None
    """The name of each class, in the order of labels; None if they have no names."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of samples and labels, with their shapes and types, and `num_classes`.

        It is computed once, in blocks. It does not depend on the format of the files.
        """
        checksum = hashlib.sha256(f"num_classes {self.num_classes}\n".encode())
        for name in ("train_x", "train_y", "test_x", "test_y"):
            values: Tensor = getattr(self, name)
            checksum.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            for block in _blocks(values):
                checksum.update(block)
        return checksum.hexdigest()

    @property
    def origin(self) -> DataOrigin:
        """The origin to record in results; a split has the origin of the whole dataset."""
        if self.whole is not None:
            return self.whole.origin
        return DataOrigin(self.name, self.path, self.digest)

    def transform(self) -> Transform:
        """Return the augmentation and normalisation of the samples."""
        return Transform(self.mean, self.std, pad=self.pad, flip=self.flip)


def _blocks(values: Tensor) -> Iterator[memoryview]:
    """Yield the rows as contiguous little-endian bytes."""
    rows = max(1, DIGEST_BLOCK * len(values) // max(1, values.numel() * values.element_size()))
    for k in range(0, len(values), rows):
        array = values[k : k + rows].detach().cpu().contiguous().numpy()
        yield array.astype(array.dtype.newbyteorder("<"), copy=False).data


def check_labels(
    y: ArrayLike | Tensor,
    length: int,
    num_classes: int | None,
    name: str,
    lowest: int = 0,
    *,
    hint: str = "",
) -> Tensor:
    """Return labels as an int64 tensor, or raise a `ValueError` that names the first bad one.

    Parameters
    ----------
    y
        The labels.
    length
        The required number of labels.
    num_classes
        Labels must be below this number; None for no upper limit.
    name
        How error messages refer to the labels, such as `"train"`.
    lowest
        The lowest label that is accepted.
    hint
        Text at the end of errors about labels that are not integers.
    """
    labels = _label_tensor(y, f"{name} y", hint)
    if labels.dim() != 1 or len(labels) != length:
        raise ValueError(expected(f"shape of {name} y", tuple(labels.shape), f"({length},)"))
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(expected(f"dtype of {name} y", str(labels.dtype), f"whole numbers{hint}"))
    limit = num_classes if num_classes is not None else torch.iinfo(torch.long).max
    bad = (labels < lowest) | (labels >= limit)
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        wanted = (
            "a label of at least 0"
            if num_classes is None
            else f"a label from {lowest} to {limit - 1}"
        )
        raise ValueError(expected(f"{name} y[{i}]", int(labels[i]), wanted))
    return labels


def _label_tensor(y: ArrayLike | Tensor, name: str, hint: str = "") -> Tensor:
    """Return labels as a tensor, of int64 if they are whole numbers."""
    no_mask(name, y)
    if isinstance(y, Tensor):
        y = plain_tensor(y, name)
    try:
        if hasattr(y, "__array__") and not isinstance(y, Tensor | np.ndarray | np.generic):
            y = np.array(y)  # such as a Series, which torch would index by label
        if not isinstance(y, Tensor):
            y = torch.as_tensor(_native(y) if isinstance(y, np.ndarray) else y, device="cpu")
        labels = y
        whole = not (labels.is_floating_point() or labels.is_complex())
        return labels.long() if whole and labels.dtype != torch.bool else labels
    except Exception:  # objects may raise anything, deeply nested lists a RecursionError
        wanted = f"whole numbers{hint}"
        raise ValueError(f"{name} cannot be read as labels, expected {wanted}") from None


def plain_tensor(x: Tensor, name: str) -> Tensor:
    """Return a plain detached tensor, or raise a ValueError if it is not dense or has no values.

    >>> plain_tensor(torch.eye(3).to_sparse(), "x")
    Traceback (most recent call last):
    ...
    ValueError: x is torch.sparse_coo, expected a dense tensor with values
    """
    if x.layout != torch.strided or x.is_meta or x.is_quantized or x.is_nested:
        kinds = {
            "on the device meta": x.is_meta,
            "quantised": x.is_quantized,
            "nested": x.is_nested,
        }
        kind = next((kind for kind, found in kinds.items() if found), str(x.layout))
        raise ValueError(f"{name} is {kind}, expected a dense tensor with values")
    if x.dtype in NO_NUMBERS:
        raise ValueError(expected(f"dtype of {name}", str(x.dtype), "numbers"))
    plain: Any = x.detach().resolve_conj().resolve_neg()  # NumPy does not support such views
    if any(getattr(plain, "names", ())):  # named dimensions
        plain = plain.rename(None)
    dense: Tensor = plain if type(plain) is Tensor else plain.as_subclass(Tensor)
    return dense


def count_classes(highest: int, samples: int) -> int:
    """Return the number of classes, given the highest label and the number of samples.

    Raises a `ValueError` if there are fewer samples than classes.

    >>> count_classes(2**40, 100)
    Traceback (most recent call last):
    ...
    ValueError: highest label is 1099511627776, expected classes counted from 0, for 100 samples
    """
    if highest >= samples:
        wanted = f"classes counted from 0, for {samples} samples"
        raise ValueError(expected("highest label", highest, wanted))
    return highest + 1


def check_samples(
    x: ArrayLike | Tensor,
    name: str,
    shape: tuple[int, ...] | None = None,
    *,
    whole: bool = False,
) -> Tensor:
    """Return samples as a uint8 or float32 tensor, or raise a `ValueError`.

    Parameters
    ----------
    x
        The samples.
    name
        How error messages refer to the samples, such as `"train"`.
    shape
        The required shape of one sample; by default any.
    whole
        Whether integers keep their dtype.
    """
    samples = plain_tensor(x, f"{name} x") if isinstance(x, Tensor) else _numeric(x, name)
    if samples.is_complex():
        raise ValueError(expected(f"dtype of {name} x", str(samples.dtype), "real numbers"))
    if samples.dim() < 2 or samples.numel() == 0:
        wanted = "(n, ...) with n of at least 1"
        raise ValueError(expected(f"shape of {name} x", tuple(samples.shape), wanted))
    if shape is not None and tuple(samples.shape[1:]) != shape:
        raise ValueError(
            expected(f"shape of one sample of {name} x", tuple(samples.shape[1:]), str(shape))
        )
    keeps = whole and not samples.is_floating_point()
    if samples.dtype != torch.uint8 and not keeps:
        samples = samples.float()
        check_finite(samples, name)
    return samples


def check_finite(samples: Tensor, name: str) -> None:
    """Raise a `ValueError` that names the first sample that is not finite."""
    finite = samples.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        i = int((~finite).nonzero()[0])
        wanted = "finite numbers in float32"
        raise ValueError(f"{name} x[{i}] holds a NaN or an infinite value, expected {wanted}")


def _numeric(x: ArrayLike, name: str) -> Tensor:
    no_mask(f"{name} x", x)
    try:
        array = np.asarray(x)
    except ValueError:
        raise ValueError(f"{name} x is ragged, expected samples of one shape") from None
    except Exception:  # an object may raise anything
        kind = type(x).__name__
        raise ValueError(expected(f"type of {name} x", kind, "an array or a tensor")) from None
    if array.dtype.kind not in "buif" or array.dtype.itemsize > LONGEST_NUMBER:
        raise ValueError(expected(f"dtype of {name} x", str(array.dtype), "numbers"))
    return torch.from_numpy(_native(array))


def _native(array: np.ndarray) -> np.ndarray:
    """Return an array that torch accepts: contiguous, in native byte order and writeable.

    torch warns about read-only arrays, such as those of pandas, but samples are never written to.
    """
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return native if native.flags.writeable else np.asarray(_Writeable(native))


class _Writeable:
    """Exposes a read-only array to NumPy as writeable, without a copy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def from_arrays(
    train_x: ArrayLike | Tensor,
    train_y: ArrayLike | Tensor,
    test_x: ArrayLike | Tensor,
    test_y: ArrayLike | Tensor,
    *,
    num_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pad: int = 0,
    flip: bool = False,
    name: str = "arrays",
) -> Dataset:
    """Make a dataset from arrays or tensors.

    Parameters
    ----------
    train_x, test_x
        Samples: images (n, channels, H, W) or vectors (n, d).
    train_y, test_y
        Labels, counted from 0.
    num_classes
        By default one more than the highest training label.
    mean, std
        Used for normalisation. By default those of the training samples: per channel for uint8
        images, one number for other arrays.
    pad, flip
        Augmentation, see `Transform`.
    name
        The name of the dataset.

    >>> x, y = np.arange(12.0).reshape(6, 2), [0, 1, 2] * 2
    >>> data = from_arrays(x, y, x, y)
    >>> data.num_classes, data.input_shape
    (3, (2,))
    """
    if num_classes is not None:
        at_least(1, num_classes=num_classes)
    x = check_samples(train_x, "train")
    y = check_labels(train_y, len(x), num_classes, "train")
    classes = num_classes if num_classes is not None else count_classes(int(y.max()), len(y))
    tx = check_samples(test_x, "test", tuple(x.shape[1:]))
    if tx.dtype != x.dtype:
        raise ValueError(expected("dtype of test x", str(tx.dtype), f"{x.dtype}, as in training"))
    ty = check_labels(test_y, len(tx), classes, "test")
    if mean is None or std is None:
        mean, std = mean_and_std(x)
    check_transform(tuple(x.shape[1:]), mean, std, pad, flip)
    memory_mapped = isinstance(train_x, np.memmap)
    return Dataset(name, x, y, tx, ty, classes, mean, std, pad, flip, memory_mapped)


def check_transform(
    shape: tuple[int, ...], mean: Sequence[float], std: Sequence[float], pad: int, flip: bool
) -> None:
    """Raise a `ValueError` if a transform with these options cannot take samples of this shape."""
    for field, values in (("mean", mean), ("std", std)):
        if not hasattr(values, "__len__") or len(values) not in (1, shape[0]):
            wanted = f"1 or {shape[0]} numbers, one per channel"
            raise ValueError(expected(field, values, wanted))
        if not _are_finite(values):
            raise ValueError(expected(field, list(values), "finite numbers"))
    if min(std) <= 0:
        raise ValueError(expected("std", list(std), "numbers above 0"))
    if pad < 0:
        raise ValueError(expected("pad", pad, "at least 0"))
    if (pad or flip) and len(shape) != 3:
        wanted = "(channels, height, width) for a crop or a flip"
        raise ValueError(expected("shape of one sample", shape, wanted))


def _are_finite(values: ArrayLike) -> bool:
    try:
        return bool(np.isfinite(np.asarray(values, np.float64)).all())
    except (TypeError, ValueError):
        return False


def mean_and_std(x: Tensor) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation: per channel for uint8 images, else one number each.

    uint8 values are divided by 255 first.
    """
    if x.dtype == torch.uint8 and x.dim() == 4:
        values = x.transpose(0, 1).flatten(1).double() / 255
    else:
        values = x.double().flatten()[None] / (255 if x.dtype == torch.uint8 else 1)
    std = values.std(1).clamp(min=1e-6)
    return values.mean(1).tolist(), std.tolist()
