"""The command line: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import Learner, __version__
from dualcba.checkpoint import read_state_file
from dualcba.experiments import Spec, make_specs, write_plan
from dualcba.experiments.pool import RunUpdate
from dualcba.experiments.store import LOCK, write_result

Run = Callable[..., Any]
SHORT_FIELDS = {"eval_every": 0, "batch_size": 300, "tasks": 1}
SHORT = ("--eval-every", 0, "--batch-size", 300, "--tasks", 1, "--device", "cpu")
QUICK = ("--eval-every", 0, "--batch-size", 32, "--device", "cpu")


def test_list(dualcba: Run) -> None:
    methods = dualcba("list", "methods")
    assert methods.code == 0
    assert {"er", "er-cba", "er-dual-cba"} <= set(methods.out.split())
    assert {"digits", "cifar10", "cifar100"} <= set(dualcba("list", "datasets").out.split())
    assert "online" in dualcba("list", "settings").out.split()
    lines = dualcba("list", "experiments").out.splitlines()
    assert {"main", "semi", "ablations"} <= {line.split()[0] for line in lines}
    (main,) = (line for line in lines if line.startswith("main "))
    assert {line.index(line.split(maxsplit=1)[1]) for line in lines} == {main.index("Main")}


def test_help(dualcba: Run) -> None:
    top = dualcba("--help")
    assert top.code == 0
    assert "run" in top.out
    assert "list" in top.out
    one = dualcba("run", "--help")
    assert one.code == 0
    for option in ("--method", "--buffer", "--seeds", "--out", "--eval-every", "--device"):
        assert option in one.out


def test_several_methods_and_seeds_in_one_call(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er,er-dual-cba", "--seeds", 2, "--buffer", 40,
                  "--out", "runs/x", *QUICK)  # fmt: skip
    assert got.code == 0
    results = [p for p in got.files if p.endswith("result.json")]
    assert len(results) == 4
    assert all(p.startswith("runs/x/") for p in results)
    one = json.loads((got.folder / results[0]).read_text())
    assert (one["status"], one["buffer"]) == ("complete", 40)
    for word in ("er", "er-dual-cba", "ACC", "FM", "BN", "IBN", "±", "4 results in runs/x"):
        assert word in got.out
    assert not [p for p in got.files if ".draft" in p]


def test_a_progress_bar_with_throughput_and_accuracy(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--out", "x", *QUICK)
    assert "samples/s" in got.err
    assert "acc" in got.err


def test_quiet(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--out", "x", "--quiet", *QUICK)
    assert (got.code, got.out, got.err) == (0, "", "")
    assert len(list((got.folder / "x").glob("*/result.json"))) == 1


def test_json(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--out", "x", "--json", *QUICK)
    assert (got.code, got.err) == (0, "")
    (printed,) = json.loads(got.out)
    (path,) = (got.folder / "x").glob("*/result.json")
    assert printed == json.loads(path.read_text())


def test_a_toml_file_and_options_on_top(dualcba: Run, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('method = "er, er-cba"\nbuffer = 30\nseed = 4\neval_every = 0\n')
    got = dualcba("run", path, "--buffer", 25, "--out", "x", "--json", "--device", "cpu")
    assert got.code == 0
    found = [(r["method"], r["buffer"], r["seed"]) for r in json.loads(got.out)]
    assert found == [("er", 25, 4), ("er-cba", 25, 4)]


def test_without_options_the_demonstration_runs(
    dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ER, alone and with each adaptor, on Split-Digits over 5 seeds."""
    import dualcba.cli.run as cli

    seen: list[Any] = []
    monkeypatch.setattr(cli, "run_with_progress", lambda specs, *a, **k: seen.extend(specs) or [])
    assert dualcba("run").code == 0
    assert {s.dataset for s in seen} == {"digits"}
    want = [(m, k) for m in ("er", "er-cba", "er-dual-cba", "er-balanced-cba") for k in range(5)]
    assert [(s.method, s.seed) for s in seen] == want


