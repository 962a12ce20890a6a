"""What the base class of methods offers, without a learner around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.losses import Adapt, Batch
from dualcba.methods.base import Method, pass_separately, viewed
from dualcba.methods.er import ER
from dualcba.nets import Network

Make = Callable[..., Any]


class Own(ER):
    """A loss that is no sum of terms."""

    def loss(self, new: Batch, mem: Sequence[Batch], adapt: Adapt) -> Tensor:
        return super().loss(new, mem, adapt) ** 2


def test_batches_pass_one_by_one_and_views_after_them_by_name() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    network = Network(net, (5,), 3)

    def batch(n: int, **views: Batch) -> Batch:
        x = torch.randn(n, 5)
        return Batch(
            x, torch.zeros(n, dtype=torch.long), torch.empty(0), torch.empty(0), views=views
        )

    def both(n: int) -> Batch:
        return batch(n, weak=batch(n), strong=batch(n))

    new, mem = both(4), both(1)
    inputs = [new, mem, *(b.views[name] for name in ("weak", "strong") for b in (new, mem))]
    found = pass_separately(network, [new, mem], ["weak", "strong"])
    assert len(found) == len(inputs)
    layer = net[1]
    mean, var = (t.clone() for t in (layer.running_mean, layer.running_var))  # type: ignore[union-attr]
    with torch.no_grad():
        layer.running_mean.zero_()  # type: ignore[union-attr]
        layer.running_var.fill_(1.0)  # type: ignore[union-attr]
        for b, (z, h) in zip(inputs, found, strict=True):
            v = net[0](b.x)  # a single sample has the running statistics of the batches before it
            stats = (layer.running_mean, layer.running_var)
            want = F.batch_norm(v, *stats, layer.weight, layer.bias, training=len(v) > 1)  # type: ignore[arg-type]
            torch.testing.assert_close(h, want)
            torch.testing.assert_close(z, net[2](want))
    torch.testing.assert_close(layer.running_mean, mean)
    torch.testing.assert_close(layer.running_var, var)
    assert net.training


@pytest.mark.parametrize(
    ("views", "last", "want"), [(False, None, ""), (True, None, "abc"), (True, 2, "bc")]
)
def test_the_draws_that_have_views(views: bool, last: int | None, want: str) -> None:
    method = Method()
    method.memory_views, method.viewed_draws = views, last
    assert "".join(viewed(method, list("abc"))) == want


def test_a_loss_of_ones_own_has_no_closed_form_and_no_wrapper() -> None:
    assert ER().closed_form
    assert ER.wrappable()
    assert not Own().closed_form
    assert not Own.wrappable()
    assert not type("Fixed", (ER,), {"adaptable": False}).wrappable()


def test_the_outer_loss_is_the_cross_entropy_of_raw_logits(bench: Make) -> None:
    batch = bench(ER()).batch([0, 1, 4])
    (term,) = Method().outer_terms(batch)
    torch.testing.assert_close(term.value(batch.z), F.cross_entropy(batch.z, batch.y))
