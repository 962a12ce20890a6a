"""The spec of a run: one typed object for the Python API, TOML files and the command line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.data import DATASETS
from dualcba.errors import at_least, expected, unknown
from dualcba.experiments.settings import OFFLINE_EPOCHS, parse_settings
from dualcba.io import user_path
from dualcba.methods import METHODS, Method, check_options, option_names, parse_method
from dualcba.methods.files import check_imported, imported_for
from dualcba.options import (
    DATASET_DEFAULTS,
    RunOptions,
    check_together,
    definitions,
    fill,
    follow_recipe,
    head_defaults,
    kind_defaults,
    protocol_defaults,
    recipe_method,
)
from dualcba.parsing import parse_toml

DIGITS = 10
"""Digits of the digest in a run's name; 10,000 runs collide with probability 0.00005."""

DIGITS_BEFORE = 6

SEMI = {
    "labelled_batches": "mixed",
    "unlabelled_samples": "rest",
    "store_again": False,
    "pseudo_labels": "adapted",
}
"""Options of semi-supervised settings, with their defaults."""

UNUSED_WITH: dict[str, tuple[str, ...]] = {
    "mixed": ("store_again",),
    "cycled": (),
    "alone": ("unlabelled_samples", "pseudo_labels"),
}
"""Options of `SEMI` without effect for each value of `labelled_batches`."""

GREY = ("digits", "mnist", "fashion-mnist")
"""Known datasets without colour images."""

OFFLINE_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("cifar100", base): {"adaptor_lr": 0.0001} for base in ("derpp", "clser", "rar")
}
"""Defaults of the setting `offline`, by dataset and base method."""


@dataclass(frozen=True, kw_only=True)
class Spec(RunOptions):
    """The options of one run, with defaults that depend on dataset, protocol and adaptor.

    The method may be the name of a recipe: a method with options.


    >>> Spec(method="best", dataset="cifar100").method
    'er+mkd'
    >>> Spec(dataset="cifar100").buffer
    2000
    >>> Spec(buffer=0)
    Traceback (most recent call last):
    ...
    ValueError: buffer is 0, expected a whole number of at least 1
    """

    imports: dict[str, str] = dataclasses.field(default_factory=dict)
    """The user's file that registered the method, with its SHA-256; empty for other methods.

    It is derived from the method. A given file must have been imported (`import_methods`).
    """

    def __post_init__(self) -> None:
        check_imported(self.imports)
        follow_recipe(self, colour=self.dataset not in (None, *GREY))  # None means digits
        epochs_given = self.epochs is not None
        for name in ("method", "dataset", "setting"):  # defaults of others depend on these
            own = definitions(Spec)[name]
            value = getattr(self, name)
            object.__setattr__(self, name, own.default if value is None else own.check(value))
        fill(self, self._defaults(), self.adaptor)
        _check_dataset(self)
        _check_setting(self)
        _check_boundaries(self)
        _check_epochs(self, epochs_given)
        check_options(self.method, self.method_options)
        method = parse_method(self.method)[0](**self.method_options)
        _check_real_time(self, method)
        _check_alignment(self, method)
        check_together(
            self, self.adaptor, method=self.method, own_head=method.own_head,
            stores_in_steps=method.stores_in_steps,
        )  # fmt: skip
        object.__setattr__(self, "imports", imported_for(parse_method(self.method)[0]))

    def _defaults(self) -> dict[str, Any]:
        offline = "offline" in parse_settings(self.setting)
        base = self.method.removesuffix(f"-{self.adaptor}")
        return {
            **DATASET_DEFAULTS.get(self.dataset, {}),
            **(OFFLINE_DEFAULTS.get((self.dataset, base), {}) if offline else {}),
            **protocol_defaults(self),
            **kind_defaults(self.adaptor, self),
            **head_defaults(self),
            "epochs": OFFLINE_EPOCHS if offline else 1,
            "lr_drops": offline,
        }

    @property
    def adaptor(self) -> str | None:
        """The kind of bias adaptor that the method's name ends with, if any."""
        return parse_method(self.method)[1]

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return self.tasks if isinstance(self.tasks, int) else len(self.tasks)

    @property
    def name(self) -> str:
        """The name of the run's folder; values that are not defaults add a digest.

        >>> Spec(method="er").name, Spec(method="er", lr=0.1).name
        ('digits-online-er-b100-s0', 'digits-online-er-b100-s0-...')
        """
        shown = {f: getattr(self, f) for f in _SHOWN}
        named = self.dataset in DATASETS and not self.imports  # two paths may have the same stem
        if named and self == Spec(**shown):
            return _plain_name(shown)
        return digest_name(self.to_dict())

    @property
    def name_before(self) -> str:
        """The name of the run's folder in earlier versions, with fewer digits."""
        name, sign, digits = self.name.rpartition("-")
        digest = len(digits) == DIGITS and set(digits) <= set("0123456789abcdef")
        return f"{name}{sign}{digits[:DIGITS_BEFORE]}" if digest else self.name

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values; `imports` only if it is not empty."""
        fields = dataclasses.asdict(self)
        return fields if self.imports else {k: v for k, v in fields.items() if k != "imports"}


def content_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec with imported files replaced by their digests.

    >>> content_of({"buffer": 50, "imports": {"/home/me/mine.py": "c0ffee"}})
    {'buffer': 50, 'imports': ['c0ffee']}
    """
    files = {"imports": sorted(fields["imports"].values())} if fields.get("imports") else {}
    return {**fields, **files}


