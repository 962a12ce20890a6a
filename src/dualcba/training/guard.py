"""The guard of a learner: refuses steps that would make a value not finite.

A step is refused if its loss, a gradient, the update of the weights or a running statistic is not
finite. It is also refused if a raw sample is an *outlier*: a float whose absolute value is more
than `FACTOR` times the largest one in all earlier batches. One such sample would ruin the running
statistics, the weights and the memory. If inputs are standardised, each feature is judged on its
own, and the first nonzero values of a feature are never outliers.

On a CPU the decision is read at once, before the weights change, and `RefusedError` is raised. On a
GPU nothing waits for the decision: it stays on the device, where the optimiser skips its update and
the statistics and the adaptor are restored. The samples of a refused batch still enter the memory
there, with outliers clipped, because the host has already counted them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dualcba.checkpoint import Copy, Tensors
from dualcba.engine.optimizers import largest_update
from dualcba.engine.torch_private import foreach_norm, mark_non_finite_
from dualcba.methods import Context
from dualcba.nets.inputs import Inputs
from dualcba.options import OnOutlier
from dualcba.training.backup import Backup

FACTOR = 1000.0
"""A value is an outlier if it is more than `FACTOR` times the largest earlier value."""

LARGEST_UPDATE = 1e19
"""The largest norm of an update of the weights; squares of larger numbers overflow in float32.

