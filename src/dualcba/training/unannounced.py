"""Learners for classes that nobody announces: how the classifiers and `dualcba learn` make them."""

from __future__ import annotations

from typing import Any

from dualcba.methods import Method, parse_method

FIRST_OUTPUTS = 16
"""Outputs of a network that is made for such classes; they are doubled."""


def unannounced_options(method: str | Method) -> dict[str, Any]:
    """Return options of a learner that are not its own defaults, since classes may arrive singly.

    New and memory samples are normalised together: a batch of one class has no statistics that tell
    it from others. The read-out is that of the last layer and the class means, which know a class
    earlier, unless the method has scores of its own.

    >>> unannounced_options("er-balanced-cba")["readout"], unannounced_options("icarl")["readout"]
    ('both', 'head')
    """
    kind = parse_method(method)[0] if isinstance(method, str) else type(method)
    readout = "both" if getattr(kind, "scores", None) is Method.scores else "head"
    return {"boundaries": "inferred", "forward": "concat", "ibn": True, "readout": readout}
