"""ER: experience replay."""

from __future__ import annotations

from collections.abc import Sequence

from dualcba.losses import Batch, CrossEntropy, Term, mean_weights
from dualcba.methods.base import Method


class ER(Method):
    """Train on the new batch and one memory draw.

    L = CE(new) + CE(mem)

    With the option `loss_mean` `"samples"`, L is one mean over the samples of both.

    References
    ----------
    Chaudhry et al., On tiny episodic memories in continual learning, 2019.
    """

    title = "ER"
    semi_supervised = True

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return CE(new) + CE(mem), or both weighted by their numbers of samples."""
        batches = (new, *mem)
        weights = mean_weights(batches, by_samples=self.sample_mean)
        return [CrossEntropy(batch, w) for batch, w in zip(batches, weights, strict=True)]