# ---------------------------------------------------------------- bad usage and bad input


def refused(got: Any, *words: str) -> None:
    """Exit code 2, one line on stderr with these words, nothing on stdout, nothing written."""
    assert got.code == 2, got
    assert len(got.lines) == 1, got.err
    assert all(word in got.err for word in words), got.err
    assert "Traceback" not in got.err
    assert got.out == ""
    assert got.files == []


BAD: list[tuple[list[Any], list[str]]] = [
    (["--method", "er-dualcba"], ["method", "'er-dualcba'", "did you mean 'er-dual-cba'"]),
    (["--method", "er,erc"], ["method", "'erc'", "did you mean"]),
    (["--method", ""], ["method", "''", "er"]),
    (["--dataset", "digit"], ["dataset", "'digit'", "did you mean 'digits'"]),
    (["--setting", "onlin"], ["setting", "'onlin'", "did you mean 'online'"]),
    (["--network", "resnet"], ["network", "'resnet'", "resnet18"]),
    (["--bufer", 3], ["--bufer", "--buffer"]),
    (["--buffer", 0], ["buffer", "0", "at least 1"]),
    (["--buffer", -7], ["buffer", "-7", "at least 1"]),
    (["--buffer", "many"], ["buffer", "many"]),
    (["--batch-size", 500], ["batch_size", "500", "samples of the task"]),
    (["--batch-size", 0], ["batch_size", "0", "at least 1"]),
    (["--tasks", 3], ["tasks", "3", "10 classes"]),
    (["--tasks", 0], ["tasks", "0"]),
    (["--seeds", 0], ["seeds", "0", "at least 1"]),
    (["--seed", -1], ["seed", "-1", "at least 0"]),
    (["--epochs", 0], ["epochs", "0", "at least 1"]),
    (["--lr", 0], ["lr", "0", "above 0"]),
    (["--lr", "nan"], ["lr", "nan", "above 0"]),
    (["--lr", "fast"], ["lr", "fast"]),
    (["--eval-every", -1], ["eval_every", "-1", "at least 0"]),
    (["--space", "logits"], ["space", "'logits'", "did you mean 'logit'"]),
    (["--specific", "dual"], ["specific", "'dual'", "single"]),
    (["--forward", "concatenate"], ["forward", "'concatenate'", "concat"]),
    (["--ibn-average", "mean"], ["ibn_average", "'mean'", "cumulative"]),
    (["--device", "gpu"], ["device", "'gpu'", "'cpu'"]),
    (["--device", "cuda:99"], ["device", "'cuda:99'", "CUDA devices"]),
    (["--engine", "fast"], ["engine", "'fast'", "'eager'"]),
    (["--engine", "captured", "--device", "cpu"], ["engine", "'captured'", "cpu"]),
    (["--precision", "fp8"], ["precision", "'fp8'", "'bf16'"]),
    (["--dataset", "cifar10", "--data-dir", "none"], ["none", "missing", "expected"]),
    (["--dataset", "cifar100", "--data-dir", "none"], ["none", "missing", "expected"]),
    (["nothing.toml"], ["nothing.toml", "missing", "TOML"]),
    (["--abreast", 0], ["abreast", "0"]),
    (["--dataset", "~nosuchuser/x"], ["~nosuchuser/x", "home folder"]),
    (["--method", "er-dual-cba", "--agnostic-from", "~nosuchuser/x"], ["~nosuchuser/x", "home"]),
    (["--lr", "1e39"], ["lr", "1e+39", "float32"]),
    (["--lr", "1e-60"], ["lr", "1e-60", "float32"]),
    (["--adaptor-lr", "1e39"], ["adaptor_lr", "1e+39", "float32"]),
    (["--buffer", "9" * 20], ["buffer", "9" * 20, "at most"]),
    (["--seeds", "9" * 20], ["seeds", "9" * 20, "at most"]),
]


