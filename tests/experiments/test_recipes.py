"""Recipes: names that stand for a method with options."""

from __future__ import annotations

import pytest

from dualcba.experiments import Spec, make_specs
from dualcba.methods import method_names
from dualcba.options import RECIPES


def test_best_is_a_method_under_a_protocol() -> None:
    spec = Spec(method="best", dataset="cifar100", seed=3)
    assert spec == Spec(
        method="er+mkd", dataset="cifar100", protocol="p10", seed=3, readout="debiased",
        method_options={"share": 0.5}, ibn_augment=False, test_flip=True,
    )  # fmt: skip
    assert (spec.batch_size, spec.memory_batch, spec.optimizer) == (10, 64, "adam")
    assert Spec(**spec.to_dict()) == spec


def test_other_options_can_be_given() -> None:
    spec = Spec(method="best", augmentation="partial", lr=0.001, protocol="p10")
    assert (spec.augmentation, spec.lr) == ("partial", 0.001)


def test_options_of_the_recipe_can_be_given_otherwise() -> None:
    spec = Spec(method="best", test_flip=False, memory_batch=32, method_options={"alpha": 0.02})
    assert (spec.test_flip, spec.memory_batch, spec.ibn_augment) == (False, 32, False)
    assert spec.method_options == {"alpha": 0.02, "share": 0.5}
    assert Spec(method="best", readout="head").readout == "head"
    assert Spec(method="best").method_options == {"share": 0.5}


@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion-mnist"])
def test_grey_images_have_options_that_they_can_have(dataset: str) -> None:
    spec = Spec(method="best", dataset=dataset)
    assert (spec.augmentation, spec.test_flip, spec.readout) == ("partial", False, "debiased")
    assert Spec(method="best", dataset=dataset, test_flip=True).test_flip


def test_it_needs_no_task_boundaries() -> None:
    assert Spec(method="best", boundaries="inferred", setting="blurry-10").readout == "debiased"


def test_the_protocol_of_the_recipe_cannot_be_another() -> None:
    message = "protocol is 'paper', expected 'p10', the protocol of the recipe 'best'"
    with pytest.raises(ValueError, match=message):
        Spec(method="best", protocol="paper")


def test_beside_other_methods() -> None:
    specs = make_specs({"method": "er-cba,best", "width": 8, "augmentation": "partial"})
    assert [(s.method, s.protocol) for s in specs] == [("er-cba", "paper"), ("er+mkd", "p10")]
    assert specs[0].width == 8


def test_no_recipe_has_the_name_of_a_method() -> None:
    assert not RECIPES.keys() & set(method_names())


def test_a_misspelt_recipe_is_found() -> None:
    for call in (lambda: Spec(method="bset"), lambda: make_specs({"method": "er,bset"})):
        with pytest.raises(ValueError, match="unknown method 'bset', did you mean 'best'"):
            call()
