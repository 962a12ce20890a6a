"""Published datasets: their files with official URLs and checksums, and their expected contents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: its name, its md5 checksum and its URLs, tried in this order.

    `size` is in bytes. The file is checked by `sha256` if that is known, else by `md5`.
    """

    name: str
    md5: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None

    @property
    def checksum(self) -> tuple[str, str]:
        """The name of the algorithm, and the checksum in hexadecimal digits."""
        return ("sha256", self.sha256) if self.sha256 else ("md5", self.md5)


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
    """The sizes of a complete dataset, and the digest of its content if it is known."""

    num_train: int
    num_test: int
    input_shape: tuple[int, ...]
    num_classes: int
    balanced: bool
    """Whether all classes have the same number of samples."""
    digest: str | None = None
    """See `Dataset.digest`; it does not depend on how files are packed or compressed."""
    labels: str | None = None
    """See `label_digest`; used where the samples depend on a decoder."""


def _mnist_files(
    base_urls: tuple[str, ...], *checksums: tuple[int, str, str]
) -> tuple[RemoteFile, ...]:
    """Return the four files of a dataset in the format of MNIST."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        _file(f"{name}-ubyte.gz", base_urls, *known)
        for name, known in zip(names, checksums, strict=True)
    )


def _file(
    name: str, base_urls: tuple[str, ...], size: int, md5: str, sha256: str | None = None
) -> RemoteFile:
    return RemoteFile(name, md5, tuple(base + name for base in base_urls), size, sha256)


_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)
_TINY = ("https://cs231n.stanford.edu/",)
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # has no https
)

PUBLISHED_DATASETS: dict[str, PublishedDataset] = {
    "cifar10": PublishedDataset(
        "cifar-10-batches-py",
        (
            _file(
                "cifar-10-python.tar.gz",
                _CIFAR,
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"),
    ),
    "cifar100": PublishedDataset(
        "cifar-100-python",
        (
            _file(
                "cifar-100-python.tar.gz",
                _CIFAR,
                169_001_437,
                "eb9058c3a382ffc7106e4002c42a8d85",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
        ("train", "test"),
    ),
    "tiny-imagenet": PublishedDataset(
        "tiny-imagenet-200",
        (  # its SHA-256 is unknown
            _file("tiny-imagenet-200.zip", _TINY, 248_100_043, "90528d7ca1a48142e341f4ef8d21d0de"),
        ),
        ("wnids.txt", "train", "val/val_annotations.txt"),
    ),
    "mnist": PublishedDataset(
        "mnist",
        _mnist_files(
            _MNIST,
            (
                9_912_422,
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            (
                28_881,
                "d53e105ee54ea40749a09fcbcd1e9432",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            (
                1_648_877,
                "9fb629c4189551a2d022fa330f9573f3",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            (
                4_542,
                "ec29112dd5afa0611ce80d1b7f02629c",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "fashion-mnist": PublishedDataset(
        "fashion-mnist",
        _mnist_files(
            _FASHION,
            (
                26_421_880,
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            (
                29_515,
                "25c81989df183df01b3e8a0aad5dffbe",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            (
                4_422_102,
                "bef4ecab320f06d8554ea6380940ec79",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            (
                5_148,
                "bb300cfdad3c16e7a12a480ee83cd310",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
}
"""The datasets that `fetch` can download, by name."""

EXPECTED_CONTENTS: dict[str, ExpectedContents] = {
    "digits": ExpectedContents(
        1442, 355, (1, 8, 8), 10, balanced=False,
        digest="9fecda42c4d41eeb85442822c1d3ec613af9b4f44b5b7254d5bf52fb0bfcc62e",
    ),
    "cifar10": ExpectedContents(
        50_000, 10_000, (3, 32, 32), 10, balanced=True,
        digest="6b0053fa9cc751e6e1710e2a90edf6a7591e1f4c85f7243c2dbe02fd34f11981",
    ),
    "cifar100": ExpectedContents(
        50_000, 10_000, (3, 32, 32), 100, balanced=True,
        digest="93c2bed7b8d0bb9fb643834d98f521cf3526dbb545c4412a38329bfc7b6dd87d",
    ),
    # The pixels of JPEG files depend on the decoder; the labels are in the order of wnids.txt.
    "tiny-imagenet": ExpectedContents(
        100_000, 10_000, (3, 64, 64), 200, balanced=True,
        labels="b5106427e71729803f18fe47d164b49d32580edf600dfeae5f4d95dad6da75c3",
    ),
    "mnist": ExpectedContents(60_000, 10_000, (1, 28, 28), 10, balanced=False),
    "fashion-mnist": ExpectedContents(
        60_000, 10_000, (1, 28, 28), 10, balanced=True,
        digest="9c41dc7f91738ef178331ade13aae78660316e061df4f80055fe70a11f12d963",
    ),
}  # fmt: skip
"""The contents that `check` expects, by name."""
