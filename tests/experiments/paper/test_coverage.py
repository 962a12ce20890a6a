"""What is run for an experiment: as little as serves, never twice, never a changed spec for it."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dualcba.data import Dataset, load_dataset
from dualcba.experiments import Hardware, Result, Spec, eta, read_results, write_result
from dualcba.experiments import run as runner
from dualcba.experiments.eta import Pace, estimate, measure
from dualcba.experiments.paper import catalogue as catalog
from dualcba.experiments.paper.catalogue import Entry, Experiment, experiments, named
from dualcba.experiments.paper.coverage import (
    AGNOSTIC,
    Wanted,
    cover,
    merged,
    ready_spec,
    rounds,
)
from dualcba.experiments.paper.scale import small_fields, source_spec
from dualcba.experiments.paper.selection import choose

Run = Callable[..., Any]
CPU = Hardware(device="cpu")


def experiment(*specs: dict[str, Any], **given: Any) -> Experiment:
    entries = tuple(
        Entry(s["method"] + str(k), "CIFAR-10", {"dataset": "cifar10", "eval_every": 0} | s, "bn",
              {"acc": 70.0})
        for k, s in enumerate(specs)
    )  # fmt: skip
    options: dict[str, Any] = {"name": "mine", "title": "Mine", "kind": "table", "figures": ()}
    return Experiment(
        **options | {"scores": ("acc", "fm"), "note": "A note."} | given, entries=entries
    )


def finished(out: Path, **given: Any) -> Result:
    """Write a result as a run would."""
    spec = Spec(**given)
    result = Result(spec, spec.seed, {})
    write_result(out, spec, result.to_dict())
    return result


# ---------------------------------------------------------------- which runs


def test_specs_shared_by_experiments_are_run_once() -> None:
    """And one seed of all comes before the next, so that every row shows something early."""
    one = experiment({"method": "er"}, {"method": "er-cba"})
    two = experiment({"method": "er"}, {"method": "er", "lr": 0.1})
    coverage = cover([one, two], 2, {})
    assert [(w.spec.method, w.spec.seed, w.spec.lr) for w in coverage.needed] == [
        ("er", 0, 0.03), ("er-cba", 0, 0.03), ("er", 0, 0.1),
        ("er", 1, 0.03), ("er-cba", 1, 0.03), ("er", 1, 0.1),
    ]  # fmt: skip
    assert coverage.missing == coverage.needed


def test_a_default_given_and_not_given_is_the_same_run() -> None:
    assert len(merged([Wanted(Spec(method="er")), Wanted(Spec(method="er", lr=0.03))])) == 1


def test_the_run_that_is_scored_most_often_serves_the_others() -> None:
    runs = merged([Wanted(Spec(method="er", eval_every=every)) for every in (0, 5, 0, 20)])
    assert [r.spec.eval_every for r in runs] == [5, 20]


def test_the_run_that_records_most_serves_the_others() -> None:
    some: list[list[str]] = [["transitions"], [], ["predictions"]]
    (run,) = merged([Wanted(Spec(method="er", record=record)) for record in some])
    assert run.spec.record == ["predictions", "transitions"]


def test_the_whole_catalogue_needs_fewer_runs_than_it_has_entries() -> None:
    coverage = cover(named("all"), 1, {})
    assert len(coverage.needed) < 0.75 * sum(len(e.entries) for e in named("all"))


@pytest.mark.parametrize("scale", ["paper", "small"])
def test_a_run_that_leaves_a_part_also_serves_the_main_table(scale: str) -> None:
    main, transfer = (choose([experiments()[n]], None, scale) for n in ("main", "transfer-inter"))
    one, both = (len(cover(chosen, 1, {}).needed) for chosen in (main, [*main, *transfer]))
    assert both == one + 12  # its rows without transfer are there, and so are the donors
    total = {"paper": 458, "small": 452}
    assert len(cover(choose(named("all"), None, scale), 1, {}).needed) == total[scale]


def test_what_is_there_is_not_needed_again(tmp_path: Path) -> None:
    one = experiment({"method": "er"}, {"method": "er-cba"})
    finished(tmp_path, method="er", dataset="cifar10", seed=1, eval_every=5)
    coverage = cover([one], 2, read_results(tmp_path))
    assert coverage.there == 1
    missing = [(w.spec.method, w.spec.seed) for w in coverage.missing]
    assert missing == [("er", 0), ("er-cba", 0), ("er-cba", 1)]


@pytest.mark.parametrize("changed", [{"buffer": 201}, {"lr": 0.05}, {"network": "mlp"}])
def test_a_changed_spec_is_not_there(changed: dict[str, Any], tmp_path: Path) -> None:
    finished(tmp_path, method="er", dataset="cifar10", **changed)
    assert cover([experiment({"method": "er"})], 1, read_results(tmp_path)).there == 0


def test_a_default_that_has_changed_since_is_not_there_either(tmp_path: Path) -> None:
    """The folder's name is the same; what the result says it was is not."""
    spec = Spec(method="er", dataset="cifar10")
    result = Result(dataclasses.replace(spec, lr=0.1), 0, {})
    write_result(tmp_path, spec, result.to_dict())
    assert cover([experiment({"method": "er"})], 1, read_results(tmp_path)).there == 0


