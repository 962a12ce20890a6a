"""Method names: `<base>`, `<base>-<kind>` for each kind of bias adaptor, `<base>+<wrapper>`."""

from __future__ import annotations

from dualcba.errors import expected, unknown
from dualcba.methods.base import Method
from dualcba.methods.registry import METHODS, SUFFIXES, WRAPPERS, load_entry_points
from dualcba.methods.wrapper import around
from dualcba.options import RECIPES, recipe_method


def method_names() -> list[str]:
    """Return all method names, with and without a bias adaptor; wrapped methods only around ER.

    >>> method_names()[:3]
    ['er', 'er-cba', 'er-dual-cba']
    """
    load_entry_points()
    names = []
    for base, method in METHODS.items():
        names += _with_suffixes(base, method)
    for wrapper in WRAPPERS:
        names += _with_suffixes(f"er+{wrapper}", METHODS["er"])
    return names


def _with_suffixes(base: str, method: type[Method]) -> list[str]:
    return [base, *(f"{base}-{suffix}" for suffix in SUFFIXES if method.adaptable)]


def parse_method(name: str) -> tuple[type[Method], str | None]:
    """Return the base method and the kind of adaptor (or None) of a method name.

    >>> parse_method("er-dual-cba")
    (<class 'dualcba.methods.er.ER'>, 'dual-cba')
    >>> parse_method("er-ace+mkd-cba")
    (<class 'dualcba.methods.mkd.ERACEMKD'>, 'cba')
    """
    load_entry_points()
    base, suffix = _split(name)
    method = _find(base)
    if method is None:
        if name in RECIPES:
            wanted = f"a method such as {recipe_method(name)!r}: a recipe is a method with options"
            raise ValueError(expected("method", name, wanted))
        raise ValueError(unknown("method", name, [*method_names(), *RECIPES]))
    if suffix is not None and not method.adaptable:
        raise ValueError(
            f"the method {name!r} does not exist, expected {base!r}: "
            "its classifier has no logits that a bias adaptor could correct"
        )
    return method, suffix


def _split(name: str) -> tuple[str, str | None]:
    """Return a known base name and the suffix, or the name itself and None."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        base = name.removesuffix(f"-{suffix}")
        if base != name and _parts(base)[0] in METHODS:
            return base, suffix
    return name, None


def _parts(name: str) -> tuple[str, str]:
    """Return the names of the base and of the wrapper, which is empty if there is none."""
    base, _, wrapper = name.partition("+")
    return base, wrapper


def _find(name: str) -> type[Method] | None:
    """Return the method of a name without a suffix, or None; raise if it has a wrong wrapper."""
    base, wrapper = _parts(name)
    if base not in METHODS or "+" not in name:
        return METHODS.get(name)
    if "+" in wrapper or not wrapper:
        wanted = f"one wrapper after +: {' or '.join(WRAPPERS)}"
        raise ValueError(expected("method", name, wanted))
    if wrapper not in WRAPPERS:
        raise ValueError(unknown(f"wrapper in the method {name!r}", wrapper, WRAPPERS))
    if not METHODS[base].wrappable():
        fitting = [one for one, method in METHODS.items() if method.wrappable()]
        wanted = f"another base: {wrapper} can wrap {', '.join(fitting)}"
        raise ValueError(expected("method", name, wanted))
    return around(METHODS[base], WRAPPERS[wrapper])
