"""Views of samples that several methods use."""

from __future__ import annotations

from dualcba.data.transforms import Transform


def raw_view(transform: Transform) -> Transform:
    """Return a transform that normalises as another one does and augments nothing."""
    view = Transform([0.0], [1.0])
    view.scale, view.shift = transform.scale, transform.shift
    return view
