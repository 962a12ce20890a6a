"""Defaults that depend on the dataset, the protocol, the adaptor, the head or the optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualcba.options.choices import BALANCED

if TYPE_CHECKING:
    from dualcba.options.training import TrainingOptions

DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"buffer": 100, "tasks": 5, "batch_size": 10, "network": "mlp"},
    "cifar10": {"buffer": 200, "tasks": 5, "network": "resnet18", "adaptor_lr": 0.001},
    "cifar100": {"buffer": 2000, "tasks": 10, "network": "resnet18"},
    "tiny-imagenet": {"buffer": 2000, "tasks": 10, "network": "resnet18"},
    "mnist": {"tasks": 5, "network": "mlp"},
    "fashion-mnist": {"tasks": 5, "network": "mlp"},
}
"""Defaults that a dataset sets; any other dataset has those of the definitions."""

COSINE_DEFAULTS = {"head_scale": 10.0, "learn_scale": False}
"""Defaults of the options that only a cosine head has."""

KIND_DEFAULTS: dict[str, dict[str, Any]] = {
    BALANCED: {
        "outer_draw": "balanced",
        "outer_loss": "ce",
        "divide": True,
        "adaptor_lr": 0.01,
    },
}
"""Defaults that a kind of adaptor sets; they take precedence over those of the dataset."""

PROTOCOLS: dict[str, dict[str, Any]] = {
    "paper": {},
    "p10": {
        "batch_size": 10,
        "memory_batch": 64,
        "forward": "concat",
        "loss_mean": "samples",
        "while_empty": "store",
        "pixels": "unit",
        "augmentation": "full",
        "optimizer": "adam",
    },
}
"""Defaults that a protocol sets; they take precedence over those of the dataset.

`paper` is the protocol of the Dual-CBA paper, which the defaults of the definitions follow. `p10`
is the protocol in which many methods are published; its learning rate is that of `adam`.
"""

OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 0.0005},
    "adamw": {"lr": 0.0005},
}
"""Defaults that an optimiser of the network sets."""


def optimizer_defaults(name: object) -> dict[str, Any]:
    """Return the defaults that an optimiser of the network sets."""
    return OPTIMIZER_DEFAULTS.get(name, {}) if isinstance(name, str) else {}


def protocol_defaults(options: TrainingOptions) -> dict[str, Any]:
    """Return the defaults that the protocol and the optimiser set.

    A given optimiser takes precedence over that of the protocol.
    """
    name = options.protocol
    preset = PROTOCOLS.get(name, {}) if isinstance(name, str) else {}
    optimizer = options.optimizer if options.optimizer is not None else preset.get("optimizer")
    return {**preset, **optimizer_defaults(optimizer)}


def overridden(fields: Mapping[str, Any]) -> list[str]:
    """Return the fields that the protocol sets and whose values differ from the protocol's.

    >>> overridden({"protocol": "p10", "batch_size": 10, "memory_batch": 32})
    ['memory_batch']
    """
    preset = protocol_preset(str(fields.get("protocol")))
    return [name for name, value in preset.items() if fields.get(name, value) != value]


def protocol_preset(name: str) -> dict[str, Any]:
    """Return the defaults that a protocol and its optimiser set.

    >>> protocol_preset("p10")["memory_batch"], protocol_preset("p10")["lr"]
    (64, 0.0005)
    """
    preset = PROTOCOLS.get(name, {})
    return {**preset, **optimizer_defaults(preset.get("optimizer"))}


def kind_defaults(kind: str | None, options: TrainingOptions) -> dict[str, Any]:
    """Return the defaults that a kind of adaptor sets.

    With a loaded class-agnostic part ν, the class-specific part ω is by default left out.
    """
    loaded = {} if options.agnostic_from is None else {"specific": "none"}
    return {**KIND_DEFAULTS.get(kind or "", {}), **loaded}


def head_defaults(options: TrainingOptions) -> dict[str, Any]:
    """Return the defaults of the options of a cosine head, if there is one."""
    return COSINE_DEFAULTS if options.head == "cosine" else {}
