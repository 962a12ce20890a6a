"""Every option is defined once; whatever takes options is generated from the definitions."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any, get_args

import pytest

from dualcba import Learner, options
from dualcba.data import DATASETS
from dualcba.evaluation import RECORDERS
from dualcba.experiments import Spec
from dualcba.nets import MLP, NETWORKS
from dualcba.normalization.layers import NORMALIZATIONS
from dualcba.options import (
    BALANCED,
    GROUPS,
    MAIN,
    Hardware,
    Option,
    RunCommand,
    RunOptions,
    TrainingOptions,
    definitions,
)
from dualcba.options.values import titles
from dualcba.training.learner_arguments import LearnerArguments

ALL = definitions(RunCommand, options.ReproduceCommand, options.BenchCommand)


@pytest.mark.parametrize("name", ALL)
def test_an_option_says_what_it_is(name: str) -> None:
    option = ALL[name]
    assert option.help[0].islower() or option.help[0] in "$I"
    assert not option.help.endswith(".")
    assert option.group in GROUPS
    default = option.default() if callable(option.default) else option.default
    if default is not None and name not in ("tasks", "method"):
        assert option.check(default) == default


@pytest.mark.parametrize("name", definitions(LearnerArguments))
def test_the_help_of_learner_shows_an_option_as_one_writes_it(name: str) -> None:
    option = definitions(LearnerArguments)[name]
    (entry,) = re.findall(rf"^    {name} : (.*)\n((?:        .*\n)+)", Learner.__doc__ or "", re.M)
    head, text = entry[0], " ".join(entry[1].split())
    assert text == text[0] + (option.in_python or option.help)[1:] + "."
    for choice in option.choices:
        assert repr(choice) in head
        assert not re.match(rf"{choice.capitalize()}\W", text)
    if option.default is None or callable(option.default):
        assert head.endswith(", optional")
    else:
        assert head.endswith(f", default {option.default!r}")
    assert all(len(line) <= 100 for line in (Learner.__doc__ or "").splitlines())


def test_the_parameters_of_learner_are_in_the_order_of_need() -> None:
    names = list(inspect.signature(Learner).parameters)
    assert names[:5] == ["network", "input_shape", "num_classes", "method", "adaptor"]
    main = [name for name, o in definitions(LearnerArguments).items() if o.group == MAIN]
    assert set(names[3 : 3 + len(main)]) == set(main)
    assert re.findall(r"^    (\w+) : ", Learner.__doc__ or "", re.M) == names


def test_the_signature_of_learner_has_no_internal_names() -> None:
    text = str(inspect.signature(Learner))
    assert not re.search(r"<|lambda|object at|class '", text)
    assert "method_options=None" in text
    assert "method_options={'alpha': 0.5}" in (Learner.__doc__ or "")
    assert Learner.__init__.__name__ == "__init__"


def test_a_command_takes_what_a_spec_takes() -> None:
    assert set(definitions(RunOptions)) <= set(definitions(RunCommand))
    assert list(definitions(Spec)) == list(definitions(RunOptions))
    assert set(definitions(TrainingOptions)) < set(definitions(Spec))


def test_choices_are_the_names_that_exist() -> None:
    assert set(get_args(options.NetworkName)) == set(NETWORKS)
    assert set(get_args(options.Norm)) == set(NORMALIZATIONS)
    assert set(get_args(options.values.RecorderName)) == set(RECORDERS)
    assert set(options.DATASET_DEFAULTS) == set(DATASETS)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("forward", "apart", "forward is 'apart', expected 'split' or 'concat'"),
        ("space", "logits", "expected 'logit' or 'probability' (did you mean 'logit'?)"),
        ("buffer", 0, "buffer is 0, expected a whole number of at least 1"),
        ("buffer", True, "buffer is True, expected a whole number"),
        ("lr", "fast", "lr is 'fast', expected a number above 0"),
        ("seen_only", 1, "seen_only is 1, expected True or False"),
        ("setting", 3, "setting is 3, expected a name"),
        ("record", ["prediction"], "record is 'prediction', expected 'predictions' or"),
        ("method_options", 3, "method_options is 3, expected names and values"),
        ("out", 3, "out is 3, expected a path"),
        ("freeze_after", 1, "freeze_after is 1, expected a whole number of at least 2"),
    ],
)
def test_a_wrong_value_names_the_option_and_what_is_accepted(
    name: str, value: Any, text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        ALL[name].check(value)


def test_none_is_not_given() -> None:
    assert Spec(ibn_augment=None, buffer=None, network=None) == Spec()
    assert Hardware(device=None).device == "auto"  # type: ignore[arg-type]


def test_a_default_of_the_dataset_goes_before_that_of_the_definition() -> None:
    assert definitions(Spec)["buffer"].default == 200
    assert Spec(dataset="digits").buffer == 100
    assert Spec(dataset="digits", buffer=7).buffer == 7


def test_an_option_of_an_adaptor_belongs_to_its_kinds() -> None:
    both: Option = ALL["width"]
    assert both.adaptors == ("cba", "dual-cba", "balanced-cba")
    assert Spec(method="er").width is None
    assert Spec(method="er-cba").width == 256
    assert Spec(method="er-cba").specific is None
    with pytest.raises(ValueError, match="the method has no adaptor"):
        Spec(method="er", width=3)
    with pytest.raises(ValueError, match="the adaptor 'cba' has no such option"):
        Spec(method="er-cba", specific="single")


@pytest.mark.parametrize("dataset", ["digits", "cifar10"])
def test_a_kind_of_adaptor_has_defaults_of_its_own(
    dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go before those of the dataset; a spec and a learner resolve them in the same way."""
    monkeypatch.setitem(options.KIND_DEFAULTS, BALANCED, {"adaptor_lr": 0.5, "specific": "none"})
    for given in ({}, {"adaptor_lr": 0.2}, {"specific": "individual"}):
        spec = Spec(dataset=dataset, method=f"er-{BALANCED}", **given)
        want = {"adaptor_lr": 0.5, "specific": "none"} | given
        assert {name: getattr(spec, name) for name in want} == want
        assert {name: spec.to_dict()[name] for name in want} == want
        learner = LearnerArguments(MLP((5,), 4), (5,), 4, method=f"er-{BALANCED}", **given)
        assert {name: getattr(learner, name) for name in want} == want
        assert learner.ibn
    assert Spec(dataset="digits", method="er-dual-cba").adaptor_lr == 0.01


