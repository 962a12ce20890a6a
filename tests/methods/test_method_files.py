"""Methods from files of the user: executed by name only, and known by their content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dualcba.experiments import Spec
from dualcba.experiments.result import ForeignSpec, identity, make_spec
from dualcba.methods import METHODS, files, method_names, parse_method
from dualcba.methods.er import ER
from dualcba.methods.files import NotImportedError, import_again, import_methods, imported_for

CODE = """
from dataclasses import dataclass

from dualcba.methods import register
from dualcba.methods.er import ER

@dataclass
class Helper:
    weight: "float" = 1.0

@register("mine")
class Mine(ER):
    pass
"""


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(METHODS)
    monkeypatch.setattr(files, "_known", {})
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my-method.py"
    path.write_text(CODE)
    return path


def forget() -> None:
    """Be like a new process."""
    files._known.clear()
    METHODS.pop("mine", None)


def test_a_file_registers_its_methods(mine: Path) -> None:
    (found,) = import_methods([mine]).items()
    assert found[0] == str(mine)
    assert len(found[1]) == 64
    assert {"mine", "mine-cba", "mine-dual-cba"} <= set(method_names())
    assert imported_for(parse_method("mine-cba")[0]) == dict([found])
    assert imported_for(parse_method("mine+mkd")[0]) == dict([found])
    assert imported_for(ER) == {}


def test_a_file_is_executed_once_and_again_if_it_changes(mine: Path) -> None:
    import_methods([mine])
    first = METHODS["mine"]
    import_methods([mine, mine])
    assert METHODS["mine"] is first
    mine.write_text(CODE + "    adaptable = False\n")
    import_methods([mine])
    assert METHODS["mine"] is not first
    assert not METHODS["mine"].adaptable


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "cannot be imported: line 1: ZeroDivisionError: division by zero"),
        ("x = 1\ndef f(:", "cannot be imported: line 2: SyntaxError: invalid syntax"),
        ("import no_such", "line 1: ModuleNotFoundError: No module named 'no_such'"),
        ("raise SystemExit(3)", "cannot be imported: line 1: SystemExit: 3"),
        ("x = 1", r'registers no method, expected at least one class with @register\("name"\)'),
        (
            CODE.replace("mine", "er"),
            "line 11: the method name 'er' is taken by dualcba.methods.er",
        ),
        (CODE + "\nraise ValueError('two\\nlines')", "line 15: two lines"),
        ("x = '\0'", "cannot be imported: .*null bytes"),
    ],
)
def test_an_error_is_one_line_and_registers_nothing(mine: Path, code: str, message: str) -> None:
    before = dict(METHODS)
    mine.write_text(code)
    with pytest.raises(ValueError, match=message) as raised:
        import_methods([mine])
    assert str(raised.value).startswith(str(mine))
    assert "\n" not in str(raised.value)
    assert before == METHODS


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone.py is missing, expected a Python file"):
        import_methods([tmp_path / "gone.py"])
    with pytest.raises(IsADirectoryError, match="is a folder, expected a Python file"):
        import_methods([tmp_path])


def test_two_files_cannot_register_one_name(mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(CODE)
    import_methods([mine])
    with pytest.raises(ValueError, match="the method name 'mine' is taken by"):
        import_methods([other])


# ---------------------------------------------------------------------- specs


def test_a_spec_remembers_the_file_of_its_method_alone(mine: Path) -> None:
    plain = Spec(method="er")
    imports = import_methods([mine])
    assert Spec(method="mine").imports == imports
    assert Spec(method="mine").to_dict()["imports"] == imports
    assert Spec(method="er") == plain
    assert "imports" not in plain.to_dict()
    assert replace(Spec(method="mine"), seed=1).imports == imports


def test_the_name_of_a_run_follows_the_content_and_not_the_place(
    mine: Path, tmp_path: Path
) -> None:
    import_methods([mine])
    first = Spec(method="mine")
    forget()
    moved = mine.rename(tmp_path / "moved.py")
    import_methods([moved])
    assert Spec(**first.to_dict()).imports == import_methods([moved])
    assert Spec(method="mine").name == first.name
    assert identity(Spec(method="mine")) == identity(first)
    forget()
    moved.write_text(CODE + "# more\n")
    import_methods([moved])
    assert Spec(method="mine").name != first.name
    assert identity(Spec(method="mine")) != identity(first)


def test_reading_a_spec_executes_nothing(mine: Path, tmp_path: Path) -> None:
    mine.write_text(CODE + f"\nopen({str(tmp_path / 'executed')!r}, 'w')\n")
    import_methods([mine])
    fields = Spec(method="mine").to_dict()
    (tmp_path / "executed").unlink()
    forget()
    with pytest.raises(NotImportedError, match=rf"comes from {mine}, expected --import {mine}"):
        Spec(**fields)
    assert isinstance(make_spec(fields), ForeignSpec)
    assert not (tmp_path / "executed").exists()
    mine.unlink()
    with pytest.raises(NotImportedError, match=rf"comes from {mine}, which is missing, expected"):
        Spec(**fields)


def test_a_worker_imports_the_file_only_as_it_was(mine: Path) -> None:
    imports = import_methods([mine])
    forget()
    import_again(imports)
    assert Spec(method="mine").imports == imports
    forget()
    mine.write_text(CODE + "# more\n")
    with pytest.raises(NotImportedError, match="has changed since the method was first used"):
        import_again(imports)
