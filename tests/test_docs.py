"""Every Python block of every page of the docs runs, in order, page by page."""

import re
from pathlib import Path

import pytest

from dualcba import methods

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch, tmp_path):
    """What a page registers or writes is gone after it."""
    before = dict(methods.METHODS)
    monkeypatch.chdir(tmp_path)
    yield
    methods.METHODS.clear()
    methods.METHODS.update(before)


def blocks(page):
    text = page.read_text()
    return [(text[: m.start(1)].count("\n"), m.group(1)) for m in BLOCK.finditer(text)]


def test_there_are_pages():
    assert "extending" in [page.stem for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_block_of_a_page_runs(page):
    namespace = {"__name__": f"docs_{page.stem}"}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)  # errors name the line


def test_the_method_of_the_page_has_fewer_than_forty_lines():
    _, code = blocks(DOCS / "extending.md")[0]
    assert len(code.splitlines()) < 40
