"""The pages on results hold what `results/` gives, and what they quote agrees with it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dualcba.evaluation import interval
from dualcba.experiments import Spec
from tools import publish
from tools.collected import Collected, read

SPREAD = re.compile(r"\d+\.\d+ ± \d+\.\d+")
"""A mean with its interval."""


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pages, which `publish` then reads and writes."""
    copy = tmp_path / "docs"
    shutil.copytree(publish.DOCS, copy, ignore=shutil.ignore_patterns("figures"))
    monkeypatch.setattr(publish, "DOCS", copy)
    return copy


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["publish", *words])
    publish.main()


def test_the_pages_hold_what_the_files_give(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "--check")


def test_a_page_that_differs_is_named_and_rewritten(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, settings = docs / "results" / "main.md", docs / "results" / "settings.md"
    right = {path: path.read_text("utf-8") for path in (main, settings)}
    main.write_text(right[main].replace("21.66", "21.67", 1), "utf-8")
    with pytest.raises(SystemExit, match=r"docs/results/main\.md: tables differ"):
        run(monkeypatch, "--check")
    assert "21.67" in main.read_text("utf-8")
    run(monkeypatch)
    assert {path: path.read_text("utf-8") for path in right} == right


def test_an_unknown_marker_is_one_line(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (docs / "results" / "main.md").write_text("<!-- tabel main --><!-- end -->", "utf-8")
    with pytest.raises(SystemExit, match="error: unknown marker 'tabel'"):
        run(monkeypatch)


def test_readings_of_one_page_count_in_the_agreement_of_another() -> None:
    marker = '<!-- table semi "CIFAR-100, M = 2000" labelled_batches=mixed store_again=false -->'
    pages = {Path("a.md"): "<!-- agreement --><!-- end -->", Path("b.md"): f"{marker}<!-- end -->"}
    prefer = re.search(r"<!-- prefer .*? -->", (publish.DOCS / "results.md").read_text("utf-8"))
    assert prefer is not None
    pages[Path("c.md")] = prefer.group()
    found = publish.rewrite_pages(pages, read(publish.RESULTS))
    assert (
        "| semi | CIFAR-100, M = 2000, labelled_batches = mixed, store_again = False "
        "| 0 of 12 | 12 | 6 of 12 | 12 |" in found[Path("a.md")]
    )


def test_every_table_of_the_catalogue_with_results_is_on_a_page() -> None:
    """A page that loses a marker would lose its numbers unnoticed."""
    text = "".join(publish.read_pages(publish.DOCS).values())
    shown = set(re.findall(r"<!-- table ([\w-]+)", text))
    assert shown >= {
        "main", "normalisation", "blurry", "small-buffers", "semi", "offline", "transfer-intra",
        "transfer-inter", "pretrained", "bilevel", "architecture", "ablations", "per-task",
        "anytime", "stability",
    }  # fmt: skip


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_a_summary_quotes_what_the_generated_pages_hold(page: str) -> None:
    pages = sorted((publish.DOCS / "results").glob("*.md"))
    behind = "".join(path.read_text("utf-8") for path in pages)
    text = (publish.ROOT / page).read_text("utf-8")
    assert set(SPREAD.findall(text)) <= set(SPREAD.findall(behind))
    for share in re.findall(r"\d+ of \d+, \d+ %", text):
        assert f"**{share}**" in behind


def test_the_recipe_has_the_numbers_of_its_runs() -> None:
    """The page on the frontier is written by hand."""
    runs = json.loads((publish.RESULTS / "variants" / "frontier-test.json").read_text("utf-8"))
    spec, found = Spec(method="best", dataset="cifar100", eval_every=0), []
    for buffer in (2000, 5000):
        own = replace(spec, buffer=buffer)
        made = [
            r
            for r in runs["runs"]
            if Spec(**r["options"], seed=r["seed"]) == replace(own, seed=r["seed"])
        ]
        assert sorted(r["seed"] for r in made) == [0, 1, 2, 3, 4]
        for statistics in ("bn", "ibn"):
            mean, half = interval([r["scores"][statistics]["acc"] for r in made])
            found.append(f"{mean:.1f} ± {half:.1f}")
    bn, ibn, bn_5000, ibn_5000 = found
    row = f"| **`best`** | {bn} | **{ibn}** | | {bn_5000} | **{ibn_5000}** | |"
    assert row in (publish.DOCS / "results" / "frontier.md").read_text("utf-8")
    guide = (publish.DOCS / "frontier.md").read_text("utf-8")
    assert f"In the natural order it has {ibn} and {ibn_5000} (5 seeds)" in guide


def test_the_recipe_in_shuffled_orders_has_the_numbers_of_its_runs() -> None:
    collected = Collected(read(publish.RESULTS))
    found = []
    for buffer in (2000, 5000):
        served = collected.serve("frontier-shuffled", f"CIFAR-100, M = {buffer}")
        (best,) = [s for s in served if s.entry.row == "best"]
        mean, half = interval([r.scores["ibn"]["acc"] for r in best.results])
        found.append(f"{mean:.1f} ± {half:.1f}")
    quoted = "{} with a memory of 2,000 and {} with 5,000".format(*found)
    assert f"**{quoted}**" in (publish.ROOT / "README.md").read_text("utf-8")
    assert quoted in (publish.DOCS / "frontier.md").read_text("utf-8")
