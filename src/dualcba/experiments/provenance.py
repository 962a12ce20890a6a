"""The source run of a class-agnostic part, as recorded in its file and in results."""

from __future__ import annotations

from typing import Any

from dualcba.experiments.spec import Spec

PROVENANCE = ("dataset", "setting", "method", "specific", "buffer", "tasks")
"""Fields that identify the source run of a class-agnostic part, in addition to the seed."""


def provenance(spec: Spec, seed: int | None) -> dict[str, Any]:
    """Return the fields that identify a run as the source of a class-agnostic part.

    >>> provenance(Spec(dataset="cifar10"), 2)
    {'dataset': 'cifar10', ..., 'buffer': 200, 'tasks': 5, 'seed': 2}
    """
    found = {name: getattr(spec, name) for name in PROVENANCE}
    return found | held_out(spec) | by_protocol(spec) | {"seed": seed}


def held_out(spec: Spec) -> dict[str, float]:
    """Return the validation fraction of the run if it is not zero.

    >>> held_out(Spec(validation=0.1)), held_out(Spec())
    ({'validation': 0.1}, {})
    """
    return {"validation": spec.validation} if spec.validation else {}


def by_protocol(spec: Spec) -> dict[str, str]:
    """Return the protocol of the run if it is not `paper`.

    >>> by_protocol(Spec(protocol="p10")), by_protocol(Spec())
    ({'protocol': 'p10'}, {})
    """
    return {} if spec.protocol == "paper" else {"protocol": spec.protocol}
