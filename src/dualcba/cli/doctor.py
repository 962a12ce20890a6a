"""`dualcba doctor`: software, hardware, folders and extras on this machine."""

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
"""Free GiB below which a disk may be too small for runs."""

Extras = dict[str, dict[str, str | None]]
"""The packages of each extra, with the installed version or None."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was checked, the result, and whether runs can work."""

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
    """Yield the versions of dualcba and Python, and problems of required packages."""
    yield Finding("dualcba", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("Python", f"{platform.python_version()} at {sys.executable}")
    wrong = [text for text in map(_problem, _requirements()) if text]
    found = "; ".join(wrong) or "all required packages are installed"
    yield Finding("packages", found, ok=not wrong)


def _requirements(extra: str | None = None) -> list[str]:
    """Return the requirements of the package, or of one of its extras."""
    try:
        declared = metadata.requires("dualcba") or []
    except metadata.PackageNotFoundError:  # a source tree that is not installed
        return []
    marked = [(text.partition(";")[0].strip(), _extra(text)) for text in declared]
    return [text for text, name in marked if name == extra]


def _extra(requirement: str) -> str | None:
    found = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
    return found and found[1]


def _problem(requirement: str) -> str | None:
    """Return the problem with an installed package, or None.

    >>> _problem("torch>=99"), _problem("numpy>=1.0"), _problem("no-such-package>=1")
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
    """Return whether a version is older than another, by their first three numbers.

    >>> _older("2.13.0+cpu", "2.6"), _older("1.26", "2.0.1")
    (False, True)
    """
    ours, theirs = ([int(n) for n in re.findall(r"\d+", v)[:3]] for v in (version, least))
    return ours < theirs


# ---------------------------------------------------------------------- hardware


def hardware() -> Iterator[Finding]:
    """Yield torch, the CPU and the GPUs; an error if torch cannot be imported."""
    try:
        import torch

        from dualcba.engine.torch_private import has_matrix_units
        from dualcba.report.names import count
    except Exception as error:  # a broken installation can raise anything
        yield Finding("torch", f"cannot be imported: {' '.join(str(error).split())}", ok=False)
        return
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    threads = count(torch.get_num_threads(), "thread")
    yield Finding("torch", f"{torch.__version__} ({build}), {threads}")
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    fast = "; has AMX, so convolutions are faster with --precision bf16"
    amx = fast if has_matrix_units() else ""
    yield Finding("CPU", f"{platform.machine()}, {count(cores, 'core')}{amx}")
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    for k in devices:
        free, total = (n / GIB for n in torch.cuda.mem_get_info(k))
        name = torch.cuda.get_device_name(k)
        yield Finding(f"GPU {k}", f"{name}, {free:.0f} of {total:.0f} GiB free")
    if not devices:
        yield Finding("GPU", "none; runs use the CPU")
    triton = _version("triton")
    yield Finding("Triton", triton or "not installed; plain torch replaces the kernels")


# ---------------------------------------------------------------------- folders


def folders(data_dir: Path | None) -> Iterator[Finding]:
    """Yield the folders of data and runs with their free space, and the available datasets."""
    from dualcba.data.download.published import PUBLISHED_DATASETS
    from dualcba.data.loading import DATASETS
    from dualcba.data.loading import data_dir as find_data

    root = find_data(data_dir)
    yield _free_space("data folder", root)
    there = [n for n in DATASETS if n not in PUBLISHED_DATASETS or _is_there(root, n)]
    yield Finding("datasets", ", ".join(there))
    absent = [name for name in DATASETS if name not in there]
    if absent:
        yield Finding("not there", f"{', '.join(absent)}; download with `dualcba data fetch NAME`")
    yield _free_space("runs folder", Path("runs"))


def _is_there(root: Path, name: str) -> bool:
    from dualcba.data.download.published import PUBLISHED_DATASETS

    folder = PUBLISHED_DATASETS[name].folder
    return any((root / folder).glob("*")) or (root / f"{folder}-cache").is_dir()


def _free_space(name: str, folder: Path) -> Finding:
    """Return whether a folder can be written, and the free space on its disk."""
    above = next((p for p in (folder, *folder.absolute().parents) if p.exists()), Path("."))
    free = shutil.disk_usage(above).free / GIB
    writable = os.access(above, os.W_OK)
    missing = "" if folder.exists() else ", does not exist yet"
    words = f"{folder}{missing}, {free:.1f} GiB free{'' if writable else ', not writable'}"
    needed = name == "runs folder"
    return Finding(name, words, ok=not needed or (writable and free > LITTLE))


# ---------------------------------------------------------------------- extras


def extras() -> Extras:
    """Return the packages of each extra, with their installed versions."""
    try:
        known = metadata.metadata("dualcba").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        known = []
    return {extra: {name: _version(name) for name in _packages(extra)} for extra in known}


def _packages(extra: str) -> list[str]:
    return [re.split(r"[<>=!~\[ ]", text)[0] for text in _requirements(extra)]


def extra_findings(found: Extras) -> Iterator[Finding]:
    """Yield a line on installed extras, and one on others."""
    complete = {name: parts for name, parts in found.items() if all(parts.values())}
    lacking = [name for name in found if name not in complete]
    if complete:
        yield Finding("extras", ", ".join(map(_with_versions, complete.items())))
    if lacking:
        how = f"install with, for example, {install(lacking[0])}"
        yield Finding("more extras", f"{', '.join(lacking)}; {how}")


def _with_versions(extra: tuple[str, dict[str, str | None]]) -> str:
    name, parts = extra
    return name if len(parts) > 1 else f"{name} ({next(iter(parts.values()))})"
