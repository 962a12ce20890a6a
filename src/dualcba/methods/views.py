"""Views of samples that several methods use."""

from __future__ import annotations

from dualcba.data.randaugment import RandAugment, RandAugmentTransform
from dualcba.data.transforms import Transform


def raw_view(transform: Transform) -> Transform:
    """Return a transform that normalises as another one does and augments nothing."""
    view = Transform([0.0], [1.0])
    view.scale, view.shift = transform.scale, transform.shift
    return view


def chain_of_views(transform: Transform, operations: int, magnitude: int) -> dict[str, Transform]:
    """Return v0, the raw sample; v1, a crop and flip of it; v2 and v3, RandAugment of the last.

    The crop and the flip are those of the transform.
    """
    views = {"v0": raw_view(transform), "v1": _cropped(transform)}
    for name, source in (("v2", "v1"), ("v3", "v2")):
        randaugment = RandAugment(operations, magnitude)
        views[name] = RandAugmentTransform(raw_view(transform), randaugment)
        views[name].source = source
    return views


def _cropped(transform: Transform) -> Transform:
    view = Transform([0.0], [1.0], pad=transform.pad, flip=transform.flip)
    view.scale, view.shift = transform.scale, transform.shift
    return view
