"""Replace the tables of a page on results; `tools.publish` does so for all pages.

The text between a marker and `<!-- end -->` is replaced:


    <!-- table EXPERIMENT ["COLUMN"] [field=value …] --> an experiment's column, or all that have
                                                         runs; in the catalogue's specs the fields
                                                         given are changed
    <!-- adaptors EXPERIMENT ["COLUMN"] -->              ACC of methods with each adaptor, and what
    <!-- added EXPERIMENT ["COLUMN"] -->                 each adaptor adds, with paired tests
    <!-- gains EXPERIMENT ["COLUMN"] [field=value …] --> Dual-CBA against its base and against CBA
    <!-- gained EXPERIMENT "COLUMN" PART -->             one part of that, within a line
    <!-- variants FILE SCORE … -->                       every row of a file
    <!-- agreement -->                                   how many cells agree with the paper
    <!-- agreed SCORE -->                                how many of those that were run do, and
    <!-- counted SCORE -->                               what becomes of all, within a line
    <!-- against EXPERIMENT "COLUMN" ROW [BASE] -->      a row minus another, by default "default",
                                                         within a line; BASE may be
                                                         EXPERIMENT:ROW of another one

If several files have the same run, the one with most seeds is used; among equal ones, the first in
`<!-- prefer FILE … -->`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments.spec import fields
from tools.collected import Collected, Fields, Group
from tools.frontier_parts import adaptors, added
from tools.page_parts import (
    against,
    agreed,
    agreement,
    columns,
    counted,
    each,
    gained,
    gains,
    table,
    variants,
)

MARKER = re.compile(r"<!-- (.*?) -->")
END = "<!-- end -->"
WORDS = {
    "table": (1, 2), "gains": (1, 2), "gained": (3,), "variants": range(1, 9), "agreement": (0,),
    "agreed": (1,), "counted": (1,), "against": (3, 4), "adaptors": (1, 2), "added": (1, 2),
}  # fmt: skip
"""Accepted numbers of words of each marker."""


TABLES = {"table": table, "gains": gains, "adaptors": adaptors, "added": added}
"""Functions that make the tables of each column."""

WITHIN_A_LINE = ("gained", "agreed", "counted", "against")


def words(marker: str) -> tuple[str, list[str], dict[str, Any]]:
    """Return a marker's name, its words, and the fields that it changes.

    >>> words('table semi "CIFAR-10, M = 200" labelled_batches=cycled')
    ('table', ['semi', 'CIFAR-10, M = 200'], {'labelled_batches': 'cycled'})
    """
    name, *rest = shlex.split(marker)
    pairs = [word.split("=", 1) for word in rest if re.match(r"\w+=", word)]
    return name, [word for word in rest if not re.match(r"\w+=", word)], {
        field: json.loads(value) if re.fullmatch(r"[\d.]+|true|false", value) else value
        for field, value in pairs
    }  # fmt: skip


def filled(marker: str, found: Collected, readings: Iterable[tuple[str, str, Fields]]) -> str:
    """Return the text for a marker."""
    name, about, changed = words(marker)
    if name not in WORDS:
        raise ValueError(unknown("marker", name, WORDS))
    if len(about) not in WORDS[name]:
        raise ValueError(f"the marker {marker!r} has {len(about)} words, expected another number")
    for field in changed:
        if field not in fields():
            raise ValueError(unknown("field", field, fields()))
    if name in WITHIN_A_LINE:
        return within_a_line(name, about, changed, found)
    if name == "agreement":
        text = agreement(found, readings)
    elif name == "variants":
        text = variants(found, about[0], about[1:])
    else:
        text = each(TABLES[name], found, about[0], about[1] if about[1:] else "", changed)
    return f"\n\n{text}\n\n"


def within_a_line(name: str, about: Sequence[str], changed: Fields, found: Collected) -> str:
    """Return the text for a marker within a line."""
    if name == "gained":
        return gained(found, about[0], about[1], about[2], changed)
    if name == "against":
        return against(found, about[0], about[1], about[2], *(about[3:] or ["default"]))
    return agreed(found, about[0]) if name == "agreed" else counted(found, about[0])


def rewrite(text: str, groups: Sequence[Group]) -> str:
    """Return the page with the text between its markers replaced."""
    markers = [m for m in MARKER.findall(text) if m != "end"]
    prefer = [file for m in markers if m.startswith("prefer ") for file in m.split()[1:]]
    found = Collected(groups, prefer)
    tables = [words(m)[1:] for m in markers if m.startswith("table ")]
    readings = [
        (about[0], column, changed)
        for about, changed in tables
        for column in about[1:] or columns(about[0])
        if changed
    ]
    out, at = "", 0
    for match in MARKER.finditer(text):
        marker = match.group(1)
        if marker == "end" or marker.startswith("prefer "):
            continue
        end, following = text.find(END, match.end()), MARKER.search(text, match.end())
        if end < 0 or following is None or following.start() != end:
            raise ValueError(f"the marker {marker!r} has no end, expected {END} behind it")
        out += text[at : match.end()] + filled(marker, found, readings)
        at = end
    return out + text[at:]
