"""Failed runs among others that continue, and errors as one line. Does not import torch."""

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

CPU_MEMORY = "DefaultCPUAllocator: "  # in the RuntimeError that torch raises without CPU memory
NAMED = 5
"""The largest number of failed runs that an error names."""


class FailedRunsError(Exception):
    """Some runs have failed; `results` are those of the other runs."""

    def __init__(self, message: str, results: Sequence[Result]) -> None:
        super().__init__(message)
        self.results = list(results)


class InterruptedRunsError(BaseException):
    """An interrupt whose message says what is kept and how to continue.

    It is not a KeyboardInterrupt, whose message typer would drop.
    """


@dataclass
class Failures:
    """The failed runs of a call, and the reasons; `say` prints a line immediately."""

    say: Callable[[str], None]
    found: dict[str, str] = field(default_factory=dict)
    """Reasons by the name of the run."""

    def add(self, spec: Spec, error: Exception) -> None:
        """Record a failed run; print the traceback of an unexpected error."""
        known = one_line(error)
        self.found[spec.name] = known or f"{type(error).__name__}: {reason(error)}"
        if known is None:
            self.say("".join(traceback.format_exception(error)).rstrip())

    def message(self, runs: int, again: str) -> str:
        """Return the message that names the failed runs; `again` says how to repeat them."""
        named = [f"{name}: {why}" for name, why in list(self.found.items())[:NAMED]]
        more = [f"and {len(self.found) - NAMED} more"] * (len(self.found) > NAMED)
        what = "; ".join(named + more)
        return f"{len(self.found)} of {runs} runs failed: {what}; the others are kept; {again}"


def one_line(error: Exception) -> str | None:
    """Return an error of input, memory, files or numbers as one line; None for other errors."""
    if isinstance(error, RuntimeError | MemoryError) and out_of_memory(error):
        why = (str(error).splitlines() or ["out of memory"])[0].split(CPU_MEMORY)[-1].rstrip(".")
        return f"{why}; expected enough memory, try fewer --abreast or --jobs"
    if isinstance(error, FloatingPointError | ChildProcessError | ValueError | OSError):
        return " ".join(str(error).splitlines())  # a name in it may have line breaks
    return None


def out_of_memory(error: Exception) -> bool:
    """Return whether the error means that the GPU or the machine is out of memory."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
    return on_gpu or isinstance(error, MemoryError) or CPU_MEMORY in str(error)


def resume_hint(out: Path, specs: Sequence[Spec] = ()) -> str:
    """Return how to make the missing runs of a folder with a plan."""
    files = dict.fromkeys(path for spec in specs for path in spec.imports)
    return f"continue with `dualcba resume {out}{''.join(f' --import {path}' for path in files)}`"
