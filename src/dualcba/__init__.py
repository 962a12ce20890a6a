"""Online continual learning with Dual Continual Bias Adaptors.

`Learner` trains a network on a stream in which new classes arrive, and predicts at any time.
`load_dataset` and `from_arrays` make a `Dataset`, `Transform` normalises and augments its samples,
and `Method` is the base class of rehearsal methods. Further modules:

    dualcba.estimator    a scikit-learn classifier
    dualcba.river        a river classifier
    dualcba.plugin       the bias adaptor, a rehearsal memory and IBN for a loop of your own
    dualcba.data         datasets, streams and augmentation
    dualcba.nets         networks by name
    dualcba.serving      export to files that need no learner
    dualcba.monitoring   numbers of a learner while it trains

`help(dualcba.Learner)` describes all its options, `dualcba --help` the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dualcba.data import Dataset, Transform, from_arrays, load_dataset
    from dualcba.learner import Learner
    from dualcba.methods import Method

__version__ = "0.2.0"

__all__ = ["Dataset", "Learner", "Method", "Transform", "from_arrays", "load_dataset"]

_HOMES = {
    "Dataset": "dualcba.data",
    "Learner": "dualcba.learner",
    "Method": "dualcba.methods",
    "Transform": "dualcba.data",
    "from_arrays": "dualcba.data",
    "load_dataset": "dualcba.data",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `dualcba --help` needs no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dualcba' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
