"""Output of the command line: errors on one line, in characters that the terminal can encode."""

from __future__ import annotations

import codecs
import sys
from typing import NoReturn

import typer

SUBSTITUTES = {
    "↑": "^", "↓": "v", "Δ": "d", "−": "-", "–": "-", "…": "...", "×": "x", "±": "+-", "µ": "u",
    "’": "'", "→": "->", "ν": "nu", "ω": "omega", "θ": "theta", "φ": "phi", "²": "2", "·": "*",
    "\u2007": " ", **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),
    **dict.fromkeys("▏▎▍▌▋▊▉", "|"),
}  # fmt: skip
"""Replacements for characters that the encoding of a terminal lacks."""


def fail(error: object, code: int) -> NoReturn:
    """Print an error on stderr, and exit."""
    typer.echo(f"dualcba: {error}" if "\n" not in str(error) else str(error), err=True)
    sys.exit(code)


def note(text: str) -> None:
    """Print a note on stderr."""
    typer.echo(f"dualcba: {text}", err=True)


def replace_what_cannot_be_encoded() -> None:
    """Replace characters that stdout or stderr cannot encode, such as ↑ in cp1252.

    With UTF-8, these are only surrogates for undecodable bytes of the command line.
    """
    codecs.register_error("dualcba", _substitute)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="dualcba")


def _substitute(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(SUBSTITUTES.get(sign, "?") for sign in text), error.end
