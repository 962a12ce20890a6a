"""Settings: how the data arrive.

A name is one setting, such as `blurry-10`, or several joined by `+`: at most one arrangement of the
stream, then `longtail-R`, then `semi-R`, such as `gaussian+longtail-0.1+semi-0.2`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from dualcba.errors import expected, unknown

SETTINGS = {
    "online": "disjoint tasks, one pass",
    "blurry-10": "10 % of each task arrive in the other tasks",
    "blurry-30": "30 % of each task arrive in the other tasks",
    "i-blurry-50-10": "50 % of the classes are in one task only; 10 % of the other samples move",
    "gaussian": "samples of each class arrive around their own peak in time",
    "longtail-0.01": "class sizes fall exponentially; the smallest is 1 % of the largest",
    "semi-0.2": "20 % of the samples have labels; FixMatch trains on the others",
    "semi-0.1": "10 % of the samples have labels; FixMatch trains on the others",
    "offline": "50 passes over each task",
}
"""Common settings; other numbers are possible: `blurry-K`, `i-blurry-N-M`, `gaussian-W`,
`longtail-R`, `semi-R`."""

OFFLINE_EPOCHS = 50
LR_DROPS = (0.7, 0.9)
"""Shares of a task's epochs after which the learning rate is divided by 10: 35 and 45 of 50."""

GAUSSIAN_WIDTH = 0.5
"""The default width of `gaussian`, in tasks."""


@dataclass(frozen=True)
class Setting:
    """A setting's kind and its numbers.

    >>> parse_setting("blurry-10"), parse_setting("semi-0.2")
    (Setting(kind='blurry', value=10.0, second=0.0), Setting(kind='semi', value=0.2, second=0.0))
    """

    kind: str
    value: float = 0.0
    second: float = 0.0


@dataclass(frozen=True)
class Form:
    """The numbers that a kind of setting takes, and its place in a combination."""

    count: int
    """The number of values after the kind."""

    fits: Callable[..., bool]
    """Returns whether the values are accepted."""

    wanted: str
    bare: tuple[float, ...] | None = None
    """The default values; None if values are required."""

    place: int = 0
    """The place in a combination."""


FORMS = {
    "online": Form(0, bool, "online", bare=()),
    "offline": Form(0, bool, "offline", bare=()),
    "blurry": Form(1, lambda k: 0 < k < 100, "blurry-K with K percent between 0 and 100"),
    "i-blurry": Form(
        2,
        lambda n, m: 0 <= n < 100 and 0 < m < 100,
        "i-blurry-N-M with N percent of disjoint classes, from 0 to below 100, and M percent of "
        "moved samples, between 0 and 100",
    ),
    "gaussian": Form(
        1,
        lambda w: 0 < w < math.inf,
        "gaussian-W with a width W above 0, in tasks",
        bare=(GAUSSIAN_WIDTH,),
    ),
    "longtail": Form(
        1,
        lambda r: 0 < r <= 1,
        "longtail-R with a ratio R of the rarest to the commonest class, above 0 and at most 1",
        place=1,
    ),
    "semi": Form(
        1, lambda r: 0 < r <= 1, "semi-R with a label ratio R above 0 and at most 1", place=2
    ),
}
COMBINED = (
    "at most one of offline, blurry-K, i-blurry-N-M and gaussian-W, then longtail-R, then semi-R"
)


def parse_settings(name: str) -> dict[str, Setting]:
    """Parse one or several settings joined by `+`; return them by kind.

    >>> list(parse_settings("gaussian+semi-0.2"))
    ['gaussian', 'semi']
    """
    found = [parse_setting(part) for part in re.split(r"\+(?=[a-z])", str(name))]
    places = [FORMS[setting.kind].place for setting in found]
    plain = len(found) > 1 and found[0].kind == "online"  # `online` adds nothing to a combination
    if plain or places != sorted(set(places)):
        raise ValueError(expected("setting", name, COMBINED))
    return {setting.kind: setting for setting in found}


def parse_setting(name: str) -> Setting:
    """Parse the name of one setting."""
    kind, dash, text = _split(str(name))
    form = FORMS.get(kind)
    bare = form is not None and not dash and form.bare is not None
    if form is None or not (bare or (text and form.count)):
        raise ValueError(unknown("setting", name, SETTINGS))
    numbers = form.bare if bare else _numbers(text, form.count)
    if numbers is None or (form.count and not form.fits(*numbers)):
        raise ValueError(expected("setting", name, form.wanted))
    return Setting(kind, *numbers)


def _split(name: str) -> tuple[str, str, str]:
    """Return the kind, a dash if one follows, and the text after it."""
    kind = next((k for k in FORMS if name == k or name.startswith(f"{k}-")), name)
    return kind, name[len(kind) : len(kind) + 1], name[len(kind) + 1 :]


def _numbers(text: str, count: int) -> tuple[float, ...] | None:
    """Parse `count` numbers separated by dashes; return None if they are not valid."""
    try:
        found = tuple(map(float, text.split("-") if count > 1 else [text]))
    except ValueError:
        return None
    return found if len(found) == count else None


def learning_rate(lr: float, epoch: int, epochs: int, *, drops: bool) -> float:
    """Return the learning rate of an epoch: divided by 10 after each of `LR_DROPS`, or constant.

    >>> [round(learning_rate(0.03, e, 50, drops=True), 5) for e in (0, 34, 35, 45)]
    [0.03, 0.03, 0.003, 0.0003]
    """
    passed = sum(epoch >= share * epochs for share in LR_DROPS) if drops else 0
    return float(lr * 0.1**passed)
