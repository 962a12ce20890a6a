"""A queue of runs: its order, several processes, data that are missing, and what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dualcba.data.dataset import Dataset
from dualcba.experiments import Hardware, Loader, Spec, read_results
from dualcba.experiments.matching import Index
from dualcba.io import only_process
from tools import publish, queued
from tools.collected import read_all

PLAN = """
[parts.b]
experiment = "bilevel"
scale = "small"
column = "M = 2000"
rows = ["single level, L_trn + L_buf"]

[parts.a]
experiment = "transfer-inter"
scale = "small"
column = "CIFAR-10, M = 200"
rows = ["from CIFAR-100"]
seeds = 2
"""


@pytest.fixture
def plan(tmp_path: Path) -> list[queued.Planned]:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return queued.read_plan(path)


def queue(waiting: list[queued.Planned], out: Path, **given: Any) -> queued.Queue:
    return queued.Queue(
        list(waiting), out, given.pop("load", Loader()), Hardware(device="cpu"), **given
    )


def test_the_order_is_that_of_the_plan_and_donors_come_first(plan: list[queued.Planned]) -> None:
    assert list(dict.fromkeys(p.part for p in plan)) == ["b", "donors", "a"]
    seeds = [(p.part, p.wanted.spec.seed) for p in plan if p.part != "b"]
    assert list(dict.fromkeys(seeds)) == [("donors", 0), ("a", 0), ("donors", 1), ("a", 1)]
    assert {p.wanted.donor for p in plan if p.part == "a"} == {"cifar100"}


def test_a_run_of_two_parts_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"{PLAN}\n{PLAN.replace('parts.', 'parts.later-')}")
    assert list(dict.fromkeys(p.part for p in queued.read_plan(path))) == ["b", "donors", "a"]


def test_a_part_may_have_some_adaptors_alone(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    part = '[parts.a]\nexperiment = "frontier"\nrows = ["ER"]\ncolumn = "M = 5000"\n'
    path.write_text(f'{part}adaptors = ["", "dual-cba"]')
    plan = queued.read_plan(path)
    assert {p.wanted.spec.method for p in plan} == {"er", "er-dual-cba"}


def test_runs_are_complete_once_and_shared(
    plan: list[queued.Planned], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, taken = tmp_path / "out", plan[0].wanted.spec
    with only_process(out / "b" / taken.name / "lock"):  # by another process
        one = queue(plan[:1], out)
        assert one.work(1.5) == 0
    assert [p.wanted.spec for p in one.waiting] == [taken]
    assert queue(plan, out, abreast=2).work(600) == len(plan)
    assert capsys.readouterr().out.count("donors: er-dual-cba, digits") == 2
    assert queue(plan, out).work(600) == 0
    found = [r.agnostic_provenance for r in read_results(out / "a").values()]
    assert {p["seed"] for p in found if p} == {0, 1}
    assert len(found) == sum(p.part == "a" for p in plan)


def test_what_results_hold_is_left_out(plan: list[queued.Planned], tmp_path: Path) -> None:
    assert queue(plan[:1], tmp_path / "out").work(600) == 1
    have = list(read_results(tmp_path / "out" / "b").values())
    left = queued.read_plan(tmp_path / "plan.toml", have)
    names = [p.wanted.spec.name for p in plan]
    assert [p.wanted.spec.name for p in left] == names[1:]


def test_the_plan_of_what_the_tables_lack_can_be_read() -> None:
    path = Path(queued.__file__).with_name("missing.toml")
    every = queued.read_plan(path)
    have = [r for g in read_all(publish.RESULTS) for r in g.results]
    assert 0 <= len(queued.read_plan(path, have)) < len(every)


def test_the_plan_names_what_the_pages_call_not_run() -> None:
    have = [r for g in read_all(publish.RESULTS) for r in g.results]
    path = Path(queued.__file__).with_name("missing.toml")
    planned = {p.wanted.spec.name for p in queued.read_plan(path, have)}
    kinds = ("methods", "semi", "settings", "offline", "ibn", "text")
    for experiment in (
        "main",
        "semi",
        "offline",
        "frontier",
        "las",
        *(f"readings-{k}" for k in kinds),
    ):
        lacking = queued.wanted({"experiment": experiment}, Index(have))
        assert {one.spec.name for one in lacking} <= planned, experiment


def test_a_run_waits_for_its_data(plan: list[queued.Planned], tmp_path: Path) -> None:
    class Late(Loader):
        calls = 0

        def __call__(self, spec: Spec) -> Dataset:
            self.calls += 1
            if self.calls < 3:
                raise FileNotFoundError("not there yet")
            return super().__call__(spec)

    assert queue(plan[:1], tmp_path, load=Late()).work(600) == 1


def test_a_run_that_fails_does_not_stop_the_others(
    plan: list[queued.Planned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    steps = queued.Run.steps

    def failing(self: Any) -> Any:
        if self.spec.seed == 1:
            raise RuntimeError("no memory\nat all")
        yield from steps(self)

    monkeypatch.setattr(queued.Run, "steps", failing)
    donors = [p for p in plan if p.part == "donors"]
    one = queue(donors, tmp_path)
    assert one.work(600) == 1
    assert not one.waiting
    assert capsys.readouterr().err.endswith(": RuntimeError: no memory\n")


def test_time_is_up(plan: list[queued.Planned], tmp_path: Path) -> None:
    one = queue(plan, tmp_path)
    assert one.work(0) == 0
    assert len(one.waiting) == len(plan)


def test_no_run_begins_that_would_not_be_complete_in_time(
    plan: list[queued.Planned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(queued.time, "monotonic", lambda: now)
    one = queue(plan, tmp_path)
    assert one.work(0) == 0
    one._first, one._end = 50.0, 130.0
    assert one.fits(10**9)  # nothing is known yet
    one.steps = 1000  # 20 steps a second
    assert one.fits(600)
    assert not one.fits(601)
    one.active = [object()]  # type: ignore[list-item]
    assert not one.fits(301)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[parts.a]\nexperiment = 'mian'", "unknown experiment 'mian', did you mean 'main'"),
        (
            "[parts.a]\nexperiment = 'main'\nrow = 'ER'",
            "unknown key of parts.a 'row', did you mean",
        ),
        ("[parts.a]\nexperiment = 'main'\nrows = ['ERR']", "unknown row of main 'ERR'"),
        ("[parts.a]\nseeds = 3", "experiment"),
        ("[parts", "is not a TOML file"),
    ],
)
def test_a_wrong_plan_is_one_line(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    monkeypatch.setattr("sys.argv", ["queued", str(path), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as exit_:
        queued.main()
    assert says in str(exit_.value)
    assert "\n" not in str(exit_.value)
    assert not (tmp_path / "out").exists()
