"""Datasets by name or path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from image_helpers import fill

import dualcba.data
from dualcba.data import data_dir, load_dataset


def test_a_name_goes_before_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "digits", {"a": 3, "b": 3})
    fill(tmp_path / "pets", {"a": 3, "b": 3})
    monkeypatch.chdir(tmp_path)
    assert load_dataset("digits").num_classes == 10
    assert load_dataset("./digits").num_classes == 2
    assert load_dataset("pets").num_classes == 2


def test_the_home_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"a": 3, "b": 3})
    monkeypatch.setenv("HOME", str(root.parent))
    assert load_dataset("~/pets").num_classes == 2


@pytest.mark.parametrize(
    ("name", "kind", "line"),
    [
        ("digit", ValueError, "unknown dataset 'digit', did you mean 'digits'"),
        ("", ValueError, "holds no folders"),
        ("no/such/place", FileNotFoundError, "no/such/place is missing"),
        ("./nothing", FileNotFoundError, "nothing is missing"),
        ("nothing.npz", FileNotFoundError, "nothing.npz is missing"),
        ("a.txt", ValueError, "a.txt is a file, expected a folder of images by class"),
    ],
)
def test_missing_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: Any, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(kind, match=line):
        load_dataset(name)


def test_options_that_a_dataset_does_not_take(root: Path) -> None:
    fill(root, {"a": 3, "b": 3})
    with pytest.raises(ValueError, match="digits takes no option size, expected one of: none"):
        load_dataset("digits", size=3)
    with pytest.raises(ValueError, match="takes no option sise, expected one of: size, holdout"):
        load_dataset(root, sise=3)


def test_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUALCBA_DATA", raising=False)
    assert data_dir() == Path("data")
    monkeypatch.setenv("DUALCBA_DATA", "elsewhere")
    assert data_dir() == Path("elsewhere")
    assert data_dir("here") == Path("here")


@pytest.mark.parametrize("name", dualcba.data.__all__)
def test_public_names_can_be_imported(name: str) -> None:
    assert getattr(dualcba.data, name) is not None


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'dualcba\.data' has no attribute 'Datasets'"):
        _ = dualcba.data.Datasets


WITHOUT_TORCH = """
import sys, types
package = types.ModuleType("dualcba")  # in place of dualcba/__init__.py
package.__path__ = [sys.argv[1]]
sys.modules["dualcba"] = package
from dualcba.data import DATASETS, data_dir, load_dataset
from dualcba.data.download.fetch import check, fetch
print([name for name in ("torch", "PIL", "sklearn") if name in sys.modules])
"""


def test_names_and_downloads_do_not_import_torch() -> None:
    folder = Path(dualcba.data.__file__).parents[1]
    command = [sys.executable, "-c", WITHOUT_TORCH, str(folder)]
    assert subprocess.check_output(command, text=True).strip() == "[]"
