"""The page: whole, self-contained, escaped; and an experiment's files."""

from __future__ import annotations

import csv
import errno
import os
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dualcba.experiments import Result, Spec, write_result
from dualcba.experiments.paper.catalogue import Experiment
from dualcba.experiments.result import Anytime, ForeignSpec, make_spec
from dualcba.report import render, sections, write_report
from dualcba.report.comparison import serve
from dualcba.report.html import make_page
from dualcba.report.made_for import MadeFor
from dualcba.report.names import method_title
from dualcba.report.own_tables import parse_table

VOID = {"meta", "link", "img", "br", "hr"}


class Page(HTMLParser):
    """Tags, their attributes and the text of a page; complains about what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def files(self) -> dict[str, str]:
        """The texts of the files that the page holds, by their names."""
        links = {str(a["download"]): str(a["href"]) for a in self.all("a") if "download" in a}
        return {n: b64decode(link.partition("base64,")[2]).decode() for n, link in links.items()}


FIGURES = (
    "acc", "anytime", "stability", "predictions-share", "predictions-confusion", "posterior",
    "transitions-1", "transitions-2", "alignment-1", "alignment-2", "cost",
)  # fmt: skip


@pytest.fixture(scope="session")
def page(report: Path) -> str:
    return report.read_text(encoding="utf-8")


def test_a_folder_of_runs_becomes_one_file(report: Path) -> None:
    assert report.name == "report.html"
    files = sorted(p.name for p in report.parent.rglob("*") if p.is_file())
    assert files == ["report.html", *["result.json"] * 4]


def test_nothing_comes_from_elsewhere(page: str) -> None:
    parsed = Page(page)
    links = [a.get("src") or a.get("href") or "" for _, a in parsed.tags]
    assert all(link.startswith(("data:", "#")) for link in links if link)
    assert not parsed.all("script")
    assert "url(" not in page
    assert "@import" not in page


def test_every_section_can_be_reached(page: str) -> None:
    parsed = Page(page)
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [str(a["href"])[1:] for a in parsed.all("a") if "download" not in a]
    assert len(targets) > 8
    assert set(targets) <= set(ids)


def test_it_says_what_was_run_and_how_to_repeat_it(page: str, recorded: list[Result]) -> None:
    text = " ".join(Page(page).text.split())
    versions = recorded[0].versions
    for words in (
        "4 runs, 2 methods, 2 seeds", "ER-Dual-CBA over ER", versions["torch"],
        versions["device"], "dualcba run --method er --dataset digits --eval-every 10 --seeds 2",
        "mean accuracy over all tasks at the end of the stream", "Seconds per run",
        "Old and new posterior", "Confusion between", "Stability gap",
    ):  # fmt: skip
        assert words in text


def test_figures_have_descriptions_and_tables_scopes(page: str) -> None:
    parsed = Page(page)
    names = [f"figure-digits-online-m-100-{name}" for name in FIGURES]
    assert [figure["id"] for figure in parsed.all("figure")] == names
    assert len(parsed.all("img")) == len(names)
    assert all(image["alt"] for image in parsed.all("img"))
    assert all(head.get("scope") for head in parsed.all("th"))
    assert len(parsed.all("h1")) == 1


def test_runs_without_recordings_are_reported_too(results: list[Result]) -> None:
    text = Page(make_page(results, "plain")).text
    assert "Confusion and predictions: left out, no predictions were recorded." in text
    assert "Any-time accuracy" in text


def test_scores_that_no_run_has_are_not_a_column_of_dashes(results: list[Result]) -> None:
    none = dict.fromkeys(("acc_auc", "min_acc", "wc_acc", "bwt"))
    bare = [
        replace(r, anytime=Anytime(), scores={s: {**v, **none} for s, v in r.scores.items()})
        for r in results
    ]
    assert "stability and transfer" in Page(make_page(results, "all")).text
    page = Page(make_page(bare, "bare"))
    assert "final and any-time scores" in page.text
    assert "stability and transfer" not in page.text
    assert len([p for p in page.all("p") if p.get("class") == "remark"]) == 1


def test_the_newest_task_has_a_table_unless_the_results_are_older(results: list[Result]) -> None:
    text = Page(make_page(results, "new")).text
    for words in ("Digits, online, M = 100: the newest task", "lowest recall, last task ↑"):
        assert words in text
    names = ("newest", "newest_last", "newest_recall")
    older = [
        replace(r, scores={s: {k: v for k, v in found.items() if k not in names}
                           for s, found in r.scores.items()})
        for r in results
    ]  # fmt: skip
    assert "M = 100: the newest task" not in Page(make_page(older, "old")).text
    both = Page(make_page([older[0], *results[2:]], "both")).text
    assert "M = 100: the newest task" in both


def test_scores_that_were_asked_for_have_a_table(results: list[Result]) -> None:
    assert "further scores" not in Page(make_page(results, "plain")).text
    text = Page(make_page(results, "more", asked=["learning_acc", "balanced_acc"])).text
    assert "Digits, online, M = 100: further scores" in text
    table = text[text.index("M = 100: further scores") :]
    assert "ACC after learning ↑" in table
    value = np.mean([r.scores["bn"]["learning_acc"] for r in results if r.method == "er"])
    assert f"{value:.1f}" in table


def test_scores_that_were_asked_for_are_in_the_files(
    results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    """Those of one's own runs and those of an experiment."""
    one = experiment()
    made = MadeFor(paper=[(one, serve(one, results[:1]))])
    files = Page(make_page(results, "more", made, asked=["learning_acc"])).files
    for stem in ("digits-online-m-100", "small"):
        for end in (".csv", "-seeds.csv"):
            lines = csv.DictReader(files[f"{stem}{end}"].splitlines())
            assert [line["score"] for line in lines].count("learning_acc") > 0
        assert "ACC after learning" in files[f"{stem}.tex"]


