"""The field and the option that say what to record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Spec, make_specs


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ([], []),
        (["alignment"], ["alignment"]),
        ("predictions,transitions", ["predictions", "transitions"]),
        (("predictions", "predictions"), ["predictions"]),
        (" transitions , alignment ", ["transitions", "alignment"]),
    ],
)
def test_names_in_a_list_or_with_commas(given: Any, want: list[str]) -> None:
    spec = Spec(record=given)
    assert spec.record == want
    assert Spec(**json.loads(json.dumps(spec.to_dict()))) == spec
    assert make_specs({"record": given})[0].record == want


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("prediction", ["record", "'prediction'", "did you mean 'predictions'"]),
        (["alignment", "x"], ["record", "'x'", "'predictions' or 'transitions' or 'alignment'"]),
        ("", ["record", "''"]),
        (3, ["record", "3", "some of"]),
        ([3], ["record", "[3]", "some of"]),
    ],
)
def test_anything_else_is_refused(given: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Spec(record=given)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_the_command_line(tmp_path: Path, dualcba: Callable[..., Any]) -> None:
    out = tmp_path / "out"
    done = dualcba("run", "--method", "er", "--batch-size", 32, "--eval-every", 0, "--quiet",
                   "--record", "predictions,transitions", "--out", out)  # fmt: skip
    assert (done.code, done.out, done.err) == (0, "", "")
    (path,) = out.glob("*/result.json")
    result = json.loads(path.read_text())
    assert set(result["recordings"]) == {"predictions", "transitions"}
    assert result["spec"]["record"] == ["predictions", "transitions"]


def test_a_wrong_name_on_the_command_line(dualcba: Callable[..., Any]) -> None:
    done = dualcba("run", "--record", "transition", "--out", "x")
    assert done.code == 2
    assert "did you mean 'transitions'" in done.err
    assert done.files == []
