"""The methods by name, and how a name is read: `<base>`, `<base>-cba`, `<base>-dual-cba`."""

from __future__ import annotations

from dualcba.errors import unknown
from dualcba.methods.base import Context, Method
from dualcba.methods.er import ER

__all__ = ["METHODS", "SUFFIXES", "Context", "Method", "method_names", "parse_method"]

METHODS: dict[str, type[Method]] = {"er": ER}

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
        raise ValueError(unknown("method", name, method_names()))
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        base = name.removesuffix(f"-{suffix}")
        if base != name and base in METHODS:
            return METHODS[base], suffix
    return METHODS[name], None
