"""One-line error messages that name the field, its value and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real

LARGEST_INT = 2**63 - 1
MOST_NAMES, SOME_NAMES = 30, 8  # an error shows up to 30 known names; of more than 30, it shows 8
LONGEST = 1000  # the largest number of characters of a value that an error shows
SMALLEST_FLOAT, LARGEST_FLOAT = 1e-37, 3e38  # what float32 holds with full precision


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with the most similar known name.

    If there are many names, only some are shown: the most similar ones, then the first ones.

    >>> unknown("method", "er-dualcba", ["er", "er-cba", "er-dual-cba"])
    "unknown method 'er-dualcba', did you mean 'er-dual-cba'? (known: er, er-cba, er-dual-cba)"
    >>> unknown("column", "x", ["a, M = 200", "a, M = 500"])
    "unknown column 'x' (known: a, M = 200; a, M = 500)"
    """
    names = list(known)
    between = "; " if any("," in one for one in names) else ", "
    near = nearest(name, names)
    hint = f", did you mean {near!r}?" if near else ""
    if len(names) <= MOST_NAMES:
        return f"unknown {what} {shown(name)}{hint} (known: {between.join(names)})"
    like = difflib.get_close_matches(str(name), names, n=SOME_NAMES, cutoff=0.5)
    some = between.join(list(dict.fromkeys([*like, *names]))[:SOME_NAMES])
    return f"unknown {what} {shown(name)}{hint} ({len(names)} are known, such as {some})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None if none is similar.

    >>> nearest("logits", ["logit", "probability"]), nearest("x", ["logit"])
    ('logit', None)
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)), None)


def expected(field: str, value: object, wanted: str) -> str:
    """Return the message for a value that is not accepted.

    >>> expected("buffer", 0, "a whole number of at least 1")
    'buffer is 0, expected a whole number of at least 1'
    """
    return f"{field} is {shown(value)}, expected {wanted}"


def shown(value: object) -> str:
    """Return the `repr` of a value on one line, without its middle if it is long.

    >>> shown([1, "a"]), len(shown("x" * 10_000))
    ("[1, 'a']", 1003)
    """
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except Exception:  # an object may raise anything, and nested lists a RecursionError
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[-LONGEST // 2 :]}"


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, or its type if it has none.

    >>> reason(ValueError("bad\\nfile")), reason(EOFError())
    ('bad file', 'EOFError')
    """
    return " ".join(str(error).split())[:LONGEST] or type(error).__name__


def install(extra: str) -> str:
    """Return the command that installs an extra, for messages.

    The command also works if the package was installed from a clone or a wheel: pip finds it and
    installs only the dependencies of the extra.

    >>> install("onnx")
    "`pip install 'dualcba[onnx]'`"
    """
    return f"`pip install 'dualcba[{extra}]'`"


def at_least(low: int, **fields: int) -> None:
    """Raise unless each field is a whole number of at least `low`.

    >>> at_least(1, buffer=0)
    Traceback (most recent call last):
    ...
    ValueError: buffer is 0, expected a whole number of at least 1
    """
    for field, value in fields.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or value < low:
            raise ValueError(expected(field, value, f"a whole number of at least {low}"))
        if value > LARGEST_INT:
            raise ValueError(expected(field, value, f"a whole number of at most {LARGEST_INT}"))


def above_zero(**fields: float) -> None:
    """Raise unless each field is a finite number above 0."""
    for field, value in fields.items():
        number = isinstance(value, Real)
        if not number or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(expected(field, value, "a number above 0"))
        if not SMALLEST_FLOAT <= value <= LARGEST_FLOAT:
            wanted = f"a number from {SMALLEST_FLOAT:.0e} to {LARGEST_FLOAT:.0e}, for float32"
            raise ValueError(expected(field, value, wanted))


def at_least_0(name: str, value: float) -> float:
    """Return the number as a float; raise unless it is at least 0 and float32 can represent it.

    >>> at_least_0("weight", -1)
    Traceback (most recent call last):
    ...
    ValueError: weight is -1, expected a number of at least 0
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(expected(name, value, "a number of at least 0"))
    if value > LARGEST_FLOAT:
        raise ValueError(expected(name, value, f"a number of at most {LARGEST_FLOAT:.0e}"))
    return float(value)


def one_of(known: Sequence[object], **fields: object) -> None:
    """Raise unless each field is one of the known values."""
    for field, value in fields.items():
        if value not in known:
            raise ValueError(expected(field, value, " or ".join(map(repr, known))))
