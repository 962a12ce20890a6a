"""The arguments of a learner: the options, and the network and samples that they apply to."""

from __future__ import annotations

import copy
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, get_args, get_origin

import torch
from torch import nn

from dualcba.adaptors.outer_step import OuterLoop
from dualcba.data import Transform
from dualcba.data.augmentation import choose_augmentation, is_colour
from dualcba.data.transforms import Unchanged
from dualcba.errors import at_least, expected, unknown
from dualcba.methods import Method, check_options, parse_method
from dualcba.nets import Network, head_outputs
from dualcba.nets.heads import check_weight
from dualcba.nets.inputs import DTYPES, Inputs, Part, make_inputs
from dualcba.options import (
    DATA,
    DUAL,
    EVALUATION,
    GROUPS,
    HARDWARE,
    MAIN,
    NETWORK,
    AdaptorKind,
    EngineName,
    Hardware,
    IBNRefresh,
    Option,
    PrecisionName,
    RunOptions,
    TrainingOptions,
    check_together,
    definitions,
    fill,
    follow_recipe,
    head_defaults,
    kind_defaults,
    option,
    protocol_defaults,
    same_as,
)
from dualcba.tasks.labels import Labels
from dualcba.training.trunk import HEAD, Trunk, split_network

P = ParamSpec("P")
C = TypeVar("C")


def _method(name: str, value: Any) -> Any:
    if not isinstance(value, str | Method):
        raise ValueError(expected(name, value, "a name or a Method object"))
    return value


def _dtype(name: str, value: Any) -> Any:
    several = isinstance(value, Mapping | tuple | list)
    each = list(value.values() if isinstance(value, Mapping) else value) if several else [value]
    if not each or not all(v in DTYPES for v in each):
        raise ValueError(expected(name, value, " or ".join(map(repr, DTYPES))))
    return value


def _transform(name: str, value: Any) -> Any:
    if not isinstance(value, Transform):
        raise ValueError(expected(name, value, "a Transform"))
    return value


def _device(name: str, value: Any) -> str:
    return str(value)