# ---------------------------------------------------------------- parts from elsewhere

DONATED = {"method": "er-dual-cba", "dataset": "cifar10", "specific": "none"}


def donated(donor: str = "cifar100", **given: Any) -> Experiment:
    """Return an experiment of one entry that takes its class-agnostic part from a dataset."""
    one = experiment(DONATED | given)
    (entry,) = one.entries
    return dataclasses.replace(one, entries=(dataclasses.replace(entry, donor=donor),))


def test_a_run_that_takes_a_part_from_another_comes_after_it(tmp_path: Path) -> None:
    wanted = Wanted(Spec(**DONATED, seed=1), "cifar100")
    assert wanted.source == Spec(dataset="cifar100", eval_every=0, seed=1)
    assert wanted.datasets == {"cifar10", "cifar100"}
    source = Wanted(wanted.source)
    assert rounds([wanted, source]) == [[source], [wanted]]
    with pytest.raises(FileNotFoundError, match="expected a run on cifar100"):
        ready_spec(wanted, tmp_path, {})
    missing = cover([donated()], 1, {}).missing
    assert [w.spec.dataset for w in missing] == ["cifar100", "cifar10"]


def test_a_part_is_found_beside_the_result_and_laid_ready(tmp_path: Path) -> None:
    finished(tmp_path, method="er-dual-cba", dataset="cifar100")
    one = donated()
    assert len(cover([one], 1, read_results(tmp_path)).missing) == 2  # the part is not there
    (folder,) = read_results(tmp_path)
    (folder / AGNOSTIC).write_bytes(b"part")
    (wanted,) = cover([one], 1, read_results(tmp_path)).missing
    spec = ready_spec(wanted, tmp_path, read_results(tmp_path))
    assert spec.agnostic_from == str(tmp_path / "adaptors" / "cifar100-s0.safetensors")
    assert Path(spec.agnostic_from).read_bytes() == b"part"


def test_a_part_that_others_have_mapped_is_replaced_whole(tmp_path: Path) -> None:
    """A copy onto the file would truncate it: a process that has it mapped dies of SIGBUS."""
    finished(tmp_path, method="er-dual-cba", dataset="cifar100")
    ((folder, _),) = read_results(tmp_path).items()
    wanted = Wanted(Spec(**DONATED), "cifar100")
    (folder / AGNOSTIC).write_bytes(b"a" * 100_000)
    path = Path(ready_spec(wanted, tmp_path, read_results(tmp_path)).agnostic_from or "")
    (folder / AGNOSTIC).write_bytes(b"b")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        ready_spec(wanted, tmp_path, read_results(tmp_path))
        assert os.fstat(file.fileno()).st_size == len(mapped)  # else the next line is a SIGBUS
        assert mapped[:] == b"a" * 100_000
    assert path.read_bytes() == b"b"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_each_seed_takes_the_part_of_its_own_seed(tmp_path: Path) -> None:
    for seed in range(3):
        finished(tmp_path, method="er-dual-cba", dataset="cifar100", seed=seed)
    for folder, result in read_results(tmp_path).items():
        (folder / AGNOSTIC).write_text(str(result.seed))
    for seed in range(3):
        wanted = Wanted(Spec(**DONATED, seed=seed), "cifar100")
        spec = ready_spec(wanted, tmp_path, read_results(tmp_path))
        assert Path(spec.agnostic_from or "").read_text() == str(seed)


