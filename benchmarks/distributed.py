"""Compare the throughput of two ranks, with one thread each, with one process.

usage: python -m benchmarks.distributed [--network mlp] [--method er] [--batch 64] [--threads]

The ranks are two processes on this machine, with gloo. All train on the same batches and take
turns: while one process works alone, the other rank waits. Ratios are of times within a round.
Other load on the machine slows down two ranks more than one process, because each waits for the
other. So the CPU time of the busier rank is given, too, which excludes all waiting. `--threads`
adds one process with two threads.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.sidebyside import append
from dualcba import Learner
from dualcba.bench.command import command, versions
from dualcba.bench.setup import MEAN, STD, Setup
from dualcba.bench.timing import time_in_turns
from dualcba.data import Transform
from dualcba.nets import NETWORKS

RANKS = 2
ONE, THREADS, SHARED = "one process, 1 thread", "one process, 2 threads", "two ranks, 1 thread each"


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make(setup: Setup, method: str, *, distributed: bool) -> Learner:
    """Return a learner in its second task, with a full memory."""
    learner = Learner(
        setup.make_network(), setup.shape, setup.classes, method=method, buffer=setup.buffer,
        batch_size=setup.batch, lr=setup.lr, device="cpu", distributed=distributed,
        transform=Transform([MEAN], [STD], pad=setup.pad, flip=True),
    )  # fmt: skip
    for half, classes in enumerate(setup.halves):
        learner.new_task(classes)
        train(learner, setup, half * setup.first, max(5, setup.buffer // setup.batch + 1))
    return learner


def train(learner: Learner, setup: Setup, first: int, steps: int, ranks: int = 1) -> None:
    """Observe batches from `first` on; with several ranks, only this rank's share of each."""
    k = dist.get_rank() if ranks > 1 else 0
    for step in range(first, first + steps):
        x, y = setup.data(step)
        own = slice(len(x) * k // ranks, len(x) * (k + 1) // ranks)
        learner.observe(x[own], y[own])


class Turns:
    """The turns of this rank, with their CPU seconds; all ranks begin and end a turn together."""

    def __init__(self, args: argparse.Namespace) -> None:
        setup = Setup(network=args.network, size=args.side, batch=args.batch)
        self.setup, self.steps = setup, args.steps
        alone = make(setup, args.method, distributed=False)
        shared = make(setup, args.method, distributed=True)
        self.work: dict[str, Callable[[], None]] = {ONE: lambda: self.take(ONE, alone)}
        if args.threads:
            self.work[THREADS] = lambda: self.take(THREADS, alone, threads=RANKS)
        self.work[SHARED] = lambda: self.take(SHARED, shared, ranks=RANKS)
        self.spent: dict[str, list[float]] = {name: [] for name in self.work}

    def take(self, name: str, learner: Learner, *, threads: int = 1, ranks: int = 1) -> None:
        """Make some steps, alone or with the other rank."""
        torch.set_num_threads(threads)
        dist.barrier()
        start = time.process_time()
        if ranks > 1 or dist.get_rank() == 0:
            train(learner, self.setup, self.setup.first, self.steps, ranks)
        self.spent[name].append(time.process_time() - start)
        dist.barrier()

    def cpu_ms(self, name: str) -> float:
        """Return the median CPU time of a step, of the busier rank of each round."""
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, self.spent[name])
        return round(1e3 * float(np.median(np.max(found, axis=0))) / self.steps, 2)


def run_rank(rank: int, port: int, args: argparse.Namespace, out: Any) -> None:
    """Time all contenders on one rank; the first one reports."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="the process group has")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    turns = Turns(args)
    watches = time_in_turns(turns.work, args.rounds, units=args.steps)
    cpu = {name: turns.cpu_ms(name) for name in watches}
    if rank == 0:
        out.put({
            name: {
                "samples_per_second": round(args.batch / watch.median),
                "times_one_process": round(1 / watch.ratio(watches[ONE]), 2),
                "cpu_ms_per_step_of_busier_rank": cpu[name],
            }
            for name, watch in watches.items()
        })  # fmt: skip
    dist.destroy_process_group()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the throughput of each contender, and its ratio to that of one process."""
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    mp.spawn(run_rank, (free_port(), args, out), nprocs=RANKS)  # type: ignore[no-untyped-call]
    return dict(out.get())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed")
    parser.add_argument("--network", default="mlp", choices=list(NETWORKS))
    parser.add_argument("--method", default="er-dual-cba")
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--side", type=int, default=32, help="of the images")
    parser.add_argument("--steps", type=int, default=20, help="per round; a multiple of 5")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", action="store_true", help="one process with 2 threads too")
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--json", type=Path, help="add the numbers to this file")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse()
    before = os.getloadavg()[0]
    found = measure(args)
    load = f"one-minute load {before:.2f} before, {os.getloadavg()[0]:.2f} after, itself included"
    for name, numbers in found.items():
        print(f"{name:24}  {numbers}")
    print(load)
    if args.json:
        about = {"machine": args.machine, "versions": versions("dualcba", "torch", "numpy")}
        about |= {"network": args.network, "method": args.method, "batch": args.batch}
        entry = {"command": command("python -m benchmarks.distributed"), **about}
        append(args.json, entry | {"conditions": load, "throughput": found})


if __name__ == "__main__":
    main()