Adam squares the gradient itself, so its norm has the same limit (`largest_update`)."""


class RefusedError(FloatingPointError):
    """A step was refused; the message is the reason."""


class StepGuard:
    """Decides whether to accept each step, and counts the batches that were skipped or clipped.

    `statistics` are the running statistics that a step changes; with `by_feature`, outliers are
    detected for each feature of a vector separately.
    """

    def __init__(
        self,
        context: Context,
        backup: Backup,
        optimizer: torch.optim.Optimizer,
        statistics: Sequence[Tensor],
        on_outlier: OnOutlier,
        inputs: Inputs,
        *,
        by_feature: bool = False,
    ) -> None:
        self.context = context
        self.backup = backup
        self.optimizer = optimizer
        self.on_outlier = on_outlier
        self.statistics = list(statistics)
        self.theta = [p for group in optimizer.param_groups for p in group["params"]]
        device = context.lr.device
        self.judges_inputs = inputs.floats
        self.samples = inputs  # shapes and types of the raw samples
        self.by_feature = by_feature
        shape = context.memory.x.shape[1:] if by_feature else ()
        self.largest = torch.zeros(shape, device=device)  # absolute value of all inputs so far
        self.outliers = torch.zeros((), dtype=torch.long, device=device)
        self.good = context.good  # () bool: whether the step is accepted
        self.other_buffers = not all(  # buffers that may be infinite or large, unlike statistics
            t.dtype == torch.float32 and bool(t.isfinite().all())
            for t in _floats(backup.current_buffers())
        )
        self._found = torch.zeros((), device=device)  # 1 if something was not finite
        self._one = torch.ones((), device=device)
        self._rate = -1, False  # version of the learning rate, and the result for it
        self._peak: Tensor | None = None  # the largest absolute value of this batch
        self._clipped = self._growth = False
        self._outlier: Tensor | None = None  # () bool on a GPU: the batch has an outlier
        self._buffers: list[Tensor] = []  # on a GPU, after the forward passes of this step
        self.waits = device.type == "cpu"  # whether the host waits for the decision
        if not self.waits:
            self.stay_on_device()

    def stay_on_device(self) -> None:
        """From now on, do not wait for the decision."""
        self.waits = False
        self.optimizer.found_inf = self._found  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ inputs

    def inputs(self, x: Tensor) -> Tensor:
        """Check raw samples for outliers; return them, clipped if `on_outlier` is `"clip"`.

        On a GPU outliers are always clipped, because the samples enter the memory.
        """
        if not self.judges_inputs:
            return x
        if self.by_feature:
            return self._features(x)
        return self.samples.map_floats(self._judge_inputs, x)

    def _judge_inputs(self, x: Tensor) -> Tensor:
        low, high = torch.aminmax(x)
        if not self.waits:
            return self._clip_on_device(x, torch.maximum(-low, high))
        peak, largest = max(-low.item(), high.item()), self.largest.item()
        self._clipped, self._growth = False, peak > largest
        if not largest or peak <= FACTOR * largest:
            self._peak = high if high.item() == peak else low
            return x
        if self.on_outlier != "clip":
            raise RefusedError(
                f"x has a value of {peak:.3g}, over {FACTOR:.0f} times the largest so far, "
                f"{largest:.3g},"
            )
        self._clipped, self._growth = True, False
        return x.clamp(-largest, largest)

    def _features(self, x: Tensor) -> Tensor:
        """Check vectors for outliers, feature by feature, and clip them."""
        peak, largest = x.abs().amax(0), self.largest
        outlier = (peak > FACTOR * largest.max()) & (largest > 0)
        self._growth, self._outlier = True, outlier.any()
        if self.waits:
            self._clipped = bool(self._outlier)
            if self._clipped and self.on_outlier != "clip":
                k = int(torch.where(outlier, peak, 0.0).argmax())
                raise RefusedError(
                    f"x has a value of {peak[k]:.3g} in feature {k}, over {FACTOR:.0f} times the "
                    f"largest so far, {largest.max():.3g},"
                )
        self._peak = torch.where(outlier, largest, peak)
        bound = torch.where(outlier, largest, torch.inf)
        return torch.clamp(x, -bound, bound)

    def _clip_on_device(self, x: Tensor, peak: Tensor) -> Tensor:
        outlier = (peak > FACTOR * self.largest) & (self.largest > 0)
        bound = torch.where(outlier, self.largest, torch.inf)
        self._peak, self._outlier = torch.where(outlier, self.largest, peak), outlier
        return torch.clamp(x, -bound, bound)

    # ------------------------------------------------------------------ decision

    def judge(self, loss: Tensor, phi: Sequence[Tensor]) -> None:
        """Check a step after its backward pass: raise `RefusedError`, or set `good` on a GPU.

        `phi` are the parameters of the adaptor that were updated.
        """
        grads = [p.grad for p in (*self.theta, *phi) if p.grad is not None]
        value = loss.detach().float()
        if not self.waits:
            self._judge_on_device([value, *grads])
            return
        mark_non_finite_([value, *grads, *self.statistics], self._found, self._one)
        if self._found.item() or (self._rate_is_large() and not self._update_is_small(grads)):
            self._found.zero_()
            raise RefusedError(self._reason(loss, grads))

    def _judge_on_device(self, values: list[Tensor]) -> None:
        """Check the loss, the gradients and the running statistics."""
        buffers = self.backup.current_buffers()
        # one tensor of all buffers needs fewer kernels, unless a buffer may be infinite or large
        statistics = self.statistics if self.other_buffers else _floats(buffers)
        norms = torch.stack(foreach_norm([*values, *statistics]))
        size = largest_update(self.optimizer, self.context.lr, torch.linalg.vector_norm(norms))
        torch.lt(size, LARGEST_UPDATE, out=self.good)
        if self._outlier is not None and self.on_outlier != "clip":
            self.good.logical_and_(~self._outlier)
        torch.logical_not(self.good, out=self._found)
        self._buffers = buffers

    def judge_extra(self, change: list[Tensor]) -> list[Tensor]:
        """Check a change of the weights after their update; return it, or 0 if refused on a GPU."""
        norm = torch.linalg.vector_norm(torch.stack(foreach_norm(change)))
        if not self.waits:
            torch.logical_and(self.good, norm < LARGEST_UPDATE, out=self.good)
            return [torch.where(self.good, c, 0.0) for c in change]
        if not norm.item() < LARGEST_UPDATE:  # also if it is NaN
            raise RefusedError("the update of the last layer became too large")
        return change

    def _update_is_small(self, grads: Sequence[Tensor]) -> bool:
        norm = torch.linalg.vector_norm(torch.stack(foreach_norm(list(grads))))
        return float(largest_update(self.optimizer, self.context.lr, norm)) < LARGEST_UPDATE

    def _rate_is_large(self) -> bool:
        """Whether a finite gradient could make an infinite update."""
        lr = self.context.lr
        if self._rate[0] != lr._version:
            one = torch.ones_like(lr)
            self._rate = lr._version, largest_update(self.optimizer, lr, one).item() > 1
        return self._rate[1]

    def _reason(self, loss: Tensor, grads: Sequence[Tensor]) -> str:
        if not math.isfinite(value := loss.item()):
            return f"the loss became {value}"
        for what, tensors in (("a gradient", grads), ("a running statistic", self.statistics)):
            for t in tensors:
                if not bool(t.isfinite().all()):
                    return f"{what} became {t[~t.isfinite()][0].item()}"
        return "the update of the weights became too large"

    def undo_if_refused(self) -> None:
        """Restore the statistics and φ after `judge` if the step was refused, on a GPU."""
        if not self.waits:
            self.backup.restore_unless(self.good, self._buffers)
            self._buffers = []

    def only_if_good(self, value: Tensor, otherwise: float) -> Tensor:
        """Return a value of the step, or `otherwise` if the step was refused on a GPU."""
        return value if self.waits else torch.where(self.good, value, otherwise)

    def accept(self) -> None:
        """Update the largest value and, on a GPU or after clipping, the count."""
        if self._peak is not None and (self._growth or not self.waits):
            torch.maximum(self.largest, self._peak.abs(), out=self.largest)
        if self.on_outlier == "raise":
            return
        if not self.waits:
            bad = ~self.good
            self.outliers += bad if self._outlier is None else bad | self._outlier
        elif self._clipped:
            self.outliers += 1

    def count_left_out(self) -> None:
        """Count a skipped batch, on a CPU."""
        self.outliers += 1

    # ------------------------------------------------------------------ state

    def tensors(self, copy: Copy = torch.clone) -> Tensors:
        """Return the largest value and the count of outliers, if they are used."""
        if not self.judges_inputs and self.on_outlier == "raise":
            return {}
        return {"guard.largest": copy(self.largest), "guard.outliers": copy(self.outliers)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `tensors`; states of earlier versions have no such entries."""
        for name in ("largest", "outliers"):
            live, saved = getattr(self, name), tensors.get(f"guard.{name}")
            live.zero_() if saved is None else live.copy_(saved)


def _floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t for t in tensors if t.is_floating_point()]
