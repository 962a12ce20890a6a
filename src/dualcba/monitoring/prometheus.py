"""The numbers of monitors in Prometheus' text format, version 0.0.4; shares are from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, Any]
Samples = Iterator[tuple[Labels, float | None]]


def _one(name: str, *, percent: bool = False) -> Callable[[Any], Samples]:
    """Return a function that finds a number by its dotted name; percentages become shares."""

    def find(numbers: Any) -> Samples:
        value = numbers
        for part in name.split("."):
            value = value[part]
        yield {}, value / 100 if percent and value is not None else value

    return find


def _of_classes(name: str, *, percent: bool = False) -> Callable[[Any], Samples]:
    def find(numbers: Any) -> Samples:
        text = _class_texts(numbers)
        for one in numbers["classes"]:
            value = one[name]
            labels = {"class": text(one["class"]), "side": one["side"]}
            yield labels, value / 100 if percent and value is not None else value

    return find


def _confusion(numbers: Any) -> Samples:
    text = _class_texts(numbers)
    for given, answer, count in numbers["confusion"]:
        yield {"class": text(given), "answer": text(answer)}, count


def _class_texts(numbers: Any) -> Callable[[Any], str]:
    """Return a function from a class to its text.

    It includes the type if a class with the same text is a string, since Prometheus rejects two
    series with the same labels.
    """
    words = {one["class"] for one in numbers["classes"] if isinstance(one["class"], str)}

    def text(label: Any) -> str:
        plain = str(label)
        clash = plain in words and not isinstance(label, str)
        return f"{plain} ({type(label).__name__})" if clash else plain

    return text


def _ages(numbers: Any) -> Samples:
    for name in ("mean", "median", "max"):
        yield {"statistic": name}, numbers["memory"]["age"][name]


def _correction(numbers: Any) -> Samples:
    for side, value in (numbers.get("correction") or {}).items():
        yield {"side": side}, value


METRICS: tuple[tuple[str, str, str, Callable[[Any], Samples]], ...] = (
    ("steps_total", "counter", "Steps taken.", _one("step")),
    ("samples_total", "counter", "Labelled samples predicted before training.", _one("samples")),
    ("outliers_total", "counter", "Batches skipped or clipped.", _one("outliers")),
    ("task", "gauge", "Index of the current task, from 0.", _one("task")),
    ("accuracy_ratio", "gauge", "Prequential accuracy since the monitor began.",
     _one("accuracy", percent=True)),
    ("window_accuracy_ratio", "gauge", "Prequential accuracy in the window.",
     _one("window.accuracy", percent=True)),
    ("window_samples", "gauge", "Labelled samples in the window.", _one("window.samples")),
    ("class_accuracy_ratio", "gauge", "Prequential accuracy of a class in the window.",
     _of_classes("accuracy", percent=True)),
    ("class_answers_ratio", "gauge", "Share of a class in the answers of the window.",
     _of_classes("answers", percent=True)),
    ("class_samples", "gauge", "Samples of a class in the window.", _of_classes("samples")),
    ("class_memory_samples", "gauge", "Samples of a class in the memory.", _of_classes("memory")),
    ("confusion_samples", "gauge", "Samples of a class with an answer, in the window.", _confusion),
    ("loss", "gauge", "Loss of the last step.", _one("loss.last")),
    ("loss_mean", "gauge", "Mean loss of the last 100 steps.", _one("loss.mean")),
    ("memory_size", "gauge", "Samples that the memory can hold.", _one("memory.size")),
    ("memory_samples", "gauge", "Samples in the memory.", _one("memory.samples")),
    ("memory_age_steps", "gauge", "Steps since samples of the memory were stored.", _ages),
    ("correction", "gauge", "Mean correction of the logits by the adaptor.", _correction),
)  # fmt: skip
"""Name, type, help and samples of each metric."""


def prometheus_text(monitors: Sequence[tuple[Labels, Mapping[str, Any]]]) -> str:
    r"""Return the numbers of several monitors, each with its own labels, as text.

    Unknown numbers are left out.

    >>> one = {"step": 3, "samples": 30, "outliers": 0, "task": 0, "accuracy": None, "classes": [],
    ...        "window": {"accuracy": 50.0, "samples": 30}, "confusion": [["a", 'b"', 2]],
    ...        "loss": {"last": 0.5, "mean": None}, "correction": None,
    ...        "memory": {"size": 9, "samples": 9, "age": dict.fromkeys(["mean", "median", "max"])}}
    >>> text = prometheus_text([({"run": "first"}, one)])
    >>> [line for line in text.splitlines() if "loss" in line or "confusion_samples{" in line]
    ['dualcba_confusion_samples{run="first",class="a",answer="b\\""} 2',
     '# HELP dualcba_loss Loss of the last step.',
     '# TYPE dualcba_loss gauge', 'dualcba_loss{run="first"} 0.5']
    """
    lines: list[str] = []
    for name, kind, text, find in METRICS:
        samples = [({**own, **labels}, v) for own, n in monitors for labels, v in find(n)]
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            full = f"dualcba_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
            lines += [f"{full}{_braces(labels)} {value:.10g}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
