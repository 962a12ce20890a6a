"""The parts of `docs/results.md` that follow from `results/`, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments.paper.catalogue import NAMES, READINGS, Entry
from dualcba.experiments.result import NAMED, identity
from dualcba.report.comparison import (
    TOLERANCE,
    Measure,
    Row,
    Served,
    Share,
    known,
    rows,
    within_tolerance,
)
from dualcba.report.gains import Gap, alike, gap
from dualcba.report.names import MISSING, STATISTICS, method_title, score_info, split_method
from dualcba.report.results import SCORING, usual
from dualcba.report.tables.model import number, p_value
from dualcba.report.tables.scores import WIDE
from tools.collected import Collected, Fields, Sourced, named

SEEDS = 3
"""The usual number of seeds, which is not mentioned; a single seed is, beside the number."""

NOTHING = "No runs yet."
GAINS = {
    "whole": "ACC: Dual-CBA (IBN) − base (BN)",
    "ibn": "base, IBN − BN",
    "adaptors": "Dual-CBA − base, both IBN",
    "cba": "Dual-CBA − CBA, both IBN",
    "fm": "FM: Dual-CBA (IBN) − base (BN)",
    "fm_adaptors": "FM: Dual-CBA − base, both IBN",
}

# ---------------------------------------------------------------------- tables


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    body = ["| " + " | ".join(line) + " |" for line in (heads, *lines)]
    body.insert(1, "|---" * len(heads) + "|")
    return "\n".join(body).replace("|  |", "| |")


def spread(m: Measure | None, digits: int = 1) -> str:
    """Return mean ± half-width.

    >>> spread(Measure(26.25, 4.04, 3)), spread(Measure(26.31, None, 1)), spread(None)
    ('26.2 ± 4.0', '26.3 (1 seed)', '–')
    """
    if m is None:
        return MISSING
    half = " (1 seed)" if m.half is None else f" ± {m.half:.{digits}f}"
    return number(m.mean, digits) + half


def over(counts: Mapping[str, int]) -> str:
    """Return the seeds of most rows, then the rows with another number; empty if all are usual.

    >>> over({"ER": 8, "RAR": 8, "LUCIR": 3, "BiC": 3}), over({"ER": 3, "RAR": 1})
    ('8 seeds, 3 of: LUCIR; BiC', '')
    """
    several = {row: n for row, n in counts.items() if n > 1}
    if set(several.values()) <= {SEEDS}:
        return ""
    (most, _), *others = Counter(several.values()).most_common()
    rest = [f"{k} of: " + "; ".join(r for r, n in several.items() if n == k) for k, _ in others]
    return ", ".join([f"{most} seeds", *rest])


def sources(served: Sequence[Sourced]) -> str:
    files = sorted({f"`results/{s.file}`" for s in served})
    seeds = over({s.entry.row: len(s.results) for s in served})
    return f"From {', '.join(files)}." + f" {seeds}." * bool(seeds)


def columns(experiment: str) -> list[str]:
    return list(dict.fromkeys(e.column for e in named(experiment).entries))


def each(
    make: Callable[[Collected, str, str, Fields], str],
    found: Collected,
    experiment: str,
    column: str,
    changed: Fields,
) -> str:
    """Apply `make` to one column of an experiment, or to each that has runs, below its title."""
    if column:
        return make(found, experiment, column, changed) or NOTHING
    parts = {one: make(found, experiment, one, changed) for one in columns(experiment)}
    return "\n\n".join(f"**{one}**\n\n{part}" for one, part in parts.items() if part) or NOTHING


def table(found: Collected, experiment: str, column: str, changed: Fields) -> str:
    """Return scores with both statistics beside the paper's; many scores below each other."""
    served = found.serve(experiment, column, changed)
    if not served:
        return ""
    lines = known(rows(served, named(experiment).scores))
    shown = tall(lines) if len(lines[0].cells) > WIDE else wide(lines)
    return f"{shown}\n\n{sources(served)}"


