"""Run variants of the adaptor on several streams and base methods, and print a table.

usage: python -m tools.variants OUT.json [--file tools/frontier.toml] [--only plain,dual-cba]
           [--streams digits,cifar10] [--base er,derpp] [--seeds 5] [--test] [--abreast 8]
           [--protocol p10] [--set eval_every=20] [--most-cost 3] [--best 8] [--leave-one-out NAME]

A TOML file, by default `tools/variants.toml`, names the variants and the streams. A variant has
options of `dualcba run` and, as parts of the method's name, `base`, `teacher` and `adaptor`;
without a `base` it is run with each of `--base`. `--most-cost` skips variants whose step costs more
than this number of steps of ER. `--best 8` runs only the eight variants with the highest scores in
OUT.json. `--leave-one-out` runs a variant, and the variant without each of its parts.

Runs are scored on a validation split of the training data; `--test` scores them on the test data.
OUT.json has every run with its scores, options, seed and commit. It is written after each run, and
runs in it are not repeated. A failed run is reported, and the others continue.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dualcba.errors import expected, unknown
from dualcba.evaluation import STATISTICS, interval
from dualcba.experiments import Hardware, Loader, Spec, read_toml
from dualcba.experiments.pool import (
    RunUpdate,
    process_count,
    run_specs,
    run_specs_in_processes,
)
from dualcba.experiments.relative_cost import step_flops
from dualcba.io import write_json
from dualcba.options import definitions
from tools import search
from tools.search import Place, Values

TABLE = Path(__file__).with_suffix(".toml")
SHOWN = ("acc", "acc_auc", "prequential", "fm", "newest", "newest_recall")
QUIET = 30.0
"""Seconds between two lines of progress."""

Fields = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """One run: its place in the table, and its options."""

    variant: str
    stream: str
    base: str
    seed: int
    options: Fields

    @cached_property
    def spec(self) -> Spec:
        """The spec of the run."""
        return Spec(**self.options, seed=self.seed)

    @property
    def place(self) -> Fields:
        """The names that identify the run."""
        return {name: getattr(self, name) for name in ("variant", "stream", "base", "seed")}

    def __str__(self) -> str:
        base = f"{self.base}, " if self.base else ""
        return f"{self.variant}, {self.stream}, {base}seed {self.seed}"


def plan(table: Fields, args: argparse.Namespace) -> Iterator[Planned]:
    """Yield the selected runs, seed by seed."""
    variants = chosen_variants(table, args)
    streams = chosen("stream", table["streams"], args.streams)
    shared = table.get("defaults", {}) | {"validation": 0.0 if args.test else args.validation}
    shared |= {"protocol": args.protocol} if args.protocol else {}
    for seed in range(args.seed, args.seed + args.seeds):
        for stream, data in streams.items():
            given = shared | data | dict(args.set)
            free = {name: own for name, own in variants.items() if "base" not in own}
            for base in args.base if free else ():
                for name, own in free.items():
                    yield Planned(name, stream, base, seed, composed(own, base, given))
            for name, own in variants.items():
                if "base" in own:
                    yield Planned(name, stream, "", seed, composed(own, own["base"], given))


def chosen_variants(table: Fields, args: argparse.Namespace) -> Fields:
    """Return the selected variants, or with `--leave-one-out` one without each of its parts."""
    if args.leave_one_out is None:
        return chosen("variant", table["variants"], args.only)
    (own,) = chosen("variant", table["variants"], [args.leave_one_out]).values()
    return chosen("variant", search.leave_one_out(args.leave_one_out, own), args.only)


def composed(own: Fields, base: str, given: Fields) -> Fields:
    """Return the options of a variant; the parts of the method's name make one option."""
    own = {name: value for name, value in own.items() if name != "base"}
    teacher, kind = (own.pop(part, "") for part in ("teacher", "adaptor"))
    method = search.method_name(base, teacher, kind)
    return fitting(given, kind) | own | {"method": method}


def fitting(options: Fields, kind: str) -> Fields:
    """Drop options of other kinds of adaptors, since defaults apply to all variants."""
    known = definitions(Spec)
    others = {n for n, o in known.items() if o.adaptors and kind not in o.adaptors}
    return {name: value for name, value in options.items() if name not in others}


