"""dualcba beside what one would use instead, on the same data, network and batches.

usage: python -m benchmarks.sidebyside [--network mlp] [--device cpu] [--steps 20] [--only er-bare]

Contenders take turns (A B C A B C …), so that whatever else the machine does hits all of them;
times are medians over the rounds, ratios are medians of each round's own ratio to dualcba. Peak
resident memory comes from a process of its own for each. `--json` adds the numbers to a file.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import dualcba
from benchmarks import avalanche_replay
from benchmarks.avalanche_replay import Avalanche
from benchmarks.bare import BareDual, BareER
from benchmarks.common import Contender, Setup
from benchmarks.ours import Ours
from benchmarks.usual import UsualDual, UsualER

CONTENDERS: dict[str, Callable[[Setup], Contender]] = {
    "er-dualcba": lambda s: Ours(s, "er"),
    "er-dualcba-observe": lambda s: Ours(s, "er", checked=True),
    "er-bare": BareER,
    "er-usual": UsualER,
    "er-avalanche": Avalanche,
    "er-avalanche-plain": lambda s: Avalanche(s, augmented=False),
    "dual-dualcba": lambda s: Ours(s, "er-dual-cba"),
    "dual-bare": BareDual,
    "dual-usual": UsualDual,
}
EVALUATED = 500
SLOW = ("usual", "avalanche")  # fewer steps a round: they are many times slower


def seconds(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Timed:
    """A contender with its place in the stream and its times, per step and per image."""

    def __init__(self, name: str, setup: Setup, steps: int) -> None:
        self.contender = CONTENDERS[name](setup)
        self.setup = setup
        slow = any(word in name for word in SLOW)
        self.steps = max(setup.outer_every, steps // 4 // 5 * 5) if slow else steps
        self.k = 0
        self.step_times: list[float] = []
        self.evaluation_times: list[float] = []
        self.advance(setup.first + setup.outer_every)

    def advance(self, steps: int) -> None:
        """So many steps on."""
        for k in range(self.k, self.k + steps):
            self.contender.step(k)
        self.k += steps

    def round(self, evaluate: bool) -> None:
        """Time some steps and, where asked, one evaluation."""
        device = self.setup.device
        self.step_times.append(seconds(lambda: self.advance(self.steps), device) / self.steps)
        if evaluate:
            took = seconds(lambda: self.contender.evaluate(EVALUATED), device)
            self.evaluation_times.append(took / EVALUATED)


def side_by_side(names: list[str], setup: Setup, steps: int, rounds: int) -> dict[str, Any]:
    timed = {name: Timed(name, setup, steps) for name in names}
    gc.collect()
    for r in range(rounds):
        for name in names if r % 2 == 0 else names[::-1]:
            timed[name].round(evaluate="avalanche" not in name)
    return {name: _row(name, timed) for name in names}


def _row(name: str, timed: dict[str, Timed]) -> dict[str, Any]:
    own, base = timed[name], timed.get(name.split("-")[0] + "-dualcba")
    step = float(np.median(own.step_times))
    row: dict[str, Any] = {
        "ms_per_step": round(1e3 * step, 4),
        "quartiles_ms": (1e3 * np.quantile(own.step_times, [0.25, 0.75])).round(4).tolist(),
        "samples_per_second": round(own.setup.batch / step),
    }  # fmt: skip
    if base is not None:
        ratios = np.array(own.step_times) / np.array(base.step_times)
        row["ratio_to_dualcba"] = round(float(np.median(ratios)), 3)
    if own.evaluation_times:
        row["us_per_evaluated_image"] = round(1e6 * float(np.median(own.evaluation_times)), 2)
    return row


def peak_memory(name: str, arguments: list[str]) -> float | None:
    """MiB, in a process that runs this contender alone; for scale, an idle one is included."""
    command = [sys.executable, "-m", "benchmarks.sidebyside", *arguments, "--alone", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def peak() -> float:
    """Peak resident memory of this process in MiB; `ru_maxrss` would count the parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def alone(name: str, setup: Setup, steps: int) -> None:
    if name != "idle":
        contender = CONTENDERS[name](setup)
        for k in range(setup.first + steps):
            contender.step(k)
    print(round(peak(), 1))


def versions() -> dict[str, str]:
    out = {"dualcba": dualcba.__version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "pillow", "avalanche-lib"):
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def show(title: str, rows: dict[str, Any]) -> None:
    table = Table(title=title)
    columns = {
        "ms_per_step": "ms/step", "ratio_to_dualcba": "ratio", "samples_per_second": "samples/s",
        "us_per_evaluated_image": "µs/evaluated image", "peak_mib": "peak MiB",
    }  # fmt: skip
    table.add_column("contender")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for name, row in rows.items():
        table.add_row(name, *[str(row.get(key, "–")) for key in columns])
    Console(width=110).print(table)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sidebyside")
    parser.add_argument("--network", default="mlp", choices=["mlp", "resnet18-slim", "resnet18"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--channels", type=int, default=3, choices=[1, 3])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20, help="per round; a multiple of 5")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="names of contenders, with commas; all by default")
    parser.add_argument("--machine", default="", help="what kind of machine this is, for the file")
    parser.add_argument("--no-memory", action="store_true", help="spare the processes for memory")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = options()
    args = parser.parse_args()
    setup = Setup(
        network=args.network, device=args.device, size=args.size, channels=args.channels,
        classes=args.classes, buffer=args.buffer,
    )  # fmt: skip
    if args.alone:
        alone(args.alone, setup, args.steps)
        return
    names = args.only.split(",") if args.only else list(CONTENDERS)
    if unknown := [name for name in names if name not in CONTENDERS]:
        parser.error(f"--only: unknown {unknown[0]!r}, expected some of {', '.join(CONTENDERS)}")
    if not avalanche_replay.available():
        print("avalanche-lib is not installed")
        names = [name for name in names if "avalanche" not in name]
    rows = side_by_side(names, setup, args.steps, args.rounds)
    if not args.no_memory:
        sizes = [f"--{k}={getattr(args, k)}" for k in ("network", "device", "size", "channels", "classes", "buffer")]  # noqa: E501  # fmt: skip
        rows["idle"] = {}
        for name, row in rows.items():
            row["peak_mib"] = peak_memory(name, sizes)
    title = f"{args.network}, {args.device}, {args.channels}x{args.size}x{args.size} images"
    show(f"{title}, {torch.get_num_threads()} threads", rows)
    if args.json:
        entry = {
            "command": "python -m benchmarks.sidebyside " + " ".join(_without_json(sys.argv[1:])),
            "machine": args.machine, "threads": torch.get_num_threads(),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"), "versions": versions(),
            "network": args.network, "image": [args.channels, args.size, args.size],
            "rows": rows,
        }  # fmt: skip
        append(args.json, entry)


def _without_json(arguments: list[str]) -> list[str]:
    """The command without where its output went, which is nobody else's concern."""
    skip = {i + d for i, a in enumerate(arguments) if a == "--json" for d in (0, 1)}
    return [
        f'"{a}"' if " " in a else a
        for i, a in enumerate(arguments)
        if i not in skip and not a.startswith("--json=")
    ]


def append(path: Path, entry: dict[str, Any]) -> None:
    """Add one entry to a file that holds a list of them."""
    entries = json.loads(path.read_text()) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*entries, entry], indent=1) + "\n")


if __name__ == "__main__":
    main()
