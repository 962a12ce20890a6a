"""Make torchvision, which other frameworks import, load with a CPU build of torch."""

from __future__ import annotations

import torch

_defined: list[torch.library.Library] = []


def define_missing() -> None:
    """Define two operators for which the import of torchvision registers kernels."""
    if _defined or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _defined.append(library)
