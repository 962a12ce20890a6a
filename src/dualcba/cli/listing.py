"""The listings of `dualcba list`."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from dualcba.options import NetworkName


def names(what: str) -> dict[str, str]:
    """Return the names and titles of a listing: methods, datasets and so on."""
    return LISTINGS[what]()


def _methods() -> dict[str, str]:
    from dualcba.methods import method_names
    from dualcba.options import RECIPES
    from dualcba.report.names import method_title

    titles = {name: method_title(name) for name in method_names()}
    for name, recipe in RECIPES.items():
        others = ", ".join(f"{k} = {v}" for k, v in recipe.items() if k != "method")
        titles[name] = f"{method_title(recipe['method'])} with {others}"
    return titles


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
