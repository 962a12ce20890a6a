"""Measure peak memory and time to the first step of one contender in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dualcba.bench.setup import Make, Setup
from dualcba.bench.timing import Name, seconds

STEPS = 20  # in the second task


def peak() -> float | None:
    """Return the peak resident memory of this process in MiB, or None if it is not available.

    `ru_maxrss` is not used: it includes the parent process.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(s.split()[1]) / 1024 for s in lines if s.startswith("VmHWM")), None)


def measure(make: Make, setup: Setup) -> dict[str, float | None]:
    """Build a contender, make a few steps of both tasks, and return time and memory."""
    held = []

    def begin() -> None:
        held.append(make(setup))
        held[0].step(0)

    first = seconds(begin, setup.device)
    for k in range(1, setup.first + STEPS):
        held[0].step(k)
    host = peak()
    found = {"first_step_s": round(first, 3), "peak_mib": host if host is None else round(host, 1)}
    if setup.cuda:
        found["peak_gpu_mib"] = round(torch.cuda.max_memory_allocated(setup.device) / 2**20, 1)
    return found


def ask(module: str, name: Name, setup: Setup) -> dict[str, Any]:
    """Run `python -m module`, which calls `main` below; return {} if it fails."""
    command = [sys.executable, "-m", module, *name, json.dumps(asdict(setup))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def main(known: Mapping[Name, Make]) -> None:
    """Measure the contender named on the command line and print the result as JSON."""
    method, contender, setup = sys.argv[1:]
    print(json.dumps(measure(known[method, contender], Setup(**json.loads(setup)))))
