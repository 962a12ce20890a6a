"""Learners whose method is a recipe, or that follow a protocol."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dualcba import Learner
from dualcba.methods import parse_method
from dualcba.training.learner_arguments import LearnerArguments

SHAPES = {"colour": (3, 8, 8), "grey": (1, 8, 8)}


def network_for(shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    size = shape[0] * 64
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
    )


def make(shape: tuple[int, ...], **options: Any) -> Learner:
    given = {"buffer": 20, "boundaries": "inferred", "device": "cpu", **options}
    return Learner(network_for(shape), shape, 4, **given)


def options_of(shape: tuple[int, ...], **options: Any) -> LearnerArguments:
    return LearnerArguments(network_for(shape), shape, 4, **options)


def trained(learner: Learner) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    for classes in ([0, 1], [2, 3]):
        for _ in range(4):
            x = torch.randint(0, 256, (10, *learner.input_shape), generator=rng).to(torch.uint8)
            learner.observe(x, torch.tensor(classes).repeat(5))
    state: dict[str, torch.Tensor] = learner.state_dict()["tensors"]
    return state | {"probabilities": learner.predict_proba(x)}


WRITTEN_OUT: dict[str, Any] = {
    "method": "er+mkd", "method_options": {"share": 0.5}, "batch_size": 10, "memory_batch": 64,
    "forward": "concat", "loss_mean": "samples", "while_empty": "store", "optimizer": "adam",
    "lr": 0.0005, "readout": "debiased", "ibn": True, "ibn_augment": False,
}  # fmt: skip
BY_COLOUR: dict[str, dict[str, Any]] = {
    "colour": {"augmentation": "full", "test_flip": True},
    "grey": {"augmentation": "partial", "test_flip": False},
}


@pytest.mark.parametrize("colour", SHAPES)
def test_best_is_its_options_written_out(colour: str) -> None:
    short = trained(make(SHAPES[colour], method="best"))
    written = trained(make(SHAPES[colour], **WRITTEN_OUT, **BY_COLOUR[colour]))
    assert short.keys() == written.keys()
    assert all(torch.equal(short[name], written[name]) for name in short)


def test_given_options_go_before_those_of_the_recipe() -> None:
    found = options_of(
        SHAPES["colour"], method="best", readout="head", ibn=False, batch_size=5,
        method_options={"alpha": 0.02}, test_flip=False, lr=0.001,
    )  # fmt: skip
    assert (found.readout, found.ibn, found.test_flip) == ("head", False, False)
    assert (found.batch_size, found.memory_batch, found.lr) == (5, 64, 0.001)
    assert found.method_options == {"alpha": 0.02, "share": 0.5}


def test_samples_of_other_kinds_are_accepted() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    learner = Learner(
        network, (4,), None, method="best", dtype=torch.float32, buffer=10, boundaries="inferred"
    )
    for _ in range(3):
        learner.observe(torch.eye(4), ["a", "b", "c", "d"])
    assert set(learner.predict(torch.eye(4)).tolist()) <= {"a", "b", "c", "d"}


def test_a_protocol_sets_defaults() -> None:
    found = options_of(SHAPES["colour"], method="er-cba", protocol="p10", memory_batch=32)
    assert (found.batch_size, found.memory_batch, found.optimizer) == (10, 32, "adam")
    assert (found.lr, found.augmentation, found.outer_every) == (0.0005, "full", 5)
    assert options_of(SHAPES["grey"], optimizer="adamw").lr == 0.0005
    assert options_of(SHAPES["grey"], protocol="paper").lr == 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "best", "protocol": "paper"},
            "protocol is 'paper', expected 'p10', the protocol of",
        ),
        ({"method": "bset"}, "unknown method 'bset', did you mean 'best'"),
        ({"protocol": "p11"}, "protocol is 'p11', expected 'paper' or 'p10'"),
        ({"protocol": "p10"}, "augmentation is 'full' for torch.uint8 samples of shape"),
        ({"method": "best", "method_options": {"sahre": 1}}, "no option 'sahre', expected one"),
        ({"method": "best", "method_options": [1]}, "method_options is \\[1\\]"),
    ],
)
def test_what_does_not_fit_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(SHAPES["grey"], **options)
    assert "\n" not in str(caught.value)


def test_a_recipe_is_no_method() -> None:
    with pytest.raises(ValueError, match="method is 'best', expected a method such as 'er\\+mkd'"):
        parse_method("best")
