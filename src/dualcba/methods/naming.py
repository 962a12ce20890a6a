"""Method names: `<base>`, and `<base>-<kind>` for each kind of bias adaptor."""

from __future__ import annotations

from dualcba.errors import unknown
from dualcba.methods.base import Method
from dualcba.methods.registry import METHODS, SUFFIXES, load_entry_points


def method_names() -> list[str]:
    """Return all method names, with and without a bias adaptor.

    >>> method_names()[:3]
    ['er', 'er-cba', 'er-dual-cba']
    """
    load_entry_points()
    names = []
    for base, method in METHODS.items():
        names.append(base)
        names += [f"{base}-{suffix}" for suffix in SUFFIXES if method.adaptable]
    return names


def parse_method(name: str) -> tuple[type[Method], str | None]:
    """Return the base method and the kind of adaptor (or None) of a method name.

    >>> parse_method("er-dual-cba")
    (<class 'dualcba.methods.er.ER'>, 'dual-cba')
    """
    names = method_names()
    base, suffix = _split(name)
    if name in names:
        return METHODS[base], suffix
    if suffix is not None:
        raise ValueError(
            f"the method {name!r} does not exist, expected {base!r}: "
            "its classifier has no logits that a bias adaptor could correct"
        )
    raise ValueError(unknown("method", name, names))


def _split(name: str) -> tuple[str, str | None]:
    """Return a registered base name and the suffix, or the name itself and None."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        base = name.removesuffix(f"-{suffix}")
        if base != name and base in METHODS:
            return base, suffix
    return name, None
