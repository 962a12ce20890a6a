"""Validation of `result.json`, field by field. An error names the field, its value and the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dualcba.data.stream import split_classes
from dualcba.errors import shown
from dualcba.options import RunOptions, definitions
from dualcba.options.values import class_order, task_division

Rule = Callable[[str, Any], None]
"""Called with the name and the value of a field; raises a ValueError if it is not valid."""

ROUNDING = 1e-3  # a mean of percentages may exceed 100 by rounding
LARGEST = 1e38


def wrong(where: str, value: Any, wanted: str) -> ValueError:
    """Return the error for an invalid value; the caller puts the name of the file before it."""
    return ValueError(f"has {where} of {shown(value)}, expected {wanted}")


def text(where: str, value: Any) -> None:
    """Accept text."""
    if not isinstance(value, str):
        raise wrong(where, value, "text")


def scalar(where: str, value: Any) -> None:
    """Accept anything but lists and objects."""
    if isinstance(value, list | dict):
        raise wrong(where, value, "one value")


def number(low: float = -LARGEST, high: float = LARGEST) -> Rule:
    """Accept numbers in a range, which excludes NaN."""

    def rule(where: str, value: Any) -> None:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not low <= value <= high:
            raise wrong(where, value, f"a number from {low:g} to {high:g}")

    return rule


def whole(low: int = 0) -> Rule:
    """Accept whole numbers."""

    def rule(where: str, value: Any) -> None:
        if type(value) is not int or not low <= value < 2**63:
            raise wrong(where, value, f"a whole number of at least {low}")

    return rule


def optional(rule: Rule) -> Rule:
    """Accept null as well."""
    return lambda where, value: None if value is None else rule(where, value)


def list_of(rule: Rule, least: int = 0, length: int | None = None) -> Rule:
    """Accept lists whose elements fit a rule."""

    def check(where: str, value: Any) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise wrong(where, value, f"a list of at least {least}")
        if length is not None and len(value) != length:
            raise wrong(f"length of {where}", len(value), str(length))
        for k, each in enumerate(value):
            rule(f"{where}[{k}]", each)

    return check


def mapping_of(rule: Rule) -> Rule:
    """Accept objects whose values fit a rule."""

    def check(where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise wrong(where, value, "an object")
        for name, each in value.items():
            rule(f"{where}.{name}", each)

    return check


def record(**rules: Rule) -> Rule:
    """Accept objects with all of these fields, and possibly others."""

    def check(where: str, value: Any) -> None:
        mapping_of(anything)(where, value)
        missing = next((name for name in rules if name not in value), None)
        if missing:
            inside = f" in {where}" if where else ""
            raise ValueError(f"lacks {missing!r}{inside}, expected the result of a run")
        for name, rule in rules.items():
            rule(f"{where}.{name}" if where else name, value[name])

    return check


def anything(where: str, value: Any) -> None:
    """Accept any value."""


PERCENT = number(-ROUNDING, 100 + ROUNDING)
SCORE = optional(number(-100 - ROUNDING, 100 + ROUNDING))
MASS = number(-ROUNDING, 1 + ROUNDING)
NAMED = {"method": text, "dataset": text, "setting": text, "buffer": whole()}


def spec(where: str, value: Any) -> None:
    """Accept the fields of a spec, even if it cannot be constructed here."""
    record(**NAMED)(where, value)
    rules = dict.fromkeys(definitions(RunOptions), scalar) | SPEC_FIELDS
    for name, each in value.items():
        rules.get(name, anything)(f"{where}.{name}", each)


SPEC_FIELDS: dict[str, Rule] = {
    "tasks": task_division,
    "class_order": class_order,
    "agnostic_from": optional(text),
    "adaptor": optional(text),  # of schema 1
    "record": optional(list_of(text)),
    "method_options": optional(mapping_of(anything)),
    "options": optional(mapping_of(anything)),  # of schema 1
}


def anytime(where: str, value: Any) -> None:
    """Accept steps and tasks of points, and a row of accuracies per point for each statistics."""
    if value == {}:
        return
    record(step=list_of(whole()), task=list_of(whole()))(where, value)
    points = len(value["step"])
    list_of(anything, length=points)(f"{where}.task", value["task"])
    for name, rows in value.items():
        if name not in ("step", "task") and rows != []:
            list_of(list_of(PERCENT, least=1), length=points)(f"{where}.{name}", rows)


def task_ends(where: str, value: Any) -> None:
    """Accept steps in increasing order."""
    list_of(whole())(where, value)
    if value != sorted(set(value)):
        raise wrong(where, value, "steps in increasing order")


RULES: dict[str, Rule] = {
    "spec": spec,
    "seed": whole(),
    "status": text,
    "scores": mapping_of(mapping_of(SCORE)),
    "accuracy_matrix": optional(mapping_of(list_of(list_of(PERCENT, least=1)))),
    "anytime": optional(anytime),
    "task_ends": optional(task_ends),
    "recordings": optional(mapping_of(anything)),
    "seconds": optional(mapping_of(number(0))),
    "cost": optional(mapping_of(optional(number(0)))),
    "versions": optional(mapping_of(text)),
    "agnostic_provenance": optional(mapping_of(anything)),
}
NEEDED = ("spec", "seed", "status", "scores")


def check_result(content: Mapping[str, Any]) -> None:
    """Raise a ValueError unless all fields of a result fit their rules."""
    record(**dict.fromkeys(NEEDED, anything))("", content)
    for name, rule in RULES.items():
        if name in content:
            rule(name, content[name])
    check_recordings(content.get("recordings") or {}, content["spec"])


# ---------------------------------------------------------------------- recordings


def check_recordings(recordings: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the recordings have the shapes that the figures need."""
    for name, rule in (
        ("predictions", predictions),
        ("transitions", transitions),
        ("alignment", alignment),
    ):
        if recordings.get(name):
            rule(f"recordings.{name}", recordings[name], fields)


