"""The command `dualcba bench`."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from dualcba.bench.alone import ask
from dualcba.bench.contenders import SLOW, contenders
from dualcba.bench.setup import Make, Setup
from dualcba.bench.table import table
from dualcba.bench.timing import Name, side_by_side
from dualcba.engine import resolve_device
from dualcba.errors import at_least, unknown
from dualcba.io import atomic_write
from dualcba.nets import NETWORKS

FILE_OPTIONS = ("--out", "--json")  # of `dualcba bench`, and of the scripts in `benchmarks/`
ASSIGNED = tuple(f"{name}=" for name in FILE_OPTIONS)


def bench(
    *,
    network: str = "mlp",
    device: str = "auto",
    methods: Sequence[str] = ("er", "er-dual-cba"),
    against: Sequence[str] = ("bare", "usual"),
    steps: int = 20,
    rounds: int = 9,
    memory: bool = True,
    out: Path | None = None,
    show: bool = True,
) -> dict[str, Any]:
    """Time dualcba and the other loops, print a table, and write the numbers to `out`."""
    at_least(1, steps=steps, rounds=rounds)
    if network not in NETWORKS:
        raise ValueError(unknown("network", network, NETWORKS))
    made = contenders(methods, against)
    setup = Setup(network=network, device=str(resolve_device(device)))
    rows = measure(
        made, setup, steps=steps, rounds=rounds, slow=SLOW, show=show,
        module="dualcba.bench" if memory else None,
    )  # fmt: skip
    entry = about(setup) | {"rows": rows}
    if show:
        Console().print(table(rows, title(setup), cuda=setup.cuda))
    if out is not None:
        with atomic_write(out) as draft:
            draft.write_text(json.dumps(entry, indent=1) + "\n")
    return entry


def measure(
    made: Mapping[Name, Make],
    setup: Setup,
    *,
    steps: int,
    rounds: int,
    slow: tuple[str, ...] = (),
    unscored: tuple[str, ...] = (),
    module: str | None = None,
    show: bool = True,
) -> list[dict[str, Any]]:
    """Return the rows of all contenders, with a progress bar.

    `module` is run in a separate process to measure each contender alone; see `bench.alone`.
    """
    rows: list[dict[str, Any]] = []
    total = len(made) * (1 + rounds + (module is not None))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        bar = progress.add_task("side by side", total=total)
        turns = side_by_side(
            made, setup, steps=steps, rounds=rounds, slow=slow, unscored=unscored
        )  # fmt: skip
        for found in turns:
            rows = found or rows
            progress.update(bar, advance=found is None)
        for row in rows if module is not None else []:
            name = row["method"], row["contender"]
            progress.update(bar, description=f"{' '.join(name)} alone")
            row |= ask(module, name, setup) if module else {}
            progress.update(bar, advance=1)
    return rows


def title(setup: Setup) -> str:
    """Return the title of the table: network, sizes and device."""
    image = "×".join(map(str, setup.shape))
    where = machine(setup.device) if setup.cuda else f"CPU, {torch.get_num_threads()} thread(s)"
    return f"{setup.network}, {image}, batch {setup.batch}, memory {setup.buffer}; {where}"


def machine(device: str) -> str:
    """Return the name of the device."""
    cuda = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if cuda else platform.machine()


def about(setup: Setup) -> dict[str, Any]:
    """Return the description at the start of a file of numbers."""
    return {
        "command": command(),
        "machine": machine(setup.device),
        "device": setup.device,
        "threads": torch.get_num_threads(),
        "versions": versions("dualcba", "torch", "numpy", "pillow"),
        "network": setup.network,
        "image": list(setup.shape),
        "classes": setup.classes,
        "buffer": setup.buffer,
    }


def command(prog: str = "dualcba") -> str:
    """Return the command line without the option for the output file."""
    words = sys.argv[1:]
    skip = {i + d for i, word in enumerate(words) if word in FILE_OPTIONS for d in (0, 1)}
    kept = [w for i, w in enumerate(words) if i not in skip and not w.startswith(ASSIGNED)]
    return shlex.join([*prog.split(), *kept])


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of these packages, if installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
