"""Options of learners whose classes are not announced, for the classifiers and `dualcba learn`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

from dualcba.errors import expected, unknown
from dualcba.methods import Method, parse_method
from dualcba.methods.wrapper import has_own_scores
from dualcba.options import definitions
from dualcba.training.learner_arguments import LearnerArguments

FIRST_OUTPUTS = 16
"""The initial number of outputs of a network if classes are not announced; doubled as needed."""


def learner_options(given: object, fixed: Collection[str]) -> dict[str, Any]:
    """Check and return the option `learner_options` of a classifier.

    `fixed` are the arguments that the classifier sets itself.
    """
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(expected("learner_options", given, "a mapping of names to values"))
    known = definitions(LearnerArguments)
    for name in given or ():
        if name in {*fixed, "network", "input_shape", "num_classes"}:
            wanted = "an option that the classifier does not set itself"
            raise ValueError(expected("a name in learner_options", name, wanted))
        if name not in known:
            free = [option for option in known if option not in fixed]
            raise ValueError(unknown("learner option", name, free))
    return dict(given or {})


def unannounced_options(method: str | Method) -> dict[str, Any]:
    """Return other defaults of a learner, for streams in which classes may arrive one by one.

    New and memory samples are normalised together, because normalising a batch of one class on its
    own removes what distinguishes the class. The read-out combines the last layer with class means,
    which recognise a class earlier, unless the method overrides `scores`.

    >>> [unannounced_options(m)["readout"] for m in ("er-balanced-cba", "er+mkd", "icarl")]
    ['both', 'both', 'head']
    """
    kind = parse_method(method)[0] if isinstance(method, str) else method
    readout = "head" if has_own_scores(kind) else "both"
    return {"boundaries": "inferred", "forward": "concat", "ibn": True, "readout": readout}


def even_batches(n: int, size: int) -> list[slice]:
    """Split n rows into the fewest batches of at most `size`, whose sizes differ by at most one.

    A remainder of one or two samples would be normalised by its own statistics: if the samples are
    nearly equal in a channel, the gradient of the channel grows without bound.

    >>> [batch.stop - batch.start for batch in even_batches(12, 10)]
    [6, 6]
    """
    parts = math.ceil(n / size)
    edges = [(n * k + parts - 1) // parts for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
