"""`benchmarks/` runs; nothing here is about how long it takes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import (
    abreast,
    alternatives,
    cached,
    checkpoints,
    contenders,
    frontier,
    growth,
    parts,
    prequential,
    profiling,
    standardise,
    step,
)
from benchmarks.alternative_models import CONTENDERS, NearestMean, NearestSample
from benchmarks.learners import Ready, synthetic
from dualcba.bench import Setup
from dualcba.experiments import Hardware, Spec

CPU = Hardware(device="cpu")
SPEC = Spec(dataset="cifar100", method="er-dual-cba", network="mlp", buffer=50, tasks=2)


@pytest.fixture(scope="module")
def data() -> Any:
    return synthetic(classes=10, train=320, test=100, shape=(3, 8, 8))


def test_the_length_that_intervals_cover() -> None:
    assert profiling.union([]) == 0
    assert profiling.union([(5, 7), (0, 2), (1, 3), (1.5, 2.5)]) == 5


def test_the_cost_of_a_checkpoint() -> None:
    spec = Spec(dataset="cifar100", method="er", network="mlp", buffer=20, tasks=1, eval_every=0)
    found = checkpoints.measure(spec, CPU, burst=2, rounds=1)
    assert found["megabytes"] > 1
    assert found["ms_of_copy_and_write"] > found["ms_of_the_copy"] > 0


def test_the_gain_by_standardisation() -> None:
    found = standardise.measure("iris", by_class=False, seeds=2, method="er")
    assert found["gain"] == pytest.approx(found["with"] - found["without"], abs=0.11)
    assert found["half_width"] >= 0


def test_the_batches_of_river() -> None:
    pytest.importorskip("river")
    from benchmarks import river_batches

    found = river_batches.measure("phishing", 5, seeds=1, most=30)
    assert 0 <= found["accuracy"] <= 100
    assert found["learn_us"] > 0
    assert 0 <= river_batches.held_out(50, seeds=1, test_size=0.95)["held_out"] <= 100


def test_predictions_after_each_step(data: Any) -> None:
    learnt = {way: prequential.learn(data, way, 0, 100, "er") for way in prequential.WAYS}
    assert all(0 <= score <= 100 for scores in learnt.values() for score in scores)
    prequential.loop("mlp", "parts", 10, 4)()


def test_a_profile_and_its_roofline(data: Any) -> None:
    ready = Ready(SPEC, CPU, data)
    found = profiling.profiled(ready)
    assert found["on"] == "host"
    assert found["events_per_step"] > 0
    assert 0 < len(found["top"]) <= profiling.TOP
    roof = profiling.roofline(ready.learner, 2.0, found["busy_us_per_step"], peak_tflops=1.0)
    layers = [2 * 192 * 256, 2 * 256 * 256, 2 * 256 * 10]
    flops = 64 * (3 * sum(layers) - layers[0]) + 32 / 5 * sum(layers)
    assert roof["gflop_per_step"] == round(flops / 1e9, 2)
    assert roof["floor_ms"] == round(flops / 1e9, 4)


def test_seeds_abreast_and_whole_runs(data: Any) -> None:
    found = abreast.steps_abreast(SPEC, CPU, data, seeds=2, steps=1)
    assert found["seeds"] == 2
    assert found["ms_per_step_and_seed"] > 0
    whole = abreast.whole_run(SPEC, CPU, data, every=5, seeds=2)
    assert whole["steps_per_seed"] == 10
    assert whole["seconds_per_seed"] == pytest.approx(whole["seconds"] / 2, abs=1e-3)


def test_methods_in_turns_have_ratios_to_the_first(data: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(abreast, "TURNS", 2)
    plain = Spec(dataset="cifar100", method="er", network="mlp", buffer=50, tasks=2)
    each = [replace(CPU, precision="fp32"), replace(CPU, precision="bf16")]
    rows = abreast.in_turns([plain, SPEC], each, data, steps=1)
    names = [f"{row['method']} {row['precision']}" for row in rows]
    assert names == ["er fp32", "er bf16", "er-dual-cba fp32", "er-dual-cba bf16"]
    assert (rows[0]["ratio_to_first"], rows[0]["quartiles"]) == (1.0, "1.0000 to 1.0000")
    assert rows[1]["ratio_to_first"] > 0


def test_methods_of_the_frontier_are_timed_relative_to_er(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "frontier.json"
    words = ["--rows", "ER + MKD; GSA, Dual-CBA", "--network", "mlp", "--device", "cpu"]
    frontier.main([*words, "--steps", "1", "--turns", "2", "--json", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["row"] for row in rows] == ["ER", "ER + MKD", "GSA, Dual-CBA"]
    assert [row["at_most"] for row in rows] == ["", 2.5, ""]
    assert rows[0]["ratio_to_first"] == 1.0
    assert rows[1]["ms_per_step"] > 0
    assert "a step under P10, mlp" in capsys.readouterr().out


def test_the_rows_of_the_frontier_that_are_timed() -> None:
    rows = frontier.chosen([])
    assert next(iter(rows)) == "ER"
    assert set(frontier.AT_MOST) | set(frontier.ADAPTED) <= set(rows)
    assert len(rows) == 15 + len(frontier.ADAPTED)
    with pytest.raises(SystemExit, match="unknown row 'MKT'"):
        frontier.chosen(["MKT"])


def test_cached_features_against_images(tmp_path: Path) -> None:
    out = tmp_path / "cached.json"
    small = ["--side", "8", "--batch", "4", "--buffer", "8", "--steps", "1", "--rounds", "1"]
    cached.main([*small, "--methods", "er", "--json", str(out)])
    (row,) = json.loads(out.read_text())[0]["rows"]
    assert row["ratio"] > 0
    assert row["memory_bytes_images"] == 9 * 192


def test_growth_is_relative_to_the_first() -> None:
    done: list[str] = []
    work = {name: lambda name=name: done.append(name) for name in ("10", "100")}
    found = growth.turns(work, steps=5, rounds=2)
    assert "".join(done) == "1010010010"
    assert found["10"]["ratio_to_first"] == 1.0
    assert set(found["100"]) == {"ms_per_step", "ratio_to_first"}


def test_step_writes_what_it_measured_and_says_what_it_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "step.json"
    words = ["--methods", "er", "--network", "mlp", "--device", "cpu", "--steps", "1"]
    words += ["--whole", "made-up", "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", ["step", *words, "--json", str(out)])
    step.main()
    assert "skipped without CUDA: --whole" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert found["command"] == f"python -m benchmarks.step {' '.join(words)}"
    assert (found["commit"], found["device"]) == ("abc", "cpu")
    assert tuple(found["rows"][0]) == step.COLUMNS


def test_contenders_of_other_frameworks_are_there_or_named_missing() -> None:
    known = {name for method, name in contenders.everyone() if method == "er"}
    assert known | set(contenders.missing()) >= {"dualcba", "bare", "usual", *contenders.FOREIGN}


def test_the_shares_of_a_step_add_up() -> None:
    backward = torch.Tensor.backward
    setup = Setup(size=8, channels=1, classes=10, samples=640)
    shares = parts.measure("er-dual-cba", setup, steps=10)
    assert {"forward", "backward", "adaptor", "outer step", "draws"} <= set(shares)
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert torch.Tensor.backward is backward


def clusters(n: int = 240) -> alternatives.Data:
    """Four classes that any classifier can tell."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 4
    x = (np.eye(4)[y].repeat(3, 1) + 0.1 * rng.normal(size=(n, 12))).astype(np.float32)
    return alternatives.Data(x[:-80], y[:-80], x[-80:], y[-80:])


