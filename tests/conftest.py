"""What the tests share: a tiny dataset, a learner factory, ways to compare and to run commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic CUDA, set before torch

import hypothesis
import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn

from dualcba import Dataset, Learner, from_arrays
from dualcba.data import disjoint
from dualcba.nets import MLP

CLASSES, SHAPE = 6, (3, 8, 8)

torch.set_num_threads(1)  # the tensors are tiny; threads only get in each other's way
hypothesis.settings.register_profile("dualcba", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.load_profile("dualcba")


def pytest_configure() -> None:
    """Let signals interrupt: they are ignored in the background of a script or under nohup."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def random_images(per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise around one random picture per class: learnable, and no two images alike."""
    pictures = np.random.default_rng(99).uniform(40, 215, (CLASSES, *SHAPE))
    rng = np.random.default_rng(seed)
    y = np.tile(np.arange(CLASSES), per_class)
    x = pictures[y] + rng.normal(0, 25, (len(y), *SHAPE))
    return x.clip(0, 255).astype(np.uint8), y


@pytest.fixture
def exact() -> Iterator[None]:
    """Deterministic algorithms, full float32."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a step that had to go on eagerly
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        yield
    torch.use_deterministic_algorithms(before[0])
    torch.backends.cudnn.benchmark = before[1]
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before[2:]


@pytest.fixture(scope="session")
def images() -> Dataset:
    """Six classes of 24 training and 5 test images, 3×8×8, uint8, with crop and flip."""
    x, y = random_images(24, seed=0)
    tx, ty = random_images(5, seed=1)
    return from_arrays(x, y, tx, ty, num_classes=CLASSES, pad=1, flip=True, name="images")


def small_net(seed: int = 0, *, norm: bool = True, bias: bool = True) -> nn.Module:
    """A convolution, a normalisation, a linear head; its weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=not norm),
            nn.BatchNorm2d(6) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6 * 4 * 4, 12, bias=not norm),
            nn.BatchNorm1d(12) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Linear(12, CLASSES, bias=bias),
        )


@pytest.fixture(scope="session")
def make_net() -> Callable[..., nn.Module]:
    """`small_net`, to be called."""
    return small_net


@pytest.fixture
def make_learner(images: Dataset) -> Callable[..., Learner]:
    """A learner for `images` on the CPU, with whatever arguments a test wants."""

    def make(
        method: Any = "er-dual-cba", network: nn.Module | None = None, **given: Any
    ) -> Learner:
        options: dict[str, Any] = {
            "buffer": 20,
            "batch_size": 8,
            "lr": 0.05,
            "transform": images.transform(),
            "device": "cpu",
        }
        if str(method).endswith("cba") or given.get("adaptor"):
            options |= {"outer_every": 2, "width": 16}
        options |= given
        return Learner(network or small_net(), SHAPE, CLASSES, method=method, **options)

    return make


@pytest.fixture
def vectors() -> Callable[..., Learner]:
    """A learner for vectors of five numbers and four classes on the CPU, by ER unless said."""

    def make(**given: Any) -> Learner:
        torch.manual_seed(0)
        options = {"method": "er", "buffer": 8, "batch_size": 4, "dtype": torch.float32, "lr": 0.1}
        return Learner(MLP((5,), 4, width=6), (5,), 4, **(options | given), device="cpu")

    return make


@pytest.fixture
def make_batches(images: Dataset) -> Callable[..., list[list[tuple[Tensor, Tensor]]]]:
    """Batches of raw samples, one list per task."""

    def make(
        tasks: int = 3, steps: int = 5, size: int = 8, seed: int = 0
    ) -> list[list[tuple[Tensor, Tensor]]]:
        rng = np.random.default_rng(seed)
        stream = []
        for task in disjoint(images, tasks):
            rows = [rng.choice(task.train, size, replace=False) for _ in range(steps)]
            stream.append([(images.train_x[r], images.train_y[r]) for r in rows])
        return stream

    return make


@pytest.fixture
def teach(make_batches: Callable[..., Any]) -> Callable[..., Learner]:
    """Teach a learner some tasks of `images`."""

    def run(
        learner: Learner, tasks: int = 2, steps: int = 5, of: int = 3, size: int = 8
    ) -> Learner:
        for k, batches in enumerate(make_batches(of, steps, size)[:tasks]):
            learner.new_task(range(k * CLASSES // of, (k + 1) * CLASSES // of))
            for x, y in batches:
                learner.observe(x, y)
        return learner

    return run


def leaves(state: dict[str, Any]) -> dict[str, Any]:
    """A state as bytes by name, and its meta data: equal if and only if every byte is."""
    out: dict[str, Any] = {"meta": repr(state["meta"])}
    for name, t in state["tensors"].items():
        out[name] = (t.dtype, tuple(t.shape), t.cpu().contiguous().numpy().tobytes())
    return out


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names of the entries in which two states differ."""
    one, two = leaves(a), leaves(b)
    return sorted(k for k in one.keys() | two.keys() if one.get(k) != two.get(k))


@pytest.fixture(scope="session")
def differ() -> Callable[[dict[str, Any], dict[str, Any]], list[str]]:
    """`differences`, to be called."""
    return differences


@dataclass
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()

    @property
    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*"))


@pytest.fixture
def dualcba(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Run the command line in this process, in an empty folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()

    def run(*args: object) -> Outcome:
        from dualcba.cli.app import main

        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dualcba", *map(str, args)])
        capfd.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capfd.readouterr()
        assert isinstance(code, int)
        return Outcome(code, out, err, folder)

    return run


@pytest.fixture
def dry_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Run the command line in this process, without training anything."""
    import dualcba.cli.reproduce as reproduce
    import dualcba.cli.run as run
    from dualcba.cli.app import main

    for module in (run, reproduce):
        monkeypatch.setattr(module, "run_with_progress", lambda *_, **__: [])
        monkeypatch.setattr(module, "check_all", lambda *_: None)
    monkeypatch.setattr(reproduce, "_how_long", lambda *_: "")
    monkeypatch.setattr(reproduce, "write_files", lambda *_: [])
    monkeypatch.setattr(typer.main, "get_command", cache(typer.main.get_command))  # it is slow
    monkeypatch.chdir(tmp_path)

    def invoke(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dualcba", *words])
        capsys.readouterr()
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0), capsys.readouterr().err
        except Exception:
            return 1, traceback.format_exc()
        raise AssertionError("main returned, expected that it exits")

    return invoke


@pytest.fixture
def interpreted() -> Callable[[str], None]:
    """Runs code where Triton's kernels are NumPy; skips where there is no Triton, or a GPU."""
    if find_spec("triton") is None or torch.cuda.is_available():
        pytest.skip("needs Triton, and no GPU, which would run the kernels itself")
    root = Path(__file__).parents[1]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}

    def run(code: str) -> None:
        command = [sys.executable, "-c", code]
        subprocess.run(command, check=True, env=environment, cwd=root, timeout=300)

    return run
