"""What `dualcba list` lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from dualcba.options import NetworkName


def names(what: str) -> dict[str, str]:
    """Return the names of one kind of thing, each with its title."""
    return LISTINGS[what]()


def _methods() -> dict[str, str]:
    from dualcba.experiments.recipes import RECIPES
    from dualcba.methods import method_names
    from dualcba.report.names import method_title

    recipes = {
        name: " with ".join([method_title(made["method"]), *_further(made)])
        for name, made in RECIPES.items()
    }
    return {name: method_title(name) for name in method_names()} | recipes


def _further(recipe: Mapping[str, Any]) -> list[str]:
    """Return the options of a recipe beside its method, as one text if there are any."""
    options = [f"{name} = {value}" for name, value in recipe.items() if name != "method"]
    return [", ".join(options)] if options else []


def _datasets() -> dict[str, str]:
    from dualcba.data import DATASETS
    from dualcba.report.results import DATASETS as TITLES

    return {name: TITLES.get(name, name) for name in DATASETS}


def _settings() -> dict[str, str]:
    from dualcba.experiments.settings import SETTINGS

    return dict(SETTINGS)


def _networks() -> dict[str, str]:
    more = {"timm:NAME": "a model of timm", "hf:NAME": "a model or folder of Hugging Face"}
    return dict.fromkeys(get_args(NetworkName), "") | more


def _experiments() -> dict[str, str]:
    from dualcba.experiments import experiments

    return {name: one.title for name, one in experiments().items()}


LISTINGS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _methods,
    "datasets": _datasets,
    "settings": _settings,
    "networks": _networks,
    "experiments": _experiments,
}
