"""Recipes: names that can be given as a method and stand for a method with options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dualcba.errors import expected
from dualcba.options import RunOptions

RECIPES: dict[str, dict[str, Any]] = {
    "best": {
        "method": "er+mkd",
        "protocol": "p10",
        "method_options": {"share": 0.5},
        "readout": "debiased",
        "ibn_augment": False,
        "test_flip": True,
    }
}
"""`best` is the combination with the highest accuracy that a search on validation data has found,
under IBN (docs/frontier.md)."""


def recipe_method(name: str) -> str:
    """Return the method that a name stands for: that of a recipe, or the name itself.

    >>> recipe_method("best"), recipe_method("er")
    ('er+mkd', 'er')
    """
    return str(RECIPES.get(name, {}).get("method", name))


def follow_recipe(options: RunOptions) -> None:
    """Set the fields of a recipe if the method is its name; fields that are given stay.

    Raises if another protocol is given.
    """
    name = options.method
    recipe = RECIPES.get(name, {}) if isinstance(name, str) else {}
    for field, value in recipe.items():
        given = getattr(options, field)
        if field == "protocol" and given not in (None, value):
            raise ValueError(expected(field, given, f"{value!r}, which the recipe {name!r} has"))
        if field == "method_options" and isinstance(given, Mapping):
            object.__setattr__(options, field, {**value, **given})
        elif field == "method" or given is None:
            object.__setattr__(options, field, value)
