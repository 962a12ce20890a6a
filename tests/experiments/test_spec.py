"""One typed object: defaults, what it refuses, and how it is read from TOML."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Spec, make_specs, read_toml
from dualcba.experiments.spec import fields


@pytest.mark.parametrize(
    ("dataset", "want"),
    [
        ("digits", {"tasks": 5, "network": "mlp"}),
        ("cifar10", {"buffer": 200, "tasks": 5, "network": "resnet18", "adaptor_lr": 1e-3}),
        ("cifar100", {"buffer": 2000, "tasks": 10, "network": "resnet18", "adaptor_lr": 1e-2}),
    ],
)
def test_what_a_dataset_brings(dataset: str, want: dict[str, Any]) -> None:
    spec = Spec(dataset=dataset)
    assert {k: getattr(spec, k) for k in want} == want
    if dataset.startswith("cifar"):
        assert spec.batch_size == 32


def test_the_protocols_defaults() -> None:
    spec = Spec(dataset="cifar100")
    want = {
        "method": "er-dual-cba", "setting": "online", "epochs": 1, "lr": 0.03, "outer_every": 5,
        "specific": "single", "agnostic": True, "space": "logit", "divide": False, "width": 256,
        "forward": "split", "ibn_augment": True, "ibn_average": "cumulative", "eval_every": 5,
        "seed": 0, "levels": "bi",
    }  # fmt: skip
    assert {k: getattr(spec, k) for k in want} == want


def test_a_given_value_stands() -> None:
    given = {"buffer": 7, "tasks": 2, "batch_size": 5, "network": "resnet18-slim", "lr": 1}
    spec = Spec(dataset="digits", adaptor_lr=0.5, **given)  # type: ignore[arg-type]
    assert {k: getattr(spec, k) for k in given} == given
    assert spec.adaptor_lr == 0.5


def test_a_spec_is_fixed_and_goes_to_json_and_back() -> None:
    spec = Spec(method="er-cba", seed=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.seed = 4  # type: ignore[misc]
    assert Spec(**json.loads(json.dumps(spec.to_dict()))) == spec
    assert set(spec.to_dict()) == set(fields())


BAD: list[tuple[dict[str, Any], list[str]]] = [
    ({"method": "er-dualcba"}, ["method", "'er-dualcba'", "did you mean 'er-dual-cba'"]),
    ({"method": "e"}, ["method", "'e'", "er-cba"]),
    ({"dataset": "cifar-10"}, ["dataset", "'cifar-10'", "did you mean 'cifar10'"]),
    ({"setting": "offlin"}, ["setting", "'offlin'", "online"]),
    ({"network": "resnet"}, ["network", "'resnet'", "resnet18"]),
    ({"specific": "singel"}, ["specific", "'singel'", "did you mean 'single'"]),
    ({"levels": "by"}, ["levels", "'by'", "did you mean 'bi'"]),
    ({"levels": "joint", "method": "er"}, ["levels", "'joint'", "no adaptor"]),
    ({"space": "logits"}, ["space", "'logits'", "did you mean 'logit'"]),
    ({"forward": "splitt"}, ["forward", "'splitt'", "did you mean 'split'"]),
    ({"ibn_average": "emma"}, ["ibn_average", "'emma'", "did you mean 'ema'"]),
    ({"specific": "none", "agnostic": False}, ["specific", "agnostic"]),
    ({"buffer": 0}, ["buffer", "0", "at least 1"]),
    ({"buffer": -3}, ["buffer", "-3", "at least 1"]),
    ({"buffer": 1.5}, ["buffer", "1.5", "whole number"]),
    ({"buffer": "many"}, ["buffer", "'many'", "whole number"]),
    ({"buffer": True}, ["buffer", "True", "whole number"]),
    ({"batch_size": 0}, ["batch_size", "0", "at least 1"]),
    ({"seed": -1}, ["seed", "-1", "at least 0"]),
    ({"epochs": 0}, ["epochs", "0", "at least 1"]),
    ({"outer_every": 0}, ["outer_every", "0", "at least 1"]),
    ({"width": 0}, ["width", "0", "at least 1"]),
    ({"eval_every": -1}, ["eval_every", "-1", "at least 0"]),
    ({"lr": 0}, ["lr", "0", "above 0"]),
    ({"lr": -0.1}, ["lr", "-0.1", "above 0"]),
    ({"lr": float("nan")}, ["lr", "nan", "above 0"]),
    ({"lr": float("inf")}, ["lr", "inf", "above 0"]),
    ({"lr": "fast"}, ["lr", "'fast'", "above 0"]),
    ({"adaptor_lr": 0.0}, ["adaptor_lr", "0.0", "above 0"]),
    ({"agnostic": 1}, ["agnostic", "1", "True or False"]),
    ({"divide": "yes"}, ["divide", "'yes'", "True or False"]),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda v: str(v)[:40])
def test_impossible_values_name_field_value_and_what_was_expected(
    options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Spec(**options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["method", "dataset", "setting", "network", "specific", "space"])
@pytest.mark.parametrize("value", [["digits"], 3, {"a": 1}, 1.5, True])
def test_values_of_another_type_are_refused_alike(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Spec(**{field: value})


# ---------------------------------------------------------------- several at once


def test_methods_times_seeds() -> None:
    specs = make_specs({"method": ["er", "er-cba"], "seeds": 2, "seed": 5, "buffer": 50})
    got = [(s.method, s.seed, s.buffer) for s in specs]
    assert got == [("er", 5, 50), ("er", 6, 50), ("er-cba", 5, 50), ("er-cba", 6, 50)]


def test_one_method_is_a_list_of_one() -> None:
    assert [s.method for s in make_specs({"method": "er"})] == ["er"]
    assert [s.method for s in make_specs({})] == ["er-dual-cba"]


def test_names_tell_runs_apart() -> None:
    options = {"method": ["er", "er-dual-cba"], "seeds": 3}
    names = [s.name for s in make_specs(options)] + [
        s.name for s in make_specs(options | {"buffer": 9})
    ]
    assert len(set(names)) == 12
    assert all(Path(name).name == name for name in names)


def test_names_of_one_spec_differ_in_the_seed_alone() -> None:
    one, two = (spec.name for spec in make_specs({"method": "er", "lr": 0.1, "seeds": 2}))
    assert one.replace("-s0-", "-s1-") == two


def test_what_is_to_be_recorded_is_named_once() -> None:
    assert Spec(record="predictions, transitions,predictions").record == [  # type: ignore[arg-type]
        "predictions",
        "transitions",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bufer": 3}, ["'bufer'", "did you mean 'buffer'"]),
        ({"seeds": 0}, ["seeds", "0", "at least 1"]),
        ({"seeds": 1.5}, ["seeds", "1.5", "whole number"]),
        ({"seeds": "3"}, ["seeds", "'3'", "whole number"]),
        ({"method": ["er", "erc"]}, ["method", "'erc'", "did you mean"]),
        ({"method": []}, ["method", "[]"]),
        ({"method": 3}, ["method", "3"]),
        ({"seed": "a"}, ["seed", "'a'", "whole number"]),
        ({"seed": -1}, ["seed", "-1", "at least 0"]),
        ({"dataset": ["digits"]}, ["dataset", "['digits']"]),
        ({"freeze_after": 9}, ["freeze_after", "9", "less than the number of tasks, 5"]),
        ({"freeze_after": 2, "tasks": [5, 5]}, ["freeze_after", "2", "number of tasks, 2"]),
        ({"method": "bic", "setting": "offline"}, ["setting is 'offline'", "a single pass"]),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_specs(options)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_same_method_twice_is_one_run_or_refused() -> None:
    """Two runs of one name would write over each other."""
    try:
        specs = make_specs({"method": ["er", "er"]})
    except ValueError as error:
        assert "er" in str(error)  # noqa: PT017
    else:
        assert len(specs) == len({s.name for s in specs})


# ---------------------------------------------------------------- files


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('method = ["er", "er-cba"]\nbuffer = 50\nseeds = 2\nlr = 0.1\n')
    assert len(make_specs(read_toml(path))) == 4


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.toml is missing, expected a TOML file"):
        read_toml(tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"method = ", b"\xff\xfe\x00", b"just words"])
def test_a_file_that_is_no_toml(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.toml is not a TOML file"):
        read_toml(path)


def test_files_of_one_stem_in_two_folders_have_two_names(tmp_path: Path) -> None:
    names = set()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.npz").touch()
        names.add(Spec(method="er", dataset=str(tmp_path / folder / "data.npz")).name)
    assert len(names) == 2


@pytest.mark.parametrize("value", ["abc", -1, float("nan"), True, None])
def test_values_of_options(value):
    with pytest.raises(ValueError, match=r"'alpha' of 'derpp' is .*expected a number"):
        Spec(method="derpp", method_options={"alpha": value})


def test_options_and_tasks_from_a_file_are_checked():
    with pytest.raises(ValueError, match="options is 3, expected"):
        make_specs({"method_options": 3})
    from dualcba.data import load_dataset
    from dualcba.experiments.making import make_stream

    for field, value in (("tasks", [2.5, 3]), ("class_order", [0, 1, "x"])):
        with pytest.raises(ValueError, match=r"is .*expected"):
            make_stream(Spec(**{field: value}), load_dataset("digits"))


def test_specs_are_json():
    assert json.loads(json.dumps(Spec().to_dict()))["seen_only"] is False


def test_an_empty_name_of_a_dataset_is_not_the_current_folder() -> None:
    """As of a variable of the shell that is not set."""
    with pytest.raises(ValueError, match=r"unknown dataset '' .*, or a path that exists"):
        Spec(method="er", dataset="")
