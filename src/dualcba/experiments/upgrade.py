"""Upgrade results and collected rows of schema 1.

Schema 1 does not record the source of a loaded class-agnostic part, so it is read from the file's
name: `dualcba reproduce` copies the part of a run on CIFAR-100 with seed 2 to
`cifar100-s2.safetensors`, or to `small-cifar100-s2.safetensors` at small scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dualcba.experiments.paper.scale import SOURCES, source_spec
from dualcba.experiments.provenance import provenance
from dualcba.experiments.spec import upgrade_fields

_FROM, _SMALL = "from ", "small-"


def upgrade_result(content: dict[str, Any]) -> dict[str, Any]:
    """Return a result of schema 1 as schema 2."""
    spec = upgrade_fields(content["spec"])
    source = provenance_from_name(spec.get("agnostic_from"), content["seed"])
    return content | {"schema": 2, "spec": spec, "agnostic_provenance": source}


def provenance_from_name(path: str | None, seed: int) -> dict[str, Any] | None:
    """Return the source run of a class-agnostic part from the name of its file.

    None if the name does not end with the seed of the run that loads it.


    >>> provenance_from_name("adaptors/cifar10-s2.safetensors", 2)
    {'dataset': 'cifar10', 'setting': 'online', ..., 'buffer': 200, 'tasks': 5, 'seed': 2}
    >>> provenance_from_name("pretrained", 0)
    """
    stem, _, number = Path(path or "").stem.rpartition("-s")
    return _provenance(stem, seed) if stem and number == str(seed) else None


def upgrade_row(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the spec of a collected row of schema 1, and the source of its class-agnostic part.

    >>> spec, source = upgrade_row({"method": "er-dual-cba", "adaptor": "from cifar10"})
    >>> spec, source["dataset"]
    ({'method': 'er-dual-cba', 'agnostic_from': None}, 'cifar10')
    """
    fields = upgrade_fields(spec)
    given = str(fields.get("agnostic_from"))
    if not given.startswith(_FROM):
        return fields, None
    source = _provenance(given.removeprefix(_FROM).replace(" ", "-"), None)
    return fields | {"agnostic_from": None}, source


def _provenance(stem: str, seed: int | None) -> dict[str, Any]:
    dataset = stem.removeprefix(_SMALL)
    if dataset not in SOURCES:
        return {"dataset": stem, "seed": seed}
    return provenance(source_spec(dataset, "paper" if dataset == stem else "small"), seed)
