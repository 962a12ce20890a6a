"""Markdown for the pages on results, made from `results/`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from dualcba.errors import unknown
from dualcba.experiments.paper.catalogue import Entry, experiments
from dualcba.experiments.result import NAMED, identity
from dualcba.report.agreement import (
    CELL_HEADS,
    COUNT_HEADS,
    COUNTED,
    attempts,
    cell_line,
    count_line,
    paper_entries,
    tally,
    total_line,
)
from dualcba.report.comparison import TOLERANCE, Row, Served, known, rows
from dualcba.report.gains import Gap, alike, gap, ibn_alone
from dualcba.report.names import STATISTICS, method_title, score_info, split_method
from dualcba.report.results import SCORING, usual
from dualcba.report.tables.model import number, p_value
from dualcba.report.tables.model import plain_spread as spread
from dualcba.report.tables.scores import WIDE
from tools.collected import Collected, Fields, Sourced, named

SEEDS = 3
"""The usual number of seeds, which is not mentioned."""
ONE_SEED = " (1 seed)"

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
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(body))


def over(counts: Mapping[str, int]) -> str:
    """Return the number of seeds of most rows, and rows with other numbers; empty if all are usual.

    >>> over({"ER": 8, "RAR": 8, "LUCIR": 3, "BiC": 3}), over({"ER": 3, "RAR": 1}), over({"ER": 1})
    ('8 seeds, 3 of: LUCIR; BiC', '', '1 seed')
    """
    if set(counts.values()) == {1}:
        return "1 seed"
    several = {row: n for row, n in counts.items() if n > 1}
    if set(several.values()) <= {SEEDS}:
        return ""
    (most, _), *others = Counter(several.values()).most_common()
    rest = [f"{k} of: " + "; ".join(r for r, n in several.items() if n == k) for k, _ in others]
    return ", ".join([f"{most} seeds", *rest])


def said_once(shown: str, seeds: str) -> str:
    """Drop "(1 seed)" from the cells of a table if all rows have one seed."""
    return shown.replace(ONE_SEED, "") if seeds == "1 seed" else shown


def with_sources(shown: str, served: Sequence[Sourced]) -> str:
    """Return a table with its files and numbers of seeds below."""
    files = sorted({f"`results/{file}`" for s in served for file in s.files})
    seeds = over({s.entry.row: len(s.results) for s in served})
    below = f"From {', '.join(files)}." + f" {seeds}." * bool(seeds)
    return f"{said_once(shown, seeds)}\n\n{below}"


def columns(experiment: str) -> list[str]:
    return list(dict.fromkeys(e.column for e in named(experiment).entries))


def each(
    make: Callable[[Collected, str, str, Fields], str],
    found: Collected,
    experiment: str,
    column: str,
    changed: Fields,
) -> str:
    """Apply `make` to one column of an experiment, or to each column with runs, with titles."""
    if column:
        return make(found, experiment, column, changed) or NOTHING
    parts = {one: make(found, experiment, one, changed) for one in columns(experiment)}
    return "\n\n".join(f"**{one}**\n\n{part}" for one, part in parts.items() if part) or NOTHING


def table(found: Collected, experiment: str, column: str, changed: Fields) -> str:
    """Return scores under BN and IBN with the paper's values; many scores as rows."""
    served = found.serve(experiment, column, changed)
    if not served:
        return ""
    lines = known(rows(served, named(experiment).scores))
    layout = tall if len(lines[0].cells) > WIDE else wide
    return with_sources(layout(lines, named(experiment).beside), served)


def wide(lines: Sequence[Row], beside: str = "paper") -> str:
    scores = [cell.score for cell in lines[0].cells]
    given = [any(row.cells[k].paper is not None for row in lines) for k in range(len(scores))]
    heads, body = [""], [[row.row] for row in lines]
    for k, name in enumerate(scores):
        info = score_info(name)
        parts = [""] if info.fixed else [f", {title}" for title in STATISTICS.values()]
        heads += [info.title + part for part in parts] + [beside] * given[k]
        for row, line in zip(lines, body, strict=True):
            cell = row.cells[k]
            ours = [cell.ours] if info.fixed else [cell.bn, cell.ibn]
            line += [spread(m, info.digits) for m in ours]
            line += [number(cell.paper, 2)] * given[k]
    return markdown(heads, body)


def tall(lines: Sequence[Row], beside: str = "paper") -> str:
    heads = [
        "",
        *(head for row in lines for head in (f"{row.row}, {STATISTICS[row.statistics]}", beside)),
    ]
    body = []
    for k, cell in enumerate(lines[0].cells):
        cells = [row.cells[k] for row in lines]
        body.append([score_info(cell.score).title])
        body[-1] += [text for c in cells for text in (spread(c.ours), number(c.paper, 2))]
    return markdown(heads, body)


# ---------------------------------------------------------------------- variants


