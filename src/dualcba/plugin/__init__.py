"""Bias adaptor, rehearsal memory and IBN for a training loop of your own.

The loop keeps its network, optimiser, scheduler, precision, clipping and processes. On the same
batches it computes the same as `Learner`; see docs/plugin.md.
"""

from dualcba.plugin.bias_adaptor import BiasAdaptor
from dualcba.plugin.incremental import ibn
from dualcba.plugin.rehearsal import RehearsalMemory

__all__ = ["BiasAdaptor", "RehearsalMemory", "ibn"]
