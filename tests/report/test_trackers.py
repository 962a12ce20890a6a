"""Trackers: each is read back by its own API, and one that fails stops nothing."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from PIL import Image

from dualcba.experiments import Result, Spec
from dualcba.experiments.pool import RunUpdate
from dualcba.report import tracking
from dualcba.report.trackers import TRACKERS, check_installed, make_tracker
from dualcba.report.trackers.protocol import TrackedRun
from dualcba.report.tracking import Tracking, curve_points, final_values, run_figures

LIVE = 33.25
Runs = list[tuple[Any, Result]]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No tracker looks for a server, and figures are one pixel."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "runs" / "trackio"))
    monkeypatch.setattr(tracking, "run_figures", lambda _: {"anytime": pixel()})


def pixel() -> bytes:
    out = BytesIO()
    Image.new("RGB", (4, 3), (200, 10, 10)).save(out, "PNG")
    return out.getvalue()


def tell(names: list[str], out: Path, runs: Runs, warn: Callable[[str], None]) -> None:
    """Tell trackers of two runs that take turns, as those of two processes do."""
    seen = Tracking(names, out, warn)
    for spec, _ in runs[:2]:
        seen.see(RunUpdate(spec, 1, 90))
    for spec, _ in runs[:2]:
        seen.see(RunUpdate(spec, 50, 90, LIVE))
    for spec, result in runs[:2]:
        seen.see(RunUpdate(spec, 90, 90, 40.0, result.to_dict()))
    seen.close()


def wanted(result: Result) -> tuple[dict[str, float], dict[tuple[str, int], float]]:
    """Return the scores and the curves that a tracker must hold, from `result.json`."""
    content = json.loads(json.dumps(result.to_dict()))
    scores = {
        f"{statistics}/{name}": value
        for statistics, found in content["scores"].items()
        for name, value in found.items()
        if value is not None
    }
    curves = {
        (f"anytime/{statistics}/task{k}", step): accuracy
        for statistics in ("bn", "ibn")
        for step, row in zip(
            content["anytime"]["step"], content["anytime"][statistics], strict=True
        )
        for k, accuracy in enumerate(row, 1)
    }
    assert len(scores) > 20
    assert len(curves) > 20
    return scores, curves


@pytest.mark.parametrize("name", TRACKERS)
def test_each_is_read_back_by_its_own_api(name: str, runs: Runs, tmp_path: Path) -> None:
    for module in TRACKERS[name][1]:
        pytest.importorskip(module)
    out = tmp_path / "runs"
    warned: list[str] = []
    tell([name], out, runs, warned.append)
    assert warned == []
    for spec, result in runs[:2]:
        spec_found, scores_found, curves_found, images = READ[name](out, spec.name)
        scores, curves = wanted(result)
        assert spec_found == json.loads(json.dumps(spec.to_dict()))
        assert scores_found.items() >= scores.items()
        assert curves_found.items() >= curves.items()
        assert curves_found["live/accuracy", 50] == LIVE
        assert images == 1


Found = tuple[dict[str, Any], Mapping[str, float], Mapping[tuple[str, int], float], int]


def read_tensorboard(out: Path, run: str) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(out / "tensorboard" / run), {"tensors": 0, "images": 0})
    events.Reload()
    values = {
        (tag, event.step): tensor_util.make_ndarray(event.tensor_proto).item()
        for tag in events.Tags()["tensors"]
        for event in events.Tensors(tag)
    }
    text = values.pop(("spec/text_summary", 0)).decode()
    spec = json.loads(text.removeprefix("```json").removesuffix("```"))
    scores = {tag: value for (tag, _), value in values.items()}
    return spec, scores, values, len(events.Tags()["images"])


def read_mlflow(out: Path, run: str) -> Found:
    from mlflow.artifacts import load_dict
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{out / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("runs")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{run}'")
    assert found.info.status == "FINISHED"
    assert found.data.params["method"] in run
    curves = {
        (metric.key, metric.step): metric.value
        for key in found.data.metrics
        for metric in client.get_metric_history(found.info.run_id, key)
    }
    spec = load_dict(f"{found.info.artifact_uri}/spec.json")
    return (
        spec,
        found.data.metrics,
        curves,
        len(client.list_artifacts(found.info.run_id, "figures")),
    )


def read_wandb(out: Path, run: str) -> Found:
    import wandb

    wandb.teardown()  # its service writes the end of a file later than the run finishes
    (path,) = (p for p in out.glob("wandb/offline-run-*/*.wandb") if is_named(p, run))
    spec: dict[str, Any] = {}
    scores: dict[str, float] = {}
    curves: dict[tuple[str, int], float] = {}
    for record in wandb_records(path.read_bytes()):
        config = {u.key: json.loads(u.value_json) for u in record.run.config.update}
        spec |= {key: value for key, value in config.items() if key != "_wandb"}
        scores |= {u.key: json.loads(u.value_json) for u in record.summary.update if u.key}
        row = {"/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        curves |= {(key, row["step"]): value for key, value in row.items() if "step" in row}
    return spec, scores, curves, len(list(path.parent.rglob("anytime*.png")))


def is_named(path: Path, run: str) -> bool:
    """Whether an offline run has this name; in the bytes of the file a block may cut it in two."""
    return any(record.run.display_name == run for record in wandb_records(path.read_bytes()))


def wandb_records(data: bytes) -> Iterator[Any]:
    """Yield the records of an offline run; the file has the framing of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    assert data[:4] == b":W&B"
    block, head, at, part = 32768, 7, 7, b""
    while at + head <= len(data):
        if block - at % block < head:
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + head])
        part += data[at + head : at + head + size]
        at += head + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def read_trackio(out: Path, run: str) -> Found:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (found,) = (one for one in trackio.Api().runs("runs") if one.name == run)
    rows = SQLiteStorage.get_logs("runs", run)
    curves = {(key, row["step"]): value for row in rows for key, value in row.items()}
    images = [value for value in rows[-1].values() if isinstance(value, dict)]
    spec = {key: value for key, value in found.config.items() if not key.startswith("_")}
    return spec, rows[-1], curves, len(images)


