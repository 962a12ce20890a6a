"""Compare the speed of dualcba with other training loops on the same data, network and batches.

`dualcba bench` uses this; `benchmarks/` in the repository adds other frameworks.
"""

from dualcba.bench.command import bench
from dualcba.bench.contenders import contenders
from dualcba.bench.flops import activations, forward_flops, step_flops
from dualcba.bench.setup import Contender, Make, Setup
from dualcba.bench.timing import Stopwatch, side_by_side, take_turns, time_in_turns

__all__ = [
    "Contender", "Make", "Setup", "Stopwatch", "activations", "bench", "contenders",
    "forward_flops", "side_by_side", "step_flops", "take_turns", "time_in_turns",
]  # fmt: skip
