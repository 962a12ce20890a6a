"""`dualcba bench` with other frameworks, if they are installed.

usage: python -m benchmarks.sidebyside [--network mlp] [--device cpu] [--only er/bare,er/capymoa]

`--json` adds the numbers to a file. requirements-*.txt list the installed versions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.contenders import SLOW, UNSCORED, everyone, missing
from dualcba.bench.command import about, command, measure, title, versions
from dualcba.bench.setup import Setup
from dualcba.bench.table import table


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sidebyside")
    parser.add_argument("--network", default="mlp", choices=["mlp", "resnet18-slim", "resnet18"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=32, help="side of the images")
    parser.add_argument("--channels", type=int, default=3, choices=[1, 3])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--buffer", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20, help="per round; a multiple of 5")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="contenders as method/name, comma-separated; default: all")
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--conditions", default="", help="other load on the machine, for the file")
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    return parser


def main() -> None:
    parser = options()
    args = parser.parse_args()
    known = everyone()
    print("".join(f"skipped, not installed: {name}\n" for name in missing()), end="")
    named = [tuple(n.split("/")) for n in args.only.split(",")] if args.only else list(known)
    if unknown := [name for name in named if name not in known]:
        names = ", ".join("/".join(name) for name in known)
        parser.error(f"--only: unknown {'/'.join(unknown[0])!r}, expected some of {names}")
    sizes = ("network", "device", "size", "channels", "classes", "buffer")
    setup = Setup(**{name: getattr(args, name) for name in sizes})
    rows = measure(
        {name: make for name, make in known.items() if name in named}, setup,
        steps=args.steps, rounds=args.rounds, slow=SLOW, unscored=UNSCORED,
        module=None if args.no_memory else "benchmarks.alone",
    )  # fmt: skip
    Console(width=110).print(table(rows, title(setup), cuda=setup.cuda))
    if args.json:
        said = {key: getattr(args, key) for key in ("machine", "commit", "conditions")}
        entry = about(setup) | {key: value for key, value in said.items() if value}
        entry["command"] = command("python -m benchmarks.sidebyside")
        entry["versions"] |= versions("avalanche-lib", "capymoa")
        append(args.json, entry | {"rows": rows})


def append(path: Path, entry: dict[str, Any]) -> None:
    """Append an entry to a JSON file that holds a list."""
    entries = json.loads(path.read_text()) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*entries, entry], indent=1) + "\n")


if __name__ == "__main__":
    main()
