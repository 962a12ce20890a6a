"""One typed object says what a run is: the Python API, a TOML file and the command line alike."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualcba.adaptors.outer_step import LEVELS
from dualcba.data import DATASETS
from dualcba.errors import at_least, expected, unknown
from dualcba.evaluation import ANYTIME, RECORDERS
from dualcba.experiments.settings import OFFLINE_EPOCHS, parse_setting
from dualcba.methods import METHODS, check_options, parse_method
from dualcba.nets import NETWORKS
from dualcba.normalization.layers import NORMALIZATIONS

DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"buffer": 100, "tasks": 5, "batch_size": 10, "network": "mlp", "adaptor_lr": 0.01},
    "cifar10": {"buffer": 200, "tasks": 5, "network": "resnet18", "adaptor_lr": 0.001},
    "cifar100": {"buffer": 2000, "tasks": 10, "network": "resnet18", "adaptor_lr": 0.01},
    "tiny-imagenet": {"buffer": 2000, "tasks": 10, "network": "resnet18", "adaptor_lr": 0.01},
    "mnist": {"buffer": 200, "tasks": 5, "batch_size": 32, "network": "mlp"},
    "fashion-mnist": {"buffer": 200, "tasks": 5, "batch_size": 32, "network": "mlp"},
}
OWN: dict[str, Any] = {"buffer": 200, "tasks": 5, "batch_size": 32, "network": "resnet18-slim"}

"""What a dataset, or one of the user's own, brings where a field is not given."""

OFFLINE: dict[tuple[str, str], dict[str, Any]] = {
    ("cifar100", base): {"adaptor_lr": 0.0001} for base in ("derpp", "clser", "rar")
}
"""What the setting `offline` brings instead, by dataset and base method."""

ADAPTOR_DEFAULTS: dict[str, Any] = {
    "adaptor_lr": 0.01, "outer_every": 5, "space": "logit", "width": 256,
    "levels": "bi", "specific": "single", "agnostic": True, "divide": False,
    "agnostic_from": None, "freeze_after": None,
}  # fmt: skip

ADAPTOR_OPTIONS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "cba": ("adaptor_lr", "outer_every", "levels", "space", "width"),
    "dual-cba": tuple(ADAPTOR_DEFAULTS),
}


WORDS = (
    "method", "dataset", "setting", "network", "levels", "agnostic_from", "specific", "space",
    "norm", "forward", "ibn_average", "boundaries", "labelled_batches", "anytime",
)  # fmt: skip


