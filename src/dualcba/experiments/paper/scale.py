"""The scales of an experiment: the paper's, or small, on handwritten digits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from dualcba.errors import one_of
from dualcba.experiments.settings import OFFLINE_EPOCHS
from dualcba.experiments.spec import Spec
from dualcba.options import PROTOCOLS

SCALES = ("paper", "small")
CLASSES = {"cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}
TASKS = {"cifar10": 5, "cifar100": 10, "tiny-imagenet": 10}
"""The numbers of classes and of tasks of the paper's datasets."""

SOURCES = tuple(CLASSES)
"""Datasets on which a class-agnostic part can be trained for transfer."""

SMALL_DATASET, SMALL_CLASSES = "digits", 10
SMALL_SHARE = 0.25
"""Share of the paper's memory per class at small scale."""

EPOCHS_SHARE = 10
"""Offline epochs are divided by this at small scale."""


def small_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec on digits: as many tasks, a quarter of the memory per class.

    >>> small_fields({"method": "er", "dataset": "cifar100", "buffer": 2000})
    {'method': 'er', 'dataset': 'digits', 'buffer': 50, 'tasks': 10}
    """
    dataset = fields["dataset"]
    per_class = (fields.get("buffer") or _buffer(dataset)) / CLASSES[dataset]
    buffer = max(1, round(SMALL_SHARE * SMALL_CLASSES * per_class))
    size = {"dataset": SMALL_DATASET, "buffer": buffer, "tasks": TASKS[dataset]}
    offline = fields.get("setting") == "offline"
    epochs = {"epochs": fields.get("epochs", OFFLINE_EPOCHS) // EPOCHS_SHARE} if offline else {}
    full = fields.get("augmentation", _protocol_augmentation(fields)) == "full"
    grey = {"augmentation": "partial"} if full else {}  # digits are not colour images
    flip = {"test_flip": False} if fields.get("test_flip") else {}  # digits have no mirror images
    return {**fields, **size, **epochs, **grey, **flip}


def _protocol_augmentation(fields: Mapping[str, Any]) -> str:
    return str(PROTOCOLS[fields.get("protocol", "paper")].get("augmentation", "partial"))


@cache
def _buffer(dataset: str) -> int:
    return Spec(dataset=dataset).buffer


@cache
def source_spec(dataset: str, scale: str, *, divide: bool = False) -> Spec:
    """Return the run from which a class-agnostic part is loaded: Dual-CBA as in the main table.

    With `divide`, the class-agnostic correction is divided by the number of classes.


    >>> source_spec("cifar100", "paper").buffer, source_spec("cifar100", "small").buffer
    (2000, 50)
    """
    one_of(SCALES, scale=scale)
    fields = {"dataset": dataset, "method": "er-dual-cba", "eval_every": 0, "divide": divide}
    return Spec(**(small_fields(fields) if scale == "small" else fields))
