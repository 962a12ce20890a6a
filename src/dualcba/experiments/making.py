"""Make what a spec describes: the stream, the passes over each task, and the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dualcba.data import (
    Dataset,
    Task,
    batches,
    blurry,
    cycled,
    disjoint,
    gaussian,
    i_blurry,
    labelled,
    long_tailed,
)
from dualcba.errors import expected
from dualcba.experiments.merging import merged_rows
from dualcba.experiments.settings import parse_settings
from dualcba.experiments.spec import Spec
from dualcba.learner import Learner
from dualcba.methods import Method, parse_method
from dualcba.methods.fixmatch import FixMatch
from dualcba.nets import make_network
from dualcba.normalization.layers import convert_normalization
from dualcba.options import Hardware, TrainingOptions, definitions
from dualcba.randomness import first_weights, generator

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass over a task: the rows of each batch, (steps, n)."""

    rows: Indices
    storable: NDArray[np.bool_] | None = None
    """Mask of the samples that may enter the memory, (steps, n); None for all."""

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, steps: int) -> Pass:
        """Return a pass with the first `steps` batches only."""
        return Pass(self.rows[:steps], None if self.storable is None else self.storable[:steps])


def joined(passes: Sequence[Pass]) -> Pass:
    """Concatenate passes."""
    masks = [one.storable for one in passes if one.storable is not None]
    rows = np.concatenate([one.rows for one in passes])
    return Pass(rows, np.concatenate(masks) if masks else None)


def first_arrivals(passes: Sequence[Pass], samples: int) -> list[NDArray[np.bool_]]:
    """Return a mask per pass of the samples that arrive for the first time, (steps, n).

    Rows from `samples` on are exemplars, which arrived in an earlier task.


    >>> rows = [np.array([[0, 1], [1, 4]]), np.array([[2, 0]])]
    >>> [mask.tolist() for mask in first_arrivals([Pass(r) for r in rows], 3)]
    [[[True, True], [False, False]], [[True, False]]]
    """
    known, masks = np.zeros(samples, dtype=bool), []
    for one in passes:
        rows = one.rows.ravel()
        first = np.zeros(len(rows), dtype=bool)
        first[np.unique(rows, return_index=True)[1]] = True
        own = rows < samples
        first &= own & ~known[np.where(own, rows, 0)]
        known[rows[own]] = True
        masks.append(first.reshape(one.rows.shape))
    return masks


def make_stream(spec: Spec, data: Dataset) -> list[Task]:
    """Return the tasks of a spec, with training samples arranged by its setting."""
    order = spec.class_order
    if isinstance(order, str):
        rng = generator(spec.seed, "classes")
        order = rng.permutation(data.num_classes).tolist() if order == "shuffled" else None
    stream = disjoint(data, spec.tasks, order)
    settings, labels = parse_settings(spec.setting), data.train_y.numpy()
    if tail := settings.get("longtail"):
        stream = long_tailed(stream, labels, tail.value, generator(spec.seed, "longtail"))
    if one := settings.get("blurry"):
        return blurry(stream, one.value, generator(spec.seed, "blurry"))
    if one := settings.get("i-blurry"):
        rng = generator(spec.seed, "i-blurry")
        return i_blurry(stream, labels, one.value, one.second, rng)
    if one := settings.get("gaussian"):
        return gaussian(stream, labels, one.value, generator(spec.seed, "gaussian"))
    return stream


def make_label_mask(
    spec: Spec, data: Dataset, stream: Sequence[Task] | None = None
) -> NDArray[np.bool_] | None:
    """Return the mask of training samples with a label, or None if all have one.

    On a long-tailed stream, only samples of the stream are labelled.
    """
    settings = parse_settings(spec.setting)
    if "semi" not in settings:
        return None
    tail = stream is not None and "longtail" in settings
    among = np.concatenate([task.train for task in stream or ()]) if tail else None
    return labelled(data, settings["semi"].value, generator(spec.seed, "labels"), among)


def make_schedule(
    spec: Spec, stream: Sequence[Task], has_label: NDArray[np.bool_] | None, data: Dataset
) -> list[list[Pass]]:
    """Return the passes over each task."""
    rng = generator(spec.seed, "order")
    method = parse_method(spec.method)[0](**spec.method_options)
    if method.merge:
        return _merged_schedule(spec, stream, data, method, rng)

    def one(task: Task) -> Pass:
        if has_label is not None and spec.labelled_batches != "mixed":
            every = spec.unlabelled_samples == "all"
            rows, first = cycled(task, has_label, spec.batch_size, rng, every=every)
            if spec.store_again:
                first[:, : spec.batch_size] = True
            if spec.labelled_batches == "alone":
                rows, first = rows[:, : spec.batch_size], first[:, : spec.batch_size]
            return Pass(rows, has_label[rows] & first)
        rows = batches(task, spec.batch_size, rng)
        return Pass(rows, None if has_label is None else has_label[rows])

    return [[one(task) for _ in range(spec.epochs)] for task in stream]


def _merged_schedule(
    spec: Spec, stream: Sequence[Task], data: Dataset, method: Method, rng: np.random.Generator
) -> list[list[Pass]]:
    """Return the passes over each task and the exemplars of earlier tasks."""
    if spec.boundaries != "given":
        wanted = "'given': exemplars are mixed into a task when it begins"
        raise ValueError(expected("boundaries", spec.boundaries, wanted))
    after = method.exemplar_counter(spec.buffer, data.num_classes)
    schedule = merged_rows(
        stream, data.train_y.numpy(), after, batch_size=spec.batch_size, epochs=spec.epochs,
        held_out=method.held_out, rng=rng,
    )  # fmt: skip
    return [[Pass(rows, rows < len(data.train_y)) for rows in passes] for passes in schedule]


def make_learner(spec: Spec, data: Dataset, hardware: Hardware) -> Learner:
    """Make the learner of a spec."""
    with first_weights(spec.seed):
        network = make_network(spec.network, data.input_shape, data.num_classes)
        network = convert_normalization(network, spec.norm)
    base, kind = parse_method(spec.method)
    method = base(**spec.method_options)
    if "semi" in parse_settings(spec.setting) and spec.labelled_batches != "alone":
        first = spec.batch_size if spec.labelled_batches == "cycled" else 0
        every, adapted = spec.unlabelled_samples == "all", spec.pseudo_labels != "raw"
        method = FixMatch(method, labelled=first, every=every, adapted=adapted)
    shared = {name: getattr(spec, name) for name in definitions(TrainingOptions)}
    raw = data if spec.pixels == "normalised" else replace(data, mean=[0.0], std=[1.0])
    return Learner(
        network,
        data.input_shape,
        data.num_classes,
        **shared | {"method_options": None, "method": method, "adaptor": kind},
        transform=raw.transform(),
        dtype=data.train_x.dtype,
        device=hardware.device,
        engine=hardware.engine,
        precision=hardware.precision,
        ibn_refresh="full",  # the predictions that a run is scored by
    )
