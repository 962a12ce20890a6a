"""The cost of a method's step relative to ER, counted in floating-point operations."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dualcba.data import Dataset
from dualcba.experiments.making import (
    Pass,
    make_label_mask,
    make_learner,
    make_schedule,
    make_stream,
)
from dualcba.experiments.result import identity
from dualcba.experiments.spec import Spec
from dualcba.learner import Learner
from dualcba.options import Hardware, definitions

FILLING = 8
"""Smallest number of steps before operations are counted, while the memory fills."""

MOST_FILLING = 1000
"""Largest number of these steps, for streams with few labels."""

_known: dict[Hashable, float] = {}


def count_relative_cost(spec: Spec, data: Dataset, hardware: Hardware) -> float:
    """Return the floating-point operations of a step relative to ER with the same options.

    The ratio is rounded to three decimals, at least 1, and cached for all seeds.
    """
    key = identity(spec), spec.agnostic_from, data.input_shape, data.num_classes
    if key not in _known:
        ratio = step_flops(spec, data, hardware) / step_flops(er_spec(spec), data, hardware)
        _known[key] = max(1.0, round(ratio, 3))
    return _known[key]


def er_spec(spec: Spec) -> Spec:
    """Return the spec with ER as its method."""
    common = {name: getattr(spec, name) for name, o in definitions(Spec).items() if not o.adaptors}
    return Spec(**common | {"method": "er", "method_options": {}})


def step_flops(spec: Spec, data: Dataset, hardware: Hardware) -> float:
    """Return the mean floating-point operations of a step in the last task.

    Convolutions and matrix products are counted, forward and backward. The first step of a task
    updates the adaptor; the second does not, unless all steps do.
    """
    warmup: dict[str, Any] = {} if spec.outer_warmup is None else {"outer_warmup": 0}
    spec = replace(spec, boundaries="given", **warmup)
    stream = make_stream(spec, data)
    mask = make_label_mask(spec, data, stream)
    schedule = make_schedule(spec, stream, mask, data)
    y = data.train_y if mask is None else data.train_y.masked_fill(torch.from_numpy(~mask), -1)
    # fused kernels on a GPU hide the adaptor from the counter, which matters only for an MLP
    device = "cpu" if spec.network == "mlp" else hardware.device
    with torch.random.fork_rng(devices=[]):
        learner = make_learner(
            spec, data, Hardware(device=device, engine="eager", precision="fp32")
        )
        learner.new_task(stream[0].classes)
        wanted = min(learner.memory_batch, learner.memory.size)
        for k in range(MOST_FILLING):
            if k >= FILLING and learner.memory.filled >= wanted:
                break
            _observe(learner, data.train_x, y, schedule[0][0], k)
        if len(stream) > 1:  # a single task has no later steps
            learner.new_task(stream[-1].classes)
        counts = []
        for _ in range(2):
            with FlopCounterMode(display=False) as counter:
                _observe(learner, data.train_x, y, schedule[-1][0], 0)
            counts.append(int(counter.get_total_flops()))
    every = spec.outer_every or 1
    return (counts[0] + (every - 1) * counts[1]) / every


def _observe(learner: Learner, x: Tensor, y: Tensor, one: Pass, k: int) -> None:
    """Take a step on the k-th batch of a pass, modulo its length."""
    k %= len(one)
    rows = torch.from_numpy(one.rows[k])
    storable = None if one.storable is None else one.storable[k]
    new = x[rows].to(learner.device)
    learner.observe_on_device(new, y[rows].to(learner.device), storable)