@pytest.mark.parametrize(("args", "words"), BAD, ids=lambda v: " ".join(map(str, v))[:40])
def test_bad_usage_is_one_line_and_writes_nothing(
    args: list[Any], words: list[str], dualcba: Run
) -> None:
    refused(dualcba("run", *args), *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_no_cuda_where_cuda_was_asked_for(dualcba: Run) -> None:
    refused(dualcba("run", "--device", "cuda"), "device", "'cuda'", "CUDA")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["list", "method"], ["method", "methods"]),
        (["list"], []),
        (["rum"], ["rum", "run"]),
        (["reproduce", "mian"], ["'mian'", "did you mean 'main'", "such as main, semi, all"]),
        (["reproduce", "main", "--seeds", "0"], ["seeds", "0", "at least 1"]),
        (["reproduce", "main", "--scale", "tiny"], ["scale", "'tiny'", "'small'"]),
        (["reproduce", "main", "--dataset", "digits"], ["dataset", "'digits'", "cifar100"]),
        (["reproduce", "blurry", "--dataset", "cifar10"], ["blurry", "cifar10", "--dataset"]),
        (["reproduce", "main", "--data-dir", "none", "--quiet"], ["none", "missing"]),
        (["reproduce"], []),
        (["resume", "nothing"], ["nothing/plan.json", "missing", "dualcba run"]),
    ],
)
def test_bad_commands(args: list[str], words: list[str], dualcba: Run) -> None:
    refused(dualcba(*args), *words)


TOML = [
    ("bufer = 3", ["'bufer'", "did you mean 'buffer'"]),
    ("buffer = 'x'", ["buffer", "'x'", "whole number"]),
    ("buffer = 0", ["buffer", "0", "at least 1"]),
    ("buffer = [1]", ["buffer", "[1]", "whole number"]),
    ("seed = 'a'", ["seed", "'a'", "whole number"]),
    ("seeds = 1.5", ["seeds", "1.5", "whole number"]),
    ("method = 3", ["method", "3"]),
    ("method = []", ["method", "[]"]),
    ("method = ['er', 3]", ["method", "3"]),
    ("dataset = ['digits']", ["dataset", "['digits']"]),
    ("network = ['mlp']", ["network", "['mlp']"]),
    ("lr = true", ["lr", "True", "above 0"]),
    ("[run]\nbuffer = 3", ["'run'"]),
    ("buffer =", ["TOML"]),
]