def _option(text: str, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One run. Fields that are not given take the dataset's or the protocol's value.

    >>> Spec(dataset="cifar100").buffer
    2000
    >>> Spec(buffer=0)
    Traceback (most recent call last):
    ...
    ValueError: buffer is 0, expected a whole number of at least 1
    """

    method: str = _option("what learns: see `dualcba list methods`", "er-dual-cba")
    dataset: str = _option("what is learnt: see `dualcba list datasets`", "digits")
    setting: str = _option("how it arrives: see `dualcba list settings`", "online")
    buffer: int = _option("samples in the memory")
    seed: int = _option("of every random choice", 0)
    tasks: Any = _option("number of equal tasks, their sizes, or their classes")
    class_order: Any = _option("natural, shuffled (by the seed) or a list of classes", "natural")
    epochs: int = _option("passes over each task")
    network: str = _option("resnet18, resnet18-slim or mlp")
    batch_size: int = _option("samples per step, and per memory draw")
    lr: float = _option("learning rate of the network (SGD)", 0.03)
    adaptor_lr: float = _option("learning rate of the adaptor (Adam)")
    outer_every: int = _option("the adaptor learns every so many steps")
    levels: str | None = _option("what the adaptor learns by: bi, or in one level joint or buffer")
    specific: str | None = _option("class-specific part of Dual-CBA: single, individual or none")
    agnostic: bool | None = _option("class-agnostic part of Dual-CBA")
    divide: bool | None = _option("divide class-agnostic corrections by the number of classes")
    space: str | None = _option("what the adaptor corrects: logit or probability")
    width: int | None = _option("hidden units of the adaptor")
    agnostic_from: str | None = _option("class-agnostic part: pretrained or a file, frozen")
    freeze_after: int | None = _option("the class-agnostic part learns in so many first tasks only")
    norm: str = _option("normalisation in training: bn, cn or adab2n", "bn")
    forward: str = _option("split: new and memory batches apart; concat: together", "split")
    ibn_augment: bool = _option("augment the memory in the IBN pass", True)
    ibn_average: str = _option("IBN's average over batches: cumulative or ema", "cumulative")
    seen_only: bool = _option("answer only with classes that have been seen", False)
    boundaries: str = _option("of tasks: given, or inferred from the labels alone", "given")
    labelled_batches: str = _option(
        "semi-supervised: mixed as they come, or cycled, one beside each unlabelled batch", "mixed"
    )
    anytime: str = _option("what is scored between task ends: both, bn or ibn", "both")
    eval_every: int = _option("score every so many steps; 0 for task ends only", 5)
    method_options: dict[str, Any] = dataclasses.field(
        default_factory=dict, metadata={"help": "options of the method itself"}
    )
    record: list[str] = dataclasses.field(
        default_factory=list,
        metadata={"help": f"what to record beside scores: {', '.join(RECORDERS)}"},
    )

    def __post_init__(self) -> None:
        for field in WORDS:
            value = getattr(self, field)
            if value is not None and not isinstance(value, str):
                raise ValueError(expected(field, value, "a name"))
        _, kind = parse_method(self.method)
        foreign = set(ADAPTOR_DEFAULTS).difference(ADAPTOR_OPTIONS[kind])
        for field in sorted(foreign):
            if getattr(self, field) is not None:
                why = "which has no adaptor" if kind is None else "whose adaptor has no such option"
                value = getattr(self, field)
                raise ValueError(f"{field} is {value!r} for the method {self.method!r}, {why}")
        if self.loads_adaptor and self.specific is None:
            object.__setattr__(self, "specific", "none")
        setting = parse_setting(self.setting)
        defaults = ADAPTOR_DEFAULTS | OWN | DEFAULTS.get(self.dataset, {})
        if setting.kind == "offline":
            defaults |= OFFLINE.get((self.dataset, self.method.removesuffix(f"-{kind}")), {})
        for field, value in defaults.items():
            if getattr(self, field) is None and field not in foreign:
                object.__setattr__(self, field, value)
        said = "setting" if self.epochs is None else "epochs"  # what the number of passes is from
        if self.epochs is None:
            object.__setattr__(self, "epochs", OFFLINE_EPOCHS if setting.kind == "offline" else 1)
        if setting.kind == "semi" and not parse_method(self.method)[0].semi_supervised:
            fit = [name for name, m in METHODS.items() if m.semi_supervised]
            wanted = f"a method that is a sum over logits of reservoir draws: {', '.join(fit)}"
            raise ValueError(
                f"the setting {self.setting!r} does not fit the method {self.method!r}, "
                f"expected {wanted}"
            )
        if self.labelled_batches == "cycled" and setting.kind != "semi":
            wanted = "'mixed' where every sample has its label"
            raise ValueError(expected("labelled_batches", self.labelled_batches, wanted))
        if self.epochs != 1 and parse_method(self.method)[0].single_pass:
            wanted = "another" if said == "setting" else "1"
            wanted += f": {self.method} only makes sense in a single pass"
            raise ValueError(expected(said, getattr(self, said), wanted))
        if not isinstance(self.method_options, dict):
            raise ValueError(expected("method_options", self.method_options, "names and values"))
        self._check_record()
        self._check_dataset()
        self._check_transfer()
        self._check_choices(kind)
        self._check_numbers(kind)
        check_options(self.method, self.method_options)

    def _check_record(self) -> None:
        """A list of names, or one text with commas."""
        record = self.record
        names = record.split(",") if isinstance(record, str) else record
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise ValueError(expected("record", record, f"some of {', '.join(RECORDERS)}"))
        names = [name.strip() for name in names]
        for name in names:
            if name not in RECORDERS:
                raise ValueError(unknown("record", name, RECORDERS))
        object.__setattr__(self, "record", list(dict.fromkeys(names)))

    def _check_choices(self, kind: str | None) -> None:
        choices: dict[str, Collection[str]] = {
            "network": NETWORKS, "norm": NORMALIZATIONS,
            "forward": ("split", "concat"), "ibn_average": ("cumulative", "ema"),
            "boundaries": ("given", "inferred"), "anytime": ANYTIME,
            "labelled_batches": ("mixed", "cycled"),
        }  # fmt: skip
        if kind is not None:
            choices["space"] = ("logit", "probability")
            choices["levels"] = LEVELS
        if kind == "dual-cba":
            choices["specific"] = ("single", "individual", "none")
        for field, known in choices.items():
            if getattr(self, field) not in known:
                raise ValueError(unknown(field, getattr(self, field), known))
        if self.specific == "none" and not self.agnostic:
            raise ValueError("specific is 'none' and agnostic is False, expected at least one part")

    def _check_transfer(self) -> None:
        if self.loads_adaptor and not self.agnostic:
            wanted = "None if agnostic is False"
            raise ValueError(expected("agnostic_from", self.agnostic_from, wanted))
        if self.freeze_after is None:
            return
        at_least(2, freeze_after=self.freeze_after)
        if self.loads_adaptor or not self.agnostic:
            wanted = "none where no class-agnostic part is trained"
            raise ValueError(expected("freeze_after", self.freeze_after, wanted))

    @property
    def loads_adaptor(self) -> bool:
        """Whether the class-agnostic part comes from a file."""
        return self.agnostic_from is not None

    def _check_numbers(self, kind: str | None) -> None:
        least = {"buffer": 1, "seed": 0, "epochs": 1, "batch_size": 1, "eval_every": 0}
        least |= {"outer_every": 1, "width": 1} if kind else {}
        for field, low in least.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(expected(field, value, f"a whole number of at least {low}"))
        if isinstance(self.tasks, bool) or not isinstance(self.tasks, int | list | tuple):
            wanted = "a number of tasks, their sizes or their classes"
            raise ValueError(expected("tasks", self.tasks, wanted))
        words = ("natural", "shuffled")
        if self.class_order not in words and not isinstance(self.class_order, list | tuple):
            wanted = "'natural', 'shuffled' or a list of classes"
            raise ValueError(expected("class_order", self.class_order, wanted))
        for field in ("lr", "adaptor_lr") if kind else ("lr",):
            value = getattr(self, field)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value < math.inf
            ):
                raise ValueError(expected(field, value, "a number above 0"))
        flags = ["ibn_augment", "seen_only"]
        flags += ["agnostic", "divide"] if kind == "dual-cba" else []
        for field in flags:
            if not isinstance(getattr(self, field), bool):
                raise ValueError(expected(field, getattr(self, field), "true or false"))

    def _check_dataset(self) -> None:
        """A name, a folder of images by class, or an `.npz`."""
        if self.dataset not in DATASETS and not Path(self.dataset).expanduser().exists():
            raise ValueError(f"{unknown('dataset', self.dataset, DATASETS)}, or a path that exists")

    @property
    def name(self) -> str:
        """A name for the run's folder; what differs from the defaults stands in it as a digest.

        >>> Spec(method="er").name, Spec(method="er", lr=0.1).name
        ('digits-online-er-b100-s0', 'digits-online-er-b100-s0-...')
        """
        shown = {f: getattr(self, f) for f in ("dataset", "setting", "method", "buffer", "seed")}
        stem = Path(self.dataset).stem
        name = f"{stem}-" + "{setting}-{method}-b{buffer}-s{seed}".format(**shown)
        if self == Spec(**shown) and self.dataset in DATASETS:  # two files may have one stem
            return name
        content = json.dumps(self.to_dict() | {"seed": None}, sort_keys=True)
        return f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return dataclasses.asdict(self)


def fields() -> list[str]:
    """The names of a spec's fields."""
    return [f.name for f in dataclasses.fields(Spec)]


def upgrade_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec under today's names; older files have two other ones.

    >>> upgrade_fields({"adaptor": "trained", "options": {"alpha": 0.5}})
    {'agnostic_from': None, 'method_options': {'alpha': 0.5}}
    """
    renamed = {"adaptor": "agnostic_from", "options": "method_options"}
    out = {renamed.get(name, name): value for name, value in spec.items()}
    if out.get("agnostic_from") == "trained":
        out["agnostic_from"] = None
    return out


def make_specs(options: dict[str, Any]) -> list[Spec]:
    """One spec per method and seed; `method` may be a list, `seeds` is how many.

    >>> [s.name for s in make_specs({"method": ["er", "er-cba"], "buffer": 50})]
    ['digits-online-er-b50-s0', 'digits-online-er-cba-b50-s0']
    """
    options = dict(options)
    seeds = options.pop("seeds", 1)
    methods = options.pop("method", ["er-dual-cba"])
    methods = [methods] if isinstance(methods, str) else methods
    if not isinstance(methods, list) or not methods:
        raise ValueError(expected("method", methods, "a name or a list of names"))
    for name in options:
        if name not in fields():
            raise ValueError(unknown("field", name, ["seeds", *fields()]))
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise ValueError(expected("seeds", seeds, "a whole number of at least 1"))
    first = options.pop("seed", 0)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ValueError(expected("seed", first, "a whole number of at least 0"))
    for method in methods:
        if not isinstance(method, str):
            raise ValueError(expected("method", method, "a name"))
    kinds = {method: parse_method(method)[1] for method in methods}

    def fits(field: str, method: str) -> bool:
        """Beside a method that has the option, one that has not goes without it."""
        if field not in ADAPTOR_DEFAULTS or field in ADAPTOR_OPTIONS[kinds[method]]:
            return True
        return not any(field in ADAPTOR_OPTIONS[kind] for kind in kinds.values())

    specs = [
        Spec(**{f: v for f, v in options.items() if fits(f, m)}, method=m, seed=first + k)
        for m in dict.fromkeys(methods)
        for k in range(seeds)
    ]
    for spec in specs:
        tasks = spec.tasks if isinstance(spec.tasks, int) else len(spec.tasks)
        if spec.freeze_after is not None and spec.freeze_after >= tasks:
            wanted = f"less than the number of tasks, {tasks}"
            raise ValueError(expected("freeze_after", spec.freeze_after, wanted))
    return specs


def read_toml(path: Path) -> dict[str, Any]:
    """The options in a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing, expected a TOML file") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