def wide(lines: Sequence[Row]) -> str:
    scores = [cell.score for cell in lines[0].cells]
    given = [any(row.cells[k].paper is not None for row in lines) for k in range(len(scores))]
    heads, body = [""], [[row.row] for row in lines]
    for k, name in enumerate(scores):
        info = score_info(name)
        parts = [""] if info.cost else [f", {title}" for title in STATISTICS.values()]
        heads += [info.title + part for part in parts] + ["paper"] * given[k]
        for row, line in zip(lines, body, strict=True):
            cell = row.cells[k]
            ours = [cell.ours] if info.cost else [cell.bn, cell.ibn]
            line += [spread(m, info.digits) for m in ours]
            line += [number(cell.paper, 2)] * given[k]
    return markdown(heads, body)


def tall(lines: Sequence[Row]) -> str:
    heads = [
        "",
        *(head for row in lines for head in (f"{row.row}, {STATISTICS[row.statistics]}", "paper")),
    ]
    body = []
    for k, cell in enumerate(lines[0].cells):
        cells = [row.cells[k] for row in lines]
        body.append([score_info(cell.score).title])
        body[-1] += [text for c in cells for text in (spread(c.ours), number(c.paper, 2))]
    return markdown(heads, body)


# ---------------------------------------------------------------------- variants


def differences(spec: Fields) -> dict[str, Any]:
    """Return the fields of a spec that are not the defaults of its method, without the scoring."""
    plain = usual(dict(spec))
    changed = {k: v for k, v in spec.items() if k not in SCORING and v != plain.get(k)}
    options: dict[str, Any] = changed.pop("method_options", None) or {}
    return changed | options


def variants(found: Collected, file: str, scores: Sequence[str]) -> str:
    """Return each row of a file, named by its unusual fields, beside the main table's value."""
    main = {tuple(e.fields[name] for name in NAMED): e for e in named("main").entries}
    order = {e.method: k for k, e in enumerate(main.values())}
    served = []
    for group in found.of(file):
        fields = group.fields
        changed = [f"{k} = {v}" for k, v in differences(fields).items()]
        entry = main.get(tuple(fields[name] for name in NAMED))
        paper = entry.paper if entry else {}
        row = ", ".join([method_title(fields["method"]), *changed])
        served.append(Sourced(Entry(row, "", fields, "bn", paper), group.results, group.file))
    served.sort(key=lambda s: (order.get(s.entry.method, len(order)), s.entry.row))
    return f"{wide(known(rows(served, scores or ['acc', 'fm'])))}\n\n{sources(served)}"


# ---------------------------------------------------------------------- gains


def paired(served: Sequence[Served]) -> dict[str, dict[str, Gap]]:
    """Return, by the row of each method with a Dual-CBA, the differences seed by seed."""
    both, first = ("ibn", "ibn"), ("ibn", "bn")
    found: dict[str, dict[str, Gap]] = {}
    seen = []
    for dual in served:
        name, kind = split_method(dual.entry.method)
        same = [s for s in served if alike(s.entry, dual.entry)]
        base = next((s for s in same if s.entry.method == name), None)
        cba = next((s for s in same if s.entry.method == f"{name}-cba"), None)
        if (
            kind != "dual-cba"
            or base is None
            or (key := (base.entry, dual.entry.given, dual.entry.donor)) in seen
        ):
            continue
        seen.append(key)
        found[(dual if base.entry.row in found else base).entry.row] = {
            "whole": gap(dual, base, first),
            "ibn": gap(base, base, first),
            "adaptors": gap(dual, base, both),
            "cba": Gap(0, None, None, None) if cba is None else gap(dual, cba, both),
            "fm": gap(dual, base, first, "fm"),
            "fm_adaptors": gap(dual, base, both, "fm"),
        }
    return found


def signed(one: Gap) -> str:
    """Return a difference as text.

    >>> signed(Gap(3, 1.26, 0.4, 0.01)), signed(Gap(1, -1.26, None, None))
    ('+1.3 ± 0.4', '−1.3 (1 seed)')
    """
    half = "" if one.half is None else f" ± {one.half:.1f}"
    return number(one.mean, sign=True) + half + " (1 seed)" * (one.seeds == 1)


