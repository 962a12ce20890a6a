"""Runs that fail while others go on, and errors as one line. torch is not imported here."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dualcba.errors import reason

if TYPE_CHECKING:
    from dualcba.experiments import Result, Spec

CPU_MEMORY = "DefaultCPUAllocator: "  # torch raises a plain RuntimeError if a CPU has none left
NAMED = 5
"""Failed runs that an error names."""


class FailedRunsError(Exception):
    """Some of several runs have failed; `results` are those of the others."""

    def __init__(self, message: str, results: Sequence[Result]) -> None:
        super().__init__(message)
        self.results = list(results)


class InterruptedRunsError(BaseException):
    """An interrupt of runs that says what is kept and how to go on.

    It is not a KeyboardInterrupt, of which typer keeps the exit code only.
    """


@dataclass
class Failures:
    """The runs of a call that have failed, and why; `say` prints a line at once."""

    say: Callable[[str], None]
    found: dict[str, str] = field(default_factory=dict)
    """The reasons by the names of the runs."""

    def add(self, spec: Spec, error: Exception) -> None:
        """Note a run that has failed; an error that is not understood is printed as a whole."""
        known = one_line(error)
        self.found[spec.name] = known or f"{type(error).__name__}: {reason(error)}"
        if known is None:
            self.say("".join(traceback.format_exception(error)).rstrip())

    def message(self, runs: int, again: str) -> str:
        """Return the error that names the runs; `again` says how to run them again."""
        named = [f"{name}: {why}" for name, why in list(self.found.items())[:NAMED]]
        more = [f"and {len(self.found) - NAMED} more"] * (len(self.found) > NAMED)
        what = "; ".join(named + more)
        return f"{len(self.found)} of {runs} runs failed: {what}; the others are kept; {again}"


def one_line(error: Exception) -> str | None:
    """Return an error of input, memory, files or numbers as one line; None if it is another."""
    if isinstance(error, RuntimeError | MemoryError) and out_of_memory(error):
        why = (str(error).splitlines() or ["out of memory"])[0].split(CPU_MEMORY)[-1].rstrip(".")
        return f"{why}; expected room, perhaps by fewer --abreast or --jobs"
    if isinstance(error, FloatingPointError | ChildProcessError | ValueError | OSError):
        return " ".join(str(error).splitlines())  # a name in it may have line breaks
    return None


def out_of_memory(error: Exception) -> bool:
    """Whether a device or the machine has no memory left."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
    return on_gpu or isinstance(error, MemoryError) or CPU_MEMORY in str(error)


def resume_hint(out: Path, specs: Sequence[Spec] = ()) -> str:
    """Return how to run what is missing in a folder with a plan."""
    files = dict.fromkeys(path for spec in specs for path in spec.imports)
    return f"`dualcba resume {out}{''.join(f' --import {path}' for path in files)}` goes on"