def test_a_run_with_a_part_from_another_is_not_repeated(dualcba: Run) -> None:
    """A small `transfer-inter`: what a run loads is recorded, whatever its file is called."""
    args = ("reproduce", "transfer-inter", "--column", "CIFAR-10,", "--seeds", 1, *QUICK)
    got = dualcba(*args)
    assert got.code == 0, got.err
    runs = read_results(got.folder / "x")
    loaded = [r for r in runs.values() if r.spec.agnostic_from]
    assert len(loaded) == 4
    for result in loaded:
        origin = result.agnostic_provenance
        assert origin is not None
        assert (origin["dataset"], origin["seed"]) == ("digits", 0)
    assert "7 runs needed, 7 already there" in dualcba(*args).out
    (got.folder / "x" / "adaptors").rename(got.folder / "x" / "elsewhere")
    for folder in runs:
        text = (folder / "result.json").read_text()
        (folder / "result.json").write_text(text.replace("x/adaptors/small-", "part-of-"))
    assert "7 runs needed, 7 already there" in dualcba(*args).out


def test_a_small_memory_is_rounded() -> None:
    assert small_fields({"dataset": "cifar10", "buffer": 30})["buffer"] == 8  # 7.5


# ---------------------------------------------------------------- the small scale


@pytest.mark.parametrize("name", list(experiments()))
def test_every_entry_has_a_small_one(name: str) -> None:
    (one,) = choose([experiments()[name]], None, "small")
    for entry in one.entries:
        assert (entry.spec.dataset, entry.paper) == ("digits", {})
        assert entry.spec.buffer <= 150
        assert "digits" in entry.column


def test_the_shape_of_a_table_is_kept() -> None:
    (one,) = choose([experiments()["small-buffers"]], None, "small")
    assert len({e.column for e in one.entries}) == 9
    offline = {"dataset": "tiny-imagenet", "setting": "offline"}
    assert small_fields(offline)["epochs"] == 5
    assert small_fields(offline | {"epochs": 20})["epochs"] == 2
    (one,) = choose([donated()], None, "small")
    assert one.entries[0].source == source_spec("cifar100", "small")
    assert source_spec("cifar100", "small").dataset == "digits"


def test_one_dataset() -> None:
    (one,) = choose([experiments()["main"]], "cifar100", "paper")
    assert {e.column for e in one.entries} == {"CIFAR-100, M = 2000", "CIFAR-100, M = 5000"}
    names = [e.name for e in choose(named("all"), "tiny-imagenet", "paper")]
    assert "blurry" not in names
    assert "stability" in names


# ---------------------------------------------------------------- how long


def test_a_pace_is_measured() -> None:
    for method in ("er", "er-dual-cba", "icarl"):
        pace = measure(Spec(method=method), load_dataset("digits"), CPU)
        assert isinstance(pace, Pace)
        assert 0 < pace.sample < pace.step < 1


