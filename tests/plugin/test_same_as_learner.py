"""A foreign loop with the plug-in computes what `Learner` computes, bit for bit on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from plugin_helpers import BATCH, BUFFER, CLASSES, SEED, SETTINGS, Loop, bits, make_net, make_stream
from torch import Tensor

from dualcba import Learner, Transform
from dualcba.plugin import ibn

KINDS = (None, "cba", "dual-cba", "balanced-cba")
SAMPLES = {"vectors": ((5,), torch.float32), "images": ((3, 8, 8), torch.uint8)}
LR = 2**-5  # exact in float32: a learner keeps its rate as a tensor

OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.5, "weight_decay": 2**-10, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 2**-7}),
}

CASES = [
    *product((None, "cba", "dual-cba"), SAMPLES, ("sgd", "adam")),
    *(("dual-cba", "vectors", name) for name in ("momentum", "adamw")),
    ("balanced-cba", "vectors", "adam"),
]


def both(
    kind: str | None,
    samples: str,
    optimizer: str,
    strays: bool = False,
    device: str = "cpu",
    **settings: Any,
) -> tuple[Learner, Loop]:
    """A learner and a foreign loop after the same stream."""
    shape, dtype = SAMPLES[samples]
    stream = make_stream(shape, dtype, strays=strays)
    make, given = OPTIMIZERS[optimizer]
    name = {"momentum": "sgd"}.get(optimizer, optimizer)
    of_adaptor = {**SETTINGS, **settings} if kind else {}
    learner = Learner(
        make_net(shape), shape, CLASSES, method="er" if kind is None else f"er-{kind}",
        dtype=dtype, buffer=BUFFER, batch_size=BATCH, seed=SEED, device=device, lr=LR,
        optimizer=name, engine="eager", precision="fp32", **given, **of_adaptor,
    )  # fmt: skip
    for classes, batches in stream:
        learner.new_task(classes)
        for x, y in batches:
            learner.observe(x, y)
    net = make_net(shape).to(device)
    own = make(net.parameters(), lr=LR, fused=True, **given)
    loop = Loop(net, own, kind, Transform([0.0], [1.0]).to(device), settings)
    loop.run([(c, [(x.to(device), y.to(device)) for x, y in task]) for c, task in stream])
    return learner, loop


def check_same(learner: Learner, loop: Loop) -> None:
    assert bits(learner.network.module) == bits(loop.net)
    stored = loop.memory.state_dict()["tensors"]
    for name in ("x", "y"):
        rows = learner.memory.state_dict()[name]
        assert torch.equal(rows, stored[f"memory.{name}"])
    if loop.adaptor is not None:
        assert learner.adaptor is not None
        assert bits(learner.adaptor) == bits(loop.adaptor.adaptor)
        assert bits(learner.class_sets) == bits(loop.adaptor.class_sets)


@pytest.mark.filterwarnings("ignore:observed y is")
@pytest.mark.parametrize(("kind", "samples", "optimizer"), CASES)
def test_weights_memory_adaptor_and_ibn_are_those_of_the_learner(
    kind: str | None, samples: str, optimizer: str
) -> None:
    learner, loop = both(kind, samples, optimizer, strays=samples == "images")
    check_same(learner, loop)
    shape, dtype = SAMPLES[samples]
    x = torch.cat([x for _, batches in make_stream(shape, dtype, seed=1) for x, _ in batches])
    for statistics in ("bn", "ibn"):
        theirs = learner._predictor.scores_of(x, statistics, learner.step)
        assert torch.equal(theirs, logits(loop, x, statistics == "ibn"))
    check_same(learner, loop)  # statistics are restored


def logits(loop: Loop, x: Tensor, with_ibn: bool) -> Tensor:
    inputs, stored = loop.prepare(x), loop.prepare(loop.memory.samples()[0])
    with torch.no_grad():
        if with_ibn:
            with ibn(loop.net, stored):
                return loop.net(inputs)
        loop.net.eval()
        z = loop.net(inputs)
        loop.net.train()
        return z


@pytest.mark.parametrize(
    "settings",
    [
        {"space": "probability"},
        {"virtual": "sgd", "virtual_lr": 0.25},
        {"agnostic": False, "specific": "individual", "outer_warmup": 3},
        {"freeze_after": 2, "strength": True},
        {"agnostic_from": "pretrained", "specific": "single", "width": 256},
    ],
    ids=str,
)
def test_options_of_the_adaptor_are_those_of_the_learner(settings: dict[str, Any]) -> None:
    check_same(*both("dual-cba", "vectors", "adam", **settings))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_they_agree(kind: str | None) -> None:
    learner, loop = both(kind, "vectors", "sgd", device="cuda")
    theirs = learner.network.module.state_dict()
    for name, t in loop.net.state_dict().items():
        torch.testing.assert_close(t, theirs[name], rtol=1e-3, atol=1e-4)
    assert loop.memory.samples()[0].is_cuda
