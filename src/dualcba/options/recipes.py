"""Recipes: a name, given as the method, that stands for a method with options."""

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
"""`best` had the highest accuracy under IBN in a search on validation data (docs/frontier.md).

A run has no option `ibn`, since it is scored both with and without IBN.
"""

WITHOUT_COLOUR = {"augmentation": "partial", "test_flip": False}
"""Replaces values of a recipe that only apply to colour images, for other samples."""


def recipe_method(name: str) -> str:
    """Return the method of a recipe; any other name is returned unchanged.

    >>> recipe_method("best"), recipe_method("er")
    ('er+mkd', 'er')
    """
    return str(RECIPES.get(name, {}).get("method", name))


def recipe_of(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the options of the recipe that a run follows, or None.

    >>> fields = {name: value for name, value in RECIPES["best"].items() if name != "ibn"}
    >>> recipe_of(fields)[0], recipe_of({**fields, "readout": "head"}), recipe_of({"method": "er"})
    ('best', None, None)
    """
    for name, recipe in RECIPES.items():
        for options in (recipe, recipe | WITHOUT_COLOUR):
            own = {field: value for field, value in options.items() if field != "ibn"}
            if all(_matches(fields.get(field), value) for field, value in own.items()):
                return name, own
    return None


def _matches(given: object, value: object) -> bool:
    """Whether the values are equal; a mapping that is given may have further items."""
    if isinstance(given, Mapping) and isinstance(value, Mapping):
        return value.items() <= given.items()
    return given == value


def with_recipe(given: Mapping[str, Any], *, colour: bool) -> dict[str, Any]:
    """Add the options of the recipe that `method` names, if any; given options take precedence.

    `colour` says whether the samples are colour images. Raises if another protocol is given.

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
        wanted = f"{recipe['protocol']!r}, the protocol of the recipe {method!r}"
        raise ValueError(expected("protocol", protocol, wanted))
    found = {**recipe, **given, "method": recipe["method"]}
    if isinstance(found["method_options"], Mapping):
        found["method_options"] = {**recipe["method_options"], **found["method_options"]}
    return found


def follow_recipe(options: TrainingOptions, *, colour: bool) -> None:
    """If the method is a recipe, set the fields that are None to its values, and the method."""
    fields = vars(options)
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in with_recipe(given, colour=colour).items():
        if name in fields:
            object.__setattr__(options, name, value)
