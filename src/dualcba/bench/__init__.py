"""dualcba beside what one would write instead, on the same data, network and batches.

`dualcba bench` is made of this; `benchmarks/` in the repository adds other frameworks.
"""

from dualcba.bench.command import bench
from dualcba.bench.contenders import contenders
from dualcba.bench.flops import activations, forward_flops, step_flops
from dualcba.bench.setup import Contender, Make, Setup
from dualcba.bench.timing import side_by_side

__all__ = [
    "Contender", "Make", "Setup", "activations", "bench", "contenders", "forward_flops",
    "side_by_side", "step_flops",
]  # fmt: skip