@dataclass(frozen=True)
class LearnerArguments(TrainingOptions):
    """The checked arguments of `Learner`; `base` is the method and `kind` the kind of adaptor."""

    network: nn.Module
    input_shape: Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
    num_classes: int | None = None
    _: KW_ONLY
    method: str | Method = same_as(
        RunOptions,
        "method",
        in_python="rehearsal method: a name, such as 'er', 'er-dual-cba' or 'best' "
        "(`dualcba list methods` prints all), or a `Method` object",
        accept=_method,
    )
    adaptor: AdaptorKind | None = option(
        None,
        "bias adaptor that corrects the logits in training. Only needed with a `Method` object: "
        "Learner(…, method=MyMethod(), adaptor='dual-cba'); the name of a method includes it, as "
        "in 'er-dual-cba'. None means no adaptor",
        MAIN,
    )
    device: str | torch.device = same_as(Hardware, "device", accept=_device)
    engine: EngineName = same_as(Hardware, "engine")
    precision: PrecisionName = same_as(Hardware, "precision")
    distributed: bool = option(
        False, "whether all ranks of torch's process group train this one learner", HARDWARE
    )
    transform: Transform = option(
        lambda: Transform([0.0], [1.0]),
        "augmentation and normalisation of samples, such as Transform([0.5], [0.25], flip=True); "
        "by default uint8 is divided by 255 and floats stay as they are",
        DATA,
        takes="a `Transform`",
        accept=_transform,
    )
    dtype: torch.dtype | Sequence[torch.dtype] | Mapping[str, torch.dtype] = option(
        torch.uint8,
        "type of the raw samples: torch.uint8, torch.float32, torch.int32 or torch.int64; with "
        "several inputs, one type for all or one for each",
        MAIN,
        takes="a `torch.dtype`, or one for each input",
        accept=_dtype,
    )
    cache_features: bool = option(
        False,
        "whether the memory stores features instead of samples, for a network of which only the "
        "last layer is trained",
        NETWORK,
    )
    standardise: bool = option(
        False,
        "whether each feature of float vectors is standardised by its running mean and variance",
        DATA,
    )
    last_layer: str | None = option(
        None, "name of the network's last linear layer; found automatically", NETWORK
    )
    max_classes: int | None = option(
        None,
        "largest number of classes, if num_classes is not given; None means no limit",
        DATA,
        low=2,
    )
    ibn: bool | None = option(
        None,
        "whether the normalisation layers use IBN statistics in predictions: means and variances "
        "re-estimated from the memory, instead of the running statistics of training. By default "
        "only with Dual-CBA and Balanced-CBA. It usually increases the accuracy of networks with "
        "batch normalisation, because running statistics are mostly those of the newest classes; "
        "the first prediction after a step takes longer. No effect without normalisation layers",
        EVALUATION,
    )
    ibn_refresh: IBNRefresh = option(
        "parts",
        "how predictions re-estimate IBN statistics: parts (from a part of the memory that has at "
        "most as many samples as were observed since the last estimate), or full (from the whole "
        "memory after each step); always full if ibn_average is literal or continued, or if "
        "distributed",
        EVALUATION,
    )
    base: Method = field(init=False)
    kind: str | None = field(init=False)
    outputs: int = field(init=False)
    inputs: Inputs = field(init=False)
    trunk: Trunk | None = field(init=False, default=None)

    @property
    def grows(self) -> bool:
        """Whether the learner adds outputs for new classes: `num_classes` was not given."""
        return self.num_classes is None

    def labels(self) -> Labels:
        """Return the table of labels of a learner that grows, initially empty."""
        if self.base.one_per_class and (self.max_classes is None or self.buffer < self.max_classes):
            return Labels(self.buffer, "the buffer's")
        return Labels(self.max_classes)

    def __post_init__(self) -> None:
        options = definitions(LearnerArguments)
        dtype = options["dtype"]
        types = dtype.default if self.dtype is None else dtype.check(self.dtype)
        inputs = make_inputs(self.input_shape, types)
        _check_number(self.num_classes, self.max_classes)
        follow_recipe(self, colour=is_colour(inputs.shape, inputs.dtype))
        given = "er-dual-cba" if self.method is None else options["method"].check(self.method)
        base, kind = resolve(given, self.method_options or {}, self.adaptor)
        defaults = {**protocol_defaults(self), **kind_defaults(kind, self)}
        fill(self, {**defaults, **head_defaults(self)}, kind)
        check_together(
            self, kind, method=type(base).__name__, own_head=base.own_head,
            stores_in_steps=base.stores_in_steps,
        )  # fmt: skip
        resolved: dict[str, Any] = {"base": base, "kind": kind, "inputs": inputs}
        resolved |= {"input_shape": inputs.shape, "dtype": inputs.dtype}
        resolved["ibn"] = kind in DUAL if self.ibn is None else self.ibn
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "transform", self._choose_transform())
        check_network(self.network)
        outputs = self.num_classes or head_outputs(self.network, self.last_layer)
        object.__setattr__(self, "outputs", outputs)
        _check_method(self)

    def _choose_transform(self) -> Transform:
        """Return the transform of raw samples; raise if it does not apply to such samples."""
        shape, given = self.inputs.shape, self.transform
        if self.test_flip and (self.inputs.whole or len(shape) != 3):
            wanted = f"False for samples of shape {shape}: only images are mirrored"
            raise ValueError(expected("test_flip", True, wanted))
        if self.standardise:
            _check_standardised(given, self.inputs, cached=self.cache_features)
        if self.inputs.whole:
            _check_unchanged(given, self.augmentation, self.base)
            given = Unchanged()
        _check_transform(given, shape)
        name = "none" if self.inputs.whole else self.augmentation
        transform = choose_augmentation(given, name, shape, self.inputs.dtype)
        if self.cache_features:
            if transform.random:
                wanted = "none with cache_features: augmentation='none'"
                raise ValueError(f"the augmentation is random, expected {wanted}")
            _check_views(self.base, "features")
        return transform

    def over_features(self, network: Network) -> tuple[LearnerArguments, Network]:
        """Return the arguments and the network of a learner over features, with `trunk` set."""
        trunk, last = split_network(network, self.transform, self.inputs)
        made, part = copy.copy(self), Part(last.input_shape, torch.float32)
        transform = choose_augmentation(Unchanged(), "none", part.shape, part.dtype)
        changed = {
            "network": last.module, "last_layer": HEAD, "trunk": trunk, "transform": transform,
            "inputs": Inputs(part), "input_shape": part.shape, "dtype": part.dtype,
        }  # fmt: skip
        for name, value in changed.items():
            object.__setattr__(made, name, value)
        return made, last


