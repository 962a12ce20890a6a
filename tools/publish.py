"""Write the tables of `docs/results.md` and the pages in `docs/results/`, and the numbers of
`docs/departures.md` and `README.md`, from `results/`.

usage: python -m tools.publish [--check]

Text outside of markers is kept; `tools.page` describes the markers. The pages are processed as one
text, so that a `prefer` marker applies to all pages and `agreement` counts the tables of all pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.collected import Group, read_all
from tools.page import rewrite

ROOT = Path(__file__).parent.parent
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
BREAK = "\0"
"""Separates the pages while they are one text."""


def read_pages(docs: Path) -> dict[Path, str]:
    """Return the texts of the pages on results, and of pages that quote numbers."""
    paths = [docs / "results.md", *sorted((docs / "results").glob("*.md"))]
    quoting = [docs / "departures.md", docs.parent / "README.md"]
    return {path: path.read_text("utf-8") for path in paths + [p for p in quoting if p.exists()]}


def rewrite_pages(pages: Mapping[Path, str], groups: Sequence[Group]) -> dict[Path, str]:
    """Return the pages with new tables."""
    text = rewrite(BREAK.join(pages.values()), groups)
    return dict(zip(pages, text.split(BREAK), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tables of the pages on results.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if one differs")
    args = parser.parse_args()
    before = read_pages(DOCS)
    try:
        after = rewrite_pages(before, read_all(RESULTS))
    except ValueError as error:
        sys.exit(f"error: {error}")
    changed = [path for path in before if after[path] != before[path]]
    if args.check and changed:
        names = ", ".join(str(path.relative_to(DOCS.parent)) for path in changed)
        sys.exit(f"{names}: tables differ from results/, expected `python -m tools.publish`")
    for path in () if args.check else changed:
        path.write_text(after[path], "utf-8")


if __name__ == "__main__":
    main()