def gains(found: Collected, experiment: str, column: str, changed: Fields) -> str:
    """Return the gains of each method with their p."""
    pairs = paired(found.serve(experiment, column, changed))
    if not pairs:
        return ""
    body = []
    for row, parts in pairs.items():
        tests = ["" if g.p is None else f" (p {p_value(g.p)})" for g in parts.values()]
        texts = [signed(g) + test for g, test in zip(parts.values(), tests, strict=True)]
        body.append([row, *texts])
    seeds = over({row: parts["adaptors"].seeds for row, parts in pairs.items()})
    return markdown(["", *GAINS.values()], body) + f"\n\n{seeds}." * bool(seeds)


def gained(found: Collected, experiment: str, column: str, part: str, changed: Fields) -> str:
    """Return one kind of gain of all methods, in a line."""
    if part not in GAINS:
        raise ValueError(unknown("gain", part, GAINS))
    pairs = paired(found.serve(experiment, column, changed))
    seeds = over({row: gaps[part].seeds for row, gaps in pairs.items()})
    text = "; ".join(f"{row}: {signed(gaps[part])}" for row, gaps in pairs.items())
    return text + f" ({seeds})" * bool(seeds) or NOTHING


# ---------------------------------------------------------------------- agreement


def agreement(found: Collected, readings: Iterable[tuple[str, str, Fields]]) -> str:
    """Return how many cells agree with the paper's ACC, by table; which do not; what is not run."""
    usual: list[tuple[str, str, Fields]] = [
        (n, c, {}) for n in (*NAMES, *READINGS) for c in columns(n)
    ]
    lines, far, counted = [], [], []
    distinct: dict[Hashable, Row] = {}
    missing: dict[str, list[str]] = {}
    for name, column, changed in [*usual, *readings]:
        asked = [e for e in named(name).entries if e.column == column and e.paper.get("acc")]
        served = [s for s in found.serve(name, column, changed) if s.entry.paper.get("acc")]
        cells = rows(served, ["acc"])
        where = ", ".join([column, *(f"{k} = {v}" for k, v in changed.items())])
        if asked and not cells and not changed:
            missing.setdefault(name, []).append(column)
        if cells:
            lines.append([name, where, as_text(within_tolerance(cells)), str(len(asked))])
        far += [[name, where, *outside(row)] for row in cells if row.cells[0].within is False]
        for s, row in zip(served, cells, strict=True) if not changed else ():
            counted.append(row)
            spec, entry = s.entry.spec, s.entry
            run = identity(spec), spec.agnostic_from, entry.donor, entry.statistics
            distinct.setdefault((*run, row.cells[0].paper), row)
    if not lines:
        return NOTHING
    lines.append(["**all**", "", f"**{as_text(within_tolerance(counted), percent=True)}**", ""])
    heads = ["experiment", "column", "cells that agree", "cells of the paper"]
    parts = [
        f"Cells within max({TOLERANCE} points, the interval) of the paper's ACC, of those that "
        "have been run:",
        markdown(heads, lines),
        "Some runs stand in several tables beside the same value. Counted once: "
        f"{as_text(within_tolerance(distinct.values()), percent=True)}.\n"
        f"Of all, {near(counted)} lie "
        f"within {TOLERANCE} points; the others that agree do so by their interval alone.\nAnother "
        "reading of a setting has the field in its line and is not in the total.",
    ]
    if far:
        heads = ["experiment", "column", "row", "ours", "paper", "difference"]
        parts += ["The cells that do not agree:", markdown(heads, far)]
    if missing:
        lists = [f"- {name}: {'; '.join(where)}" for name, where in missing.items()]
        parts += ["Not run yet:", "\n".join(lists)]
    return "\n\n".join(parts)


def near(rows: Iterable[Row]) -> int:
    """Return how many are within the tolerance, whatever their interval."""
    differences = [row.cells[0].difference for row in rows]
    return sum(d is not None and abs(d) <= TOLERANCE for d in differences)


def as_text(share: Share, *, percent: bool = False) -> str:
    text = f"{share.within} of {share.cells}"
    return f"{text}, {share.percent or 0.0:.0f} %" if percent else text


def outside(row: Row) -> list[str]:
    cell = row.cells[0]
    return [row.row, spread(cell.ours), number(cell.paper, 2), number(cell.difference, sign=True)]
