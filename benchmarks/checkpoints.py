"""The cost of a checkpoint: the delay of training steps, and the time to write it.

    python -m benchmarks.checkpoints --method er-dual-cba --network resnet18 --buffer 2000

Bursts of steps with and without a checkpoint take turns. The difference of their medians is the
cost of one checkpoint; divided by a minute, it is the relative cost of a checkpoint per minute.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.learners import synthetic
from dualcba.bench.timing import Stopwatch, take_turns, time_in_turns
from dualcba.experiments import Hardware, Run, Spec
from dualcba.experiments.checkpoints import Keeper, checkpoint_paths, copy_state
from dualcba.options.values import Interval

NEVER = Interval(seconds=1e9)
PARTS = 5  # repetitions for the parts of a checkpoint


def measure(spec: Spec, hardware: Hardware, *, burst: int, rounds: int) -> dict[str, Any]:
    """Return the delay of steps by one checkpoint, and the times of its parts, in milliseconds.

    A burst must take longer than writing a file.
    """
    size = spec.batch_size * burst * (2 * rounds + 2)
    run = Run(spec, synthetic(classes=100, train=size, test=200, shape=(3, 32, 32)), hardware)
    steps, device = run.steps(), run.learner.device

    def take(keeper: Keeper | None = None) -> None:
        if keeper is not None:
            keeper.due_now()
        for _ in islice(steps, burst):
            if keeper is not None:
                keeper.after_step()

    take()  # captures the graphs
    with tempfile.TemporaryDirectory() as folder:
        keeper = Keeper(run, Path(folder), NEVER, print)
        keeper.save_now()  # the first copy allocates pinned memory
        work = {"without": take, "with": partial(take, keeper)}
        watches = time_in_turns(work, rounds, device)
        keeper.close()
        copy = Stopwatch(partial(copy_state, run), device)
        write = Stopwatch(keeper.save_now, device)
        for _ in take_turns([copy.run, write.run], PARTS):
            pass
        megabytes = checkpoint_paths(Path(folder))[0].stat().st_size / 1e6
    cost = watches["with"].median - watches["without"].median
    return {
        "method": spec.method,
        "network": spec.network,
        "megabytes": round(megabytes, 1),
        "ms_per_step": round(1e3 * watches["without"].median / burst, 4),
        "ms_of_steps_per_checkpoint": round(1e3 * cost, 2),
        "percent_once_a_minute": round(100 * cost / 60, 4),
        "ms_of_the_copy": round(1e3 * copy.median, 2),
        "ms_of_copy_and_write": round(1e3 * write.median, 1),
    }


def main() -> None:
    """Print one line of JSON per method."""
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("--method", default="er,er-dual-cba")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--buffer", type=int, default=2000)
    parser.add_argument("--burst", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    for method in args.method.split(","):
        spec = Spec(
            dataset="cifar100", method=method, network=args.network, buffer=args.buffer,
            eval_every=0, tasks=1,
        )  # fmt: skip
        hardware = Hardware(device=args.device)
        print(json.dumps(measure(spec, hardware, burst=args.burst, rounds=args.rounds)), flush=True)


if __name__ == "__main__":
    main()
