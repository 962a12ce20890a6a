"""The run store: a folder per run, written completely or not at all, and a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dualcba.data.dataset import DataOrigin
from dualcba.errors import expected, unknown
from dualcba.experiments.result import (
    SCHEMA,
    SCHEMAS,
    AnySpec,
    Digests,
    ForeignSpec,
    Result,
    frozen,
    read_origin,
)
from dualcba.experiments.spec import Spec, dataset_is_there, digest_name, fields, upgrade_fields
from dualcba.io import folder_lock, write_json
from dualcba.methods.files import NotImportedError
from dualcba.parsing import parse_json

RESULT = "result.json"
PLAN = "plan.json"
LOCK = "lock"
"""The lock file in the folder of a run, held while the run is in progress."""


def result_path(out: Path, spec: Spec) -> Path:
    """Return the path of a spec's result."""
    return run_folder(out, spec) / RESULT


def run_folder(out: Path, spec: Spec) -> Path:
    """Return the folder of a run, or an existing one with the shorter name of earlier versions."""
    before = out / spec.name_before
    return before if before.name != spec.name and before.is_dir() else out / spec.name


def check_folder(out: Path) -> None:
    """Raise a FileExistsError if the folder or one above it is a file."""
    for folder in (out, *out.parents):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder} is a file, expected a folder for the results")


def check_runs_folder(out: Path) -> None:
    """Raise an OSError unless the folder exists."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file, expected a folder of runs")
    if not out.is_dir():
        raise FileNotFoundError(f"{out} is missing, expected a folder of runs")


def make_folder(out: Path) -> None:
    """Make the folder for the results; raise an OSError if this is not possible."""
    wanted = "a folder for the results that can be written, as --out"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{out} cannot be made: {error.strerror}, expected {wanted}") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise PermissionError(f"{out} cannot be written, expected {wanted}")


def check_free(out: Path, specs: Iterable[Spec]) -> None:
    """Raise a FileExistsError if a run would overwrite a complete one, or write below a file."""
    check_folder(out)
    for spec in specs:
        if result_path(out, spec).exists():
            folder = result_path(out, spec).parent
            wanted = f"another --out, or `dualcba resume {out}` to continue an earlier call"
            raise FileExistsError(f"{folder} already holds a complete run, expected {wanted}")


def write_result(
    out: Path,
    spec: Spec,
    result: dict[str, Any],
    files: Mapping[str, Callable[[Path], None]] | None = None,
) -> Path:
    """Write a result atomically, after `files`, which are written by their functions."""
    path = result_path(out, spec)
    for name, save in (files or {}).items():
        save(path.with_name(name))
    write_json(path, result)
    return path


def read_results(out: Path) -> dict[Path, Result]:
    """Return the results in a folder by run folder, sorted by name."""
    return dict(_read_each(sorted(out.glob(f"*/{RESULT}"))))


def files_below(out: Path, name: str) -> list[Path]:
    """Return the files with a name below a folder, sorted; folders may be removed meanwhile."""
    return sorted(Path(folder, name) for folder, _, names in os.walk(out) if name in names)


def _read_each(paths: Iterable[Path]) -> Iterator[tuple[Path, Result]]:
    """Yield the folders and results of runs; skip runs that are removed meanwhile."""
    for path in paths:
        with suppress(FileNotFoundError):
            yield path.parent, read_result(path)


def find_runs(*outs: Path) -> dict[Path, Result]:
    """Return the complete runs below folders, at any depth, by the folder of each run."""
    found: dict[Path, Result] = {}
    for out in outs:
        check_runs_folder(out)
        runs = _read_each(files_below(out, RESULT))
        complete = {folder: result for folder, result in runs if result.complete}
        if not complete:
            raise ValueError(f"{out} holds no complete run, expected folders with a {RESULT}")
        found |= complete
    return found


def distinct(results: Iterable[Result]) -> list[Result]:
    """Return results without duplicates of the same spec, seed and data."""
    every = list(results)
    digests, found = Digests(every), dict[Hashable, Result]()
    for result in every:
        found.setdefault(_place(result, digests), result)
    return list(found.values())


def _place(result: Result, digests: Digests) -> Hashable:
    return result.seed, frozen(result.fields), digests.of(result)


def contradictions(runs: Mapping[Path, Result]) -> list[str]:
    """Return a line on duplicates with different scores, which `distinct` drops, if any."""
    digests, first, others = Digests(runs.values()), dict[Hashable, Path](), dict[Path, Path]()
    for folder, result in runs.items():
        kept = first.setdefault(_place(result, digests), folder)
        if _differ(result, runs[kept]):
            others[folder] = kept
    if not others:
        return []
    folder, kept = next(iter(others.items()))
    more = f"; so do {len(others) - 1} more runs" if len(others) > 1 else ""
    return [f"{folder} has other scores than the same run in {kept}, which is used{more}"]


def _differ(one: Result, two: Result) -> bool:
    """Return whether two results have different values of a common score."""
    pairs = [
        (value, two.value(statistics, name))
        for statistics, found in one.scores.items()
        for name, value in found.items()
    ]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def find_results(out: Path) -> list[Result]:
    """Return the complete results below a folder at any depth, without duplicates."""
    return distinct(find_runs(out).values())


def read_result(path: Path) -> Result:
    """Read one result; raise a ValueError that names the file if it is damaged."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    try:
        return Result.from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def write_plan(
    out: Path, specs: Iterable[Spec], data: Mapping[str, DataOrigin] | None = None
) -> Path:
    """Add specs to the plan of a folder; `data` has the origin of each dataset."""
    path, data = out / PLAN, data or {}
    make_folder(out)
    with folder_lock(out):
        entries = _read_entries(out) if path.exists() else []
        entries += [(spec, data.get(spec.dataset)) for spec in specs]
        _one_origin_each((path, spec.dataset, origin) for spec, origin in entries)
        _write_entries(path, entries)
    return path


