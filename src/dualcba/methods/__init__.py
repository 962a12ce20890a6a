"""The methods by name, and how a name is read: `<base>`, `<base>-cba`, `<base>-dual-cba`."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TypeVar, overload

from dualcba.errors import expected, unknown
from dualcba.methods.base import Context, Method
from dualcba.methods.bic import BiC
from dualcba.methods.clser import CLSER
from dualcba.methods.derpp import DERpp
from dualcba.methods.er import ER
from dualcba.methods.er_ace import ERACE
from dualcba.methods.icarl import ICaRL
from dualcba.methods.lucir import LUCIR
from dualcba.methods.rar import RAR
from dualcba.methods.ss_il import SSIL

__all__ = [
    "METHODS",
    "SUFFIXES",
    "Context",
    "Method",
    "check_options",
    "method_names",
    "parse_method",
    "register",
]

METHODS: dict[str, type[Method]] = {
    "er": ER,
    "derpp": DERpp,
    "clser": CLSER,
    "rar": RAR,
    "icarl": ICaRL,
    "lucir": LUCIR,
    "bic": BiC,
    "er-ace": ERACE,
    "ss-il": SSIL,
}

SUFFIXES = ("cba", "dual-cba")


def method_names() -> list[str]:
    """Every name that `parse_method` takes, plain ones and those with a bias adaptor.

    >>> method_names()[:3]
    ['er', 'er-cba', 'er-dual-cba']
    """
    _load_entry_points()
    names = []
    for base, method in METHODS.items():
        names.append(base)
        names += [f"{base}-{suffix}" for suffix in SUFFIXES if method.adaptable]
    return names


def parse_method(name: str) -> tuple[type[Method], str | None]:
    """Split a name into the base method and the kind of adaptor, if any.

    >>> parse_method("er-dual-cba")
    (<class 'dualcba.methods.er.ER'>, 'dual-cba')
    """
    if name not in method_names():
        for suffix in SUFFIXES:
            base = name.removesuffix(f"-{suffix}")
            if base != name and base in METHODS:
                raise ValueError(
                    f"the method {name!r} makes no sense: the classifier of {base!r} has no logits "
                    f"that a bias adaptor could correct, expected {base!r}"
                )
        raise ValueError(unknown("method", name, method_names()))
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        base = name.removesuffix(f"-{suffix}")
        if base != name and base in METHODS:
            return METHODS[base], suffix
    return METHODS[name], None


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Raise unless the method of that name takes these options.

    >>> check_options("er", {"alpha": 0.5})
    Traceback (most recent call last):
    ...
    ValueError: the method 'er' has no option 'alpha', expected none
    """
    base, _ = parse_method(name)
    signature = inspect.signature(base.__init__)
    known = [p for p in signature.parameters if p not in _NOT_OPTIONS]
    for option, value in options.items():
        if option not in known:
            wanted = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"the method {name!r} has no option {option!r}, expected {wanted}")
        _check_value(f"option {option!r} of {name!r}", value, signature.parameters[option].default)
    base(**options)  # what it has to say about their values, it says now


_NOT_OPTIONS = ("self", "args", "kwargs")

ENTRY_POINTS = "dualcba.methods"
"""The group in which installed packages offer methods: name = "package.module:Class"."""

_M = TypeVar("_M", bound=type[Method])
_entry_points_loaded = False


@overload
def register(name: str) -> Callable[[_M], _M]: ...
@overload
def register(name: str, method_class: _M) -> _M: ...
def register(name: str, method_class: _M | None = None) -> _M | Callable[[_M], _M]:
    """Make a method known by name, with both suffixes; also as `@register("my-method")`.

    A class of the same module and name takes the old one's place, as when a cell is run again.

    >>> register("er", type("Other", (Method,), {}))
    Traceback (most recent call last):
    ...
    ValueError: a method 'er' is there already: dualcba.methods.er.ER
    """
    if method_class is None:
        return lambda method: register(name, method)
    _check_registration(name, method_class)
    present = METHODS.get(name)
    if present is not None and _origin(present) != _origin(method_class):
        raise ValueError(f"a method {name!r} is there already: {_origin(present)}")
    METHODS[name] = method_class
    return method_class


def _check_registration(name: str, method: object) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(expected("name of the method", name, "letters, digits and dashes"))
    if name.endswith(tuple(f"-{suffix}" for suffix in SUFFIXES)):
        wanted = "one without the suffix of an adaptor: those come by themselves"
        raise ValueError(expected("name of the method", name, wanted))
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ValueError(expected(f"the method {name!r}", method, "a subclass of Method"))


def _origin(method: type) -> str:
    return f"{method.__module__}.{method.__qualname__}"


def _load_entry_points() -> None:
    """Register what installed packages offer, once; one that does not load is warned of."""
    global _entry_points_loaded
    if _entry_points_loaded:
        return
    _entry_points_loaded = True  # before loading: what is imported may ask for the names
    try:
        for point in entry_points(group=ENTRY_POINTS):
            try:
                method = point.load()
                _check_registration(point.name, method)
            except Exception as error:  # whatever a foreign module does
                reason = (str(error).splitlines() or [""])[0]
                warnings.warn(
                    f"the method {point.name!r} of the entry point {point.value!r} is left out: "
                    f"{type(error).__name__}: {reason}",
                    stacklevel=3,
                )
            else:
                register(point.name, method)
    except ValueError:  # a clash is to be seen at every attempt
        _entry_points_loaded = False
        raise


def _check_value(what: str, value: object, default: object) -> None:
    """Where a default is a number, the value must be a finite one of its kind, not below 0."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return
    whole = isinstance(default, int)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fine = number and not (whole and isinstance(value, float))
    if not fine or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise ValueError(expected(what, value, f"a {'whole ' * whole}number of at least 0"))
