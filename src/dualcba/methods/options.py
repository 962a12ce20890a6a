"""Checks of the options of a method, which are the arguments of its constructor."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping

from dualcba.errors import LARGEST_FLOAT, LARGEST_INT, expected
from dualcba.methods.naming import parse_method


def option_names(name: str) -> list[str]:
    """Return the names of the options of a method.

    >>> option_names("derpp-cba"), option_names("er")
    (['alpha', 'beta'], [])
    """
    parameters = inspect.signature(parse_method(name)[0].__init__).parameters
    return [p for p in parameters if p not in ("self", "args", "kwargs")]


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Raise unless the method accepts these options.

    >>> check_options("er", {"alpha": 0.5})
    Traceback (most recent call last):
    ...
    ValueError: the method 'er' has no option 'alpha', expected none
    """
    base, _ = parse_method(name)
    parameters, known = inspect.signature(base.__init__).parameters, option_names(name)
    for option, value in options.items():
        if option not in known:
            wanted = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"the method {name!r} has no option {option!r}, expected {wanted}")
        _check_value(f"option {option!r} of {name!r}", value, parameters[option].default)
    base(**options)  # the constructor may check the values further


def _check_value(what: str, value: object, default: object) -> None:
    """Raise unless the value is a finite number of at least 0, if the default is a number.

    If the default is a whole number, the value must be one.
    """
    if isinstance(default, bool) or not isinstance(default, int | float):
        return
    whole = isinstance(default, int)
    accepted = int if whole else int | float
    if not isinstance(value, accepted) or isinstance(value, bool):
        raise ValueError(expected(what, value, f"a {'whole ' * whole}number"))
    if not 0 <= value < math.inf:
        raise ValueError(expected(what, value, f"a {'whole ' * whole}number of at least 0"))
    largest = LARGEST_INT if whole else LARGEST_FLOAT
    if value > largest:
        raise ValueError(expected(what, value, f"a {'whole ' * whole}number of at most {largest}"))