def chosen(what: str, known: Fields, names: Sequence[str] | None) -> Fields:
    """Return the entries of a table that are named, or all."""
    for name in names or ():
        if name not in known:
            raise ValueError(unknown(what, name, known))
    return {name: known[name] for name in names or known}


# ---------------------------------------------------------------------- a part of the plan


def affordable(
    planned: list[Planned], collected: Collected, args: argparse.Namespace
) -> list[Planned]:
    """Drop variants whose step costs more than `--most-cost` steps of ER, with a note."""
    if args.most_cost is None:
        return planned
    if args.best is not None:  # it only chooses among variants that were run
        tried = {run["variant"] for run in collected.content["runs"]}
        planned = [one for one in planned if one.variant in tried]
    costs = count_costs(planned, collected, args)
    dear = {where for where, cost in costs.items() if cost > args.most_cost}
    for variant, stream in sorted(dear):
        cost = f"costs {costs[variant, stream]:.2f} steps of ER"
        print(f"left out: {variant}, {stream}, {cost}", file=sys.stderr)
    return [one for one in planned if (one.variant, one.stream) not in dear]


def count_costs(
    planned: Sequence[Planned], collected: Collected, args: argparse.Namespace
) -> dict[tuple[str, str], float]:
    """Return the cost of each variant on each stream, from the file if it is known."""
    known = {(c["variant"], c["stream"]): c for c in collected.content.get("costs", [])}
    firsts = {(one.variant, one.stream): one for one in reversed(planned)}
    new = {
        where: (one.spec, reference(one, args))
        for where, one in reversed(firsts.items())
        if where not in known or known[where]["options"] != one.options
    }
    load, hardware = Loader(args.data_dir), Hardware(device=args.device)

    def flops(spec: Spec) -> float:
        try:
            return step_flops(spec, load(spec), hardware) / spec.batch_size  # for each new sample
        except ValueError as error:
            sys.exit(f"error: {spec.method} on {spec.dataset}: {error}")

    found = search.relative_costs(new, flops)
    for where, cost in found.items():
        entry = {"variant": where[0], "stream": where[1], "cost": cost}
        known[where] = entry | {"options": firsts[where].options}
    collected.content["costs"] = list(known.values())
    return {where: known[where]["cost"] for where in firsts}


def reference(one: Planned, args: argparse.Namespace) -> Spec:
    """Return the spec of ER with the options common to all variants on a stream."""
    table = read_toml(args.file)
    given = table.get("defaults", {}) | table["streams"][one.stream]
    given |= ({"protocol": args.protocol} if args.protocol else {}) | dict(args.set)
    return Spec(**composed({}, "er", given), validation=one.spec.validation)


def best(planned: list[Planned], collected: Collected, args: argparse.Namespace) -> list[Planned]:
    """Return only runs of the `--best` variants with the highest scores, if it is given."""
    if args.best is None:
        return planned
    runs = collected.content["runs"]
    found = search.ranked(values(planned, runs, args.by, s) for s in args.statistics)[: args.best]
    if not found:
        sys.exit(f"error: --best {args.best}: {args.out} holds no run of these variants")
    costs = {c["variant"]: c["cost"] for c in collected.content.get("costs", [])}
    print(search.lines(found, costs, args.by), file=sys.stderr)
    names = dict(found)
    return [one for one in planned if one.variant in names]


# ---------------------------------------------------------------------- the file


class Collected:
    """The output file with all runs so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        empty: Fields = {"commands": [], "runs": [], "failed": []}
        self.content = json.loads(path.read_text("utf-8")) if path.exists() else empty

    def begin(self, arguments: Sequence[str], module: str = "tools.variants") -> None:
        """Record the command, and clear earlier failures."""
        command = shlex.join(["python", "-m", module, *arguments])
        if command not in self.content["commands"]:
            self.content["commands"].append(command)
        self.content["failed"] = []
        self.write()

    def add(self, part: str, entry: Fields) -> None:
        """Add an entry to a part of the content, and write the file."""
        self.content[part].append(entry)
        self.write()

    def write(self) -> None:
        """Write the file."""
        write_json(self.path, self.content)

    def holds(self, planned: Planned) -> bool:
        """Return whether the file has a run with the same names and spec."""
        return any(same(run, planned) for run in self.content["runs"])


def same(run: Fields, planned: Planned) -> bool:
    """Return whether a run in the file is the planned one, with defaults filled in."""
    if any(run[name] != value for name, value in planned.place.items()):
        return False
    try:
        return Spec(**run["options"], seed=run["seed"]) == planned.spec
    except (TypeError, ValueError):  # an option of another version
        return False


def entry(planned: Planned, result: Fields, commit: str) -> Fields:
    """Return the entry of a run in the file."""
    scores = {s: {name: rounded(v) for name, v in result["scores"][s].items()} for s in STATISTICS}
    tasks = {s: [rounded(v) for v in result["accuracy_matrix"][s][-1]] for s in STATISTICS}
    seconds = round(result["seconds"]["total"], 2)
    device = result["versions"]["device"]
    made = {"seconds": seconds, "device": device, "commit": commit}
    return {**planned.place, "scores": scores, "tasks": tasks, "options": planned.options, **made}


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def current_commit() -> str:
    """Return the commit of the checkout; `unknown` without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ---------------------------------------------------------------------- the runs


