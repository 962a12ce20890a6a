"""Published datasets: their files with official URLs and checksums, and their expected contents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: its name, its md5 checksum and its URLs, tried in this order."""

    name: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class PublishedDataset:
    """A dataset that can be downloaded."""

    folder: str
    """The folder that holds the dataset after the download."""
    files: tuple[RemoteFile, ...]
    unpacked: tuple[str, ...] = ()
    """Paths that must exist in `folder` after unpacking; empty if `files` are not archives."""


@dataclass(frozen=True)
class ExpectedContents:
    """The sizes that a complete dataset has."""

    num_train: int
    num_test: int
    input_shape: tuple[int, ...]
    num_classes: int
    balanced: bool
    """Whether all classes have the same number of samples."""


def _file(name: str, md5: str, *base_urls: str) -> RemoteFile:
    return RemoteFile(name, md5, tuple(base + name for base in base_urls))


def _mnist_files(base_urls: tuple[str, ...], *md5s: str) -> tuple[RemoteFile, ...]:
    """Return the four files of a dataset in the format of MNIST."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    pairs = zip(names, md5s, strict=True)
    return tuple(_file(f"{name}-ubyte.gz", md5, *base_urls) for name, md5 in pairs)


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_TINY = "http://cs231n.stanford.edu/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)

PUBLISHED_DATASETS: dict[str, PublishedDataset] = {
    "cifar10": PublishedDataset(
        "cifar-10-batches-py",
        (_file("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", _CIFAR),),
        (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"),
    ),
    "cifar100": PublishedDataset(
        "cifar-100-python",
        (_file("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", _CIFAR),),
        ("train", "test"),
    ),
    "tiny-imagenet": PublishedDataset(
        "tiny-imagenet-200",
        (_file("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", _TINY),),
        ("wnids.txt", "train", "val/val_annotations.txt"),
    ),
    "mnist": PublishedDataset(
        "mnist",
        _mnist_files(
            _MNIST,
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": PublishedDataset(
        "fashion-mnist",
        _mnist_files(
            _FASHION,
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
"""The datasets that `fetch` can download, by name."""

EXPECTED_CONTENTS: dict[str, ExpectedContents] = {
    "digits": ExpectedContents(1442, 355, (1, 8, 8), 10, balanced=False),
    "cifar10": ExpectedContents(50_000, 10_000, (3, 32, 32), 10, balanced=True),
    "cifar100": ExpectedContents(50_000, 10_000, (3, 32, 32), 100, balanced=True),
    "tiny-imagenet": ExpectedContents(100_000, 10_000, (3, 64, 64), 200, balanced=True),
    "mnist": ExpectedContents(60_000, 10_000, (1, 28, 28), 10, balanced=False),
    "fashion-mnist": ExpectedContents(60_000, 10_000, (1, 28, 28), 10, balanced=True),
}
"""What `check` compares each dataset with, by name."""