def differences(spec: Fields) -> dict[str, Any]:
    """Return the fields of a spec that differ from the defaults of its method, except scoring."""
    plain = usual(dict(spec))
    changed = {k: v for k, v in spec.items() if k not in SCORING and v != plain.get(k)}
    options: dict[str, Any] = changed.pop("method_options", None) or {}
    return changed | options


def variants(found: Collected, file: str, scores: Sequence[str]) -> str:
    """Return each row of a file, named by its non-default fields, with the main table's value."""
    main = {tuple(e.fields[name] for name in NAMED): e for e in named("main").entries}
    order = {e.method: k for k, e in enumerate(main.values())}
    served = []
    for group in found.of(file):
        fields = group.fields
        changed = [f"{k} = {v}" for k, v in differences(fields).items()]
        entry = main.get(tuple(fields[name] for name in NAMED))
        paper = entry.paper if entry else {}
        row = ", ".join([method_title(fields["method"]), *changed])
        served.append(Sourced(Entry(row, "", fields, "bn", paper), group.results, group.files))
    served.sort(key=lambda s: (order.get(s.entry.method, len(order)), s.entry.row))
    return with_sources(wide(known(rows(served, scores or ["acc", "fm"]))), served)


# ---------------------------------------------------------------------- gains


def paired(served: Sequence[Served]) -> dict[str, dict[str, Gap]]:
    """Return the differences on common seeds of each method with Dual-CBA, by row."""
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
            "ibn": ibn_alone(base, dual),
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
    return number(one.mean, sign=True) + half + ONE_SEED * (one.seeds == 1)


def gains(found: Collected, experiment: str, column: str, changed: Fields) -> str:
    """Return the gains of each method with p values."""
    pairs = paired(found.serve(experiment, column, changed))
    if not pairs:
        return ""
    body = []
    for row, parts in pairs.items():
        tests = ["" if g.p is None else f" (p {p_value(g.p)})" for g in parts.values()]
        texts = [signed(g) + test for g, test in zip(parts.values(), tests, strict=True)]
        body.append([row, *texts])
    seeds = over({row: parts["adaptors"].seeds for row, parts in pairs.items()})
    shown = said_once(markdown(["", *GAINS.values()], body), seeds)
    return shown + f"\n\n{seeds}." * bool(seeds)


def gained(found: Collected, experiment: str, column: str, part: str, changed: Fields) -> str:
    """Return one kind of gain of all methods as a line."""
    if part not in GAINS:
        raise ValueError(unknown("gain", part, GAINS))
    pairs = paired(found.serve(experiment, column, changed))
    seeds = over({row: gaps[part].seeds for row, gaps in pairs.items()})
    text = said_once(
        "; ".join(f"{row}: {signed(gaps[part])}" for row, gaps in pairs.items()), seeds
    )
    return text + f" ({seeds})" * bool(seeds) or NOTHING


# ---------------------------------------------------------------------- agreement


def agreement(found: Collected, readings: Iterable[tuple[str, str, Fields]]) -> str:
    """Return the counts of cells that agree, the cells that disagree, and those not run."""
    counted = every_cell(found)
    lines = [count_line(name, column, part) for (name, column), part in by_place(counted).items()]
    other = list(other_readings(found, readings))
    lines += [count_line(name, where, part) for name, where, part in other]
    if not any(s.results for _, s in counted):
        return NOTHING
    cells = rows([s for _, s in counted], COUNTED)
    lines.append([f"**{text}**" if text else "" for text in total_line(cells)])
    parts = [
        f"Cells within max({TOLERANCE} points, the interval) of the paper's value, of those that "
        "have been run, and how many the paper has:",
        markdown(COUNT_HEADS, lines),
        "By table:",
        markdown(("experiment", *COUNT_HEADS[2:]), by_experiment(counted)),
        "\n".join(tally(cells, score).sentence(score) for score in COUNTED)
        + "\nSome runs stand in several tables beside the same value. Counted once: "
        + " and ".join(f"{once(counted, s)} in {score_info(s).title}" for s in COUNTED)
        + f".\nOf all, {near(cells, 'acc')} values of ACC and {near(cells, 'fm')} of FM lie within "
        f"{TOLERANCE} points; the others that agree do so by their interval alone.\n"
        "Another reading of a setting has the field in its line and is not in the total.",
    ]
    for score in COUNTED:
        if far := disagreeing(found, counted, score):
            title = score_info(score).title
            parts += [f"The cells that do not agree in {title}:", markdown(CELL_HEADS, far)]
    if missing := not_run(counted):
        parts += ["Not run yet, with the number of rows:", missing]
    return "\n\n".join(parts)


def agreed(found: Collected, score: str) -> str:
    """Return the share of cells that agree in a score, of those that were run."""
    if score not in COUNTED:
        raise ValueError(unknown("score", score, COUNTED))
    return tally(rows([s for _, s in every_cell(found)], COUNTED), score).share or NOTHING


