"""Settings: how the data arrive. `online`, `blurry-K`, `semi-R` and `offline`."""

from __future__ import annotations

from dataclasses import dataclass

from dualcba.errors import expected, unknown

SETTINGS = ("online", "blurry-10", "blurry-30", "semi-0.2", "semi-0.1", "offline")
"""The paper's; `blurry-K` takes any percentage, `semi-R` any label ratio."""

OFFLINE_EPOCHS = 50
OFFLINE_DROPS = (0.7, 0.9)
"""The learning rate falls to a tenth after these shares of a task's epochs: at 35 and 45 of 50."""


@dataclass(frozen=True)
class Setting:
    """A setting's kind and number.

    >>> parse_setting("blurry-10"), parse_setting("semi-0.2")
    (Setting(kind='blurry', value=10.0), Setting(kind='semi', value=0.2))
    """

    kind: str
    value: float = 0.0


def parse_setting(name: str) -> Setting:
    """Read a setting's name."""
    kind, _, number = str(name).partition("-")
    if kind in ("online", "offline") and not number:
        return Setting(kind)
    limits = {"blurry": 100.0, "semi": 1.0}
    if kind not in limits or not number:
        raise ValueError(unknown("setting", name, SETTINGS))
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 < value <= limits[kind] or (kind == "blurry" and value == 100):
        wanted = {
            "blurry": "blurry-K with K percent between 0 and 100",
            "semi": "semi-R with a label ratio R above 0 and at most 1",
        }
        raise ValueError(expected("setting", name, wanted[kind]))
    return Setting(kind, value)


def learning_rate(lr: float, setting: Setting, epoch: int, epochs: int) -> float:
    """The rate in an epoch of a task: constant but for `offline`.

    >>> [round(learning_rate(0.03, Setting("offline"), e, 50), 5) for e in (0, 34, 35, 45)]
    [0.03, 0.03, 0.003, 0.0003]
    """
    if setting.kind != "offline":
        return lr
    drops = sum(epoch >= share * epochs for share in OFFLINE_DROPS)
    return float(lr * 0.1**drops)
