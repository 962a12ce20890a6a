"""The sections of a report, which `html` renders."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dualcba.experiments.matching import matches
from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.purpose import AskedSweep
from dualcba.experiments.result import Digests, Result
from dualcba.report.agreement import agreement_tables, tally
from dualcba.report.commands import repeat
from dualcba.report.comparison import (
    FEWEST,
    TOLERANCE,
    Row,
    Served,
    further,
    known,
    rows,
    split_run,
)
from dualcba.report.experiment_files import table_files
from dualcba.report.figures import registry as figures
from dualcba.report.figures.bars import cost, score_bars, seconds
from dualcba.report.figures.style import Plot
from dualcba.report.gains import Gain, in_one_line, known_gains, means
from dualcba.report.made_for import MadeFor
from dualcba.report.names import SCORES, STATISTICS, count, slug
from dualcba.report.pairs import Paired, chosen, pairs, unpaired
from dualcba.report.results import Collection, collections
from dualcba.report.sweeps import Trial, best_lines, best_of_each, sweep_table
from dualcba.report.tables.collections import buffer_table, by_stream, seed_tables
from dualcba.report.tables.csv import comma_separated, pair_records
from dualcba.report.tables.latex import latex
from dualcba.report.tables.model import Column, Table, number, p_value, spread, text_columns
from dualcba.report.tables.scores import (
    GAIN_NOTE,
    blocks,
    further_tables,
    gain_table,
    newest_tables,
    pair_table,
    with_gains,
)


@dataclass(frozen=True)
class Downloads:
    """Files that are embedded in the page: contents by name."""

    files: Mapping[str, str]


Item = str | Table | Plot | Downloads | dict[str, str] | tuple[str, ...]
"""A paragraph, table, figure, files, terms with definitions, or a title with collapsible texts."""

FACTS = 12
"""The largest number of facts at the top of the report."""

SMALL_NOTE = (
    "Runs of dualcba reproduce --scale small: the same experiments on handwritten digits, with the "
    "number of tasks of the paper’s datasets. They show the form of each table; {whose} values do "
    "not apply and are not shown."
)
PUBLISHED_NOTE = (
    "Methods of other papers, run with the protocol of their publications. The published values "
    "come from the methods’ own papers or from later comparisons, not from the Dual-CBA paper, and "
    "were evaluated with BN. Δ is ours minus the published value. It is bold if it exceeds both "
    f"{TOLERANCE} points and the half-width of our 95 % interval over {FEWEST} or more seeds."
)
OWN_NOTE = "Tables made by dualcba reproduce from your own TOML files."
MOST_PAIRS = 45
"""The largest number of pairs in a table: 45 pairs are those of ten methods."""

SHOWN = ("acc", "fm", "acc_auc", "min_acc", "wc_acc", "bwt")


@dataclass
class Section:
    """A heading and the content below it."""

    title: str
    items: list[Item] = field(default_factory=list)
    parts: list[Section] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fact:
    """One of the numbers at the top of the report."""

    name: str
    value: str
    detail: str


def report_sections(
    results: list[Result],
    made: MadeFor | None = None,
    asked: Sequence[str] = (),
    compare: Sequence[str] = (),
) -> tuple[list[Fact], list[Section]]:
    """Return the facts at the top of a report, and its sections.

    `made` has the tables and sweeps that results were made for; other results are shown by dataset.
    `asked` names further scores, `compare` the methods to compare in pairs, by default all.
    """
    made = made or MadeFor()
    groups = collections(results)
    every = [s for group in groups for s in group.served]
    rest = collections(_not_shown(made.shown, results), among=results)
    paper = [row for e, s in made.paper for row in rows(s, e.scores)]
    facts = [
        *_agreement(paper),
        *_main_gain([*made.paper, *made.small]),
        *(f for group in _largest(rest) for f in _facts(group, 3 if len(rest) == 1 else 1)),
    ]
    small, others = (
        [(e, s) for e, s in made.small if (e.beside == "paper") == papers]
        for papers in (True, False)
    )
    sections = []
    for title, text, found in (
        ("Comparison with the paper", _paper_note(), made.paper),
        ("Comparison with published values", PUBLISHED_NOTE, made.published),
        ("The paper’s experiments at small scale", SMALL_NOTE.format(whose="the paper’s"), small),
        ("Other papers’ methods at small scale", SMALL_NOTE.format(whose="published"), others),
        ("Tables of your own", OWN_NOTE, made.own),
    ):
        parts = [_experiment(e, s, asked) for e, s in found]
        sections += [Section(title, [text], parts)] if parts else []
        if found is made.paper and (tables := agreement_tables(found, every)):
            sections[-1].parts.insert(0, Section("Agreement with the paper", [*tables]))
    sections += [_left_out(made.left_out)] if made.left_out else []
    sections += [_sweep(*swept) for swept in made.sweeps]
    sections += [_by_buffer(title, part) for title, part in by_stream(rest).items()]
    sections += [_collection(group, asked) for group in rest]
    sections += _pairs(chosen(groups, compare), compare)
    return facts[:FACTS], [*sections, _provenance(groups, results)]


def _left_out(lines: Sequence[str]) -> Section:
    return Section("Tables left out", [f"{line[0].upper()}{line[1:]}." for line in lines])


def _sweep(asked: AskedSweep, found: list[Trial]) -> Section:
    """Return the table of a sweep, its best trials, and their curves."""
    sweep, best = asked.sweep, best_of_each(found)
    table = sweep_table(found, sweep, len(asked.runs))
    served = [trial.served(sweep) for trial in found]
    stem = slug(table.title)
    plots, _ = figures.FIGURES["anytime"]([t.served(sweep) for t in best], stem, table.title)
    files = table_files(stem, "", [table], served, [*SHOWN, asked.sweep.score], ())
    lines = [line.strip() for line in best_lines(found, sweep)]
    return Section(table.title, [table, *lines, Downloads(files), *plots])


def _by_buffer(title: str, groups: list[Collection]) -> Section:
    """Return tables of methods × buffers."""
    tables = [buffer_table(groups, title, score) for score in ("acc", "fm")]
    served = [s for group in groups for s in group.served]
    files = table_files(slug(title), "", tables, served, SHOWN, ())
    return Section(f"{title}: all buffers", [*tables, Downloads(files)])


def _pairs(groups: list[Collection], methods: Sequence[str]) -> list[Section]:
    """Return a section with the differences of every two methods, if there are any.

    Requested `methods` that are in no pair are named in a remark.
    """
    section, shown, every = (
        Section("Pairwise comparison of methods"),
        list[Paired](),
        list[Paired](),
    )
    for group in groups:
        every += (found := pairs(group.served))
        if len(found) > MOST_PAIRS:
            section.remarks.append(_too_many(group, len(found)))
        elif found:
            section.items.append(pair_table(found, group.title))
            shown += found
    section.remarks += [f"{line}." for line in unpaired(groups, methods, every)]
    if shown:
        tables = [item for item in section.items if isinstance(item, Table)]
        csv, tex = comma_separated(pair_records(shown)), "\n".join(map(latex, tables))
        section.items.append(Downloads({"pairs.csv": csv, "pairs.tex": tex}))
    return [section] if shown or section.remarks else []


def _too_many(group: Collection, found: int) -> str:
    methods = count(len(group.served), "method")
    return (
        f"{group.title}: left out, since {methods} have {found} pairs, more than {MOST_PAIRS}; "
        "choose methods with dualcba report --compare, or see all with dualcba runs compare."
    )


def _not_shown(shown: Sequence[Result], results: Sequence[Result]) -> list[Result]:
    """Return the results that are neither shown nor equivalent to a shown result."""
    digests = Digests([*shown, *results])

    def kind(result: Result) -> tuple[Any, ...]:
        spec = result.spec
        named = spec.method, spec.dataset, spec.setting, spec.buffer
        return *named, result.seed, digests.of(result)

    like: dict[tuple[Any, ...], dict[int, Result]] = {}
    for r in shown:
        like.setdefault(kind(r), {})[id(r)] = r
    return [
        r
        for r in results
        if id(r) not in like.get(kind(r), {})
        and not any(matches(other, r.spec) for other in like.get(kind(r), {}).values())
    ]


def _main_gain(shown: list[tuple[Experiment, list[Served]]]) -> list[Fact]:
    """Return the mean gain of Dual-CBA in the main table, and the part due to IBN alone."""
    found = [g for e, served in shown if e.name == "main" for g in known_gains(served)]
    mean = means([gain for gain in found if gain.kind == "dual-cba"])
    if mean is None:
        return []
    whole, ibn, adaptors = (number(x, sign=True) for x in mean[1:])
    detail = f"mean of {mean[0]} pairs: {ibn} from IBN alone, {adaptors} from the adaptor"
    return [Fact("Main table: Dual-CBA (IBN) over its base (BN)", f"{whole} ACC", detail)]


def _paper_note() -> str:
    return (
        "Δ is our value minus the paper’s, both with the same statistics (BN or IBN). It is bold "
        f"if it exceeds both {TOLERANCE} points and the half-width of our 95 % interval over "
        f"{FEWEST} or more seeds. The paper gives no variation over seeds."
    )


def _agreement(paper: Sequence[Row]) -> list[Fact]:
    found = tally(paper)
    if not found.run:
        return []
    percent = 100 * found.agree / found.run
    detail = f"values within {TOLERANCE} points or our interval ({percent:.0f} %)"
    return [Fact("Comparison with the paper", found.of_run, detail)]


def _largest(groups: list[Collection]) -> list[Collection]:
    """Return the groups with the most runs, as many as fit into the facts, in the given order."""
    by_runs = sorted(groups, key=lambda group: -sum(len(s.results) for s in group.served))
    kept = by_runs[: FACTS // 2 - 1]
    return [group for group in groups if group in kept]


def _facts(group: Collection, most: int) -> list[Fact]:
    """Return the best method of a collection, and at most `most` of its gains."""
    out = []
    ranked = [
        (cell.ibn, row) for row in rows(group.served, ["acc"]) for cell in row.cells if cell.ibn
    ]
    if ranked:
        best, row = max(ranked, key=lambda pair: pair[0].mean)
        highest = spread(best).replace("\u2007", "")
        out.append(Fact(f"Highest ACC, {group.title}", highest, f"{row.row}, IBN"))
    found = known_gains(group.served)
    for gain in sorted(found, key=_rank)[:most]:
        value = spread(gain.adaptors, sign=True).replace("\u2007", "")
        p = "" if gain.adaptors.p is None else f", p = {p_value(gain.adaptors.p)}"
        p = p.replace("= <", "<")
        detail = f"{gain.dual} over {gain.base}, ACC, both with IBN{p}"
        out.append(Fact(f"Gain, {group.title}", value, detail))
    return out


def _rank(gain: Gain) -> tuple[bool, bool, bool]:
    """Sort gains with an interval first, then plain methods before variants, then CBA last."""
    return gain.adaptors.half is None, "," in gain.dual + gain.base, gain.kind == "cba"


def _experiment(experiment: Experiment, served: list[Served], asked: Sequence[str]) -> Section:
    served, not_run = split_run(served)
    items: list[Item] = [experiment.note] if experiment.note else []
    section = Section(experiment.title, items)
    if experiment.scores:
        tables, found = with_gains(served, experiment.scores)
        for column in dict.fromkeys(s.entry.column for s in served):
            part = [s for s in served if s.entry.column == column]
            tables += further_tables(part, column, asked)
        section.items += tables
        section.items += [in_one_line(found)] if found else []
        section.items += seed_tables(served)
        name, title = experiment.name, experiment.title
        scores = [*experiment.scores, *further(served, asked)]
        files = table_files(name, title, tables, served, scores, found)
        section.items.append(Downloads(files))
        near = tally(rows(served, experiment.scores))
        if near.run:
            section.items.append(
                f"{near.of_run} values are within {TOLERANCE} points or our interval over "
                f"{FEWEST} or more seeds; the others are bold."
            )
        section.items += _paper_bars(experiment, served)
    if experiment.figures:
        plots, remarks = figures.draw_all(experiment.figures, served, experiment.name)
        section.items += plots
        section.remarks += remarks
    section.remarks += not_run
    return section


def _paper_bars(experiment: Experiment, served: list[Served]) -> list[Plot]:
    """Return bar charts of ACC for the columns in which the paper gives values."""
    plots: list[Plot] = []
    for column in dict.fromkeys(s.entry.column for s in served):
        part = [s for s in served if s.entry.column == column and s.results]
        if any(s.entry.paper.get("acc") is not None for s in part) and len(part) > 1:
            name = f"{experiment.name}-acc-{len(plots) + 1}"
            plots.append(_bars(part, name, column))
    return plots


def _bars(served: Sequence[Served], name: str, title: str) -> Plot:
    return score_bars(rows(served, ["acc"]), [s.entry.method for s in served], name, title)


def _collection(group: Collection, asked: Sequence[str]) -> Section:
    stem = slug(group.title)
    served = group.served
    section = Section(group.title, parts=[_scores(group, f"{stem}-acc", asked)])
    names = {
        "anytime": "Any-time accuracy", "stability": "Stability gap",
        "predictions": "Confusion and predictions", "posterior": "Posterior at a transition",
        "transitions": "Old and new posterior", "alignment": "Gradient alignment",
    }  # fmt: skip
    for kind, title in names.items():
        plots, remarks = figures.FIGURES[kind](served, f"{stem}-{kind}", group.title)
        if plots:
            section.parts.append(Section(title, list(plots)))
        section.remarks += remarks
    plots, remarks = cost(served, f"{stem}-cost", group.title)
    section.parts.append(Section("Cost", [_cost_table(served), *plots]))
    section.remarks += remarks
    return section


def _scores(group: Collection, name: str, asked: Sequence[str]) -> Section:
    found = rows(group.served, SHOWN)
    section = Section("Scores")
    halves = {"final and any-time scores": slice(3), "stability and transfer": slice(3, None)}
    for title, part in halves.items():
        cut = known([dataclasses.replace(r, cells=r.cells[part]) for r in found])
        if not cut[0].cells:
            continue
        section.items += [Table(f"{group.title}: {title}", t.columns, t.rows) for t in blocks(cut)]
    section.items += newest_tables(group.served, group.title)
    section.items += further_tables(group.served, group.title, asked)
    section.items.append(_bars(group.served, name, group.title))
    pairs = known_gains(group.served)
    if pairs:
        table = dataclasses.replace(gain_table(pairs, group.title), note=GAIN_NOTE)
        section.items.append(table)
        plain = [g for g in pairs if "," not in g.dual + g.base]  # variants are not averaged
        line = in_one_line(pairs if len(pairs) == 1 else plain)
        section.items += [line] if line else []
    section.items += seed_tables(group.served)
    tables = [item for item in section.items if isinstance(item, Table)]
    scores = [*SHOWN, *further(group.served, asked)]
    files = table_files(slug(group.title), "", tables, group.served, scores, pairs)
    section.items.append(Downloads(files))
    return section


def _cost_table(served: Sequence[Served]) -> Table:
    columns = (*text_columns("method"), *map(Column, ("runs", "train", "evaluate", "total")))
    lines = []
    for s in served:
        parts = [number(seconds(s, part), 2) for part in ("train", "evaluate", "total")]
        lines.append((s.entry.row, str(len(s.results)), *parts))
    note = (
        "Mean wall-clock time over seeds. On CUDA, kernels run asynchronously, so the split is "
        "approximate."
    )
    return Table("Seconds per run", columns, tuple(lines), note)


def _provenance(groups: list[Collection], results: list[Result]) -> Section:
    terms = {s.arrowed: f"{s.meaning}." for s in SCORES.values()}
    statistics = {
        STATISTICS["bn"]: "evaluation with the running statistics of batch normalisation.",
        STATISTICS["ibn"]: "evaluation with statistics re-estimated in one pass over the memory; "
        "training is not affected.",
    }
    parts = [
        Section("Scores and statistics", [terms | statistics]),
        Section("Versions and devices", [_versions(results)]),
        Section("Specs and commands", [*_specs(groups)]),
    ]
    return Section("How each number was made", parts=parts)


def _versions(results: list[Result]) -> Table:
    kinds: dict[str, tuple[dict[str, Any], int]] = {}
    for result in results:
        found = dict(result.versions)
        key = json.dumps(found, sort_keys=True)
        kinds[key] = found, kinds.get(key, (found, 0))[1] + 1
    names = list(dict.fromkeys(name for found, _ in kinds.values() for name in found))
    lines = tuple(
        (str(count), *(str(found.get(name, "–")) for name in names))
        for found, count in kinds.values()
    )
    return Table("Software and hardware of the runs", text_columns("runs", *names), lines)


def _specs(groups: list[Collection]) -> list[Item]:
    folds: list[Item] = []
    for group in groups:
        for s in group.served:
            seeds = [r.seed for r in s.results]
            spec = {k: v for k, v in s.entry.given.items() if v is not None}
            lines = "\n".join(f"{k} = {json.dumps(v)}" for k, v in spec.items())
            title = f"{s.entry.row}, {group.title}, seeds {', '.join(map(str, seeds))}"
            folds.append((title, repeat(s), lines))
    return folds