def test_the_facts_are_of_the_collections_with_the_most_runs(results: list[Result]) -> None:
    sizes = [10, 20, 30, 40, 50, 60, 70]
    many = [
        replace(r, spec=make_spec(r.fields | {"buffer": m}))
        for m in sizes
        for r in (results if m != 10 else results[:1])
    ]
    facts, _ = sections.report_sections(many)
    told = [f.name for f in facts if f.name.startswith("Highest ACC")]
    assert [name.rpartition(" = ")[2] for name in told] == ["20", "30", "40", "50", "60"]
    assert len(facts) <= sections.FACTS


def with_method(result: Result, method: str) -> Result:
    return replace(result, spec=make_spec(result.fields | {"method": method}))


def test_the_gains_among_the_facts_begin_with_those_of_dual_cba(results: list[Result]) -> None:
    """A report on several collections has room for one gain of each."""
    cba = [with_method(r, "er-cba") for r in results if r.method == "er"]
    facts, _ = sections.report_sections([*results, *cba])
    details = [fact.detail for fact in facts if fact.name.startswith("Gain")]
    assert [d.partition(" over ")[0] for d in details] == ["ER-Dual-CBA", "ER-CBA"]


def test_the_fact_on_the_main_table_is_on_dual_cba_alone(
    results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    cba = [with_method(r, "er-cba") for r in results if r.method == "er"]
    first, *others = experiment(name="main").entries
    added = replace(first, row="ER-CBA", given={**first.given, "method": "er-cba"})
    every = [*results, *cba]
    facts = []
    for entries in ((first, *others), (first, added, *others)):
        main = experiment(name="main", entries=entries)
        found, _ = sections.report_sections(every, MadeFor(paper=[(main, serve(main, every))]))
        facts.append([fact for fact in found if fact.name.startswith("Main table")])
    assert facts[0] == facts[1] != []


def test_names_are_escaped(results: list[Result]) -> None:
    evil = '<script>alert("1")</script>'
    named = {"method": evil, "dataset": evil}
    changed = [
        replace(r, versions={evil: evil}, spec=ForeignSpec(r.fields | named)) for r in results[:1]
    ]
    made = make_page(changed, evil)
    assert "<script" not in made
    assert evil in Page(made).text


def test_experiments_with_runs_stand_beside_the_paper(
    results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    curves = {"name": "curves", "title": "Curves", "scores": (), "kind": "figure"}
    figure = experiment(**curves, figures=("anytime", "stability"))
    made = MadeFor(paper=[(one, serve(one, results)) for one in (experiment(), figure)])
    page = Page(make_page(results, "runs", made))
    assert "Comparison with the paper" in page.text
    assert "Small & simple" in page.text
    assert re.search(r"of 3values within", page.text)
    assert "of 3 values are within 2.5 points or our interval over 3 or more seeds" in page.text
    assert "Curves" in page.text
    assert page.text.count("Digits, M = 50") == page.text.count("Not run: Digits, M = 50.") == 2
    names = [str(one["id"]) for one in page.all("figure")]
    assert {"figure-curves-anytime", "figure-curves-stability"} <= set(names)


def test_the_files_of_a_table_are_in_the_page(page: str, recorded: list[Result]) -> None:
    texts = Page(page).files
    stem = "digits-online-m-100"
    ends = (".csv", "-seeds.csv", ".tex", "-gains.csv")
    assert set(texts) == {*(f"{stem}{end}" for end in ends), "pairs.csv", "pairs.tex"}
    lines = list(csv.DictReader(texts[f"{stem}-seeds.csv"].splitlines()))
    for result in recorded:
        (line,) = (
            line for line in lines
            if (line["row"], line["seed"], line["score"])
            == (method_title(result.method), str(result.seed), "acc")
        )  # fmt: skip
        assert float(line["bn"]) == result.scores["bn"]["acc"]
        assert float(line["ibn"]) == result.scores["ibn"]["acc"]
    assert r"\begin{tabular}" in texts[f"{stem}.tex"]


def test_each_seed_has_its_values(page: str, recorded: list[Result]) -> None:
    text = Page(page).text
    assert "Digits, online, M = 100: ACC ↑ of each seed" in text
    for result in recorded:
        assert f"{result.scores['ibn']['acc']:.1f}" in text


def test_several_buffers_have_a_table_of_methods_and_buffers(results: list[Result]) -> None:
    other = [replace(r, spec=make_spec(r.fields | {"buffer": 50})) for r in results]
    text = " ".join(Page(make_page([*other, *results], "two")).text.split())
    assert "Digits, online: ACC ↑ by buffer" in text
    assert "M = 50M = 100" in text.replace("M = 50 M = 100", "M = 50M = 100")
    assert 'download="digits-online-seeds.csv"' in make_page([*other, *results], "two")
    assert "by buffer" not in make_page(results, "one")


def test_an_empty_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no complete run"):
        write_report(tmp_path)
    with pytest.raises(FileNotFoundError, match="expected a folder of runs"):
        write_report(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_is_one_clear_line(
    tmp_path: Path, results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    (result, *_) = results
    assert isinstance(result.spec, Spec)
    write_result(tmp_path, result.spec, result.to_dict())
    with pytest.raises(IsADirectoryError, match=r"is a folder, expected a file .*report\.html$"):
        write_report(tmp_path, to=tmp_path)

    def refuse(path: object, *_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(
        OSError, match=r"report\.html cannot be written: Read-only file system, exp"
    ):
        write_report(tmp_path)


def test_an_experiment_writes_its_tables(
    tmp_path: Path, results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    paths = render(experiment(), results, tmp_path / "out")
    assert sorted(p.name for p in paths) == [
        "small-gains.csv", "small-seeds.csv", "small.csv", "small.md", "small.tex"
    ]  # fmt: skip
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(p.name for p in paths)
    text = (tmp_path / "out" / "small.md").read_text()
    assert text.startswith("# Small & simple\n")
    assert "**Digits, M = 50**" not in text
    assert text.endswith("\nNot run: Digits, M = 50.\n")
    assert r"\caption{Small \& simple. Digits, M = 100}" in (tmp_path / "out/small.tex").read_text()
    assert "**Digits, M = 100: the newest task**" in text
    lines = csv.DictReader((tmp_path / "out" / "small.csv").open())
    assert {"newest", "newest_last", "newest_recall"} <= {line["score"] for line in lines}


def test_a_caption_has_the_title_once(tmp_path: Path, results: list[Result]) -> None:
    text = "title = 'My table'\n[spec]\neval_every = 10\n[rows.ER]\nmethod = 'er'\n"
    render(parse_table("mine", text).experiment, results, tmp_path)
    captions = re.findall(r"caption{(.*)}", (tmp_path / "mine.tex").read_text())
    assert captions == ["My table", "My table: the newest task"]


def test_an_experiment_writes_its_figures(
    tmp_path: Path, results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    made = experiment(figures=("anytime",), scores=())
    names = [p.name for p in render(made, results, tmp_path)]
    assert names == ["small-1.svg", "small-1.png", "small.md"]
    text = (tmp_path / "small.md").read_text()
    assert "](small-1.svg)\n\nAny-time accuracy, Digits, M = 100: mean over the tasks" in text
    assert "left out" not in text  # a column without runs has no figure to miss


def test_a_figure_without_its_recording_is_a_line(
    tmp_path: Path, results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    render(experiment(figures=("alignment",), scores=()), results, tmp_path)
    assert "Alignment: left out" in (tmp_path / "small.md").read_text()


def test_files_of_an_earlier_call_that_are_not_written_again_are_removed(
    tmp_path: Path, results: list[Result], experiment: Callable[..., Experiment]
) -> None:
    render(experiment(figures=("anytime", "stability")), results, tmp_path)
    assert (tmp_path / "small-anytime-1.svg").exists()
    (tmp_path / "small-anytime-9.svg").touch()  # may be a figure of another experiment
    (tmp_path / "small-2.md").touch()
    left = {"small-anytime-9.svg", "small-2.md"}
    paths = render(experiment(figures=("anytime",), scores=()), results, tmp_path)
    assert {p.name for p in paths} == {"small-1.svg", "small-1.png", "small.md"}
    assert {p.name for p in tmp_path.iterdir()} == left | {p.name for p in paths}


def test_an_experiment_without_runs_is_one_clear_line(
    tmp_path: Path, experiment: Callable[..., Experiment]
) -> None:
    with pytest.raises(ValueError, match="no result belongs to the experiment 'small', expected"):
        render(experiment(), [], tmp_path)
    assert list(tmp_path.iterdir()) == []
