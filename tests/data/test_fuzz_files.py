"""Damaged data files: read as a dataset that is consistent, or refused with one line.

`DUALCBA_FUZZ=full` tries 10,000 files instead of a sample.
"""

from __future__ import annotations

import gzip
import io
import pickle
import random
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzzing import attempts, damage, refused_in_one_line
from image_helpers import picture

from dualcba.data import Dataset, from_folder, from_npz
from dualcba.data.download.archives import unpack
from dualcba.data.readers.cifar import cifar10, cifar100
from dualcba.data.readers.idx import mnist
from dualcba.data.readers.tiny_imagenet import tiny_imagenet

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of metadata that it repairs

RNG = np.random.default_rng(0)


# ---------------------------------------------------------------- one small dataset of each format


def make_idx(root: Path) -> None:
    (root / "mnist").mkdir(parents=True)
    for part, pack in (("train", gzip.compress), ("t10k", bytes)):
        x = RNG.integers(0, 256, (3, 28, 28), np.uint8)
        sizes = b"".join(n.to_bytes(4, "big") for n in x.shape)
        name = root / "mnist" / f"{part}-images-idx3-ubyte"
        suffix = ".gz" if part == "train" else ""
        name.with_name(name.name + suffix).write_bytes(pack(b"\0\0\x08\3" + sizes + x.tobytes()))
        labels = name.with_name(f"{part}-labels-idx1-ubyte{suffix}")
        labels.write_bytes(pack(b"\0\0\x08\1\0\0\0\3" + bytes([0, 1, 2])))


def make_npz(root: Path) -> None:
    root.mkdir()
    x, y = RNG.random((12, 2, 3), np.float32), np.arange(12) % 3
    random.Random(0).choice([np.savez, np.savez_compressed])(root / "own.npz", x=x, y=y)


def make_cifar(root: Path, folder: str, names: list[str], key: bytes) -> None:
    (root / folder).mkdir(parents=True)
    for k, name in enumerate(names):
        data = RNG.integers(0, 256, (2, 3072), np.uint8)
        content = {b"data": data, key: [k % 10, (k + 1) % 10], b"batch_label": b"one"}
        (root / folder / name).write_bytes(pickle.dumps(content, protocol=2))


def make_cifar10(root: Path) -> None:
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    make_cifar(root, "cifar-10-batches-py", names, b"labels")


def make_cifar100(root: Path) -> None:
    make_cifar(root, "cifar-100-python", ["train", "test"], b"fine_labels")


def make_tiny(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    lines = []
    for c, name in enumerate(("n01", "n02")):
        (folder / "train" / name / "images").mkdir(parents=True)
        for k in range(2):
            picture(k, (64, 64)).save(folder / "train" / name / "images" / f"{k}.JPEG")
        (folder / "val" / "images").mkdir(parents=True, exist_ok=True)
        picture(c, (64, 64)).save(folder / "val" / "images" / f"v{c}.JPEG")
        lines.append(f"v{c}.JPEG\t{name}\t0\t0\t9\t9")
    (folder / "wnids.txt").write_text("n01\nn02\n")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def make_cached(root: Path) -> None:
    make_tiny(root)
    tiny_imagenet(root, show=False)  # leaves a cache


def make_folder(root: Path) -> None:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for k, suffix in enumerate(("png", "jpg", "gif", "bmp", "webp", "tiff")):
            picture(k, (8, 6)).save(root / name / f"{k}.{suffix}")


def make_archive(root: Path) -> None:
    root.mkdir()
    members = {"own/": b"", "own/a.txt": b"a" * 500, "own/deep/b.bin": bytes(range(256)) * 4}
    with zipfile.ZipFile(root / "own.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    for mode, suffix in (("w", "tar"), ("w:gz", "tar.gz"), ("w:xz", "tar.xz")):
        with tarfile.open(root / f"own.{suffix}", mode) as tar:  # type: ignore[call-overload]
            for name, content in members.items():
                info = tarfile.TarInfo(name.rstrip("/"))
                info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def read_archives(root: Path) -> None:
    """Unpack all; nothing may be left outside the folder, and no draft after an error."""
    for path in sorted(root.glob("own.*")):
        target = root / "out" / "own"
        shutil.rmtree(root / "out", ignore_errors=True)
        (root / "out").mkdir()
        try:
            unpack(path, target)
        finally:
            assert {p.name for p in (root / "out").iterdir()} <= {"own"}


Make, Read = Callable[[Path], None], Callable[[Path], Dataset | None]
FORMATS: dict[str, tuple[Make, Read]] = {
    "idx": (make_idx, mnist),
    "npz": (make_npz, lambda root: from_npz(root / "own.npz")),
    "cifar10": (make_cifar10, cifar10),
    "cifar100": (make_cifar100, cifar100),
    "tiny-imagenet": (make_tiny, lambda root: tiny_imagenet(root, show=False)),
    "cached": (make_cached, lambda root: tiny_imagenet(root, show=False)),
    "folder": (make_folder, lambda root: from_folder(root, show=False)),
    "archives": (make_archive, read_archives),
}


# ---------------------------------------------------------------- damages


def damage_file(path: Path, rng: random.Random) -> None:
    """Damage a file, or what is packed in it, so that checksums of the packing still fit."""
    content, inside = path.read_bytes(), rng.random() < 0.6
    if inside and path.suffix == ".gz":
        path.write_bytes(gzip.compress(damage(gzip.decompress(content), rng), 1))
    elif inside and path.suffix == ".npz":
        with zipfile.ZipFile(io.BytesIO(content)) as old:
            members = {name: old.read(name) for name in old.namelist()}
        name = rng.choice(list(members))
        members[name] = damage(members[name], rng)
        with zipfile.ZipFile(path, "w", rng.choice([0, 8])) as new:
            for name, each in members.items():
                new.writestr(name, each)
    elif rng.random() < 0.05:
        path.unlink()
    else:
        path.write_bytes(damage(content, rng))


def check(data: Dataset | None) -> None:
    """What was read fits together."""
    if data is None:
        return
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert x.dtype in (torch.uint8, torch.float32)
        assert len(x) == len(y) > 0
        assert x.dtype == torch.uint8 or bool(x.isfinite().all())
        assert 0 <= int(y.min()) <= int(y.max()) < data.num_classes
    assert len(data.digest) == 64


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files_are_read(name: str, tmp_path: Path) -> None:
    make, read = FORMATS[name]
    make(tmp_path / "x")
    check(read(tmp_path / "x"))


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    make, read = FORMATS[name]
    rng = random.Random(f"files {name}")
    good, bad = tmp_path / "good", tmp_path / "bad"
    make(good)
    files = sorted(p.relative_to(good) for p in good.rglob("*") if p.is_file())
    for k in range(attempts(40, 10_000 // len(FORMATS) + 1)):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        for path in rng.sample(files, 1):
            damage_file(bad / path, rng)
        try:
            check(read(bad))
        except Exception as error:
            refused_in_one_line(error, (ValueError, OSError), (name, k, path))