@pytest.mark.parametrize("enough", [1.0, 0.1])
def test_what_is_slow_only_the_first_time_is_not_the_pace(
    enough: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = runner.Run.steps

    def slow_at_first(run: runner.Run) -> Iterator[int]:
        for step in steps(run):
            time.sleep(0.5 if step == 3 else 0.0)  # the first of the second task
            yield step

    monkeypatch.setattr(runner.Run, "steps", slow_at_first)
    monkeypatch.setattr(eta, "ENOUGH", enough)
    assert measure(Spec(method="er"), load_dataset("digits"), CPU).step < 0.1


def test_the_pace_of_a_stream_of_few_steps(images: Dataset) -> None:
    pace = measure(Spec(tasks=2, batch_size=32), images, CPU)  # two tasks of two steps
    assert pace.step > 0


def test_finished_runs_of_the_same_kind_tell_how_long(tmp_path: Path) -> None:
    from dualcba.engine import resolve_device
    from dualcba.experiments.versions import device_name

    done = finished(tmp_path, method="er", dataset="cifar10", buffer=500).to_dict()
    done |= {"versions": {"device": device_name(resolve_device("cpu"))}, "seconds": {"total": 40.0}}
    specs = [Spec(method="er", dataset="cifar10", seed=s) for s in (0, 1)]

    def load(_: Spec) -> Any:
        raise AssertionError("no data is needed")

    told = estimate(specs, [done], load, CPU)
    assert (told.seconds, told.finished, told.timed) == (80.0, 2, 0)
    elsewhere = done | {"versions": {"device": "cuda (H200)"}}
    with pytest.raises(AssertionError, match="no data is needed"):
        estimate(specs, [elsewhere], load, CPU)


# ---------------------------------------------------------------- the command

QUICK = ("--scale", "small", "--device", "cpu", "--out", "x")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """An experiment of two runs, in the place of all."""
    one = experiment({"method": "er"}, {"method": "er-dual-cba"}, name="mine", title="My table")
    monkeypatch.setattr(catalog, "experiments", lambda: {"mine": one})
    return one


def test_dry_run(tiny: Experiment, dualcba: Run) -> None:
    got = dualcba("reproduce", "mine", "--dry-run", *QUICK)
    assert (got.code, got.files) == (0, [])
    first, second = got.out.splitlines()
    assert first == "6 runs needed, 0 already there"
    assert second.startswith("6 runs to do, about ")
    assert "6 runs from a few timed steps" in second


def test_dry_run_without_the_data(dualcba: Run) -> None:
    got = dualcba("reproduce", "main", "--dry-run", "--data-dir", "none", "--dataset", "cifar10")
    assert (got.code, got.files) == (0, [])
    assert got.out.startswith("102 runs needed, 0 already there\n102 runs to do; how long")
    assert "missing" in got.out


def test_it_runs_shows_and_does_not_repeat(tiny: Experiment, dualcba: Run) -> None:
    got = dualcba("reproduce", "mine", "--seeds", 2, *QUICK)
    assert got.code == 0
    assert "samples/s" in got.err
    words = ("4 runs needed, 0 already there", "My table", "er-dual-cba1", "IBN", "±", "2 seeds",
             "paper's values do not apply", "4 results in x")  # fmt: skip
    assert all(word in got.out for word in words)
    assert "70.00" not in got.out
    results = {p: p.stat().st_mtime_ns for p in (got.folder / "x").glob("*/result.json")}
    assert len(results) == 4
    again = dualcba("reproduce", "mine", "--seeds", 3, *QUICK)
    assert "6 runs needed, 4 already there" in again.out
    assert "2 runs to do" in again.out
    assert "from finished runs of the same kind" in again.out
    assert all(p.stat().st_mtime_ns == when for p, when in results.items())
    assert len(list((got.folder / "x").glob("*/result.json"))) == 6


def test_a_changed_spec_is_run_again(
    tiny: Experiment, dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dualcba("reproduce", "mine", "--seeds", 1, "--quiet", *QUICK)
    changed = experiment({"method": "er", "lr": 0.02}, {"method": "er-dual-cba"})
    monkeypatch.setattr(catalog, "experiments", lambda: {"mine": changed})
    got = dualcba("reproduce", "mine", "--seeds", 1, *QUICK)
    assert "2 runs needed, 1 already there" in got.out
    assert len(list((got.folder / "x").glob("*/result.json"))) == 3


def test_quiet_and_json(tiny: Experiment, dualcba: Run) -> None:
    got = dualcba("reproduce", "mine", "--seeds", 1, "--quiet", *QUICK)
    assert (got.code, got.out, got.err) == (0, "", "")
    got = dualcba("reproduce", "mine", "--seeds", 1, "--json", *QUICK)
    assert (got.code, got.err) == (0, "")
    found = json.loads(got.out)
    assert found["runs"] == {"needed": 2, "there": 2, "missing": 0}
    row = found["experiments"]["mine"][1]
    assert (row["row"], row["statistics"], row["seeds"]) == ("er-dual-cba1", "bn", [0])
    mean, half = row["ours"]["ibn"]["acc"]
    assert (50 < mean < 100, half) == (True, None)


def test_the_paper_beside_ours(
    tiny: Experiment, dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the paper's scale, on results that are there already."""
    folder = dualcba("list", "settings").folder
    for method, acc in (("er", 72.0), ("er-dual-cba", 69.5)):
        spec = Spec(method=method, dataset="cifar10")
        scores = {"bn": {"acc": acc, "fm": 10.0}, "ibn": {"acc": 1.0, "fm": None}}
        write_result(folder / "x", spec, Result(spec, 0, scores).to_dict())
    got = dualcba("reproduce", "mine", "--seeds", 1, "--out", "x")
    assert got.code == 0
    lines = {line.split()[0]: line.split() for line in got.out.splitlines() if "70.00" in line}
    assert lines["er0"] == ["er0", "BN", "72.0", "1.0", "70.00", "+2.0", "10.0", *"–––"]
    assert lines["er-dual-cba1"][5] == "−0.5"
    assert "do not apply" not in got.out


def test_each_experiment_is_handed_to_the_report(
    tiny: Experiment, dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def render(one: Experiment, results: list[Result], out: Path) -> list[Path]:
        seen.append((one.name, [e.spec.dataset for e in one.entries], len(results)))
        return [out / f"{one.name}.csv"]

    monkeypatch.setattr("dualcba.cli.reproduce.render", render)
    got = dualcba("reproduce", "mine", "--seeds", 1, *QUICK)
    assert seen == [("mine", ["digits", "digits"], 2)]
    assert "x/tables/mine.csv" in got.out.splitlines()


def test_out_is_a_file(tiny: Experiment, dualcba: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    got = dualcba("reproduce", "mine", "--scale", "small", "--out", tmp_path / "file")
    assert (got.code, len(got.lines), got.out) == (2, 1, "")


def test_interrupted_and_continued(tmp_path: Path, dualcba: Run) -> None:
    """What was complete is kept, no process is left, and the next call goes on from there."""
    code = "from dualcba.cli.app import main; main()"
    args = ["reproduce", "architecture", "--scale", "small", "--seeds", "20", "--device", "cpu",
            "--out", str(tmp_path / "x")]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args, "--jobs", "2", "--quiet"], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's &
    )  # fmt: skip
    give_up = time.monotonic() + 90
    while not list(tmp_path.glob("x/*/result.json")) and time.monotonic() < give_up:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to all of them
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    while _alive(process.pid) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not _alive(process.pid)
    assert not list(tmp_path.rglob(".draft-*"))
    kept = "complete runs and checkpoints are kept; run the same command again to continue"
    assert err.decode().strip() == f"dualcba: interrupted; {kept}"
    there = len(list(tmp_path.glob("x/*/result.json")))
    assert there >= 1
    done = dualcba(*args, "--dry-run")
    assert done.out.startswith(f"160 runs needed, {there} already there\n")


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_some_columns_only() -> None:
    main = [experiments()["main"]]
    (one,) = choose(main, None, "paper", "m = 5000")
    assert {e.column for e in one.entries} == {"CIFAR-100, M = 5000", "Tiny-ImageNet, M = 5000"}
    (one,) = choose(main, "cifar100", "paper", "5000")
    assert {e.column for e in one.entries} == {"CIFAR-100, M = 5000"}
    with pytest.raises(ValueError, match=r"unknown column of main 'M = 7' \(known: CIFAR-10, M"):
        choose(main, None, "paper", "M = 7")


def test_what_needs_absent_data_is_left_out(dualcba: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row on digits, one on a dataset that is not there: the first is run, the second named."""
    spec = {"method": "er", "tasks": [1, 1], "eval_every": 0}
    rows = [("here", spec | {"dataset": "digits"}), ("gone", spec | {"dataset": "mnist"})]
    entries = tuple(Entry(row, "column", given, "bn", {}) for row, given in rows)
    mixed = Experiment("mixed", "Mixed", "table", None, ("acc",), entries, "")
    monkeypatch.setattr(catalog, "experiments", lambda: {"mixed": mixed})
    got = dualcba("reproduce", "mixed", "--seeds", 1, "--out", "x")
    assert got.code == 0
    assert "left out, since mnist is needed: " in got.out
    assert "here" in got.out
    only_gone = dataclasses.replace(mixed, entries=entries[1:])
    lacking = dataclasses.replace(only_gone, name="lacking")  # a table without a run, before others
    every = {"lacking": lacking, "mixed": mixed}
    monkeypatch.setattr(catalog, "experiments", lambda: every)
    monkeypatch.setattr(catalog, "NAMES", tuple(every))
    got = dualcba("reproduce", "all", "--seeds", 1, "--out", "x")
    assert got.code == 0, got.err
    assert sorted(path.name for path in got.folder.glob("x/tables/*.md")) == ["mixed.md"]
    monkeypatch.setattr(catalog, "experiments", lambda: {"mixed": only_gone})
    got = dualcba("reproduce", "mixed", "--seeds", 1, "--out", "y")
    assert got.code == 2
    assert "is missing" in got.err
