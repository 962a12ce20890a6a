"""Recipes: names that can be given as a method and stand for a method with options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dualcba.errors import expected

if TYPE_CHECKING:
    from dualcba.options.training import TrainingOptions

RECIPES: dict[str, dict[str, Any]] = {
    "best": {
        "method": "er+mkd",
        "protocol": "p10",
        "method_options": {"share": 0.5},
        "readout": "debiased",
        "ibn": True,
        "ibn_augment": False,
        "test_flip": True,
    }
}
"""`best` is the combination with the highest accuracy that a search on validation data has found,
under IBN (docs/frontier.md). A run has no option `ibn`: it is scored with and without."""

WITHOUT_COLOUR = {"augmentation": "partial", "test_flip": False}
"""What a recipe sets for other samples than colour images, which alone have these options."""


def recipe_method(name: str) -> str:
    """Return the method that a name stands for: that of a recipe, or the name itself.

    >>> recipe_method("best"), recipe_method("er")
    ('er+mkd', 'er')
    """
    return str(RECIPES.get(name, {}).get("method", name))


def recipe_of(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the recipe whose options a run has, and these options, if there is one.

    >>> fields = {name: value for name, value in RECIPES["best"].items() if name != "ibn"}
    >>> recipe_of(fields)[0], recipe_of({**fields, "readout": "head"}), recipe_of({"method": "er"})
    ('best', None, None)
    """
    for name, recipe in RECIPES.items():
        for options in (recipe, recipe | WITHOUT_COLOUR):
            own = {field: value for field, value in options.items() if field != "ibn"}
            if all(_has(fields.get(field), value) for field, value in own.items()):
                return name, own
    return None


def _has(given: object, value: object) -> bool:
    """Whether a value is the one given; of the options of a method there may be others too."""
    if isinstance(given, Mapping) and isinstance(value, Mapping):
        return value.items() <= given.items()
    return given == value


def with_recipe(given: Mapping[str, Any], *, colour: bool) -> dict[str, Any]:
    """Return options with those of the recipe that `method` names, if any; given ones stay.

    `colour` is whether the samples are colour images. Raises if another protocol is given.

    >>> options = with_recipe({"method": "best", "readout": "head"}, colour=False)
    >>> options["method"], options["readout"], options["test_flip"]
    ('er+mkd', 'head', False)
    >>> with_recipe({"method": "er"}, colour=True)
    {'method': 'er'}
    """
    method = given.get("method")
    if not isinstance(method, str) or method not in RECIPES:
        return dict(given)
    recipe = RECIPES[method] | ({} if colour else WITHOUT_COLOUR)
    protocol = given.get("protocol", recipe["protocol"])
    if protocol != recipe["protocol"]:
        wanted = f"{recipe['protocol']!r}, which the recipe {method!r} has"
        raise ValueError(expected("protocol", protocol, wanted))
    found = {**recipe, **given, "method": recipe["method"]}
    if isinstance(found["method_options"], Mapping):
        found["method_options"] = {**recipe["method_options"], **found["method_options"]}
    return found


def follow_recipe(options: TrainingOptions, *, colour: bool) -> None:
    """Set the fields of the recipe that the method names, if any; those that are not None stay."""
    fields = vars(options)
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in with_recipe(given, colour=colour).items():
        if name in fields:
            object.__setattr__(options, name, value)
