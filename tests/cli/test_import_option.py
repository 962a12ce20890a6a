"""`--import`: the method of docs/extending.md in runs, sweeps, tables, workers and resumed runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dualcba.cli.app import main
from dualcba.experiments import Loader, Spec, pool
from dualcba.experiments.paper import catalogue
from dualcba.experiments.remote import Job, run_job
from dualcba.experiments.store import read_plan, write_plan
from dualcba.methods import METHODS, files
from dualcba.options import ExecutionOptions, Hardware

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
SHORT = ("--eval-every", "0", "--tasks", "1,1", "--device", "cpu")

Call = Callable[..., tuple[int, str, str]]


def forget() -> None:
    """Be like a new process."""
    files._known.clear()
    METHODS.pop("smooth", None)
    catalogue._spec.cache_clear()
    catalogue.experiments.cache_clear()  # its entries keep their specs


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def smooth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first block of the page, which is the method."""
    code = re.search(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert code is not None
    path = tmp_path / "smooth.py"
    path.write_text(code[1])
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the command line as a new process would; returns exit code, stdout and stderr."""

    def call(*args: object) -> tuple[int, str, str]:
        forget()
        monkeypatch.setattr("sys.argv", ["dualcba", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return call


def test_a_method_from_a_file_runs_and_is_gone_on_with(smooth: Path, call: Call) -> None:
    args = ("--import", "smooth.py", "--method", "smooth,er", "--seeds", 2, "--jobs", 1)
    code, out, err = call("run", *args, *SHORT, "--out", "runs", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert [r["method"] for r in results] == ["smooth", "smooth", "er", "er"]
    assert {path: len(sha) for path, sha in results[0]["spec"]["imports"].items()} == {
        str(smooth): 64
    }
    assert "imports" not in results[2]["spec"]

    code, _, err = call("resume", "runs")
    assert (code, err.count("\n")) == (2, 1)
    assert f"runs/plan.json: the method comes from {smooth}, expected --import {smooth}" in err
    moved = smooth.rename(smooth.with_name("moved.py"))
    assert call("resume", "runs", "--import", "moved.py", "--quiet")[0] == 0
    moved.write_text(moved.read_text() + "# changed\n")
    code, _, err = call("resume", "runs", "--import", "moved.py")
    assert (code, err.count("\n")) == (2, 1)
    code, out, _ = call("report", "runs")  # executes nothing
    assert code == 0
    assert "--import" in Path("runs/report.html").read_text()
    code, out, _ = call("runs", "ls", "runs", "--json")
    assert [one["status"] for one in json.loads(out)] == ["complete"] * 4


def test_its_runs_can_be_listed_and_removed_without_it(smooth: Path, call: Call) -> None:
    args = ("--import", "smooth.py", "--method", "smooth", "--seeds", 2, "--jobs", 1)
    assert call("run", *args, *SHORT, "--out", "runs", "--quiet")[0] == 0
    first, second = sorted(path.parent for path in Path("runs").glob("*/result.json"))
    code, out, err = call("runs", "rm", "--yes", first)
    assert (code, out) == (0, "1 run removed\n"), err
    assert len(json.loads(Path("runs/plan.json").read_text())["specs"]) == 1
    shutil.rmtree(second)
    code, out, _ = call("runs", "ls", "runs", "--json")
    assert [(one["run"], one["status"]) for one in json.loads(out)] == [(str(second), "not run")]


def test_a_changed_file_is_refused(smooth: Path, call: Call) -> None:
    files.import_methods([smooth])
    write_plan(Path("runs"), [Spec(method="smooth")])
    assert read_plan(Path("runs"))[0].imports
    smooth.write_text(smooth.read_text() + "# changed\n")
    code, _, err = call("resume", "runs", "--import", smooth)
    assert (code, err.count("\n")) == (2, 1)
    assert f"runs/plan.json: {smooth} has changed since the method was first used" in err
    assert call("runs", "ls", "runs")[0] == 0


def test_toml_files_of_runs_sweeps_and_tables_can_name_it(smooth: Path, call: Call) -> None:
    short = "eval_every = 0\ntasks = [1, 1]\n"
    Path("sweep.toml").write_text(
        f'imports = "smooth.py"\nmethod = "smooth"\n{short}[sweep]\n'
        '"method_options.smoothing" = [0.1, 0.2]\n'
    )
    code, out, err = call("run", "sweep.toml", "--jobs", 1, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(found["results"]) == 2
    assert f"--import {smooth}" in found["best"][0]["test_command"]
    Path("table.toml").write_text(
        f'imports = ["smooth.py"]\nseeds = 1\n[spec]\n{short}[rows.Smooth]\nmethod = "smooth"\n'
    )
    code, out, err = call("reproduce", "table.toml", "--jobs", 1, "--device", "cpu")
    assert code == 0, err
    assert "Smooth" in out
    code, out, err = call("report", "runs/table")
    says = (
        "the table 'table' is left out, its runs are shown by dataset: its methods "
        f"come from {smooth}, which a report does not execute"
    )
    assert (code, err) == (0, f"dualcba: {says}\n")
    page = unescape(Path(out.strip()).read_text(encoding="utf-8"))
    assert f"T{says[1:]}." in page


def test_a_job_on_another_machine_imports_it(smooth: Path) -> None:
    files.import_methods([smooth])
    spec = Spec(method="smooth", eval_every=0, tasks=[1, 1])
    Path("runs").mkdir()
    job = Job((spec,), Loader(), ExecutionOptions(device="cpu"), Path("runs").absolute(), 0, Path())
    forget()
    assert run_job(job, lambda update: None) == []
    forget()
    shutil.rmtree(Path("runs") / spec.name)
    smooth.write_text(smooth.read_text() + "# changed\n")
    ((_, error),) = run_job(job, lambda update: None)
    assert "has changed since the method was first used" in str(error)


def test_a_worker_process_imports_it(smooth: Path) -> None:
    files.import_methods([smooth])
    spec = Spec(method="smooth", eval_every=0, tasks=[1, 1])
    for code in (smooth.read_text(), smooth.read_text() + "# changed\n"):
        smooth.write_text(code)
        forget()  # as a process that was just started
        ours, theirs = Pipe()
        here = Hardware(device="cpu")
        run = partial(pool.run_specs, load=Loader(), hardware=here, out=Path("runs"))
        pool._run_and_send(theirs, spec, run)
        last = ours.recv()
        while ours.poll():
            last = ours.recv()
        if "# changed" in code:
            assert "has changed since the method was first used" in str(last)
        else:
            assert last.result["spec"]["imports"] == spec.imports


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "mine.py is missing, expected a Python file that registers a method"),
        ("1 / 0", "mine.py cannot be imported: line 1: ZeroDivisionError: division by zero"),
        (
            "x = 1",
            'mine.py registers no method, expected at least one class with @register("name")',
        ),
    ],
)
def test_errors_are_one_line_before_anything_is_written(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if code is not None:
        Path("mine.py").write_text(code)
    for args in (("run",), ("resume", "runs"), ("reproduce", "main"), ("learn", ".")):
        status, _, err = call(*args, "--import", "mine.py")
        assert (status, err.count("\n")) == (2, 1)
        assert message in err
    assert not Path("runs").exists()
