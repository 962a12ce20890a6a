"""What has to be run for the paper's tables and figures, and what of it is there already."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.errors import one_of, unknown
from dualcba.experiments.paper.catalogue import Entry, Experiment, complete, donor, matches
from dualcba.experiments.run import AGNOSTIC
from dualcba.experiments.spec import Spec

Wanted = dict[str, Any]
"""Fields of a spec, the seed among them."""

Runs = Mapping[Path, dict[str, Any]]
"""Results by their folders."""

SCALES = ("paper", "small")
CLASSES = {"cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}
TASKS = {"cifar10": 5, "cifar100": 10, "tiny-imagenet": 10}
SHARE = 0.25
SMALL_EPOCHS = 5
SMALL = "small "
SMALL_NOTE = "Here on handwritten digits: the paper's values do not apply."


@dataclass(frozen=True)
class Plan:
    """The runs that some experiments need, and those of them that are missing."""

    needed: list[Wanted]
    missing: list[Wanted]

    @property
    def there(self) -> int:
        """How many are done already."""
        return len(self.needed) - len(self.missing)


# ---------------------------------------------------------------------- which experiments


def only(experiments: Iterable[Experiment], keep: Callable[[Entry], bool]) -> list[Experiment]:
    """The entries that are kept, and the experiments that have any."""
    parts = [
        dataclasses.replace(one, entries=tuple(filter(keep, one.entries))) for one in experiments
    ]
    return [part for part in parts if part.entries]


def choose(
    experiments: Sequence[Experiment], dataset: str | None, scale: str, column: str | None = None
) -> list[Experiment]:
    """The experiments of one dataset, or of columns with some text, at a scale.

    Raises where nothing is left.
    """
    one_of(SCALES, scale=scale)
    if dataset is not None and dataset not in CLASSES:
        raise ValueError(unknown("dataset", dataset, CLASSES))
    text = (column or "").lower()
    of_dataset = only(experiments, lambda e: dataset in (None, e.spec["dataset"]))
    chosen = only(of_dataset, lambda e: text in e.column.lower())
    names = ", ".join(e.name for e in experiments)
    if not of_dataset:
        raise ValueError(f"{names} has nothing on {dataset}, expected another --dataset")
    if not chosen:
        known = dict.fromkeys(e.column for one in of_dataset for e in one.entries)
        raise ValueError(unknown(f"column of {names}", column or "", known))
    return [scaled(e) if scale == "small" else e for e in chosen]


def scaled(experiment: Experiment) -> Experiment:
    """The same on handwritten digits, where a CPU takes a second for a run.

    The paper's values do not apply there and are left out.
    """
    entries = tuple(map(_small_entry, experiment.entries))
    note = f"{experiment.note} {SMALL_NOTE}".strip()
    return dataclasses.replace(experiment, entries=entries, note=note)


def _small_entry(entry: Entry) -> Entry:
    spec = small(entry.spec)
    column = f"{entry.column}: digits, {spec['tasks']} tasks, M = {spec['buffer']}"
    return dataclasses.replace(entry, spec=spec, column=column, paper={})


def small(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec on digits: as many tasks, a quarter of the memory per class, few epochs offline.

    >>> small({"method": "er", "dataset": "cifar100", "buffer": 2000})
    {'method': 'er', 'dataset': 'digits', 'buffer': 50, 'tasks': 10}
    """
    dataset = spec["dataset"]
    buffer = complete({"dataset": dataset} | _only(spec, "buffer"))["buffer"]
    changed = spec | {"dataset": "digits", "tasks": TASKS[dataset]}
    changed["buffer"] = max(1, round(SHARE * 10 * buffer / CLASSES[dataset]))
    if spec.get("setting") == "offline":
        changed["epochs"] = SMALL_EPOCHS
    if source := donor(spec):
        changed["adaptor"] = f"from {SMALL}{source}"
    return changed


def _only(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: spec[name] for name in names if name in spec}


# ---------------------------------------------------------------------- which runs


