"""The result of a run as a typed object, which reads and writes the content of `result.json`.

The current schema is 2. Schema 1 has no key "schema", other names for two fields of the spec, and
no source of a loaded class-agnostic part; `upgrade` converts it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from dualcba.data.dataset import DataOrigin
from dualcba.errors import shown
from dualcba.experiments.result_rules import check_result
from dualcba.experiments.spec import Spec, content_of
from dualcba.experiments.upgrade import upgrade_result

SCHEMA = 2
SCHEMAS = (1, SCHEMA)
"""Schemas that can be read."""

COMPLETE = "complete"
NAMED = ("method", "dataset", "setting", "buffer")
"""Fields of the spec that are repeated at the top level of `result.json`."""

Fields = Mapping[str, Any]
"""Fields of a spec by name."""


@dataclass(frozen=True)
class ForeignSpec:
    """The fields of a spec that cannot be constructed here, to group and name its runs.

    Its method may come from a package that is not installed, or its dataset may have been removed.
    """

    fields: Fields

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.fields["method"])

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return str(self.fields["dataset"])

    @property
    def setting(self) -> str:
        """The name of the setting."""
        return str(self.fields["setting"])

    @property
    def buffer(self) -> int:
        """The number of samples in the memory."""
        return int(self.fields["buffer"])

    @property
    def agnostic_from(self) -> str | None:
        """Where the class-agnostic part was loaded from."""
        return self.fields.get("agnostic_from")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return dict(self.fields)


AnySpec = Spec | ForeignSpec


def make_spec(fields: Fields) -> AnySpec:
    """Return a `Spec`, or a `ForeignSpec` if the fields are not valid here.

    >>> make_spec({"method": "er", "dataset": "cifar10"}).buffer
    200
    >>> make_spec({"method": "theirs", "dataset": "digits"})
    ForeignSpec(fields={'method': 'theirs', 'dataset': 'digits'})
    """
    try:
        return Spec(**fields)
    except (TypeError, ValueError):
        return ForeignSpec(dict(fields))


@dataclass(frozen=True)
class Anytime:
    """Accuracies between task ends, in percent.

    `accuracy[statistics][k]` has the accuracy of each task so far, after `step[k]` steps, during
    task `task[k]`. It is empty for statistics that were not evaluated between task ends.
    """

    step: Sequence[int] = ()
    task: Sequence[int] = ()
    accuracy: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The spec, scores, curves and costs of a run.

    The keys `statistics` are "bn" or "ibn": the statistics of normalisation layers in evaluation.
    """

    spec: AnySpec
    seed: int
    scores: Mapping[str, Mapping[str, float | None]]
    """`scores[statistics][score]`; None if a score was not measured."""

    accuracy_matrix: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """For each statistics: row t, column i is the accuracy of task i after task t, in percent."""

    anytime: Anytime = Anytime()
    recordings: Mapping[str, Any] = field(default_factory=dict)
    """Recordings by the name of the recorder."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds for `train`, `evaluate` and in `total`."""

    cost: Mapping[str, float | None] = field(default_factory=dict)
    """The number of `parameters`, the peak `gpu_memory` in bytes, and the `relative_cost` of a step
    in real-time evaluation."""

    versions: Mapping[str, str] = field(default_factory=dict)
    agnostic_provenance: Fields | None = None
    """The source run of a loaded class-agnostic part, as recorded in its file."""

    data: DataOrigin | None = None
    """The dataset; None in results of earlier versions, which do not record it."""

    task_ends: Sequence[int] = ()
    """The step after which each task ended; empty in results of earlier versions."""

    status: str = COMPLETE
    schema: int = SCHEMA

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.spec.method

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return self.spec.dataset

    @property
    def validation(self) -> float:
        """The fraction of the training data used for evaluation; 0 if the test data were used."""
        return float(self.fields.get("validation") or 0.0)

    @property
    def complete(self) -> bool:
        """Whether the run reached the end of its stream."""
        return self.status == COMPLETE

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of the spec."""
        return self.spec.to_dict()

    @cached_property
    def identity(self) -> Hashable:
        """The identity of the spec, see `identity`."""
        return identity(self.spec)

    def value(self, statistics: str, score: str) -> float | None:
        """Return a score by its name in experiments, or None if it was not measured.

        >>> matrix = {"bn": [[90.0, 0.0], [60.0, 80.0]]}
        >>> Result(Spec(), 0, {"bn": {"acc": 70.0}}, matrix).value("bn", "task2")
        80.0
        """
        rows = self.accuracy_matrix.get(statistics) or [[]]
        if (task := score.removeprefix("task")) != score and task.isdigit():
            known = 0 < int(task) <= len(rows[-1])
            return float(rows[-1][int(task) - 1]) if known else None
        if score == "seconds_per_task":
            seconds = self.seconds.get("train")
            return None if seconds is None or not rows[-1] else float(seconds) / len(rows)
        if score in ("parameters", "gpu_memory"):
            cost = self.cost.get(score)
            return None if cost is None else cost / 1e6
        if score == "relative_cost":
            relative = self.cost.get(score)
            return None if relative is None else float(relative)
        value = self.scores.get(statistics, {}).get(score)
        return None if value is None else float(value)

    @classmethod
    def from_dict(cls, content: Any) -> Result:
        """Return the result in the content of `result.json`, of schema 1 or 2."""
        content = _checked(content)
        anytime = dict(content.get("anytime") or {})
        steps, tasks = (tuple(anytime.pop(name, ())) for name in ("step", "task"))
        given = {name: content[name] for name in _PLAIN if content.get(name) is not None}
        return cls(
            spec=make_spec(content["spec"]),
            seed=content["seed"],
            anytime=Anytime(steps, tasks, anytime),
            task_ends=tuple(content.get("task_ends") or ()),
            agnostic_provenance=content.get("agnostic_provenance"),
            data=read_origin(content),
            **given,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        points = {"step": list(self.anytime.step), "task": list(self.anytime.task)}
        ends = {"task_ends": list(self.task_ends)} if self.task_ends else {}
        recordings = {"recordings": dict(self.recordings)} if self.recordings else {}
        data = {"data": asdict(self.data)} if self.data else {}
        return {
            "schema": SCHEMA,
            **{name: self.fields.get(name) for name in NAMED},
            "seed": self.seed,
            "status": self.status,
            "scores": dict(self.scores),
            "accuracy_matrix": dict(self.accuracy_matrix),
            "anytime": {**points, **self.anytime.accuracy},
            **ends,
            **recordings,
            "seconds": dict(self.seconds),
            "cost": dict(self.cost),
            "spec": self.fields,
            **data,
            "agnostic_provenance": self.agnostic_provenance,
            "versions": dict(self.versions),
        }


_PLAIN = ("status", "scores", "accuracy_matrix", "recordings", "seconds", "cost", "versions")


def read_origin(content: Fields) -> DataOrigin | None:
    """Return the data recorded in a result or an entry of a plan, or None."""
    given = content.get("data")
    return None if given is None else DataOrigin.from_dict(given)


def _checked(content: Any) -> dict[str, Any]:
    """Return the content of a result file in schema 2; raise a ValueError if it is not valid."""
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, expected the result of a run")
    schema = content.get("schema", 1)
    if schema not in SCHEMAS:
        raise ValueError(f"has the schema {shown(schema)}, expected 1 or {SCHEMA}")
    check_result(content)
    return upgrade_result(content) if schema == 1 else content


# ---------------------------------------------------------------------- specs that are alike

_FREE = ("seed", "eval_every", "record", "agnostic_from")


def identity(spec: AnySpec) -> Hashable:
    """Return a hashable key that is equal for specs that one run may satisfy.

    It excludes the seed, the interval of evaluation, the recordings and the source of the
    class-agnostic part, which `matches` compares.


    >>> identity(Spec(method="er", seed=1)) == identity(Spec(method="er", eval_every=0))
    True
    """
    fields = content_of(spec.to_dict())
    return frozen({name: v for name, v in fields.items() if name not in _FREE})


class Digests:
    """Distinguishes results on different data whose specs have the same name of the dataset.

    Results of earlier versions, which do not record their data, count as results on the data of the
    others.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        found: dict[str, set[str]] = {}
        for result in results:
            if result.data is not None:
                found.setdefault(result.dataset, set()).add(result.data.digest)
        self._ambiguous = {dataset for dataset, digests in found.items() if len(digests) > 1}

    def of(self, result: Result) -> str | None:
        """Return the digest of a result's data if its dataset is ambiguous, else None.

        >>> a, same, b = (Result(Spec(), 0, {}, data=DataOrigin("x", None, d)) for d in "aab")
        >>> Digests([a, same]).of(a), Digests([a, same, b]).of(a)
        (None, 'a')
        """
        if result.data is None or result.dataset not in self._ambiguous:
            return None
        return result.data.digest


def frozen(value: Any) -> Hashable:
    """Return a JSON value in hashable form; lists and tuples are equal."""
    if isinstance(value, Mapping):
        return frozenset((name, frozen(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return value  # type: ignore[no-any-return]
