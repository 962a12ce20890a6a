"""Published datasets: their official addresses with checksums, and what they are known to hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """One published file: its name, its md5 and where it lies, tried in this order."""

    name: str
    md5: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The files of a dataset and the folder they make; `holds` is empty if nothing is unpacked."""

    folder: str
    files: tuple[Remote, ...]
    holds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a dataset is known to hold; `balanced`: every class has as many samples."""

    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    balanced: bool


def _at(name: str, md5: str, *bases: str) -> Remote:
    return Remote(name, md5, tuple(base + name for base in bases))


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_TINY = "http://cs231n.stanford.edu/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        "cifar-10-batches-py",
        (_at("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", _CIFAR),),
        (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"),
    ),
    "cifar100": Source(
        "cifar-100-python",
        (_at("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", _CIFAR),),
        ("train", "test"),
    ),
    "tiny-imagenet": Source(
        "tiny-imagenet-200",
        (_at("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", _TINY),),
        ("wnids.txt", "train", "val/val_annotations.txt"),
    ),
    "mnist": Source(
        "mnist",
        (
            _at("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", *_MNIST),
            _at("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", *_MNIST),
            _at("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", *_MNIST),
            _at("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", *_MNIST),
        ),
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        (
            _at("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", *_FASHION),
            _at("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", *_FASHION),
            _at("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", *_FASHION),
            _at("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", *_FASHION),
        ),
    ),
}
"""What can be fetched, by name."""

FACTS: dict[str, Facts] = {
    "digits": Facts(1442, 355, (1, 8, 8), 10, balanced=False),
    "cifar10": Facts(50_000, 10_000, (3, 32, 32), 10, balanced=True),
    "cifar100": Facts(50_000, 10_000, (3, 32, 32), 100, balanced=True),
    "tiny-imagenet": Facts(100_000, 10_000, (3, 64, 64), 200, balanced=True),
    "mnist": Facts(60_000, 10_000, (1, 28, 28), 10, balanced=False),
    "fashion-mnist": Facts(60_000, 10_000, (1, 28, 28), 10, balanced=True),
}
"""What `check` compares with, by name."""
