"""Under DistributedDataParallel: φ is equal in all processes, and is that of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks_helpers import RANKS, batch, drawn, loss_of, make_net, make_optimizer

from dualcba.plugin import BiasAdaptor, RehearsalMemory

Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"
)


def by_processes(folder: Path) -> list[dict[str, Any]]:
    """What each of two real processes has after its stream."""
    script = Path(__file__).with_name("ranks_helpers.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, str(script), str(k), str(folder)] for k in range(RANKS)]
    started = [subprocess.Popen(c, env=environment, stderr=subprocess.PIPE) for c in commands]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    return [torch.load(folder / f"{k}.pt", weights_only=True) for k in range(RANKS)]


def by_one_process() -> tuple[torch.nn.Module, BiasAdaptor]:
    """The same training in one process: the loss is the mean over what the processes have."""
    net = make_net()
    optimizer = make_optimizer(net)
    adaptor = BiasAdaptor(
        net[2], optimizer, outer_every=2, width=16, loss=lambda z, y: F.cross_entropy(z, y) / RANKS
    )
    memories = [RehearsalMemory(20, seed=rank) for rank in range(RANKS)]
    for task in range(2):
        adaptor.new_task([2 * task, 2 * task + 1])
        for step in range(5):
            new = [batch(rank, task, step) for rank in range(RANKS)]
            draws = [drawn(m, rank, adaptor.due) for rank, m in enumerate(memories)]
            batches = [b for rank in range(RANKS) for b in (new[rank], *draws[rank][0])]
            passed = [adaptor.outputs(net, x) for x, _ in batches]
            outer = [b for _, drawn_outer in draws for b in drawn_outer]
            if outer:
                rows = [(z, h, y) for (z, h), (_, y) in zip(passed, batches, strict=True)]
                x, y = (torch.cat(part) for part in zip(*outer, strict=True))
                adaptor.outer_step(rows, (adaptor.features(net, x), y))
            optimizer.zero_grad()
            (loss_of(adaptor, batches, [z for z, _ in passed]) / RANKS).backward()
            optimizer.step()
            for memory, (x, y) in zip(memories, new, strict=True):
                memory.update(x, y)
            adaptor.end_step(torch.cat([y for _, y in new]))
    return net, adaptor


def test_all_processes_have_the_adaptor_of_one_process(tmp_path: Path, differ: Differ) -> None:
    first, second = by_processes(tmp_path)
    assert not differ(first["all"]["adaptor"], second["all"]["adaptor"])
    assert not differ(
        {"tensors": first["all"]["net"], "meta": {}}, {"tensors": second["all"]["net"], "meta": {}}
    )
    different = differ(first["alone"]["adaptor"], second["alone"]["adaptor"])
    assert "adaptor.specific.nets.0.output.weight" in different  # without the group they differ
    net, adaptor = by_one_process()
    one = {"net": net.state_dict(), "adaptor": adaptor.state_dict()["tensors"]}
    two = {"net": first["all"]["net"], "adaptor": first["all"]["adaptor"]["tensors"]}
    for part, tensors in one.items():
        for name, t in tensors.items():
            torch.testing.assert_close(two[part][name], t, rtol=1e-4, atol=1e-5, msg=name)
