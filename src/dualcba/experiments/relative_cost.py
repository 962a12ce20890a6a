"""The cost of a method's step relative to ER, counted in floating-point operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dualcba.data import Dataset
from dualcba.experiments.run import Pass, make_label_mask, make_learner, make_schedule, make_stream
from dualcba.experiments.spec import Spec
from dualcba.learner import Learner
from dualcba.options import Hardware, definitions

BATCH = 4
"""The largest batch with which relative costs are counted: they hardly depend on its size."""


def count_relative_cost(spec: Spec, data: Dataset) -> float:
    """Return the floating-point operations of a step divided by those of ER with the same options.

    It is rounded to three decimals and at least 1, and does not depend on the device.
    """
    ratio = step_flops(spec, data) / step_flops(er_spec(spec), data)
    return max(1.0, round(ratio, 3))


def er_spec(spec: Spec) -> Spec:
    """Return a spec that differs from another only in its method, which is ER."""
    common = {name: getattr(spec, name) for name, o in definitions(Spec).items() if not o.adaptors}
    return Spec(**common | {"method": "er", "method_options": {}})


def step_flops(spec: Spec, data: Dataset) -> float:
    """Return the floating-point operations of a step in the last task, counted on a CPU.

    They are those of convolutions and matrix products, forward and backward, averaged over the
    steps from one update of the adaptor to the next.
    """
    given: dict[str, Any] = {"boundaries": "given", "epochs": 1}
    given["batch_size"] = min(spec.batch_size, BATCH)
    if spec.outer_warmup is not None:
        given["outer_warmup"] = 0
    spec = replace(spec, **given)
    stream = make_stream(spec, data)
    mask = make_label_mask(spec, data, stream)
    schedule = make_schedule(spec, stream, mask, data)
    y = data.train_y if mask is None else data.train_y.masked_fill(torch.from_numpy(~mask), -1)
    with torch.random.fork_rng(devices=[]):
        learner = make_learner(spec, data, Hardware(device="cpu", engine="eager"))
        for task, (one,) in zip(stream[:-1], schedule[:-1], strict=True):
            learner.new_task(task.classes)
            _observe(learner, data.train_x, y, one, 1)
        learner.new_task(stream[-1].classes)
        steps = spec.outer_every or 1
        with FlopCounterMode(display=False) as counter:
            _observe(learner, data.train_x, y, schedule[-1][0], steps)
    return float(counter.get_total_flops() / steps)


def _observe(learner: Learner, x: Tensor, y: Tensor, one: Pass, steps: int) -> None:
    """Take steps on the first batches of a pass, repeated if there are fewer."""
    for k in range(steps):
        k %= len(one)
        rows = torch.from_numpy(one.rows[k])
        storable = None if one.storable is None else one.storable[k]
        learner.observe_on_device(x[rows], y[rows], storable)
