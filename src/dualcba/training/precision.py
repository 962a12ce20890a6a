"""The precision of forward passes: float32, or bfloat16 on hardware with fast bfloat16."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType

import torch

from dualcba.kernels.conv_norm import has_bfloat16
from dualcba.nets import Network


class _Float32:
    """A context that sets the default dtype to float32, until the last thread has left it.

    torch has one default dtype for all threads.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0

    def __enter__(self) -> None:
        with self.lock:
            if not self.users:
                self.before = torch.get_default_dtype()
            self.users += 1
            torch.set_default_dtype(torch.float32)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            if self.users == 1:
                torch.set_default_dtype(self.before)
            self.users -= 1


_float32 = _Float32()


class default_modes:  # noqa: N801 - used as a function
    """Set torch's modes to their defaults, whatever modes the caller has enabled.

    Gradients are enabled; inference mode and autocast are off; the default dtype is float32.

    >>> with torch.no_grad(), default_modes(torch.device("cpu")):
    ...     torch.is_grad_enabled()
    True
    """

    def __init__(self, device: torch.device) -> None:
        self.kind = device.type
        self.stack: ExitStack | None = None

    def __enter__(self) -> None:
        single = torch.get_default_dtype() == torch.float32 and not _float32.users
        if (
            single
            and torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
            and not torch.is_autocast_enabled(self.kind)
        ):
            return  # the usual case
        with ExitStack() as stack:
            if not single:
                stack.enter_context(_float32)
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autocast(self.kind, enabled=False))
            self.stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if self.stack is not None:
            self.stack.close()


class Precision:
    """The precision a network computes in.

    `name` is `"fp32"`, `"bf16"`, or `"auto"`: bfloat16 on a GPU that supports it, else float32.
    """

    def __init__(self, name: str, device: torch.device, network: Network) -> None:
        self.bf16 = name == "bf16" or (name == "auto" and has_bfloat16(device))
        self.device = device
        self.network = network

    def cast_weights(self, network: Network | None = None) -> AbstractContextManager[object]:
        """If bf16 is set, use bfloat16 copies of a network's weights, all cast in one launch."""
        network = network or self.network
        return network.cast_weights(torch.bfloat16) if self.bf16 else nullcontext()

    def autocast(self) -> AbstractContextManager[object]:
        """Run operations in bfloat16 if bf16 is set.

        The cache of cast weights is off: inside a caller's autocast it would outlive the step, and
        a captured graph would keep reading weights that were cast before the capture.
        """
        if not self.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
