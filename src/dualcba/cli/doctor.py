"""`dualcba doctor`: what this machine has of what dualcba can use, on one screen."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from dualcba import __version__
from dualcba.errors import install

GIB = 2**30
LITTLE = 1.0
"""GiB of a disk below which runs may not be written."""

Extras = dict[str, dict[str, str | None]]
"""By extra: its packages, each with the version that is installed."""


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and whether runs work with it."""

    name: str
    found: str
    ok: bool = True


def doctor_command(data_dir: Path | None, *, as_json: bool) -> None:
    """Print all findings; exit with 1 if one of them prevents runs."""
    findings = [*software(), *hardware(), *folders(data_dir), *extra_findings(extras())]
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        width = max(len(finding.name) for finding in findings)
        for one in findings:
            typer.echo(f"{' ' if one.ok else '!'} {one.name:<{width}}  {one.found}")
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)


# ---------------------------------------------------------------------- software


def software() -> Iterator[Finding]:
    """Yield the versions of dualcba, Python and the packages that are always needed."""
    yield Finding("dualcba", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    wrong = [text for text in map(_lacking, _requirements()) if text]
    yield Finding("packages", "; ".join(wrong) or "all that are needed", ok=not wrong)


def _requirements(extra: str | None = None) -> list[str]:
    """Return what the package needs always, or for one of its extras."""
    try:
        declared = metadata.requires("dualcba") or []
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return []
    marked = [(text.partition(";")[0].strip(), _extra(text)) for text in declared]
    return [text for text, name in marked if name == extra]


def _extra(requirement: str) -> str | None:
    found = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
    return found and found[1]


def _lacking(requirement: str) -> str | None:
    """Return what is wrong with an installed package, if anything is.

    >>> _lacking("torch>=99"), _lacking("numpy>=1.0"), _lacking("no-such-package>=1")
    ('torch is ..., expected torch>=99', None, 'no-such-package is missing, expected ...>=1')
    """
    name, _, least = requirement.partition(">=")
    version = _version(name)
    if version is None:
        return f"{name} is missing, expected {requirement}"
    return f"{name} is {version}, expected {requirement}" if _older(version, least) else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _older(version: str, least: str) -> bool:
    """Whether a version is older than another; only their leading numbers count.

    >>> _older("2.13.0+cpu", "2.6"), _older("1.26", "2.0.1")
    (False, True)
    """
    ours, theirs = ([int(n) for n in re.findall(r"\d+", v)[:3]] for v in (version, least))
    return ours < theirs


# ---------------------------------------------------------------------- hardware


def hardware() -> Iterator[Finding]:
    """Yield torch, its GPUs and the cores; a torch that cannot be imported is a finding too."""
    try:
        import torch

        from dualcba.engine.torch_private import has_matrix_units
    except Exception as error:  # a broken installation can raise anything
        yield Finding("torch", f"cannot be imported: {' '.join(str(error).split())}", ok=False)
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    yield Finding("torch", f"{torch.__version__} ({build}), {torch.get_num_threads()} threads")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    fast = "; has AMX, so convolutions are faster with --precision bf16"
    cpu = f"{platform.machine()}, {cores} cores{fast if has_matrix_units() else ''}"
    yield Finding("CPU", cpu)
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for k in devices:
        free, total = (n / GIB for n in torch.cuda.mem_get_info(k))
        name = torch.cuda.get_device_name(k)
        yield Finding(f"GPU {k}", f"{name}, {free:.0f} of {total:.0f} GiB free")
    if not devices:
        yield Finding("GPU", "none: runs use the CPU")
    triton = _version("triton")
    yield Finding("Triton", triton or "not installed: plain torch is used for the kernels")


# ---------------------------------------------------------------------- folders


def folders(data_dir: Path | None) -> Iterator[Finding]:
    """Yield the folders of data and of runs with their room, and the datasets that are there."""
    from dualcba.data.download.published import PUBLISHED_DATASETS
    from dualcba.data.loading import DATASETS
    from dualcba.data.loading import data_dir as find_data

    root = find_data(data_dir)
    yield _room("data folder", root)
    there = [n for n in DATASETS if n not in PUBLISHED_DATASETS or _is_there(root, n)]
    yield Finding("datasets", ", ".join(there))
    absent = [name for name in DATASETS if name not in there]
    if absent:
        yield Finding("not there", f"{', '.join(absent)}: `dualcba data fetch NAME` downloads one")
    yield _room("runs folder", Path("runs"))


def _is_there(root: Path, name: str) -> bool:
    from dualcba.data.download.published import PUBLISHED_DATASETS

    folder = PUBLISHED_DATASETS[name].folder
    return any((root / folder).glob("*")) or (root / f"{folder}-cache").is_dir()


def _room(name: str, folder: Path) -> Finding:
    """Return whether a folder can be written, and the room on its disk; it need not exist yet."""
    above = next((p for p in (folder, *folder.absolute().parents) if p.exists()), Path("."))
    free = shutil.disk_usage(above).free / GIB
    writable = os.access(above, os.W_OK)
    missing = "" if folder.exists() else ", not made yet"
    words = f"{folder}{missing}, {free:.1f} GiB free{'' if writable else ', cannot be written'}"
    needed = name == "runs folder"
    return Finding(name, words, ok=not needed or (writable and free > LITTLE))


# ---------------------------------------------------------------------- extras


def extras() -> Extras:
    """Return the extras of the package, and which of their packages are installed."""
    try:
        known = metadata.metadata("dualcba").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        known = []
    return {extra: {name: _version(name) for name in _packages(extra)} for extra in known}


def _packages(extra: str) -> list[str]:
    return [re.split(r"[<>=!~\[ ]", text)[0] for text in _requirements(extra)]


def extra_findings(found: Extras) -> Iterator[Finding]:
    """Yield a line on extras that are complete, and one on those that are not."""
    complete = {name: parts for name, parts in found.items() if all(parts.values())}
    lacking = [name for name in found if name not in complete]
    if complete:
        yield Finding("extras", ", ".join(map(_with_versions, complete.items())))
    if lacking:
        how = f"the first one is installed by {install(lacking[0])}"
        yield Finding("more extras", f"{', '.join(lacking)}; {how}")


def _with_versions(extra: tuple[str, dict[str, str | None]]) -> str:
    name, parts = extra
    return name if len(parts) > 1 else f"{name} ({next(iter(parts.values()))})"
