"""The methods by name, and how a name is read: `<base>`, `<base>-cba`, `<base>-dual-cba`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from dualcba.errors import unknown
from dualcba.methods.base import Context, Method
from dualcba.methods.clser import CLSER
from dualcba.methods.derpp import DERpp
from dualcba.methods.er import ER
from dualcba.methods.rar import RAR

__all__ = [
    "METHODS",
    "SUFFIXES",
    "Context",
    "Method",
    "check_options",
    "method_names",
    "parse_method",
]

METHODS: dict[str, type[Method]] = {
    "er": ER,
    "derpp": DERpp,
    "clser": CLSER,
    "rar": RAR,
}

SUFFIXES = ("cba", "dual-cba")


def method_names() -> list[str]:
    """Every name that `parse_method` takes, plain ones and those with a bias adaptor.

    >>> method_names()[:3]
    ['er', 'er-cba', 'er-dual-cba']
    """
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
    known = [p for p in inspect.signature(base.__init__).parameters if p not in _NOT_OPTIONS]
    for option in options:
        if option not in known:
            wanted = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"the method {name!r} has no option {option!r}, expected {wanted}")


_NOT_OPTIONS = ("self", "args", "kwargs")
