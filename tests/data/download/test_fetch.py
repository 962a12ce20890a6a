"""Fetch and check datasets."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from download_helpers import CONTENT, NAME, Server, listing, make_tar, make_zip, md5

from dualcba.data import load_dataset
from dualcba.data.disk import file_lock
from dualcba.data.download.fetch import check, fetch
from dualcba.data.download.published import (
    EXPECTED_CONTENTS,
    PUBLISHED_DATASETS,
    ExpectedContents,
    PublishedDataset,
    RemoteFile,
)
from dualcba.data.readers import digits


@pytest.fixture
def toy(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PublishedDataset:
    """A dataset in an archive on the server."""
    content = make_zip(tmp_path / "toy.zip", {"toy/x": CONTENT, "toy/y": b"1"}).read_bytes()
    (tmp_path / "toy.zip").unlink()
    server.files["toy.zip"] = content
    remote = RemoteFile("toy.zip", md5(content), (server.address("toy.zip"),))
    dataset = PublishedDataset("toy", (remote,), ("x", "y"))
    monkeypatch.setitem(PUBLISHED_DATASETS, "toy", dataset)
    return dataset


def test_fetch(toy: PublishedDataset, server: Server, tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    assert fetch("toy", root, show=False) == root / "toy"
    assert fetch("toy", str(root), show=False) == root / "toy"
    assert listing(root) == [".toy.lock", "toy.zip", "toy/x", "toy/y"]
    assert len(server.ranges) == 1


def test_fetch_unpacks_again_without_a_download(
    toy: PublishedDataset, server: Server, tmp_path: Path
) -> None:
    shutil.rmtree(fetch("toy", tmp_path, show=False))
    assert listing(fetch("toy", tmp_path, show=False)) == ["x", "y"]
    assert len(server.ranges) == 1


def test_fetch_leaves_a_folder_with_gaps_alone(toy: PublishedDataset, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "x").touch()
    with pytest.raises(ValueError, match="toy lacks y; move the folder away and fetch again"):
        fetch("toy", tmp_path, show=False)


def test_fetch_of_plain_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = RemoteFile("b.bin", md5(b"b"), (server.address("b.bin"),))
    server.files["b.bin"] = b"b"
    dataset = PublishedDataset("plain", (server.remote(), other))
    monkeypatch.setitem(PUBLISHED_DATASETS, "plain", dataset)
    folder = fetch("plain", tmp_path, show=False)
    assert listing(folder) == ["b.bin", NAME]
    (folder / "b.bin").write_bytes(b"damaged")
    fetch("plain", tmp_path, show=False)
    assert (folder / "b.bin").read_bytes() == b"b"
    assert len(server.ranges) == 3


def test_fetch_shows_throughput(
    toy: PublishedDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch("toy", tmp_path, show=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "toy.zip" in err
    assert "B/s" in err


def test_fetch_of_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown dataset to fetch 'cifar', did you mean 'cifar1"):
        fetch("cifar", tmp_path)
    assert listing(tmp_path) == []


SCRIPT = """
import sys
from dualcba.data.download.fetch import fetch
from dualcba.data.download.published import PUBLISHED_DATASETS, PublishedDataset, RemoteFile
address, md5, root = sys.argv[1:]
file = RemoteFile("toy.zip", md5, (address,))
PUBLISHED_DATASETS["toy"] = PublishedDataset("toy", (file,), ("x", "y"))
print(fetch("toy", root, show=False))
"""


def test_two_processes_at_once(toy: PublishedDataset, server: Server, tmp_path: Path) -> None:
    server.failures = [("slow", 40)]
    (remote,) = toy.files
    command = [sys.executable, "-c", SCRIPT, remote.urls[0], remote.md5, str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"}
    two = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    outputs = [p.communicate(timeout=120)[0].decode().strip() for p in two]
    assert [p.returncode for p in two] == [0, 0]
    assert outputs == [str(tmp_path / "toy")] * 2
    assert len(server.ranges) == 1
    assert listing(tmp_path) == [".toy.lock", "toy.zip", "toy/x", "toy/y"]


def test_two_threads_at_once(toy: PublishedDataset, server: Server, tmp_path: Path) -> None:
    server.failures = [("slow", 10)]
    threads = [threading.Thread(target=fetch, args=("toy", tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.ranges) == 1
    assert (tmp_path / "toy" / "x").read_bytes() == CONTENT


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from dualcba.data.disk import file_lock\n"
        "with file_lock(Path(sys.argv[1])): os._exit(9)"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    assert subprocess.run(command, env=environment, check=False).returncode == 9
    with file_lock(tmp_path / "lock"):
        pass


def test_waiting_for_a_lock_prints_a_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock"
    started = threading.Event()

    def wait() -> None:
        started.set()
        with file_lock(path, show=True):
            pass

    with file_lock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        started.wait()
        time.sleep(0.2)
    thread.join()
    assert "waiting for another process" in capfd.readouterr().err


def cifar_archive(path: Path, count: int = 20) -> bytes:
    """An archive in the layout of CIFAR-10, with few images."""
    rng = np.random.default_rng(0)
    files = {}
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        data = rng.integers(0, 256, (count, 3072), np.uint8)
        content = {b"data": data, b"labels": [k % 10 for k in range(count)]}
        files[f"cifar-10-batches-py/{name}"] = pickle.dumps(content, protocol=2)
    return make_tar(path, files).read_bytes()


def test_fetch_then_check(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cifar-10-python.tar.gz"
    server.files[name] = cifar_archive(tmp_path / "made.tar.gz")
    remote = RemoteFile(name, md5(server.files[name]), (server.address(name),))
    dataset = replace(PUBLISHED_DATASETS["cifar10"], files=(remote,))
    monkeypatch.setitem(PUBLISHED_DATASETS, "cifar10", dataset)
    with pytest.raises(FileNotFoundError, match="dualcba data fetch cifar10"):
        check("cifar10", tmp_path)
    fetch("cifar10", tmp_path, show=False)
    with pytest.raises(ValueError, match="training samples of cifar10 is 100, expected 50000"):
        check("cifar10", tmp_path)
    contents = ExpectedContents(100, 20, (3, 32, 32), 10, balanced=True)
    monkeypatch.setitem(EXPECTED_CONTENTS, "cifar10", contents)
    summary = check("cifar10", tmp_path)
    assert (summary.num_train, summary.num_test) == (100, 20)
    assert summary.train_per_class == (10, 10)
    assert str(summary) == (
        "cifar10: 100 training and 20 test samples of 3×32×32, 10 classes with 10 training samples "
        "each, as published, by counts"
    )
    monkeypatch.setitem(EXPECTED_CONTENTS, "cifar10", replace(contents, digest=summary.digest))
    assert str(check("cifar10", tmp_path)).endswith("each, as published")


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        (
            ExpectedContents(1442, 300, (1, 8, 8), 10, False),
            "number of test samples of digits is 355",
        ),
        (
            ExpectedContents(1442, 355, (1, 9, 9), 10, False),
            r"shape of a sample of digits is \(1, 8, 8\)",
        ),
        (
            ExpectedContents(1442, 355, (1, 8, 8), 11, False),
            "number of classes of digits is 10, expected 11",
        ),
        (ExpectedContents(1442, 355, (1, 8, 8), 10, True), "classes of digits differ in size"),
    ],
)
def test_check_names_what_differs(
    monkeypatch: pytest.MonkeyPatch, contents: ExpectedContents, line: str
) -> None:
    monkeypatch.setitem(EXPECTED_CONTENTS, "digits", contents)
    with pytest.raises(ValueError, match=line):
        check("digits")


@pytest.mark.parametrize("part", ["train_x", "train_y", "test_x", "test_y"])
def test_check_compares_the_content(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The counts are right, one pixel or two labels are not."""
    assert check("digits").content_as_published
    data = load_dataset("digits")
    values = getattr(data, part).clone()
    if part.endswith("x"):
        values[3, 0, 5, 2] += 1
    else:
        other = int((values != values[0]).nonzero()[0])
        values[[0, other]] = values[[other, 0]]
    monkeypatch.setattr(digits, "digits", lambda root: replace(data, **{part: values}))
    with pytest.raises(ValueError, match=r"digest of the samples and labels of digits is .* as p"):
        check("digits")


def test_check_of_a_users_own(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    y = np.array([0, 0, 0, 1, 1])
    np.savez(path, x=np.random.default_rng(0).normal(size=(5, 4)), y=y)
    summary = check(str(path))
    assert (summary.num_train, summary.num_test, summary.input_shape) == (3, 2, (4,))
    assert not summary.as_published
    assert str(summary).endswith("2 classes with 1 to 2 training samples each")
    np.savez(
        path, x=np.random.default_rng(0).normal(size=(5, 4)), y=y * 2
    )  # 0 and 2 are two classes
    assert str(check(str(path))).endswith("2 classes with 1 to 2 training samples each")


def test_published_datasets_have_expected_contents_and_valid_checksums() -> None:
    for name, dataset in PUBLISHED_DATASETS.items():
        assert name in EXPECTED_CONTENTS
        for remote in dataset.files:
            assert len(bytes.fromhex(remote.md5)) == 16
            assert len(bytes.fromhex(remote.checksum[1])) == (16 if name == "tiny-imagenet" else 32)
            assert remote.size
            assert remote.urls[0].startswith("https://")
            assert all(a.endswith("/" + remote.name) for a in remote.urls)
