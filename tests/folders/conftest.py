"""Folders of handwritten digits as PNG files, and the command in a process of its own."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dualcba.cli.learn  # noqa: F401 - imported once instead of in each copy of this process
from dualcba.cli.app import main
from dualcba.data.readers.digits import digits

Write = Callable[..., list[Path]]

for name in (  # of reports and of torch's autograd, once as well
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "torch.fx.experimental.symbolic_shapes",
):
    importlib.import_module(name)


@pytest.fixture
def write() -> Write:
    """Writes digits of some classes as images; their times follow the order of the classes."""
    data = digits()

    def write(
        root: Path, classes: Sequence[int], count: int, *, part: str = "train", since: float = 1e9
    ) -> list[Path]:
        x, y = (data.train_x, data.train_y) if part == "train" else (data.test_x, data.test_y)
        paths = []
        for c in classes:
            for k in (y == c).nonzero()[:count, 0].tolist():
                path = root / f"digit-{c}" / f"{k:04}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = x[k, 0].numpy()
                Image.fromarray(pixels.astype(np.uint8)).save(path)
                os.utime(path, (since + len(paths), since + len(paths)))
                paths.append(path)
        return paths

    return write


class Process:
    """The command line in a copy of this process, which has imported torch."""

    def __init__(
        self, log: Path, *args: object, prepare: Callable[[], None] = lambda: None
    ) -> None:
        self.log = log
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stdout = sys.stderr = log.open("a", buffering=1)
            sys.argv = ["dualcba", *map(str, args)]
            torch.set_num_threads(1)
            prepare()
            main()
        except SystemExit as stop:
            os._exit(stop.code if isinstance(stop.code, int) else 0)
        finally:
            os._exit(70)

    def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal that killed it."""
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def kill(self, number: int) -> int:
        """Send a signal, and wait for the end."""
        os.kill(self.pid, number)
        return self.wait()

    def until(self, what: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until something is so."""
        give_up = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts the command line; processes that still run at the end are killed."""
    begun: list[Process] = []

    def start(*args: object, **more: Any) -> Process:
        begun.append(Process(tmp_path / f"log-{len(begun)}", *args, **more))
        return begun[-1]

    yield start
    for process in begun:
        if process.pid:
            process.kill(signal.SIGKILL)