def counted(found: Collected, score: str) -> str:
    """Return the counts for all cells of the paper in a score as a sentence."""
    if score not in COUNTED:
        raise ValueError(unknown("score", score, COUNTED))
    return tally(rows([s for _, s in every_cell(found)], COUNTED), score).sentence(score)


def every_cell(found: Collected) -> list[tuple[str, Served]]:
    """Return every entry with a value in the paper, with the name of its table."""
    cells = []
    for name, experiment in experiments().items():
        for entry in paper_entries(experiment):
            group = found.serving(entry)
            cells.append((name, Served(entry, group.results if group else ())))
    return cells


def by_place(cells: Iterable[tuple[str, Served]]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each column of each table."""
    places: dict[tuple[str, str], list[Row]] = {}
    for name, served in cells:
        places.setdefault((name, served.entry.column), []).extend(rows([served], COUNTED))
    return places


def by_experiment(cells: Sequence[tuple[str, Served]]) -> list[list[str]]:
    """Return the counts of each table."""
    names = dict.fromkeys(name for name, _ in cells)
    parts = {one: rows([s for name, s in cells if name == one], COUNTED) for one in names}
    return [[name, *count_line(name, "", part)[2:]] for name, part in parts.items()]


def other_readings(
    found: Collected, readings: Iterable[tuple[str, str, Fields]]
) -> Iterable[tuple[str, str, list[Row]]]:
    """Yield the name, the column with changed fields, and the rows of readings on a page."""
    for name, column, changed in readings:
        every = [s for s in found.serve(name, column, changed) if s.entry.paper.get("acc")]
        served = {stated(s.entry): s for s in every}  # two rows may be readings of the same value
        asked = [e for e in paper_entries(named(name)) if e.column == column]
        missing = [Served(e, ()) for e in asked if stated(e) not in served]
        where = ", ".join([column, *(f"{k} = {v}" for k, v in changed.items())])
        if served:
            yield name, where, rows([*served.values(), *missing], COUNTED)


def stated(entry: Entry) -> Hashable:
    """Return the method and the paper's values of an entry."""
    return entry.method, *entry.paper.items()


def disagreeing(
    found: Collected, cells: Iterable[tuple[str, Served]], score: str
) -> list[list[str]]:
    """Return the cells that disagree in a score, with other settings that were tried."""
    others = [Served(Entry("", "", g.fields, "bn", {}), g.results) for g in found.groups]
    lines = []
    for name, s in cells:
        (row,) = rows([s], COUNTED)
        if next(c for c in row.cells if c.score == score).within is False:
            text = attempts(s.entry, score, others, lambda e: found.serving(e) is not None)
            lines.append(cell_line(name, s.entry.column, row, score, text) or [])
    return lines


def once(cells: Iterable[tuple[str, Served]], score: str) -> str:
    """Return the share of cells that agree; equal values of one run count once."""
    distinct: dict[Hashable, Row] = {}
    for _, s in cells:
        if s.results:
            spec, entry = s.entry.spec, s.entry
            run = identity(spec), spec.agnostic_from, entry.donor, entry.statistics
            distinct.setdefault((*run, entry.paper.get(score)), rows([s], COUNTED)[0])
    return tally(distinct.values(), score).share


def near(found: Iterable[Row], score: str) -> int:
    """Return the number of values of a score within the tolerance, regardless of intervals."""
    return sum(c.near for row in found for c in row.cells if c.score == score)


def not_run(cells: Iterable[tuple[str, Served]]) -> str:
    """Return a list of the columns with entries that have not been run."""
    missing: dict[str, Counter[str]] = {}
    for name, s in cells:
        if not s.results:
            missing.setdefault(name, Counter())[s.entry.column] += 1
    lists = {name: [f"{c} ({n})" for c, n in where.items()] for name, where in missing.items()}
    return "\n".join(f"- {name}: {'; '.join(where)}" for name, where in lists.items())


# ---------------------------------------------------------------------- one row against another


def against(found: Collected, experiment: str, column: str, row: str, base: str) -> str:
    """Return a row's ACC and FM minus those of another row on common seeds, as a line.

    EXPERIMENT:ROW names a row of another experiment.
    """
    where, _, name = base.rpartition(":")
    one = row_of(found, experiment, column, row)
    other = row_of(found, where or experiment, column, name)
    if one is None or other is None:
        return "not measured yet"
    both = one.entry.statistics, other.entry.statistics
    gaps = {score: gap(one, other, both, score) for score in COUNTED}
    seeds = gaps["acc"].seeds
    parts = [f"{score_info(score).title} {signed(g)}" for score, g in gaps.items()]
    return ", ".join(parts) + f" ({seeds} seeds)" * (seeds > 1)


def row_of(found: Collected, experiment: str, column: str, row: str) -> Served | None:
    """Return a row of a column, or None if it was not run."""
    rows_ = [e.row for e in named(experiment).entries if e.column == column]
    if row not in rows_:
        raise ValueError(unknown(f"row of {experiment}", row, rows_))
    return next((s for s in found.serve(experiment, column) if s.entry.row == row), None)
