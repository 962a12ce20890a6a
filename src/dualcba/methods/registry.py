"""The table of methods, and functions that register further methods.

To add a method to the package, write its file and add a line to `METHODS`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar, get_args, overload

from dualcba.errors import expected
from dualcba.methods.base import Method
from dualcba.methods.bic import BiC
from dualcba.methods.ccl_dc import CCLDC
from dualcba.methods.clser import CLSER
from dualcba.methods.derpp import DERpp
from dualcba.methods.er import ER
from dualcba.methods.er_ace import ERACE
from dualcba.methods.gsa import GSA
from dualcba.methods.icarl import ICaRL
from dualcba.methods.las import LAS
from dualcba.methods.lucir import LUCIR
from dualcba.methods.mkd import MKD
from dualcba.methods.obc import OBC
from dualcba.methods.pcr import PCR
from dualcba.methods.rar import RAR
from dualcba.methods.ss_il import SSIL
from dualcba.methods.wrapper import Wrapper
from dualcba.options import AdaptorKind

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
    "las": LAS,
    "pcr": PCR,
    "gsa": GSA,
    "obc": OBC,
}
"""The methods by name, without the suffix of an adaptor."""

WRAPPERS: dict[str, type[Wrapper]] = {"mkd": MKD, "ccl-dc": CCLDC}
"""Methods that wrap another method, by name, as in `er+mkd`."""

SUFFIXES: tuple[str, ...] = get_args(AdaptorKind)
"""The kinds of adaptors, as suffixes of a method's name."""

ENTRY_POINTS = "dualcba.methods"
"""The entry point group of methods in installed packages: name = "package.module:Class"."""

_M = TypeVar("_M", bound=type[Method])
_entry_points_loaded = False


@overload
def register(name: str) -> Callable[[_M], _M]: ...
@overload
def register(name: str, method_class: _M) -> _M: ...
def register(name: str, method_class: _M | None = None) -> _M | Callable[[_M], _M]:
    """Register a method by name; also usable as a decorator, `@register("my-method")`.

    A class with the module and name of the registered one replaces it, so a notebook cell can be
    run again.

    >>> register("er", type("Other", (Method,), {}))
    Traceback (most recent call last):
    ...
    ValueError: the method name 'er' is taken by dualcba.methods.er.ER, expected another name
    """
    if method_class is None:
        return lambda method: register(name, method)
    _check_registration(name, method_class)
    present = METHODS.get(name)
    if present is not None and _origin(present) != _origin(method_class):
        taken = f"the method name {name!r} is taken by {_origin(present)}"
        raise ValueError(f"{taken}, expected another name")
    METHODS[name] = method_class
    return method_class


def _check_registration(name: str, method: object) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        wanted = "letters, digits, dots, underscores and dashes"
        raise ValueError(expected("name of the method", name, wanted))
    if name.endswith(tuple(f"-{suffix}" for suffix in SUFFIXES)):
        wanted = "a name without the suffix of an adaptor, which is added automatically"
        raise ValueError(expected("name of the method", name, wanted))
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ValueError(expected(f"the method {name!r}", method, "a subclass of Method"))


def _origin(method: type) -> str:
    return f"{method.__module__}.{method.__qualname__}"


def load_entry_points() -> None:
    """Register the methods of installed packages, once; warn about those that fail to load."""
    global _entry_points_loaded
    if _entry_points_loaded:
        return
    _entry_points_loaded = True  # before loading, because the loaded modules may call this again
    try:
        for point in entry_points(group=ENTRY_POINTS):
            _load(point)
    except ValueError:  # a name is taken: raise again at the next call
        _entry_points_loaded = False
        raise


def _load(point: EntryPoint) -> None:
    try:
        method = point.load()
        _check_registration(point.name, method)
    except Exception as error:  # a foreign module may raise anything
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"the method {point.name!r} of the entry point {point.value!r} is ignored: "
            f"{type(error).__name__}: {reason}",
            stacklevel=4,
        )
    else:
        register(point.name, method)
