"""A network, a stream and a training loop that know nothing of learners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.plugin import BiasAdaptor, RehearsalMemory

CLASSES, BATCH, BUFFER, SEED = 6, 8, 20, 3
TASKS = ((0, 1), (2, 3), (4, 5))
SETTINGS: dict[str, Any] = {"outer_every": 2, "width": 16}

Stream = list[tuple[tuple[int, ...], list[tuple[Tensor, Tensor]]]]


class Net(nn.Module):
    """A network of the caller's own: batches pass it one by one."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        if len(shape) == 3:
            first = nn.Conv2d(shape[0], 6, 3, stride=2, padding=1)
            self.body = nn.Sequential(
                first, nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.LazyLinear(12)
            )
        else:
            self.body = nn.Sequential(nn.Linear(*shape, 16), nn.BatchNorm1d(16), nn.ReLU())
        with torch.no_grad():
            self.body.eval()(torch.zeros(2, *shape))
        self.last = nn.Linear(12 if len(shape) == 3 else 16, CLASSES)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


def make_net(shape: tuple[int, ...] = (5,), seed: int = 0) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Net(shape)
    return net.to(memory_format=torch.channels_last) if len(shape) == 3 else net


def make_stream(
    shape: tuple[int, ...] = (5,),
    dtype: torch.dtype = torch.float32,
    *,
    steps: int = 6,
    seed: int = 0,
    strays: bool = False,
) -> Stream:
    """Batches of the tasks; with `strays` a few samples come from classes of other tasks."""
    rng = torch.Generator().manual_seed(seed)
    stream: Stream = []
    for classes in TASKS:
        batches = []
        for _ in range(steps):
            y = torch.tensor(classes)[torch.randint(len(classes), (BATCH,), generator=rng)]
            if strays:
                y[0] = torch.randint(CLASSES, (), generator=rng)
            x = torch.randn(BATCH, *shape, generator=rng) + y.view(-1, *[1] * len(shape))
            if dtype == torch.uint8:
                x = (40 * x + 60).clamp(0, 255)
            batches.append((x.to(dtype), y))
        stream.append((classes, batches))
    return stream


@dataclass
class Loop:
    """A plain loop of rehearsal, with the plug-in."""

    net: Net
    optimizer: torch.optim.Optimizer
    kind: str | None
    prepare: Callable[[Tensor], Tensor]
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        self.memory = RehearsalMemory(BUFFER, seed=SEED)
        self.adaptor = None
        if self.kind is not None:
            head, optimizer = self.net.last, self.optimizer
            self.adaptor = BiasAdaptor(
                head, optimizer, kind=self.kind, seed=SEED, **(SETTINGS | self.settings)
            )

    def run(self, stream: Stream) -> None:
        for classes, batches in stream:
            if self.adaptor is not None:
                self.adaptor.new_task(classes)
            for x, y in batches:
                self.step(x, y)

    def step(self, x: Tensor, y: Tensor) -> None:
        memory, adaptor, net = self.memory, self.adaptor, self.net
        batches = [(x, y), *([memory.draw(BATCH)] if len(memory) else [])]
        if adaptor is None:
            logits = [net(self.prepare(x)) for x, _ in batches]
        else:
            due, outer = adaptor.due, None
            if due:
                outer_x, outer_y = self.outer_draw(x, y)
                outer = adaptor.features(net, self.prepare(outer_x)), outer_y
            passed = [adaptor.outputs(net, self.prepare(x)) for x, _ in batches]
            if outer is not None:
                inner = [(z, h, y) for (z, h), (_, y) in zip(passed, batches, strict=True)]
                adaptor.outer_step(inner, outer)
            adapted = adaptor.adapt(torch.cat([z for z, _ in passed]))
            logits = list(adapted.split([len(y) for _, y in batches]))
        losses = [F.cross_entropy(z, y) for z, (_, y) in zip(logits, batches, strict=True)]
        self.optimizer.zero_grad()
        sum(losses[1:], losses[0]).backward()
        self.optimizer.step()
        memory.update(x, y)
        if adaptor is not None:
            adaptor.end_step(y)

    def outer_draw(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.kind == "balanced-cba":
            return self.memory.draw_balanced(BATCH, x, y)
        return self.memory.draw(BATCH)


def bits(module: nn.Module) -> dict[str, bytes]:
    return {k: v.contiguous().numpy().tobytes() for k, v in _tensors(module)}


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, t in module.state_dict().items():
        yield name, t.detach()
