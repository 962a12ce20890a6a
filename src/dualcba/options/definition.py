"""`Option`, the definition of one option, and functions that check values and fill in defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dualcba.errors import above_zero, at_least, expected, nearest


@dataclass(frozen=True)
class Option:
    """The definition of one option."""

    name: str
    type: Any
    default: Any
    help: str
    group: str
    in_python: str = ""
    """The help text of the argument in Python, if it differs from that of the command line."""

    takes: str = ""
    """A description of the accepted values, if the type does not say enough."""

    low: int | None = None
    """The smallest whole number that is accepted."""

    adaptors: tuple[str, ...] = ()
    """The kinds of bias adaptor that have this option; empty if it does not belong to adaptors."""

    flag: str = ""
    """The name on the command line, without the dashes, if it differs."""

    repeatable: bool = False
    """Whether the command line takes it several times, or several values separated by commas."""

    parse: Callable[[str], Any] | None = None
    """Turns the text of the command line into a value."""

    accept: Callable[[str, Any], Any] | None = None
    """Checks and normalises a value, if a check of the type is not enough."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted words if the type is a `Literal`, else empty."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def kind(self) -> Any:
        """The type without None."""
        if get_origin(self.type) not in (Union, UnionType):
            return self.type
        given = [t for t in get_args(self.type) if t is not NoneType]
        return given[0] if len(given) == 1 else self.type

    def check(self, value: Any) -> Any:
        """Return the normalised value, or raise a ValueError that names the option."""
        if self.accept is not None:
            return self.accept(self.name, value)
        if self.choices:
            check_choice(self.name, value, self.choices)
        elif self.kind is bool:
            _check_bool(self.name, value)
        elif self.kind is int:
            at_least(self.low or 0, **{self.name: value})
        elif self.kind is float:
            above_zero(**{self.name: value})
        elif self.kind is str and not isinstance(value, str):
            raise ValueError(expected(self.name, value, "a name"))
        return value


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless a value is one of `choices`; the message suggests the most similar one."""
    words = list(choices)
    if value not in words:
        hint = nearest(str(value), words)
        text = expected(name, value, " or ".join(map(repr, words)))
        raise ValueError(text + (f" (did you mean {hint!r}?)" if hint else ""))


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(expected(name, value, "True or False"))


def option(default: Any, help: str, group: str, **more: Any) -> Any:
    """Define an option, as the default of a dataclass field; `more` are fields of `Option`."""
    return dataclasses.field(
        default=None, metadata={"default": default, "help": help, "group": group, **more}
    )


def same_as(cls: type, name: str, **more: Any) -> Any:
    """Copy the definition of an option from another class; `more` replaces some of its fields."""
    (found,) = [f for f in dataclasses.fields(cls) if f.name == name]
    return dataclasses.field(default=None, metadata={**found.metadata, **more})


@cache
def definitions(*classes: Any) -> dict[str, Option]:
    """Return the options of dataclasses by name, in their order.

    >>> from dualcba.options import Hardware
    >>> definitions(Hardware)["engine"].choices
    ('auto', 'eager', 'captured')
    """
    found: dict[str, Option] = {}
    for cls in classes:
        types = get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if "help" in field.metadata:
                found[field.name] = Option(field.name, types[field.name], **field.metadata)
    return found


def fill(options: Any, defaults: Mapping[str, Any], adaptor: str | None) -> None:
    """Check the options of a frozen dataclass, and set those that are None to their defaults.

    `defaults` take precedence over those of the definitions. Options that the kind of `adaptor`
    does not have stay None; giving one is an error.
    """
    cls: Any = type(options)
    for name, o in definitions(cls).items():
        value = getattr(options, name)
        if o.adaptors and adaptor not in o.adaptors:
            if value is not None:
                raise ValueError(not_an_option(name, value, adaptor))
            continue
        if value is not None:
            value = o.check(value)
        elif (value := defaults.get(name)) is None:
            value = o.default() if callable(o.default) else o.default
        object.__setattr__(options, name, value)


def not_an_option(name: str, value: object, adaptor: str | None) -> str:
    """Return the error message for an option that this kind of adaptor, or no adaptor, has not."""
    if adaptor is None:
        return expected(name, value, "no value: the method has no adaptor")
    return expected(name, value, f"no value: the adaptor {adaptor!r} has no such option")