def make_plan(experiments: Iterable[Experiment], seeds: int, runs: Runs) -> Plan:
    """What is needed for some seeds of experiments, and what of it no result serves."""
    specs = {_key(e.spec): e.spec for one in experiments for e in one.entries}.values()
    wanted = [spec | {"seed": seed} for seed in range(seeds) for spec in specs]  # all rows early
    index: dict[tuple[Any, ...], list[tuple[Path, dict[str, Any]]]] = {}
    for folder, result in runs.items():
        index.setdefault(_quick(result), []).append((folder, result))

    def served(one: Wanted, beside: str | None = None) -> bool:
        found = [f for f, result in index.get(_quick(one), ()) if matches(result, one)]
        return any(beside is None or (f / beside).is_file() for f in found)

    missing = [one for one in wanted if not served(one)]
    sources = [donor_of(one) for one in wanted if donor(one)]
    owed = [donor_of(one) for one in missing if donor(one)]
    owed = [one for one in owed if not served(one, beside=AGNOSTIC)]
    return Plan(merged([*sources, *wanted]), merged([*owed, *missing]))


def _quick(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["method"], one["dataset"], one["seed"]


def _key(spec: dict[str, Any]) -> str:
    return json.dumps(spec, sort_keys=True)


def merged(wanted: Iterable[Wanted]) -> list[Wanted]:
    """As few runs as serve all: one that is scored more often or records more serves the others.

    >>> merged([{"method": "er", "eval_every": 0}, {"method": "er", "eval_every": 5}])
    [{'method': 'er', 'eval_every': 5}]
    """
    groups: dict[str, list[tuple[Wanted, dict[str, Any]]]] = {}
    for one in wanted:
        full = complete(one)
        rest = {k: v for k, v in full.items() if k not in ("eval_every", "record")}
        groups.setdefault(_key(rest), []).append((one, full))
    runs = []
    for group in groups.values():
        often = sorted({full["eval_every"] for _, full in group if full["eval_every"]}) or [0]
        records = sorted({r for _, full in group for r in full.get("record") or ()})
        recording = {"record": records} if records else {}
        runs += [group[0][0] | {"eval_every": every} | recording for every in often]
    return runs


# ---------------------------------------------------------------------- parts from elsewhere


def donor_of(one: Wanted) -> Wanted:
    """The run that a class-agnostic part is taken from: Dual-CBA as in the main table."""
    name = donor(one) or ""
    spec = {"dataset": name.removeprefix(SMALL), "method": "er-dual-cba", "eval_every": 0}
    return (small(spec) if name.startswith(SMALL) else spec) | {"seed": one["seed"]}


def needs(one: Wanted) -> set[str]:
    """The datasets of a run, that of a part taken from elsewhere included.

    >>> sorted(needs({"dataset": "cifar10", "adaptor": "from cifar100", "seed": 0}))
    ['cifar10', 'cifar100']
    """
    donors = {donor_of(one)["dataset"]} if donor(one) else set()
    return {one["dataset"], *donors}


def rounds(missing: Sequence[Wanted]) -> list[list[Wanted]]:
    """The runs that stand alone, then those that take a part from one of them."""
    alone = [one for one in missing if donor(one) is None]
    return [part for part in (alone, [one for one in missing if donor(one)]) if part]


def to_spec(one: Wanted, out: Path, runs: Runs) -> Spec:
    """The spec of a run; the part that it takes from elsewhere is laid ready below `out`."""
    source = donor(one)
    if source is None:
        return Spec(**one)
    path = out / "adaptors" / f"{source.replace(' ', '-')}-s{one['seed']}.safetensors"
    for folder, result in runs.items():
        left = result["seed"] == one["seed"] and (folder / AGNOSTIC).is_file()
        if left and matches(result, donor_of(one)):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / AGNOSTIC, path)
            return Spec(**one | {"adaptor": str(path)})
    raise FileNotFoundError(f"{path} is missing, expected a run on {source} to have left it")
