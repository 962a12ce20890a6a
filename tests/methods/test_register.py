"""Registration of methods, directly and by entry points."""

import importlib.metadata
import sys
import types
import warnings

import pytest
from typer.testing import CliRunner

from dualcba.cli.app import app
from dualcba.experiments import Spec
from dualcba.methods import METHODS, Method, method_names, parse_method, register, registry
from dualcba.methods.er import ER


@pytest.fixture(autouse=True)
def _no_trace(monkeypatch):
    before = dict(METHODS)
    monkeypatch.setattr(registry, "_entry_points_loaded", True)
    yield
    METHODS.clear()
    METHODS.update(before)


class Mine(ER):
    pass


class Unadaptable(ER):
    adaptable = False


def test_a_registered_method_is_known_with_both_suffixes_everywhere():
    assert register("mine", Mine) is Mine
    assert {"mine", "mine-cba", "mine-dual-cba"} <= set(method_names())
    assert parse_method("mine-dual-cba") == (Mine, "dual-cba")
    assert Spec(method="mine-cba").method == "mine-cba"
    listed = CliRunner().invoke(app, ["list", "methods"]).output.split()
    assert {"mine", "mine-cba", "mine-dual-cba"} <= set(listed)


def test_register_is_a_decorator():
    @register("decorated")
    class Decorated(ER):
        pass

    assert parse_method("decorated") == (Decorated, None)


def test_a_method_that_is_not_adaptable_has_no_suffixes():
    register("stiff", Unadaptable)
    assert "stiff" in method_names()
    assert "stiff-cba" not in method_names()


def test_a_taken_name_is_an_error_unless_the_class_is_the_same():
    with pytest.raises(ValueError, match=r"the method name 'er' is taken by dualcba.methods.er.ER"):
        register("er", Mine)
    register("mine", Mine)
    register("mine", Mine)
    again = type("Mine", (ER,), {"__module__": Mine.__module__, "__qualname__": "Mine"})
    assert register("mine", again) is again
    assert METHODS["mine"] is again


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("mine-cba", Mine, "without the suffix"),
        ("mine-dual-cba", Mine, "without the suffix"),
        ("a,b", Mine, "letters, digits, dots"),
        ("", Mine, "letters, digits, dots"),
        ("../x", Mine, "letters, digits, dots"),
        ("mine", Mine(), "a subclass of Method"),
        ("mine", dict, "a subclass of Method"),
    ],
)
def test_invalid_registrations(name, method, message):
    with pytest.raises(ValueError, match=message):
        register(name, method)
    assert name not in METHODS


# ---------------------------------------------------------------------- entry points


def offer(monkeypatch, **points):
    """Simulate entry points of installed packages: name → class, or None for an import error."""
    module = types.ModuleType("an_installed_package")
    found = []
    for i, (name, method) in enumerate(points.items()):
        setattr(module, f"M{i}", method)
        value = f"an_installed_package:{'Nothing' if method is None else f'M{i}'}"
        found.append(importlib.metadata.EntryPoint(name, value, registry.ENTRY_POINTS))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    asked = []

    def entry_points(*, group):
        asked.append(group)
        return found

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(registry, "_entry_points_loaded", False)
    return asked


def test_entry_points_are_loaded_once_with_the_names(monkeypatch):
    asked = offer(monkeypatch, outside=Mine)
    assert "outside" not in METHODS
    assert parse_method("outside-cba") == (Mine, "cba")
    assert "outside-dual-cba" in method_names()
    assert asked == ["dualcba.methods"]


def test_a_broken_entry_point_is_one_line_of_warning(monkeypatch):
    offer(monkeypatch, missing=None, number=7, outside=Mine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = method_names()
    missing, number = (str(w.message) for w in caught)
    assert missing.startswith("the method 'missing' of the entry point 'an_installed_package:Not")
    assert number.startswith("the method 'number' of the entry point")
    assert "\n" not in missing + number
    assert "outside" in names
    assert "missing" not in names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert method_names() == names


def test_an_entry_point_whose_name_is_taken_is_an_error_every_time(monkeypatch):
    offer(monkeypatch, er=Mine)
    for _ in range(2):
        with pytest.raises(ValueError, match="the method name 'er' is taken by"):
            method_names()
    assert METHODS["er"] is ER


def test_a_module_that_registers_itself_may_also_be_an_entry_point(monkeypatch):
    register("outside", Mine)
    offer(monkeypatch, outside=Mine)
    assert parse_method("outside") == (Mine, None)


def test_a_loaded_module_may_call_method_names(monkeypatch):
    class Asks(types.ModuleType):
        @property
        def method(self):
            method_names()
            return Mine

    monkeypatch.setitem(sys.modules, "asks", Asks("asks"))
    point = importlib.metadata.EntryPoint("asking", "asks:method", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    monkeypatch.setattr(registry, "_entry_points_loaded", False)
    assert issubclass(parse_method("asking")[0], Method)
