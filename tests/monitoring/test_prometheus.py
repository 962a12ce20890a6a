"""The text for Prometheus: read by its own parser where it is installed, and served."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dualcba import Learner
from dualcba.monitoring import Monitor, prometheus_text
from dualcba.monitoring.serving import make_server
from dualcba.nets import MLP

NAMES = ['quo"te', "back\\slash", "new\nline", "ä"]


@pytest.fixture
def numbers() -> dict[str, Any]:
    torch.manual_seed(0)
    learner = Learner(
        MLP((4,), 4, width=8), (4,), 4, dtype=torch.float32, buffer=12, batch_size=4, width=8,
        device="cpu",
    )  # fmt: skip
    monitor = Monitor(learner, names=NAMES)
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for _ in range(8):
            learner.observe(torch.eye(4)[classes].repeat(2, 1), classes * 2)
    return monitor.numbers()


def test_the_parser_of_prometheus_reads_it(numbers: dict[str, Any]) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    text = prometheus_text([({"run": "a"}, numbers), ({"run": "b"}, numbers)])
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert families["dualcba_steps"].type == "counter"
    samples = families["dualcba_steps"].samples
    assert [(s.name, s.labels, s.value) for s in samples] == [
        ("dualcba_steps_total", {"run": run}, 16.0) for run in "ab"
    ]
    by_class = {
        s.labels["class"]: s.value for s in families["dualcba_class_accuracy_ratio"].samples
    }
    assert list(by_class) == NAMES
    for one in numbers["classes"]:
        assert by_class[one["class"]] == pytest.approx(one["accuracy"] / 100)
    assert {s.labels["side"] for s in families["dualcba_correction"].samples} == {"old", "new"}
    kinds = {family.type for family in families.values()}
    assert kinds == {"counter", "gauge"}
    assert len(families) == 18
    assert all(family.documentation for family in families.values())


def test_what_is_not_known_is_left_out(vectors: Callable[..., Learner]) -> None:
    text = Monitor(vectors()).prometheus()
    assert "dualcba_steps_total 0" in text.splitlines()
    assert "accuracy" not in text
    assert "None" not in text
    assert "nan" not in text


def test_the_endpoint(numbers: dict[str, Any]) -> None:
    text = prometheus_text([({}, numbers)])
    with make_server(lambda: text, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        root = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{root}/metrics") as answer:
            assert answer.read().decode() == text
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{root}/other")
        server.shutdown()
        thread.join()


def test_labels_that_print_alike_are_series_of_their_own() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    learner = Learner(net, (4,), dtype=torch.float32, boundaries="inferred", buffer=10)
    monitor = Monitor(learner)
    for _ in range(2):
        learner.observe(torch.eye(4), [5, "5", None, "None"])
    lines = [line for line in monitor.prometheus().splitlines() if not line.startswith("#")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(set(series)) == len(series)
    classes = {line for line in series if line.startswith("dualcba_class_memory_samples")}
    for text in ("5", "5 (int)", "None", "None (NoneType)"):
        assert any(f'class="{text}"' in line for line in classes)
