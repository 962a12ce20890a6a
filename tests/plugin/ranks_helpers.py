"""One of two processes under DistributedDataParallel; run as a script by test_ranks.py.

Usage: python ranks_helpers.py <rank> <folder>
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dualcba.plugin import BiasAdaptor, RehearsalMemory

RANKS, DRAWN = 2, (8, 6)  # the processes draw different numbers of samples
Batches = list[tuple[Tensor, Tensor]]


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 6))


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)


def batch(rank: int, task: int, step: int) -> tuple[Tensor, Tensor]:
    """What a process has of the stream."""
    rng = torch.Generator().manual_seed(1000 * rank + 10 * task + step)
    y = 2 * task + torch.randint(2, (8,), generator=rng)
    return torch.randn(8, 5, generator=rng) + y[:, None], y


def drawn(memory: RehearsalMemory, rank: int, outer: bool) -> tuple[Batches, Batches]:
    """The memory draw of the inner loss, and the outer batch if it is due."""
    inner = [memory.draw(DRAWN[rank])] if len(memory) else []
    return inner, [memory.draw(DRAWN[rank])] if outer else []


def loss_of(adaptor: BiasAdaptor, batches: Batches, z: Sequence[Tensor]) -> Tensor:
    adapted = adaptor.adapt(torch.cat(list(z))).split([len(y) for _, y in batches])
    return torch.stack(
        [F.cross_entropy(a, y) for a, (_, y) in zip(adapted, batches, strict=True)]
    ).sum()


def train(rank: int, group: Any) -> dict[str, Any]:
    """Train with two tasks, and return the weights and the state of the adaptor."""
    net = make_net()
    optimizer = make_optimizer(net)
    adaptor = BiasAdaptor(net[2], optimizer, outer_every=2, width=16, group=group)
    memory, ddp = RehearsalMemory(20, seed=rank), DistributedDataParallel(net)
    for task in range(2):
        adaptor.new_task([2 * task, 2 * task + 1])
        for step in range(5):
            x, y = batch(rank, task, step)
            mem, outer = drawn(memory, rank, adaptor.due)
            batches = [(x, y), *mem]
            z, h = adaptor.outputs(ddp, torch.cat([x for x, _ in batches]))
            sizes = [len(y) for _, y in batches]
            if outer:
                rows = zip(z.split(sizes), h.split(sizes), [y for _, y in batches], strict=True)
                (outer_x, outer_y) = outer[0]
                adaptor.outer_step(list(rows), (adaptor.features(net, outer_x), outer_y))
            optimizer.zero_grad()
            loss_of(adaptor, batches, z.split(sizes)).backward()
            optimizer.step()
            memory.update(x, y)
            adaptor.end_step(y)
    return {"net": net.state_dict(), "adaptor": adaptor.state_dict()}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    method = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=method, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    alone = [dist.new_group([k]) for k in range(RANKS)][rank]
    torch.save({"all": train(rank, None), "alone": train(rank, alone)}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
