"""The page in a browser, at a desk and on a phone: figures there, nothing sideways, no error."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dualcba.report.html import page_of
from dualcba.report.sections import Section
from dualcba.report.tables.model import Column, Table, text_columns

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
WIDTHS = (1280, 390)

FRAMES = """<!doctype html><body>%s<pre id="measured"></pre><script>
addEventListener("load", () => {
  const measured = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    return {
      width: frame.clientWidth,
      scrolls: Math.max(root.scrollWidth, page.body.scrollWidth),
      images: [...page.images].map(i => [i.complete, i.naturalWidth, i.width, i.height]),
      tables: [...page.querySelectorAll("table")].map(t => t.getBoundingClientRect().height),
      links: [...page.querySelectorAll("nav a")].map(a => !!page.querySelector(a.hash)),
      hidden: [...page.querySelectorAll(".scroll")].map(s => s.scrollWidth - s.clientWidth),
      font: parseFloat(getComputedStyle(page.body).fontSize),
    };
  });
  document.getElementById("measured").textContent = JSON.stringify(measured);
});
</script></body>"""


def measure(page: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """Return what a browser makes of a page, at each width."""
    if BROWSER is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    frame = '<iframe src="{}" style="border:0;width:{}px;height:900px"></iframe>'
    frames = tmp_path / "frames.html"
    frames.write_text(FRAMES % "".join(frame.format(page.as_uri(), w) for w in WIDTHS))
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--allow-file-access-from-files", "--enable-logging=stderr", "--window-size=1400,900",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom",
    )  # fmt: skip
    done = subprocess.run(
        [BROWSER, *options, frames.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the browser gave no page: {done.stderr[-500:]}"
    out: list[dict[str, Any]] = json.loads(html.unescape(found.group(1)))
    return out


def test_a_long_name_leaves_room_for_the_numbers(tmp_path: Path) -> None:
    name = "ER-Dual-CBA, record prequential task-aware predictions over ER, record prequential"
    columns = *text_columns("method"), *(Column(f"M = {m}") for m in range(8))
    table = Table("Scores", columns, ((name, *["+12.3 ± 45.6"] * 8),))
    page = tmp_path / "page.html"
    page.write_text(page_of("Long names", "", [], [Section("Scores", [table])]), encoding="utf-8")
    desk, _ = measure(page, tmp_path)
    assert max(desk["hidden"]) <= 0


def test_the_page_in_a_browser(report: Path, tmp_path: Path) -> None:
    measured = measure(report, tmp_path)
    assert [page["width"] for page in measured] == list(WIDTHS)
    for page in measured:
        assert page["scrolls"] <= page["width"]
        assert len(page["images"]) == report.read_text(encoding="utf-8").count("<figure ") > 8
        for complete, natural, width, height in page["images"]:
            assert complete
            assert min(natural, width) > 300
            assert height > 80
        assert len(page["tables"]) >= 5
        assert min(page["tables"]) > 30
        assert all(page["links"])
        assert page["font"] >= 14