_SHOWN = ("dataset", "setting", "method", "buffer", "seed")


def _plain_name(fields: Mapping[str, Any]) -> str:
    _, *others = (fields.get(name) for name in _SHOWN)
    return f"{Path(str(fields.get('dataset'))).stem}-" + "{}-{}-b{}-s{}".format(*others)


def digest_name(fields: Mapping[str, Any]) -> str:
    """Return the name of a run with a digest of its fields, without constructing the spec.

    A field that was added in a later version is left out at its default, so that names of earlier
    runs do not change.
    """
    named = content_of(fields) | {"seed": None}
    if named.get("lr_drops") == ("offline" in str(fields.get("setting")).split("+")):
        del named["lr_drops"]
    content = json.dumps(named, sort_keys=True)
    return f"{_plain_name(fields)}-{hashlib.sha256(content.encode()).hexdigest()[:DIGITS]}"


# ---------------------------------------------------------------------- fields that must fit


def dataset_is_there(name: str) -> bool:
    """Return whether a dataset is a known name or an existing path."""
    return name in DATASETS or (name != "" and user_path(name).exists())


def _check_dataset(spec: Spec) -> None:
    if not dataset_is_there(spec.dataset):
        raise ValueError(f"{unknown('dataset', spec.dataset, DATASETS)}, or a path that exists")


def _check_setting(spec: Spec) -> None:
    kinds = parse_settings(spec.setting)
    semi = "semi" in kinds
    if semi and not parse_method(spec.method)[0].semi_supervised:
        fitting = ", ".join(name for name, method in METHODS.items() if method.semi_supervised)
        raise ValueError(
            f"the setting {spec.setting!r} does not fit the method {spec.method!r}, expected a "
            f"method that FixMatch can wrap: {fitting}"
        )
    if "gaussian" in kinds and spec.method_options.get("merge"):
        raise ValueError(
            f"the setting {spec.setting!r} does not fit the method {spec.method!r} with merge, "
            "expected no merge: it shuffles the samples of a task, and this setting orders them"
        )
    _check_semi(spec, semi)


def _check_semi(spec: Spec, semi: bool) -> None:
    """Raise a ValueError if an option of semi-supervised settings has no effect."""
    unused, when = tuple(SEMI), "unless the setting is semi-supervised"
    if semi:
        unused = UNUSED_WITH[spec.labelled_batches]
        when = f"if labelled batches are {spec.labelled_batches}"
    for name in unused:
        value, usual = getattr(spec, name), SEMI[name]
        if value not in (usual, None):
            raise ValueError(expected(name, value, f"{usual!r} {when}"))


def _check_boundaries(spec: Spec) -> None:
    if parse_method(spec.method)[0].needs_boundaries and spec.boundaries != "given":
        wanted = f"'given': {spec.method} needs task boundaries"
        raise ValueError(expected("boundaries", spec.boundaries, wanted))


def _check_epochs(spec: Spec, given: bool) -> None:
    if spec.epochs != 1 and parse_method(spec.method)[0].single_pass:
        field, wanted = ("epochs", "1") if given else ("setting", "another")
        wanted += f": {spec.method} only works in a single pass"
        raise ValueError(expected(field, getattr(spec, field), wanted))
    if spec.lr_drops and spec.epochs == 1:
        wanted = "false: the learning rate drops between epochs, and there is only one"
        raise ValueError(expected("lr_drops", spec.lr_drops, wanted))