@pytest.mark.parametrize("name", CONTENDERS)
def test_each_alternative_learns_a_stream(name: str) -> None:
    if name in alternatives.RIVER:
        pytest.importorskip("river")
    found = alternatives.run(name, clusters(), "shuffled", seed=0)
    assert set(found) == {*alternatives.SCORES, *alternatives.TIMES}
    assert found["final"] > 60
    assert min(found.values()) > 0


def test_the_orders_of_a_stream() -> None:
    data = clusters()
    for order, tasks in (("classes", 2), ("single", 2), ("shuffled", 1)):
        batches = list(alternatives.arranged(data, order, seed=3))
        assert sum(len(y) for _, y in batches) == 160
        first = set(np.concatenate([y for _, y in batches[: len(batches) // 2]]).tolist())
        assert len(first) == 4 // tasks
        assert all(
            (x @ np.eye(4).repeat(3, 1).T).argmax(1).tolist() == y.tolist() for x, y in batches
        )


def test_the_nearest_mean_and_the_nearest_sample_of_a_reservoir() -> None:
    x, y = np.asarray([[0.0], [1.0], [4.0]], np.float32), np.asarray([5, 5, 7])
    mean, sample = NearestMean(9), NearestSample(0, size=2)
    for model in (mean, sample):
        model.learn(x, y)
    assert mean.predict(np.asarray([[2.0], [2.5]], np.float32)).tolist() == [5, 7]
    assert len(sample.x) == 2
    for k in range(400):
        sample.learn(np.asarray([[k]], np.float32), np.asarray([k]))
    assert max(sample.y) > 7  # later samples replace earlier ones
    assert [sample.predict(one[None])[0] for one in sample.x] == sample.y


def test_the_command_adds_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(alternatives.READERS, "digits", lambda _: clusters())
    out = tmp_path / "numbers.json"
    for who in ("nearest sample", "nearest class mean"):
        words = ["--data", "digits,letter", "--orders", "classes", "--only", who, "--seeds", "2"]
        alternatives.main([*words, "--data-dir", str(tmp_path), "--json", str(out)])
    said = capsys.readouterr().out
    assert "letter is left out" in said
    rows = json.loads(out.read_text())["numbers"]["digits"]["classes"]
    assert list(rows) == ["nearest sample", "nearest class mean"]
    assert len(rows["nearest sample"]["seeds"]) == 2
    with pytest.raises(SystemExit, match="unknown contender 'SGD'"):
        alternatives.main(["--only", "SGD"])


def test_the_page_has_the_tables_of_the_file() -> None:
    root = Path(__file__).parents[1]
    numbers = json.loads((root / "results" / "alternatives-cpu.json").read_text())["numbers"]
    page = (root / "docs" / "comparison.md").read_text()
    assert set(numbers) == set(alternatives.READERS)
    for data, orders in numbers.items():
        for order in orders:
            assert alternatives.markdown(numbers, data, order) in page
