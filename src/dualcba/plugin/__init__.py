"""The parts of a learner for a training loop of your own: bias adaptor, rehearsal memory, IBN.

Network, optimiser, scheduler, precision, clipping and processes stay yours. On the same batches a
loop with these parts computes what `Learner` computes; see docs/plugin.md.
"""

from dualcba.plugin.bias_adaptor import BiasAdaptor
from dualcba.plugin.incremental import ibn
from dualcba.plugin.rehearsal import RehearsalMemory

__all__ = ["BiasAdaptor", "RehearsalMemory", "ibn"]