@pytest.mark.parametrize("name", options.CBA)
def test_a_kind_without_given_options_takes_valid_defaults(name: str) -> None:
    spec = Spec(method=f"er-{name}")
    for field, value in options.KIND_DEFAULTS.get(name, {}).items():
        assert getattr(spec, field) == value == ALL[field].check(value)


def test_the_definitions_need_no_torch() -> None:
    code = "import sys, dualcba.options; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_semicolon_at_the_end_of_titles_selects_no_other_row() -> None:
    assert titles("ER;") == titles("ER; ;") == ["ER"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"agnostic": False, "counts": True},
            "counts is True, expected False if",
        ),
        (
            {"agnostic": False, "divide": True},
            "divide is True, expected False if",
        ),
        ({"levels": "joint", "outer_draw": "balanced"}, "outer_draw is 'balanced', expected 'mem"),
        ({"levels": "joint", "outer_loss": "ce"}, "outer_loss is 'ce', expected .* 'joint'"),
        ({"levels": "joint", "update_order": "network-first"}, "update_order is .* 'joint'"),
    ],
)
def test_options_of_an_adaptor_that_have_no_effect(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spec(method="er-dual-cba", **given)


def test_defaults_of_a_kind_that_have_no_effect_are_accepted() -> None:
    spec = Spec(method="er-balanced-cba", agnostic=False)
    assert Spec(**spec.to_dict()) == spec
    assert Spec(**Spec(method="er-balanced-cba", levels="joint").to_dict()).levels == "joint"