READ: dict[str, Callable[[Path, str], Found]] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
    "trackio": read_trackio,
}

# ---------------------------------------------------------------------- without any of them


class Memory:
    """A tracker that remembers what it is told, and fails where it is asked to."""

    told: ClassVar[list[tuple[Any, ...]]] = []
    fails = ""

    def start(self, run: TrackedRun) -> None:
        self.name = run.name
        self._tell("start", run.project, run.spec["method"])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._tell("log", step, dict(values))

    def finish(self, scores: Mapping[str, float], figures: Mapping[str, bytes]) -> None:
        self._tell("finish", dict(scores), list(figures))

    def _tell(self, what: str, *values: Any) -> None:
        print("noise")
        if what == self.fails:
            raise RuntimeError("no\nroute to host")
        self.told.append((self.name, what, *values))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    monkeypatch.setitem(sys.modules, "dualcba.report.trackers.wandb", SimpleNamespace(W=Memory))
    monkeypatch.setitem(TRACKERS, "wandb", ("wandb:W", ()))
    monkeypatch.setattr(Memory, "told", [])
    monkeypatch.setattr(Memory, "fails", "")
    return Memory


def test_what_a_tracker_is_told(
    memory: type[Memory], runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(["wandb"], tmp_path / "project", runs, pytest.fail)
    (spec, result), (other, _) = runs[:2]
    told = [line[1:] for line in memory.told if line[0] == spec.name]
    assert told[0] == ("start", "project", spec.method)
    assert told[1] == ("log", 50, {"live/accuracy": LIVE})
    assert told[2:-1] == [("log", step, values) for step, values in curve_points(result)]
    assert told[-1] == ("finish", final_values(result), ["anytime"])
    assert [line[1] for line in memory.told if line[0] == other.name].count("finish") == 1
    assert capsys.readouterr().out == ""  # what a tracker prints would break --json


def test_a_run_that_does_not_finish_is_ended(
    memory: type[Memory], runs: Runs, tmp_path: Path
) -> None:
    seen = Tracking(["wandb"], tmp_path, pytest.fail)
    seen.see(RunUpdate(runs[0][0], 1, 90))
    seen.close()
    assert memory.told[-1] == (runs[0][0].name, "finish", {}, [])


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_one_that_fails_warns_once_and_is_left_out(
    where: str, memory: type[Memory], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "fails", where)
    warned: list[str] = []
    tell(["wandb"], tmp_path, runs, warned.append)
    assert warned == ["wandb failed and is disabled, the runs continue: no route to host"]
    before = {"start": 0, "log": 2, "finish": len(memory.told)}[where]
    assert len(memory.told) == before


def test_the_others_go_on(
    memory: type[Memory], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRACKERS, "mlflow", ("nothing:Nothing", ()))  # cannot be imported
    warned: list[str] = []
    tell(["mlflow", "wandb"], tmp_path, runs, warned.append)
    assert len(warned) == 1
    assert warned[0].startswith("mlflow failed and is disabled")
    assert [line[1] for line in memory.told].count("finish") == 2


def test_figures_that_cannot_be_drawn_are_left_out(
    memory: type[Memory], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "run_figures", lambda _: 1 / 0)
    warned: list[str] = []
    tell(["wandb"], tmp_path, runs[:1], warned.append)
    assert warned == ["figures for trackers are left out: division by zero"]
    assert memory.told[-1][1:] == ("finish", final_values(runs[0][1]), [])


def test_the_figures_of_a_run(recorded: list[Result]) -> None:
    found = run_figures(recorded[0])
    assert {"anytime", "stability", "posterior"} <= set(found)
    assert all(png.startswith(b"\x89PNG") for png in found.values())


def test_one_that_is_not_installed_is_named_before_any_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TRACKERS, "wandb", ("wandb:W", ("no_such_module",)))
    wanted = r"track is 'wandb' and no_such_module is missing, expected `pip install 'dualcba\[wan"
    with pytest.raises(ValueError, match=wanted):
        check_installed(["wandb"])
    check_installed([])


def test_values_that_were_not_measured_are_not_logged() -> None:
    result = Result(Spec(), 0, {"bn": {"acc": 70.0, "fm": None}}, cost={"gpu_memory": None})
    assert final_values(result) == {"bn/acc": 70.0}
    assert list(curve_points(result)) == []


def test_names_of_extras_and_options_agree() -> None:
    from dualcba.options.values import TrackerName

    assert tuple(TRACKERS) == TrackerName.__args__  # type: ignore[attr-defined]


def test_a_tracker_is_made_by_name(memory: type[Memory]) -> None:
    assert isinstance(make_tracker("wandb"), memory)