def _check_real_time(spec: Spec, method: Method) -> None:
    if not spec.real_time:
        if spec.relative_cost is not None:
            wanted = "no value unless real_time is on"
            raise ValueError(expected("relative_cost", spec.relative_cost, wanted))
        return
    if spec.epochs != 1:
        wanted = "1 in real time, where each batch arrives once"
        raise ValueError(expected("epochs", spec.epochs, wanted))
    if method.rereads_task:
        raise ValueError(
            f"real_time does not fit the method {spec.method!r}, expected a method that does not "
            "read a task's samples again at its end"
        )
    if "alignment" in spec.record:
        raise ValueError(expected("record", spec.record, "no 'alignment' in real time"))


def _check_alignment(spec: Spec, method: Method) -> None:
    """Raise a ValueError if alignment would be measured on other draws than those of a step."""
    if "alignment" not in spec.record:
        return
    if method.chosen:
        wanted = f"no 'alignment': {spec.method} chooses its memory draws by labels"
        raise ValueError(expected("record", spec.record, wanted))
    if spec.outer_draw == "balanced":
        wanted = "no 'alignment' with outer_draw = 'balanced': it is defined for uniform draws"
        raise ValueError(expected("record", spec.record, wanted))


# ---------------------------------------------------------------------- several specs at once


def fields() -> list[str]:
    """Return the names of a spec's fields."""
    return list(definitions(Spec))


def upgrade_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec under their current names; two were renamed.

    >>> upgrade_fields({"adaptor": "trained", "options": {"alpha": 0.5}})
    {'agnostic_from': None, 'method_options': {'alpha': 0.5}}
    """
    renamed = {"adaptor": "agnostic_from", "options": "method_options"}
    out = {renamed.get(name, name): value for name, value in spec.items()}
    if out.get("agnostic_from") == "trained":
        out["agnostic_from"] = None
    return out


def make_specs(options: Mapping[str, Any], among: Iterable[str] = ()) -> list[Spec]:
    """Return one spec per method and seed; `method` may be a list, `seeds` is the number of seeds.

    An option that a method lacks is left out if another method has it, or a method in `among`.


    >>> [s.name for s in make_specs({"method": ["er", "er-cba"], "buffer": 50})]
    ['digits-online-er-b50-s0', 'digits-online-er-cba-b50-s0']
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in ("seeds", *fields()):
            raise ValueError(unknown("field", name, ["seeds", *fields()]))
    seeds, first = given.pop("seeds", 1), given.pop("seed", 0)
    at_least(1, seeds=seeds)
    at_least(0, seed=first)
    methods = method_list(given.pop("method", ["er-dual-cba"]))
    every = list(dict.fromkeys([*methods, *among]))
    fitting = {m: _fitting(given, m, every) for m in methods}
    specs = [Spec(**fitting[m], method=m, seed=first + k) for m in methods for k in range(seeds)]
    for spec in specs:
        if spec.freeze_after is not None and spec.freeze_after >= spec.num_tasks:
            wanted = f"less than the number of tasks, {spec.num_tasks}"
            raise ValueError(expected("freeze_after", spec.freeze_after, wanted))
    return specs


def method_list(given: Any) -> list[str]:
    """Return unique names of methods, from a list or a comma-separated text."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not names:
        raise ValueError(expected("method", given, "a name or a list of names"))
    for name in names:
        if not isinstance(name, str):
            raise ValueError(expected("method", name, "a name"))
    return list(dict.fromkeys(name.strip() for name in names))


def _fitting(given: Mapping[str, Any], method: str, methods: list[str]) -> dict[str, Any]:
    """Leave out options of adaptors and methods that only other methods have."""
    kinds = {parse_method(recipe_method(m))[1] for m in methods}
    own = parse_method(recipe_method(method))[1]

    def fits(name: str) -> bool:
        adaptors = definitions(Spec)[name].adaptors
        return not adaptors or own in adaptors or not kinds.intersection(adaptors)

    found = {name: value for name, value in given.items() if fits(name)}
    options = found.get("method_options")
    if len(methods) > 1 and isinstance(options, Mapping):
        has = {m: set(option_names(recipe_method(m))) for m in methods}
        others = set().union(*has.values()) - has[method]
        found["method_options"] = {k: v for k, v in options.items() if k not in others}
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing, expected a TOML file") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, expected a TOML file") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