def run(waiting: list[Planned], collected: Collected, args: argparse.Namespace) -> None:
    """Make the planned runs; equal specs of several variants are run once."""
    by_spec = grouped(waiting)
    specs = [group[0].spec for group in by_spec.values()]
    progress = Progress(len(specs))

    def failed(spec: Spec, error: Exception) -> None:
        note_failure(by_spec[text(spec)], error, collected)
        progress.failed += 1

    with folder(args.runs) as out, closing(updates(specs, out, args, failed)) as found:
        for update in found:
            for one in by_spec[text(update.spec)] if update.result else ():
                collected.add("runs", entry(one, update.result, args.commit))
            progress.show(update)


def grouped(planned: Iterable[Planned]) -> dict[str, list[Planned]]:
    """Return planned runs by the text of their specs."""
    found: dict[str, list[Planned]] = {}
    for one in planned:
        found.setdefault(text(one.spec), []).append(one)
    return found


def note_failure(group: Sequence[Planned], error: Exception, collected: Collected) -> None:
    """Print the failed runs of one spec, and add them to the file."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    for one in group:
        print(f"failed: {one}: {reason}", file=sys.stderr, flush=True)
        collected.add("failed", {**one.place, "error": reason, "options": one.options})


def text(spec: Spec) -> str:
    """Return all fields of a spec as text, which is unique, unlike the digest in its name."""
    return json.dumps(spec.to_dict(), sort_keys=True)


def updates(specs: list[Spec], out: Path, args: argparse.Namespace, failed: Any) -> Any:
    """Run specs in this process or in several, as `dualcba run` does."""
    hardware, load = Hardware(device=args.device), Loader(args.data_dir)
    jobs = process_count(args.jobs, len(specs), hardware, abreast=args.abreast)
    if jobs > 1:
        return run_specs_in_processes(specs, load, hardware, out, jobs, failed=failed)
    return run_specs(specs, load, hardware, out, abreast=args.abreast, every=0, failed=failed)


@contextmanager
def folder(given: Path | None) -> Iterator[Path]:
    """Yield the given folder for the results of all runs, or a temporary one."""
    if given is not None:
        yield given
        return
    with TemporaryDirectory() as name:
        yield Path(name)


class Progress:
    """Prints a line of progress every `QUIET` seconds."""

    def __init__(self, runs: int) -> None:
        self.runs, self.done, self.failed = runs, 0, 0
        self.begun = self.said = time.monotonic()

    def show(self, update: RunUpdate) -> None:
        """Count a complete run, and print a line if it is due."""
        self.done += update.result is not None
        now = time.monotonic()
        if now - self.said > QUIET or (self.done + self.failed == self.runs and update.result):
            self.said = now
            line = f"{self.done} of {self.runs} runs, {self.failed} failed"
            print(f"{line}, {now - self.begun:.0f} s", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- the table


def values(
    planned: Sequence[Planned], runs: Sequence[Fields], score: str, statistics: str
) -> Values:
    """Return a score of the planned runs in the file."""
    found: dict[Place, dict[int, float]] = {}
    for one in planned:
        scores = [r["scores"][statistics].get(score) for r in runs if same(r, one)]
        if scores and scores[0] is not None:
            found.setdefault((one.variant, one.stream, one.base), {})[one.seed] = scores[0]
    return found


def minus(found: Values, variant: str) -> Values:
    """Return the differences from one variant on common seeds."""
    return {
        (name, *where): {k: v - first[k] for k, v in by_seed.items() if k in first}
        for (name, *where), by_seed in found.items()
        for first in (found.get((variant, *where), {}),)
    }


def show(planned: Sequence[Planned], found: Values, title: str, *, sign: bool = False) -> str:
    """Return a table: variants in rows, streams and base methods in columns."""
    columns = list(dict.fromkeys((one.stream, one.base) for one in planned))
    lines = [[title, *(f"{stream} {base}".strip() for stream, base in columns)]]
    for variant in dict.fromkeys(one.variant for one in planned):
        cells = [cell([*found.get((variant, *c), {}).values()], sign=sign) for c in columns]
        lines.append([variant, *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def cell(numbers: list[float], *, sign: bool = False) -> str:
    """Return mean ± half-width of the 95 % interval over seeds.

    >>> cell([1.0, 2.0, 3.0]), cell([1.0], sign=True), cell([])
    ('2.0±2.5', '+1.0', '–')
    """
    if not numbers:
        return "–"
    mean, half = interval(numbers)
    return f"{mean:{'+' if sign else ''}.1f}" + ("" if half is None else f"±{half:.1f}")


# ---------------------------------------------------------------------- the command


def words(text: str) -> list[str]:
    return re.split(r",(?! )", text)  # a name may have ", " in it


def name_and_value(text: str) -> tuple[str, Any]:
    """Parse `name=value` with a TOML value, or else a plain text."""
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(expected("--set", text, "name=value"))
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("out", type=Path, help="the JSON file")
    parser.add_argument("--file", type=Path, default=TABLE, help="variants and streams, as TOML")
    parser.add_argument("--only", type=words, help="names of variants; by default all")
    parser.add_argument("--streams", type=words, help="names of streams; by default all")
    parser.add_argument("--base", type=words, default=["er", "derpp"], help="base methods")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--validation", type=float, default=0.1, help="fraction held out")
    parser.add_argument("--protocol", help="protocol of all runs; by default that of the file")
    parser.add_argument("--most-cost", type=float, help="largest cost of a step, in steps of ER")
    parser.add_argument("--best", type=int, help="run only the best variants in OUT.json")
    parser.add_argument("--by", default="acc", help="the score that --best compares")
    parser.add_argument(
        "--leave-one-out", metavar="NAME", help="a variant to run, also without each of its parts"
    )
    parser.add_argument("--test", action="store_true", help="score on the test data")
    parser.add_argument("--set", type=name_and_value, action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--abreast", type=int, default=1, help="runs side by side on a GPU")
    parser.add_argument("--jobs", type=int, help="processes on a CPU")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, help="folder for complete results, else not kept")
    parser.add_argument("--show", type=words, default=list(SHOWN), help="scores to print")
    parser.add_argument("--statistics", type=words, default=["ibn"])
    parser.add_argument("--against", help="show the differences from this variant, seed by seed")
    parser.add_argument("--table", action="store_true", help="only print the tables")
    parser.add_argument("--commit", default=None, help="by default the current commit of git")
    args = parser.parse_args(arguments)
    args.commit = args.commit or current_commit()
    return args


def check(planned: Sequence[Planned]) -> None:
    """Exit with an error if a planned run is not valid."""
    for one in planned:
        try:
            _ = one.spec
        except (ValueError, TypeError) as error:
            sys.exit(f"error: {one}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    collected = Collected(args.out)
    try:
        planned = list(plan(read_toml(args.file), args))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    check(planned)
    planned = affordable(planned, collected, args)
    planned = best(planned, collected, args)
    if not args.table:
        collected.begin(sys.argv[1:] if arguments is None else arguments)
        waiting = [one for one in planned if not collected.holds(one)]
        print(f"{len(planned) - len(waiting)} of {len(planned)} runs are there", file=sys.stderr)
        run(waiting, collected, args)
    for statistics in args.statistics:
        for score in args.show:
            title = f"{score}, {statistics.upper()}"
            found = values(planned, collected.content["runs"], score, statistics)
            if args.against:
                title, found = f"{title}, minus {args.against}", minus(found, args.against)
            print(show(planned, found, title, sign=bool(args.against)) + "\n")
    return 1 if collected.content["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
