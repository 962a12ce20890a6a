"""Damaged results and plans: used, or refused with one line by each command that reads them.

`DUALCBA_FUZZ=full` tries 10,000 instead of a sample.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import attempts, damage, damage_json, one_line_or_fine

from dualcba.experiments import Result, Spec, write_plan, write_result
from dualcba.experiments.purpose import AskedTable, add_sweep, add_tables
from dualcba.experiments.result import Anytime
from dualcba.experiments.sweep import read_sweep

pytestmark = pytest.mark.filterwarnings("ignore")  # of NumPy, on means of extreme numbers
BOTH = ("bn", "ibn")
TASKS, CLASSES = 5, 10
SWEEP = {"buffer": [100, 50], "lr": {"low": 0.01, "high": 0.1, "log": True}, "samples": 2}
OWN = "title = 'Own'\n[rows.a]\nmethod = 'er'\nrecord = ['predictions']\npaper = [[1.0, nan]]\n"


def recordings() -> dict[str, Any]:
    """Of the shapes that runs record."""
    rng = np.random.default_rng(0)
    steps = [-1, 0, 1, 5]
    mass = {"p_old": [0.6, 0.5, 0.2, 0.1], "p_new": [0.4, 0.5, 0.8, 0.9]}
    posterior = [1 / CLASSES] * CLASSES
    classes = {"class": 3, "before": posterior, "after": posterior, "steps": [0, 5]}
    moment = {"step": steps, "old": mass, "new": mass, "classes": classes}
    lines = {name: [0.1, None, 0.3] for name in ("with", "without", "bound")}
    return {
        "predictions": {s: rng.integers(0, 9, (CLASSES, CLASSES)).tolist() for s in BOTH},
        "transitions": [{"task": t, **moment} for t in range(2, TASKS + 1)],
        "alignment": {"step": [10, 20, 30], **lines},
    }


def made(method: str, seed: int) -> Result:
    """A result with everything that a result can hold."""
    spec = Spec(method=method, seed=seed, record=["predictions", "transitions", "alignment"])
    curve = {s: [[60.0 + seed] * (t + 1) for t in range(TASKS)] for s in BOTH}
    return Result(
        spec, seed,
        {s: {"acc": 50.0 + seed, "fm": -3.0, "acc_auc": None} for s in BOTH},
        {s: [[40.0 + t] * TASKS for t in range(TASKS)] for s in BOTH},
        Anytime(range(10, 60, 10), range(TASKS), curve),
        recordings(),
        {"train": 1.0, "evaluate": 0.5, "total": 1.5},
        {"parameters": 1000, "gpu_memory": None},
        {"dualcba": "0", "device": "cpu (x86_64)"},
        task_ends=range(12, 62, 10),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "good"
    results = [made(method, seed) for method in ("er", "er-dual-cba") for seed in (0, 1)]
    for result in results:
        assert isinstance(result.spec, Spec)
        write_result(out, result.spec, result.to_dict())
    specs = [r.spec for r in results if isinstance(r.spec, Spec)]
    write_plan(out, specs)
    add_sweep(out, read_sweep(SWEEP), [spec.name for spec in specs[:2]])
    add_tables(out, [AskedTable("main", "small"), AskedTable("main"), AskedTable("own", toml=OWN)])
    return out


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw one figure in ten and render one in ten of these: all would take hours."""
    import dualcba.report.html as html
    import dualcba.report.sections as sections
    from dualcba.report.figures.style import Plot

    rng = random.Random(0)
    render, nothing = html.render, Plot("nothing", "", "", None)

    def sometimes(draw: Any, otherwise: Any = ([], [])) -> Any:
        return lambda *given: draw(*given) if rng.random() < 0.1 else otherwise

    def sometimes_render(plot: Plot, kind: str) -> bytes:
        return render(plot, kind) if plot is not nothing and rng.random() < 0.1 else b""

    figures = {name: sometimes(draw) for name, draw in sections.figures.FIGURES.items()}
    monkeypatch.setattr(sections.figures, "FIGURES", figures)
    monkeypatch.setattr(sections, "cost", sometimes(sections.cost))
    monkeypatch.setattr(sections, "score_bars", sometimes(sections.score_bars, nothing))
    monkeypatch.setattr(html, "render", sometimes_render)


COMMANDS: list[list[str]] = [
    ["report"], ["report"], ["resume"], ["resume", "--json"],
    ["reproduce", "main", "--scale", "small", "--dry-run", "--out"],
    ["reproduce", "predictions", "--scale", "small", "--out"],
    ["reproduce", "main", "--scale", "small", "--json", "--dry-run", "--out"],
    ["runs", "ls"], ["runs", "ls", "--json"],
]  # fmt: skip


def damaged(text: bytes, rng: random.Random) -> bytes:
    """Damage a value of the JSON, or its bytes."""
    if rng.random() < 0.2:
        return damage(text, rng)
    content = json.loads(text)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        content = damage_json(content, rng)
    return json.dumps(content).encode()


def test_undamaged_results(dry_call: Any, folder: Path, few_figures: object) -> None:
    for command in COMMANDS:
        code, err = dry_call(*command, str(folder))
        assert code == 0, (command, err)


def test_damaged_results(dry_call: Any, folder: Path, few_figures: object) -> None:
    rng = random.Random(17)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*.json"))
    bad = folder.with_name("bad")
    for k in range(attempts(40)):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(folder, bad)
        path = rng.choice([*files, Path("plan.json"), Path("purpose.json")])
        (bad / path).write_bytes(damaged((bad / path).read_bytes(), rng))
        command = rng.choice(COMMANDS)
        one_line_or_fine(*dry_call(*command, str(bad)), (k, command, path))