def tasks_of(classes: int, fields: Mapping[str, Any]) -> list[list[int]]:
    """Return the classes of each task; raise a ValueError if the spec does not fit their number."""
    order = fields.get("class_order", "natural")
    return split_classes(classes, fields.get("tasks", 0), None if isinstance(order, str) else order)


def predictions(where: str, value: Any, fields: Mapping[str, Any]) -> None:
    """Accept a confusion matrix for BN and for IBN."""
    record(bn=list_of(anything, least=1), ibn=anything)(where, value)
    classes = len(value["bn"])
    tasks_of(classes, fields)
    row = list_of(whole(), length=classes)
    for statistics in ("bn", "ibn"):
        list_of(row, length=classes)(f"{where}.{statistics}", value[statistics])
        if not any(map(any, value[statistics])):
            raise ValueError(f"has no prediction in {where}.{statistics}, expected at least one")


def transitions(where: str, value: Any, fields: Mapping[str, Any]) -> None:
    """Accept a list with the posteriors around each task boundary."""
    tasks = fields.get("tasks")
    count = len(tasks) if isinstance(tasks, list) else tasks
    list_of(record(task=whole(1), step=list_of(whole(-(2**62)), least=1)))(where, value)
    list_of(anything, length=None if count is None else count - 1)(where, value)
    for k, moment in enumerate(value):
        masses = list_of(MASS, length=len(moment["step"]))
        sides = record(p_old=masses, p_new=masses)
        record(old=sides, new=sides)(f"{where}[{k}]", moment)
        if moment.get("classes"):
            _posteriors(f"{where}[{k}].classes", moment, fields)


def _posteriors(where: str, moment: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Accept the posteriors of one class before and after a boundary."""
    given = moment["classes"]
    record(**{"class": whole(), "before": list_of(MASS, least=1), "after": anything})(where, given)
    classes = len(given["before"])
    list_of(MASS, length=classes)(f"{where}.after", given["after"])
    number(0, classes - 1)(f"{where}.class", given["class"])
    number(1, len(tasks_of(classes, fields)))(f"task of {where}", moment["task"])


def alignment(where: str, value: Any, fields: Mapping[str, Any]) -> None:
    """Accept lists over the measured steps."""
    record(step=list_of(whole()), **{"with": anything})(where, value)
    rule = list_of(optional(number()), length=len(value["step"]))
    for name in ("with", "without", "bound", "bound_without"):
        if name in value:
            rule(f"{where}.{name}", value[name])
