"""Command-line parameters, generated from `dualcba.options`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from dualcba.options import (
    DATASET_DEFAULTS,
    GROUPS,
    KIND_DEFAULTS,
    OUTPUT,
    PROTOCOLS,
    Option,
    RunCommand,
    definitions,
)

Command = Callable[..., None]

METAVARS = {int: "N", float: "X", str: "TEXT"}


class GroupedCommand(TyperCommand):
    """A command whose help groups its options, in the order of `GROUPS`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                group = getattr(parameter, "rich_help_panel", None) or "Other"
                sections.setdefault("Arguments" if argument else group, []).append(record)
        for name in ("Arguments", *GROUPS, "Other"):
            if name in sections:
                with formatter.section(name):
                    formatter.write_dl(sections[name])


def takes(options: type) -> Callable[[Command], Command]:
    """Add all options of a dataclass to a command.

    The first parameter of the command receives the given options as a dict of values by name; its
    other parameters stay parameters of the command line.
    """

    def generate(command: Command) -> Command:
        known = definitions(options)
        hints = get_type_hints(command, include_extras=True)
        _, *own = inspect.signature(command).parameters.values()
        own = [p.replace(annotation=hints[p.name]) for p in own]

        def generated(**values: Any) -> None:
            arguments = {p.name: values.pop(p.name) for p in own}
            given = {k: _value(known[k], v) for k, v in values.items() if v not in (None, [])}
            command(given, **arguments)

        parameters = [*own, *(_parameter(known[name]) for name in in_order(options))]
        generated.__name__, generated.__doc__ = command.__name__, command.__doc__
        generated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        generated.__annotations__ = {p.name: p.annotation for p in parameters}
        return generated

    return generate


def in_order(options: type) -> list[str]:
    """Return the names of all options: of the base classes first, then of the class itself."""
    first, *bases = [cls for cls in options.__mro__ if cls is not object]
    names = [name for cls in (*bases, first) for name in cls.__annotations__]
    return list(dict.fromkeys(names))


def _value(option: Option, given: Any) -> Any:
    """Return the value of an option, parsed from the command line."""
    if not option.repeatable:
        return option.parse(given) if option.parse is not None else given
    if option.parse is not None:
        return _without_duplicates(option.flag or option.name, map(option.parse, given))
    return [word for text in given for word in text.split(",")]


def _without_duplicates(flag: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return names and values as a dict; raise a ValueError if a name is given twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"--{flag} {name} is given twice, expected each name once")
        found[name] = value
    return found


def _parameter(option: Option) -> inspect.Parameter:
    flag = "--" + (option.flag or option.name).replace("_", "-")
    if option.kind is bool and option.group != OUTPUT:
        flag += f"/--no-{flag[2:]}"
    settings = typer.Option(
        flag,
        help=help_text(option),
        rich_help_panel=option.group,
        show_default=False,
        metavar=_metavar(option),
        autocompletion=_completion(option),
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_type(option), settings],
    )


def _type(option: Option) -> Any:
    if option.repeatable:
        return list[str] | None
    plain = option.kind if option.kind in (int, float, bool) else str
    return plain | None


def _metavar(option: Option) -> str | None:
    if option.kind is bool:
        return None
    if option.choices:
        return "|".join(option.choices)
    if option.name in ("method_options", "slurm"):
        return "NAME=VALUE"
    if option.name == "sweep":
        return "NAME=VALUES"
    is_path = "Path" in str(option.type) or option.name == "imports"
    return METAVARS.get(option.kind, "PATH" if is_path else "TEXT")


def help_text(option: Option) -> str:
    """Return the help of an option with its default."""
    text = option.help
    if option.repeatable:
        text += "; repeatable" + ("" if option.parse else ", or with commas")
    default = option.default() if callable(option.default) else option.default
    if default in (None, [], {}) or (option.kind is bool and option.group == OUTPUT):
        return text
    shown = ",".join(default) if isinstance(default, list) else default
    if isinstance(default, bool):
        shown = "yes" if default else "no"
    if option != definitions(RunCommand).get(option.name):  # the default of another command
        return f"{text} (default: {shown})"
    depends = any(option.name in values for values in DATASET_DEFAULTS.values())
    by_kind = any(option.name in values for values in KIND_DEFAULTS.values())
    preset = any(option.name in values for values in PROTOCOLS.values())
    others = ["dataset"] * depends + ["protocol"] * preset + ["adaptor"] * by_kind
    by = f"; may depend on the {' and the '.join(others)}" if others else ""
    return f"{text} (default: {shown}{by})"


def _completion(option: Option) -> Callable[[str], list[str]] | None:
    if option.name == "method":
        return _complete_methods
    words = list(DATASET_DEFAULTS) if option.name == "dataset" else list(option.choices)
    return (lambda incomplete: [w for w in words if w.startswith(incomplete)]) if words else None


def _complete_methods(incomplete: str) -> list[str]:
    from dualcba.methods import method_names

    return [name for name in method_names() if name.startswith(incomplete)]
