"""PCR: proxy-based contrastive replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from dualcba.data.augmentation import plain
from dualcba.data.transforms import Transform
from dualcba.errors import above_zero
from dualcba.losses import Batch, Term
from dualcba.methods.base import Context, Method
from dualcba.methods.las import adjusted, label_counts, log_counts
from dualcba.nets.heads import CosineHead


class PCR(Method):
    """Contrast each sample with the proxies, the last layer's weights, of the classes in the batch.

    L = mean over samples of −z_y + log Σ_c n_c·exp(z_c)        z_c = cos(h, w_c) / temperature

    The mean is over the new batch and the memory draw, each in two views: raw and augmented. n_c is
    the number of these samples of class c, so classes without samples in the batch do not occur in
    the sum. The last layer has no bias. The loss has the same gradient as LAS with τ = 1 and a
    window of 1.

    Parameters
    ----------
    temperature
        The divisor of the cosines.

    References
    ----------
    Lin et al., PCR: proxy-based contrastive replay for online class-incremental continual learning,
    CVPR 2023.
    """

    title = "PCR"
    memory_views = True
    own_head = True

    def __init__(self, *, temperature: float = 0.09) -> None:
        super().__init__()
        above_zero(temperature=temperature)
        self.temperature = temperature

    def bind(self, context: Context) -> None:
        """Replace the last layer by a cosine classifier with a fixed scale and no bias."""
        weight = cast(Tensor, context.network.head.weight)
        context.network.replace_head(CosineHead(weight, 1 / self.temperature, learnt=False))
        super().bind(context)

    def make_views(self, transform: Transform) -> dict[str, Transform]:
        """Return the raw view."""
        return {"raw": plain(transform)}

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        """Return the cross-entropy of both views at z + log n, which is L minus a constant."""
        batches = [new, *mem]
        batches += [b.views["raw"] for b in batches if "raw" in b.views]  # a view has no views
        n = label_counts(batches, new.z.shape[1]).to(new.z.dtype)
        return adjusted(batches, log_counts(n))
