"""The precision of forwards: full, or bfloat16 where that is quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from dualcba.kernels.conv_norm import has_bfloat16
from dualcba.nets import Network

PRECISIONS = ("auto", "fp32", "bf16")


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Torch's modes as they are by default, whatever the caller has around the learner.

    >>> with torch.no_grad(), undisturbed(torch.device("cpu")):
    ...     torch.is_grad_enabled()
    True
    """
    default, autocast = torch.get_default_dtype(), torch.is_autocast_enabled(device.type)
    if (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not autocast
        and default == torch.float32
    ):
        yield  # as nearly always
        return
    off = torch.autocast(device.type, enabled=False)
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad(), off:
            yield
    finally:
        torch.set_default_dtype(default)


class Precision:
    """What a network computes in: `"fp32"`, `"bf16"`, or `"auto"`, bfloat16 where a GPU has it."""

    def __init__(self, name: str, device: torch.device, network: Network) -> None:
        self.bf16 = name == "bf16" or (name == "auto" and has_bfloat16(device))
        self.device = device
        self.network = network

    def lowered(self) -> AbstractContextManager[object]:
        """The network's weights in bfloat16, cast at once, where that is the precision."""
        return self.network.cast_weights(torch.bfloat16) if self.bf16 else nullcontext()

    def autocast(self) -> AbstractContextManager[object]:
        """Casts of weights are not kept: where an autocast is around they would outlive a step,
        or, cast before a function is captured, be read by its graph for ever."""
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