def drop_from_plan(out: Path, name: str) -> None:
    """Remove the entry of a run from the plan of a folder, if there is one."""
    path = out / PLAN
    if not path.is_file():
        return
    with folder_lock(out):
        content = _read_content(out)
        planned = zip(content["specs"], planned_runs(out), strict=True)
        kept = [entry for entry, (folder, _) in planned if folder.name != name]
        write_json(path, {**content, "specs": kept})


def _write_entries(path: Path, entries: Iterable[tuple[Spec, DataOrigin | None]]) -> None:
    planned = {spec.name: _entry(spec, origin) for spec, origin in entries}
    plan = {"schema": SCHEMA, "specs": list(planned.values())}
    write_json(path, plan)


def read_plan(out: Path) -> list[Spec]:
    """Return the specs in the plan of a folder."""
    return [spec for spec, _ in _read_entries(out)]


def planned_runs(out: Path) -> list[tuple[Path, AnySpec]]:
    """Return the folder and the spec of each run of the plan, in order.

    A spec that cannot be run here, because its dataset was removed or its method is not imported,
    is a `ForeignSpec`.
    """
    entries = _read_content(out)["specs"]
    with _naming(out / PLAN):
        return [_planned(out, _own_fields(entry)) for entry in entries]


def _planned(out: Path, given: dict[str, Any]) -> tuple[Path, AnySpec]:
    try:
        spec = Spec(**given)
    except NotImportedError:
        return out / digest_name(given), ForeignSpec(given)
    except ValueError:
        if dataset_is_there(str(given.get("dataset", "digits"))):
            raise
        return out / digest_name(given), ForeignSpec(given)
    return run_folder(out, spec), spec


def known_data(out: Path, results: Mapping[Path, Result]) -> dict[str, DataOrigin]:
    """Return the origin of each dataset, as recorded in the plan and the results of a folder.

    Raises a ValueError if two of them record different data for the same dataset.
    """
    path = out / PLAN
    entries = _read_entries(out) if path.is_file() else []
    named = [(path, spec.dataset, origin) for spec, origin in entries]
    return _one_origin_each(
        named + [(folder, result.dataset, result.data) for folder, result in results.items()]
    )


def _one_origin_each(
    named: Iterable[tuple[Path, str, DataOrigin | None]],
) -> dict[str, DataOrigin]:
    """Return the origin of each dataset; raise a ValueError if two records differ."""
    found: dict[str, DataOrigin] = {}
    for where, dataset, origin in named:
        if origin and not origin.same_as(first := found.setdefault(dataset, origin)):
            wanted = f"{first}, as in the earlier runs; run in another --out"
            raise ValueError(
                f"{where} names another dataset {dataset}: {origin}, expected {wanted}"
            )
    return found


def _entry(spec: Spec, origin: DataOrigin | None) -> dict[str, Any]:
    return spec.to_dict() | ({"data": asdict(origin)} if origin else {})


def _read_entries(out: Path) -> list[tuple[Spec, DataOrigin | None]]:
    entries = _read_content(out)["specs"]
    with _naming(out / PLAN):
        return [(Spec(**_own_fields(entry)), read_origin(entry)) for entry in entries]


def _read_content(out: Path) -> dict[str, Any]:
    """Return the content of the plan of a folder; raise an error if it is not valid."""
    path = out / PLAN
    if out.is_file():
        raise NotADirectoryError(f"{out} is a file, expected the --out of a `dualcba run`")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing, expected the plan that `dualcba run` writes")
    with _naming(path):
        content = parse_json(path.read_text(encoding="utf-8"))
        plan: dict[str, Any] = content if isinstance(content, dict) else {}
        if (schema := plan.get("schema", SCHEMA)) not in SCHEMAS:
            raise ValueError(expected("the schema", schema, " or ".join(map(str, SCHEMAS))))
        if not isinstance(plan.get("specs"), list):
            raise ValueError("it has no list 'specs', expected one")
        return plan


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the path of the plan before errors about its content."""
    try:
        yield
    except NotImportedError as error:
        raise NotImportedError(f"{path}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a plan: {error}") from None


def _own_fields(entry: Any) -> dict[str, Any]:
    """Return the fields of the spec of an entry."""
    if not isinstance(entry, dict):
        raise ValueError(expected("an entry of 'specs'", entry, "the fields of a run"))
    given = upgrade_fields({name: value for name, value in entry.items() if name != "data"})
    for name in given:
        if name not in (*fields(), "imports"):
            raise ValueError(unknown("field", name, fields()))
    return given
