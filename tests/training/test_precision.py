"""The precision of the forward passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dualcba import Dataset, Learner
from dualcba.nets import Network
from dualcba.training.precision import Precision

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


def test_bf16_on_the_cpu(make_learner: Make, teach: Teach, images: Dataset) -> None:
    learner = teach(make_learner(precision="bf16"))
    assert learner.predict_proba(images.test_x).dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in learner.network.parameters())


@pytest.mark.parametrize(("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_auto_is_bfloat16_where_the_gpu_has_it(
    capability: tuple[int, int], bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    network = Network(nn.Linear(3, 2), (3,), 2)
    assert Precision("auto", torch.device("cuda"), network).bf16 is bf16
    assert not Precision("auto", torch.device("cpu"), network).bf16
    assert Precision("bf16", torch.device("cpu"), network).bf16
