"""The pages: their Python runs, their links resolve, and the names and commands in them exist."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dualcba import methods
from dualcba.cli.app import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FILES = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
CURRENT = [path for path in FILES if path.name != "CHANGELOG.md"]
"""What describes the present state: an old name may be in the changelog."""

PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text("utf-8")


def prose(path: Path) -> str:
    """The text without fenced code."""
    return FENCED.sub("", text_of(path))


# ---------------------------------------------------------------------- code


@pytest.fixture
def _no_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Undo what a page registers or writes."""
    before = dict(methods.METHODS)
    monkeypatch.chdir(tmp_path)
    yield
    methods.METHODS.clear()
    methods.METHODS.update(before)


def blocks(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the number of lines above it."""
    text = text_of(page)
    return [(text[: m.start(1)].count("\n"), m.group(1)) for m in PYTHON.finditer(text)]


@pytest.mark.usefixtures("_no_trace")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_every_python_block_of_a_page_runs_in_order(page: Path) -> None:
    namespace = {"__name__": f"docs_{page.stem}"}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)  # errors name the line


def test_the_method_of_the_page_has_fewer_than_forty_lines() -> None:
    _, code = blocks(DOCS / "extending.md")[0]
    assert len(code.splitlines()) < 40


# ---------------------------------------------------------------------- links


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE):
        plain = re.sub(r"[^a-z0-9 _-]", "", INLINE.sub(r"\1", heading).lower())
        slug = plain.strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {s if k == 0 else f"{s}-{k}" for s, count in found.items() for k in range(count + 1)}


def links(path: Path) -> list[str]:
    """The relative links of a page."""
    found = LINK.findall(re.sub(r"`[^`\n]*`", "", prose(path)))
    return [link for link in found if not link.startswith(("http://", "https://"))]


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_relative_link_and_anchor_resolves(path: Path) -> None:
    for link in links(path):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{name(path)} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(file), f"{name(path)} links to {link}: no such heading"


def linked(path: Path) -> set[Path]:
    return {(path.parent / link.partition("#")[0]).resolve() for link in links(path)}


def test_the_readme_links_the_index_and_the_index_every_page() -> None:
    assert DOCS / "README.md" in linked(ROOT / "README.md")
    assert linked(DOCS / "README.md") >= set(PAGES) - {DOCS / "README.md"}


def test_the_summary_of_results_links_every_table() -> None:
    assert linked(DOCS / "results.md") >= set((DOCS / "results").glob("*.md"))
    assert len(text_of(DOCS / "results.md").splitlines()) < 100


def test_every_figure_is_shown() -> None:
    assert {p for path in FILES for p in linked(path)} >= set((DOCS / "figures").glob("*.svg"))


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("path", CURRENT, ids=name)
def test_files_and_modules_that_a_page_names_exist(path: Path) -> None:
    text = text_of(path)
    for file in re.findall(r"`((?:src|tests|tools|benchmarks|results|docs)/[\w./-]*)`", text):
        assert (ROOT / file).exists(), f"{name(path)} names {file}, which does not exist"
    for module in re.findall(r"`((?:dualcba|tools|benchmarks)(?:\.[a-z_]+)+)`", text):
        assert importlib.util.find_spec(module), f"{name(path)} names {module}"


def test_the_table_of_modules_is_the_tree() -> None:
    rows = re.findall(r"^\| `([\w./]+)` \|", text_of(DOCS / "architecture.md"), re.MULTILINE)
    source = ROOT / "src" / "dualcba"
    there = {p.name for p in source.glob("[a-z]*.py")}
    there |= {f"{p.parent.name}/" for p in source.glob("*/__init__.py")}
    assert set(rows) == there


# ---------------------------------------------------------------------- commands


def commands(path: Path) -> list[str]:
    """The commands of dualcba and of the repository's modules that a page names."""
    spans = [" ".join(span.split()) for span in INLINE.findall(prose(path))]
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", text_of(path), re.DOTALL | re.MULTILINE))
    indented = re.findall(r"^    (.*)$", prose(path), re.MULTILINE)
    lines = [line.split(" #")[0] for line in [*shell.splitlines(), *indented]]
    parts = [part.strip() for line in [*spans, *lines] for part in line.split("&&")]
    ours = re.compile(r"dualcba [a-z-]|python -m (tools|benchmarks)")
    return [part for part in parts if ours.match(part)]


def flags(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)


@cache
def help_of(command: str) -> str:
    """What a command says of itself; fails if there is no such command."""
    words = command.split()
    run = importlib.import_module(words[-1]).main if words[0] == "python" else main
    out, code = io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", [*words, "--help"] if run is main else [words[-1], "--help"])
        try:
            run()
        except SystemExit as done:
            code = done.code
    assert not code, f"there is no {command}"
    return out.getvalue()


def head(command: str) -> str:
    """The part of a command that has a help text of its own."""
    words = command.split()
    if words[0] == "python":
        return " ".join(words[:3])
    if words[1].startswith("-"):
        return "dualcba"
    return " ".join(words[:3] if words[1] in ("data", "runs") and words[2:] else words[:2])


@pytest.mark.parametrize("path", CURRENT, ids=name)
def test_commands_and_their_options_exist(path: Path) -> None:
    for command in commands(path):
        known = {*flags(help_of(head(command))), "--help"}
        assert set(flags(command)) <= known, f"{name(path)} has {command!r}"


@pytest.mark.parametrize("path", CURRENT, ids=name)
def test_options_that_a_page_names_alone_exist(path: Path) -> None:
    names = ("run", "resume", "reproduce", "report", "learn", "ask", "bench", "list", "data fetch",
             "data check", "runs ls", "runs rm", "watch", "doctor")  # fmt: skip
    known = {flag for command in names for flag in flags(help_of(f"dualcba {command}"))}
    for span in INLINE.findall(prose(path)):
        if span.startswith("--"):
            assert set(flags(span)) <= known, f"{name(path)} has {span!r}"


def test_what_can_be_listed_is_what_the_pages_name() -> None:
    named = [c.split() for path in CURRENT for c in commands(path)]
    shown = {words[2] for words in named if words[:2] == ["dualcba", "list"] and words[2:]}
    assert shown <= set(re.findall(r"[a-z]+", help_of("dualcba list")))
