"""The official CIFAR layouts with few images; missing, damaged and malicious files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import load_dataset
from dualcba.data.readers.cifar import read_pickle

PER_FILE = 20


def content(labels: str, classes: int, seed: int, n: int = PER_FILE) -> dict[bytes, Any]:
    """The content of a file: byte keys, and images as rows of 3072 bytes, channel by channel."""
    rng = np.random.default_rng(seed)
    return {
        b"batch_label": b"a batch",
        labels.encode(): [int(v) for v in rng.permutation(np.arange(n) % classes)],
        b"data": rng.integers(0, 256, (n, 3072)).astype(np.uint8),
        b"filenames": [f"image_{i}.png".encode() for i in range(n)],
    }


def write(path: Path, value: Any, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=protocol))


def write_cifar10(root: Path) -> list[Path]:
    folder = root / "cifar-10-batches-py"
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    for seed, name in enumerate(names):
        write(folder / name, content("labels", 10, seed))
    return [folder / name for name in names]


def write_cifar100(root: Path) -> list[Path]:
    folder = root / "cifar-100-python"
    for seed, name in enumerate(["train", "test"]):
        value = content("fine_labels", 100, seed, 100)
        value[b"coarse_labels"] = [v // 5 for v in value[b"fine_labels"]]
        write(folder / name, value)
    return [folder / "train", folder / "test"]


WRITERS: dict[str, Callable[[Path], list[Path]]] = {
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
}


def test_cifar10(tmp_path: Path) -> None:
    files = write_cifar10(tmp_path)
    data = load_dataset("cifar10", tmp_path)
    assert (data.name, data.num_classes, data.input_shape) == ("cifar10", 10, (3, 32, 32))
    assert (len(data.train_x), len(data.test_x)) == (100, 20)
    assert (data.pad, data.flip) == (4, True)
    assert tuple(data.mean) == (0.4914, 0.4822, 0.4465)
    assert tuple(data.std) == (0.2470, 0.2435, 0.2615)
    raw = [pickle.loads(f.read_bytes()) for f in files]
    pixels = np.concatenate([r[b"data"] for r in raw[:5]])
    assert data.train_y.tolist() == [y for r in raw[:5] for y in r[b"labels"]]
    for i in (0, 37, 99):  # red 1024 values, then green, then blue, each in rows
        for c, row, column in ((0, 0, 1), (1, 5, 31), (2, 31, 0)):
            assert int(data.train_x[i, c, row, column]) == pixels[i, c * 1024 + row * 32 + column]
    assert np.array_equal(data.test_x.numpy().reshape(-1, 3072), raw[5][b"data"])


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    train, test = write_cifar100(tmp_path)
    data = load_dataset("cifar100", tmp_path)
    assert (data.name, data.num_classes, data.train_x.dtype) == ("cifar100", 100, torch.uint8)
    assert data.train_y.tolist() == pickle.loads(train.read_bytes())[b"fine_labels"]
    assert data.test_y.tolist() == pickle.loads(test.read_bytes())[b"fine_labels"]
    assert tuple(data.mean) == (0.5071, 0.4867, 0.4408)
    assert tuple(data.std) == (0.2675, 0.2565, 0.2761)


@pytest.mark.parametrize("protocol", range(2, 5))
def test_any_protocol_of_pickle(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    value = content("labels", 10, 0)
    write(path, value, protocol)
    assert np.array_equal(read_pickle(path)[b"data"], value[b"data"])


def test_files_written_by_python_2(tmp_path: Path) -> None:
    """The official files: protocol 2, str keys and numpy.core, as old NumPy wrote them."""
    x = np.arange(3072, dtype=np.uint8)[None]
    body = b"\x80\x02}q\x00("
    body += b"U\x06labels]K\x07a"
    body += b"U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    body += b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    body += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    body += b"T" + (3072).to_bytes(4, "little") + x.tobytes() + b"tbu."
    path = tmp_path / "file"
    path.write_bytes(body)
    got = read_pickle(path)
    assert got[b"labels"] == [7]
    assert np.array_equal(got[b"data"], x)


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    for path in WRITERS[name](tmp_path):
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(FileNotFoundError) as caught:
            load_dataset(name, tmp_path)
        assert str(path) in str(caught.value)
        assert "expected" in str(caught.value)
        path.write_bytes(kept)
    load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_named(name: str, share: float, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path)[-1]
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=path.name) as caught:
        load_dataset(name, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small"
    whole = pickle.dumps({b"data": np.zeros((1, 6), np.uint8), b"labels": [1]}, protocol=2)
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="small cannot be read"):
            read_pickle(path)


@pytest.mark.parametrize(
    ("good", "bad"), [(b"latin1", b"latinX"), (b"u1", b"uq"), (b"_reconstruct", b"_reconstrukt")]
)
def test_a_damaged_file_is_named(good: bytes, bad: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small"
    whole = pickle.dumps({b"data": np.zeros((1, 6), np.uint8), b"labels": [1]}, protocol=2)
    assert good in whole
    path.write_bytes(whole.replace(good, bad))
    with pytest.raises(ValueError, match="small cannot be read"):
        read_pickle(path)


def spoil(value: dict[bytes, Any], **changes: Any) -> dict[bytes, Any]:
    out = {**value, **{k.encode(): v for k, v in changes.items()}}
    return {k: v for k, v in out.items() if v is not None}


X = np.zeros((PER_FILE, 3072), np.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": X[:, :-1]}, ["(20, 3071)", "(n, 3072)"]),
        ({"data": X.reshape(-1, 3, 32, 32)}, ["(20, 3, 32, 32)", "(n, 3072)"]),
        ({"data": X.astype(np.float32)}, ["'f4'", "u1"]),
        ({"data": X[:-1]}, ["(19, 3072)", "(20,)"]),
        ({"labels": [1] * 7}, ["(7,)", "n labels"]),
        ({"labels": 3}, ["labels"]),
        ({"labels": None}, ["no entry 'labels'"]),
        ({"data": None}, ["no entry 'data'"]),
    ],
)
def test_files_of_another_shape(changes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    path = write_cifar10(tmp_path)[3]
    write(path, spoil(content("labels", 10, 0), **changes))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        load_dataset("cifar10", tmp_path)
    assert all(word in str(caught.value) for word in (str(path), *words)), caught.value


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range(label: int, tmp_path: Path) -> None:
    path = write_cifar10(tmp_path)[5]
    write(path, spoil(content("labels", 10, 0), labels=[label] * PER_FILE))
    with pytest.raises(ValueError, match=rf"test y\[0\] is {label}, expected a label from 0 to 9"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize("value", [[1, 2], "text", 7, None])
def test_no_dictionary(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, value)
    with pytest.raises(ValueError, match=f"{type(value).__name__}, expected a dictionary"):
        read_pickle(path)


class Touch:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    import os

    trace = tmp_path / "trace"
    hostile = [
        Touch(os.system, f"touch {trace}"),
        Touch(Path.touch, trace),
        Touch(eval, f"open({str(trace)!r}, 'w')"),
        Touch(getattr, "text", "upper"),
        Touch(np.memmap, str(trace), "uint8", "w+", 0, (1,)),
        Touch(np.save, str(trace), X[:1]),
    ]
    path = tmp_path / "file"
    for value in hostile:
        write(path, {b"data": value, b"labels": [0]})
        with pytest.raises(ValueError, match=r"file cannot be read.*expected only arrays"):
            read_pickle(path)
        assert not list(tmp_path.glob("trace*"))