def keywords_of(
    arguments: Callable[P, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give an `__init__` the signature of a dataclass, for type checkers and for `help`."""

    def typed(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        known = definitions(arguments)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        given = inspect.signature(arguments).parameters
        first = [p for p in given.values() if p.name not in known]
        parameters = [
            *(p.replace(annotation=inspect.Parameter.empty) for p in first),
            *(_keyword(o) for o in in_groups(known.values())),
        ]

        def checked(self: Any, /, *args: P.args, **given: P.kwargs) -> None:
            for name in given:
                if name not in inspect.signature(arguments).parameters:
                    raise TypeError(unknown("option", name, known))
            with torch.device("cpu"):
                made = arguments(*args, **given)
            init(self, made)

        checked.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
        checked.__name__, checked.__qualname__ = init.__name__, init.__qualname__
        checked.__doc__ = init.__doc__
        return checked

    return typed


def documented(arguments: type) -> Callable[[type[C]], type[C]]:
    """Put the options of a dataclass into a class's docstring, in place of `{options}`."""

    def document(cls: type[C]) -> type[C]:
        lines = [line for o in in_groups(definitions(arguments).values()) for line in _entry(o)]
        cls.__doc__ = (cls.__doc__ or "").replace("    {options}", "\n".join(lines))
        return cls

    return document


def in_groups(options: Iterable[Option]) -> list[Option]:
    """Return the options of a learner in the order of its help, the most important first."""
    own = list(LearnerArguments.__annotations__)  # before those that runs share
    listed = sorted(options, key=lambda o: o.name not in own)
    return sorted(listed, key=lambda o: GROUPS.index(o.group))


def _keyword(option: Option) -> inspect.Parameter:
    """Return an option as a parameter of a signature; None stands for a computed default."""
    default = None if callable(option.default) else option.default
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _entry(option: Option) -> list[str]:
    """Return the lines of an option in a docstring: name, type and default, then the help."""
    shown = option.default is not None and not callable(option.default)
    default = f"default {option.default!r}" if shown else "optional"
    head = f"{option.name} : {_type(option)}, {default}"
    text = option.in_python or option.help
    first = re.match(r"\w*", text)[0]  # type: ignore[index]  # it matches any text
    if first not in (*option.choices, option.default):  # a value keeps its case
        text = text[0].upper() + text[1:]
    lines = textwrap.wrap(f"{text}.", 88, break_on_hyphens=False)
    return [f"    {head}", *(f"        {line}" for line in lines)]


def _type(option: Option) -> str:
    """Return the type of an option in the style of a docstring.

    >>> known = definitions(LearnerArguments)
    >>> [_type(known[name]) for name in ("boundaries", "lr", "method", "method_options")]
    ["{'given', 'inferred'}", 'float', 'str or Method', 'dict']
    """
    if option.choices:
        return f"{{{', '.join(map(repr, option.choices))}}}"
    union = get_origin(option.kind) in (Union, UnionType)
    return " or ".join(_name(t) for t in (get_args(option.kind) if union else [option.kind]))


def _name(kind: Any) -> str:
    """Return the name of a type, such as `dict` for `dict[str, Any]`."""
    plain: type = get_origin(kind) or kind
    torch_type = plain.__module__ == "torch"
    return f"torch.{plain.__name__}" if torch_type else plain.__name__


def resolve(method: str | Method, options: Any, adaptor: str | None) -> tuple[Method, str | None]:
    """Return the method and the kind of adaptor that the arguments name.

    >>> base, kind = resolve("er-dual-cba", {}, None)
    >>> type(base).__name__, kind
    ('ER', 'dual-cba')
    """
    own = definitions(LearnerArguments)["adaptor"]
    named = None if adaptor is None else own.check(adaptor)
    if isinstance(method, Method):
        if named is not None and not method.adaptable:
            name = type(method).__name__
            raise ValueError(expected("adaptor", adaptor, f"None: {name} has no logits to adapt"))
        if options:
            raise ValueError(expected("method_options", options, "none for a Method object"))
        return method, named
    base, kind = parse_method(method)
    if named is not None and named != kind:
        raise ValueError(
            expected("adaptor", adaptor, f"{kind!r}, as in the method name {method!r}")
        )
    options = definitions(LearnerArguments)["method_options"].check(options)
    check_options(method, options)
    return base(**options), kind


def check_network(network: nn.Module) -> None:
    """Raise unless it is a network in float32 with trainable parameters.

    A layer that changes its own parameters in a forward pass is refused too.
    """
    if not isinstance(network, nn.Module):
        raise ValueError(expected("network", network, "an nn.Module"))
    weights = list(network.named_parameters())
    for name, weight in weights:
        if weight.is_floating_point() and weight.dtype != torch.float32:
            wanted = "torch.float32: call float() on the network"
            raise ValueError(expected(f"dtype of the network's {name}", weight.dtype, wanted))
    if weights and not any(weight.requires_grad for _, weight in weights):
        raise ValueError("no parameter of the network requires a gradient, expected at least one")
    for name, module in network.named_modules():
        limit = getattr(module, "max_norm", None)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and limit is not None:
            wanted = "None: with max_norm every forward pass changes the weights"
            raise ValueError(expected(f"max_norm of the network's {name}", limit, wanted))


def check_head(network: Network, outer_loop: OuterLoop, *, grows: bool) -> None:
    """Raise if the last layer must grow or have a virtual step, and cannot."""
    stepped = outer_loop.optimizer is not None and outer_loop.levels == "bi"
    if stepped or grows:
        check_weight(network.head, f"the weight of the last layer {network.head_name!r}")
    frozen = [name for name, p in network.head.named_parameters() if not p.requires_grad]
    if frozen and stepped:
        name = f"{network.head_name}.{frozen[0]}"
        wanted = "a trainable last layer: the adaptor is trained through a step of this layer"
        raise ValueError(f"the network's {name} requires no gradient, expected {wanted}")


def _check_unchanged(transform: Transform, augmentation: str, base: Method) -> None:
    """Raise if a transform or augmentation is given for samples that are not transformed."""
    what = "whole numbers or several inputs"
    plain = bool((transform.scale == 1).all() and (transform.shift == 0).all())
    if transform.random or not plain:
        raise ValueError(f"a transform was given, expected none for {what}")
    if augmentation in ("full", "strong"):
        raise ValueError(expected("augmentation", augmentation, f"'none' or 'partial' for {what}"))
    _check_views(base, what)


def _check_views(base: Method, what: str) -> None:
    """Raise if a method augments images, and the samples are not images."""
    unchanged = Unchanged()
    try:
        made = [base.make_transform(unchanged), *base.make_views(unchanged).values()]
        made += base.make_draw_transforms(unchanged).values()
        alike = all(type(t) is Unchanged for t in made)
    except ValueError:
        alike = False
    if not alike:
        name = type(base).__name__
        raise ValueError(f"{name} augments images, expected another method for {what}")


def _check_transform(transform: Transform, shape: tuple[int, ...]) -> None:
    channels = max(transform.scale.numel(), transform.shift.numel())
    if channels not in (1, shape[0]):
        wanted = f"1 or {shape[0]}, the channels of input_shape {shape}"
        raise ValueError(expected("length of the transform's mean and std", channels, wanted))
    if transform.random and len(shape) != 3:
        wanted = "(channels, height, width) for a transform that crops or flips"
        raise ValueError(expected("input_shape", shape, wanted))


def _check_standardised(transform: Transform, inputs: Inputs, *, cached: bool) -> None:
    """Raise unless the samples are float vectors that nothing else normalises."""
    shape, dtype = inputs.shape, inputs.dtype
    if len(shape) != 1 or dtype != torch.float32:
        wanted = f"False for {dtype} samples of shape {shape}: only float vectors are standardised"
        raise ValueError(expected("standardise", True, wanted))
    if cached:
        wanted = "False with cache_features: the inputs of a frozen network are not changed"
        raise ValueError(expected("standardise", True, wanted))
    if bool((transform.scale != 1).any() | (transform.shift != 0).any()):
        wanted = "False if the transform has a mean and std"
        raise ValueError(expected("standardise", True, wanted))


def _check_number(num_classes: int | None, max_classes: int | None) -> None:
    if num_classes is not None:
        at_least(2, num_classes=num_classes)
        if max_classes is not None:
            wanted = f"None: num_classes is {num_classes}, so no further class is accepted"
            raise ValueError(expected("max_classes", max_classes, wanted))


def _check_method(given: LearnerArguments) -> None:
    base, name = given.base, type(given.base).__name__
    if hasattr(base, "context"):
        raise ValueError("the method object belongs to another learner, expected a new one")
    if base.one_per_class and given.buffer < (given.num_classes or 0):
        wanted = f"at least {given.num_classes}: {name} keeps samples of every class"
        raise ValueError(expected("buffer", given.buffer, wanted))
    if base.needs_boundaries and given.boundaries != "given":
        name = given.method if isinstance(given.method, str) else name
        wanted = f"'given': {name} needs task boundaries"
        raise ValueError(expected("boundaries", given.boundaries, wanted))
