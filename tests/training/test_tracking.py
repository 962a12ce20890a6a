"""Which batches of a step update the running statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dualcba import Learner
from dualcba.methods import METHODS
from dualcba.methods.fixmatch import FixMatch

Make = Callable[..., Learner]


@contextmanager
def watched(learner: Learner) -> Iterator[list[tuple[Tensor, bool]]]:
    """The inputs of each forward pass in training, and whether they are tracked."""
    layer, seen = learner.parts.forward_pass.norm_layers[0], []
    hook = learner.network.register_forward_pre_hook(
        lambda _, inputs: seen.append((inputs[0].clone(), layer.track_running_stats))
    )
    yield seen
    hook.remove()


def second_step(learner: Learner, images: Any) -> list[tuple[Tensor, bool]]:
    """The forward passes of the second step with four labelled and four unlabelled samples."""
    learner.new_task([0, 1])
    x, y = images.train_x[:8], images.train_y[:8].clone()
    y[4:] = -1
    learner.observe(x, y)
    with watched(learner) as seen:
        learner.observe(x, y)
    return seen


@pytest.mark.filterwarnings("ignore:observed y is")
def test_memory_draws_alone_are_tracked(make_learner: Make, teach: Any, images: Any) -> None:
    learner = make_learner("er-cba", tracking="memory")
    learner.new_task([0, 1])
    with watched(learner) as seen:
        learner.observe(images.train_x[:8], images.train_y[:8])
        assert [tracked for _, tracked in seen] == [True]  # the memory was empty
        seen.clear()
        learner.observe(images.train_x[8:16], images.train_y[8:16])
    assert [tracked for _, tracked in seen] == [False, True]
    layer = learner.parts.forward_pass.norm_layers[0]
    assert layer.num_batches_tracked == 2
    assert layer.track_running_stats


def test_tracking_changes_running_statistics_alone(make_learner: Make, teach: Any) -> None:
    a, b = (
        teach(make_learner("er-dual-cba", tracking=tracking)).state_dict()["tensors"]
        for tracking in ("all", "memory")
    )
    for name in a:
        assert torch.allclose(a[name].double(), b[name].double(), atol=1e-5) != (
            name.rsplit(".", 1)[-1] in ("running_mean", "running_var", "num_batches_tracked")
        ), name


@pytest.mark.filterwarnings("ignore:observed y is")
def test_unlabelled_batches_and_views_are_not_tracked(make_learner: Make, images: Any) -> None:
    learner = make_learner(FixMatch(METHODS["er"](), labelled=4), tracking="labelled")
    seen = second_step(learner, images)
    # labelled and unlabelled samples, the memory of four, the strong view
    assert [(len(inputs), tracked) for inputs, tracked in seen] == [
        (4, True), (4, False), (4, True), (4, False),
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:observed y is")
def test_by_source_labelled_unlabelled_and_strong_views_pass_together(
    make_learner: Make, images: Any
) -> None:
    learner = make_learner(FixMatch(METHODS["er"](), labelled=4), forward="sources")
    seen = second_step(learner, images)
    # eight samples with four strong views, the memory of four
    assert [(len(inputs), tracked) for inputs, tracked in seen] == [(12, True), (4, True)]


@pytest.mark.parametrize("forward", ["concat", "sources"])
def test_batches_of_one_forward_pass_are_tracked_together(forward: str, make_learner: Make) -> None:
    with pytest.raises(ValueError, match="tracking is 'memory', expected 'all' if forward is"):
        make_learner("er", tracking="memory", forward=forward)
