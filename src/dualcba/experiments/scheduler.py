"""Step through many runs, one after another or several in turn on one device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dualcba.data import Dataset, load_dataset, validation_split
from dualcba.data.dataset import DataOrigin
from dualcba.engine.threads import threads_for
from dualcba.errors import at_least
from dualcba.experiments.making import (
    make_label_mask,
    make_learner,
    make_schedule,
    make_stream,
)
from dualcba.experiments.run import Run
from dualcba.experiments.settings import parse_settings
from dualcba.experiments.spec import Spec
from dualcba.options import Hardware

Load = Callable[[Spec], Dataset]
Failed = Callable[[Spec, Exception], None]
"""Called with the spec of a failed run and its error."""


class Make(Protocol):
    """Makes the run of a spec."""

    def __call__(self, spec: Spec, data: Dataset, hardware: Hardware, *, alone: bool) -> Run:
        """Return the run, which may be continued from a checkpoint."""


@dataclass
class Loader:
    """Loads and caches the dataset of a spec or its validation split; pickling drops the cache.

    Raises a ValueError if a dataset differs from the one in `origins`; new ones are added.


    >>> Loader()(Spec(dataset="digits")).num_classes
    10
    """

    data_dir: Path | None = None
    origins: dict[str, DataOrigin] = field(default_factory=dict)
    loaded: dict[tuple[str, float], Dataset] = field(default_factory=dict, repr=False)
    """Datasets by name and validation fraction."""

    def __call__(self, spec: Spec) -> Dataset:
        """Return the dataset of a spec, or its validation split."""
        key = spec.dataset, spec.validation
        if key not in self.loaded:
            self.loaded[key] = validation_split(self._whole(spec.dataset), spec.validation)
        return self.loaded[key]

    def _whole(self, name: str) -> Dataset:
        if (name, 0.0) not in self.loaded:
            data = load_dataset(name, self.data_dir)
            self._check(name, data.origin)
            self.loaded[name, 0.0] = data
        return self.loaded[name, 0.0]

    def _check(self, name: str, found: DataOrigin) -> None:
        known = self.origins.setdefault(name, found)
        if not found.same_as(known):
            raise ValueError(
                f"the dataset {name} has changed: {found}, expected {known}, as in the earlier "
                "runs; run in another --out"
            )

    def __reduce__(self) -> tuple[type[Loader], tuple[Path | None, dict[str, DataOrigin]]]:
        return Loader, (self.data_dir, self.origins)


def few_threads(specs: Iterable[Spec]) -> AbstractContextManager[None]:
    """Return a context that uses one thread if all networks are small."""
    return threads_for(small=all(spec.network == "mlp" for spec in specs))


def check_all(specs: Sequence[Spec], load: Load, hardware: Hardware) -> None:
    """Raise the error of any run that would fail before its first step."""
    first: dict[str, Spec] = {}
    for spec in specs:  # check one seed per spec
        same = {} if "longtail" in parse_settings(spec.setting) else {"seed": None}  # task sizes
        first.setdefault(json.dumps(spec.to_dict() | same, sort_keys=True), spec)
    for spec in first.values():
        data = validation_split(load(spec), spec.validation)
        stream = make_stream(spec, data)
        make_schedule(spec, stream, make_label_mask(spec, data, stream), data)
        make_learner(spec, data, hardware)


def run_all(
    specs: Sequence[Spec],
    load: Load,
    hardware: Hardware,
    *,
    abreast: int = 1,
    failed: Failed | None = None,
    make: Make = Run,
) -> Iterator[tuple[Run, bool]]:
    """Step through runs, `abreast` of them in turn; yield the run and whether it is complete.

    On CUDA each learner has its own stream, so runs in turn overlap. The result of a run does not
    depend on the others. If `failed` is given, it is called with the error of a run, and the other
    runs continue. `make` makes the runs.
    """
    at_least(1, abreast=abreast)
    waiting = list(specs)
    active: list[tuple[Run, Iterator[int]]] = []
    while waiting or active:
        while waiting and len(active) < abreast:
            spec = waiting.pop(0)
            with _reporting(spec, failed):
                run = make(spec, load(spec), hardware, alone=abreast == 1)
                active.append((run, run.steps()))
        for run, steps in active[:]:
            done = None
            with _reporting(run.spec, failed):
                done = next(steps, None) is None
            if done is not False:
                active.remove((run, steps))
            if done is not None:
                yield run, done
        run = steps = None  # type: ignore[assignment]  # free a complete run first


@contextmanager
def _reporting(spec: Spec, failed: Failed | None) -> Iterator[None]:
    """Pass the error of a run to `failed` if it is given."""
    try:
        yield
    except Exception as error:
        if failed is None:
            raise
        failed(spec, error)