@pytest.mark.parametrize(("content", "words"), TOML, ids=[t[0] for t in TOML])
def test_bad_files_are_one_line_too(
    content: str, words: list[str], dualcba: Run, tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(content)
    refused(dualcba("run", path), *words)


def cifar10(root: Path) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        data = rng.integers(0, 256, (20, 3072)).astype(np.uint8)
        content = {b"data": data, b"labels": [i % 10 for i in range(20)]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder


def test_missing_truncated_and_hostile_data_files(dualcba: Run, tmp_path: Path) -> None:
    folder = cifar10(tmp_path)
    args = ("run", "--dataset", "cifar10", "--data-dir", tmp_path)
    path = folder / "data_batch_3"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    refused(dualcba(*args), "data_batch_3")
    path.write_bytes(b"cos\nsystem\n(S'touch trace'\ntR.")
    refused(dualcba(*args), "data_batch_3", "expected only arrays")
    path.unlink()
    refused(dualcba(*args), "data_batch_3", "missing", "expected")
    path.write_bytes(whole)
    refused(dualcba(*args, "--batch-size", 32), "batch_size", "32", "20 samples")


def test_a_folder_that_holds_a_complete_run(dualcba: Run) -> None:
    first = dualcba("run", "--method", "er", "--out", "x", "--quiet", *QUICK)
    assert first.code == 0
    (path,) = (first.folder / "x").glob("*/result.json")
    content, files = path.read_bytes(), first.files
    again = dualcba("run", "--method", "er-cba,er", "--out", "x", "--quiet", *QUICK)
    assert again.code == 2
    assert len(again.lines) == 1
    assert path.parent.name in again.err
    assert "already holds a complete run" in again.err
    assert path.read_bytes() == content
    assert again.files == files


@pytest.mark.parametrize("below", ["", "/sub"])
def test_out_is_a_file(below: str, dualcba: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(dualcba("run", "--method", "er", "--out", f"{tmp_path}/file{below}", *QUICK), "file")


def test_the_same_method_twice(dualcba: Run) -> None:
    """One run."""
    got = dualcba("run", "--method", "er,er", "--out", "x", "--quiet", *QUICK)
    assert (got.code, got.err) == (0, "")
    assert len(list((got.folder / "x").glob("*/result.json"))) == 1


def test_a_nan_loss_stops_with_one_line(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--lr", 1e30, "--out", "x", "--quiet", *QUICK)
    assert got.code not in (0, None)
    assert len(got.lines) == 1
    for word in ("became too large", "step 1", "task 1", "last finite loss was"):
        assert word in got.err
    assert not [p for p in got.files if p.endswith("result.json")]


@pytest.mark.parametrize("args", [["--buffer", 1], ["--batch-size", 1], ["--eval-every", 30]])
def test_the_edges_of_what_is_allowed(args: list[Any], dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--out", "x", "--quiet", *QUICK, *args)
    assert (got.code, got.err) == (0, "")
    (path,) = (got.folder / "x").glob("*/result.json")
    name = args[0].strip("-").replace("-", "_")
    assert json.loads(path.read_text())["spec"][name] == args[1]


def test_the_installed_command(tmp_path: Path) -> None:
    """In a process of its own: exit codes, streams and nothing written."""
    code = "from dualcba.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--method", "ER", "--out", "x"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "'ER'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert version("dualcba") == __version__


def test_a_full_device_is_one_line(dualcba: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = Learner.observe_on_device

    def until_full(learner: Learner, *given: Any, **more: Any) -> None:
        if learner.seed == 1 and learner.step == 9:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried 2 GiB.\nOf 8 GiB")
        learn(learner, *given, **more)

    monkeypatch.setattr(Learner, "observe_on_device", until_full)
    got = dualcba("run", "--method", "er", "--seeds", 2, "--quiet", "--out", "x", *QUICK)
    assert got.code == 1
    (line,) = got.err.splitlines()
    assert "Tried 2 GiB; expected enough memory, try fewer --abreast or --jobs" in line
    assert len(list((got.folder / "x").glob("*/result.json"))) == 1


def test_more_than_a_cpu_holds_is_one_line(dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--buffer", 10**14, "--out", "x", *QUICK)
    assert got.code == 1
    (line,) = got.err.splitlines()
    assert "bytes" in line
    assert "; expected enough memory" in line
    assert "enforce" not in line  # where in torch's source it fails


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
@pytest.mark.parametrize(("name", "jobs"), [("SIGINT", 1), ("SIGTERM", 2), ("SIGHUP", 1)])
def test_interrupted_in_the_middle(name: str, jobs: int, tmp_path: Path) -> None:
    """One clear line; what was complete is kept, nothing else is left, no process either."""
    number = getattr(signal, name)
    code = "import sys; sys.argv = sys.argv[1:]; from dualcba.cli.app import main; main()"
    args = ["dualcba", "run", "--method", "er", "--seeds", "40", "--out", str(tmp_path / "x"),
            "--jobs", str(jobs)]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # as in a terminal
        start_new_session=True,
    )  # fmt: skip
    give_up = time.monotonic() + 60
    while not list(tmp_path.glob("x/*/result.json")) and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)  # ends when no process has the pipe open any more
    assert process.returncode == 128 + number
    lines = err.decode().strip().splitlines()
    again = f"continue with `dualcba resume {tmp_path / 'x'}`"
    kept = "complete runs and checkpoints are kept"
    assert lines[-1] == f"dualcba: interrupted; {kept}; {again}"
    assert not [line for line in lines if "Traceback" in line]
    paths = list(tmp_path.glob("x/*/*"))
    assert paths
    for path in paths:
        if path.name == "curves.parquet":  # written before the result, whole
            assert {path.read_bytes()[:4], path.read_bytes()[-4:]} == {b"PAR1"}
            continue
        if path.name == LOCK:  # of a process that was ended at once
            continue
        if path.name == "result.json":
            assert json.loads(path.read_text())["status"] == "complete"
        else:
            assert read_state_file(path)["meta"]["taken"] > 0
            assert not path.with_name("result.json").exists()
    assert len([path for path in paths if path.suffix == ".safetensors"]) <= jobs
    assert not list(tmp_path.rglob(".draft-*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_a_signal_that_is_ignored_stays_so(dualcba: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under nohup; and the handlers are those of before after a command."""

    def raises_signals(_: str) -> dict[str, str]:
        signal.raise_signal(signal.SIGHUP)
        return {"one": "title"}

    monkeypatch.setattr("dualcba.cli.listing.names", raises_signals)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert dualcba("list", "methods").code == 0
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        got = dualcba("list", "methods")
        assert (got.code, len(got.lines)) == (128 + signal.SIGHUP, 1)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def _remove(out: Path) -> None:
    shutil.rmtree(out)


def _replace_by_a_file(out: Path) -> None:
    shutil.rmtree(out)
    out.write_text("mine")


def _damage(out: Path) -> None:
    for path in out.glob("*/result.json"):
        path.write_text("{")


@pytest.mark.parametrize("harm", [_remove, _replace_by_a_file, _damage])
@pytest.mark.parametrize("command", ["run", "resume"])
def test_results_that_are_lost_during_the_runs(
    harm: Callable[[Path], None], command: str, dualcba: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never "2 results" that are not there."""
    args: tuple[Any, ...] = ("run", "--method", "er", "--seeds", 2, "--out", "x", *SHORT)
    if command == "resume":
        folder = dualcba("list", "settings").folder
        write_plan(folder / "x", make_specs({"method": "er", "seeds": 2, **SHORT_FIELDS}))
        args = ("resume", "x", "--device", "cpu")
    harmed: list[Path] = []

    def write_and_harm(out: Path, *given: Any) -> Path:
        path = write_result(out, *given)
        if not harmed:
            harmed.append(path)
            harm(out)
        return path

    monkeypatch.setattr("dualcba.experiments.pool.write_result", write_and_harm)
    got = dualcba(*args, "--quiet")
    assert harmed
    assert (got.code, len(got.lines), got.out) == (2, 1, "")
    assert got.lines[0].startswith("dualcba: ")
    assert "x" in got.lines[0]


def test_runs_without_a_result_are_one_line(dualcba: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed_twice(specs: list[Spec], *_: Any, **__: Any) -> Iterator[RunUpdate]:
        yield RunUpdate(specs[0], 1, 2)
        raise ChildProcessError("1 of 2 runs are missing: er")

    monkeypatch.setattr("dualcba.cli.progress.run_specs_in_processes", killed_twice)
    got = dualcba("run", "--method", "er", "--seeds", 2, "--jobs", 2, "--quiet", *SHORT)
    assert (got.code, got.lines) == (1, ["dualcba: 1 of 2 runs are missing: er"])


# ---------------------------------------------------------------- an interrupted call goes on


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k != "seconds"}


def test_resume_runs_what_is_missing(dualcba: Run) -> None:
    args = ("--method", "er,er-cba", "--seeds", 2, "--buffer", 40, "--json", *QUICK)
    whole = json.loads(dualcba("run", *args, "--out", "x").out)
    folder = dualcba("list", "settings").folder
    kept, *lost = sorted((folder / "x").glob("*/result.json"))
    before = kept.stat().st_mtime_ns
    for path in lost:
        path.unlink()
    got = dualcba("resume", "x", "--device", "cpu", "--json")
    assert (got.code, got.err) == (0, "")
    assert list(map(untimed, json.loads(got.out))) == list(map(untimed, whole))
    assert kept.stat().st_mtime_ns == before
    again = dualcba("resume", "x", "--device", "cpu")
    assert "4 of 4 runs are complete" in again.out
    assert "4 results in x" in again.out


def test_validation_and_test_runs_in_one_folder_stay_apart(dualcba: Run) -> None:
    args = ("run", "--method", "er", "--out", "x", *QUICK)
    dualcba(*args, "--json")
    got = dualcba(*args, "--validation", 0.1)
    assert got.code == 0
    assert "buffer 100, 10 % validation split" in " ".join(got.out.split())
    for path in (got.folder / "x").glob("*/result.json"):
        if json.loads(path.read_text())["spec"]["validation"]:
            path.unlink()
    again = dualcba("resume", "x", "--device", "cpu", "--json")  # not served by the other run
    validations = [one["spec"]["validation"] for one in json.loads(again.out)]
    assert validations == [0.0, 0.1]
    scores = [one["scores"]["bn"]["acc"] for one in json.loads(again.out)]
    assert scores[0] != scores[1]


def test_resume_goes_on_with_every_call_into_the_folder(dualcba: Run) -> None:
    for method in ("er", "er-cba"):
        dualcba("run", "--method", method, "--out", "x", "--quiet", *QUICK)
    folder = dualcba("list", "settings").folder
    for path in (folder / "x").glob("*/result.json"):
        path.unlink()
    assert dualcba("resume", "x", "--quiet", "--device", "cpu").code == 0
    assert len(list((folder / "x").glob("*/result.json"))) == 2


@pytest.mark.parametrize(
    ("content", "word"),
    [("{", "Expecting"), ("[]", "plan"), ('{"specs": [{"bufer": 3}]}', "bufer"),
     ('{"specs": [{"buffer": 0}]}', "buffer is 0")],
)  # fmt: skip
def test_a_corrupt_plan_is_one_line(content: str, word: str, dualcba: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(content)
    got = dualcba("resume", tmp_path)
    assert got.code == 2
    assert len(got.lines) == 1
    assert "plan.json cannot be read as a plan" in got.err
    assert word in got.err


def test_the_report_of_a_folder(dualcba: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_report(
        out: Path, *, to: Path | None, asked: Sequence[str], compare: Sequence[str], tell: object
    ) -> Path:
        return to or out / "-".join(["report.html", *asked, *compare])

    monkeypatch.setattr("dualcba.report.write_report", write_report)
    got = dualcba("report", "runs/x")
    assert (got.code, got.out) == (0, "runs/x/report.html\n")
    assert dualcba("report", "runs/x", "--out", "my.html").out == "my.html\n"
    got = dualcba("report", "runs/x", "--score", "acc,fm", "--score", "bwt")
    assert (got.code, got.out) == (0, "runs/x/report.html-acc-fm-bwt\n")
    got = dualcba("report", "runs/x", "--compare", "er,er-cba", "--compare", "derpp")
    assert (got.code, got.out) == (0, "runs/x/report.html-er-er-cba-derpp\n")


def test_a_score_that_is_not_known_is_named_before_anything_runs(dualcba: Run) -> None:
    for args in (("run", "--out", "x"), ("report", "x"), ("resume", "x")):
        got = dualcba(*args, "--score", "acc,balanced")
        assert (got.code, len(got.lines)) == (2, 1), got.err
        assert "unknown score 'balanced', did you mean 'balanced_acc'?" in got.err
        assert got.files == []


@pytest.mark.parametrize(("tasks", "told"), [("2,3", True), ("2,3,5", False), ("5", False)])
def test_classes_that_no_task_has_are_told(tasks: str, told: bool, dualcba: Run) -> None:
    got = dualcba("run", "--method", "er", "--tasks", tasks, "--eval-every", 0, "--quiet")
    assert got.code == 0
    said = ["dualcba: the tasks have 5 of the 10 classes; the others are left out"]
    assert got.lines == (said if told else [])
