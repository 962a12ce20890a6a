"""Methods from the user's Python files, which are identified by their SHA-256.

Only `import_methods` executes a file, with paths from the command line or from a configuration of
the user. Specs and models store the path and the SHA-256 of the file that registered their method;
`check_imported` compares them with the imported files, and executes nothing.
"""

from __future__ import annotations

import hashlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dualcba.errors import reason
from dualcba.io import user_path
from dualcba.methods.base import Method
from dualcba.methods.registry import METHODS, load_entry_points

Imported = dict[str, str]
"""SHA-256 of files by their absolute paths."""

_MODULE = "dualcba_imported_"
_known: Imported = {}


def import_methods(paths: Iterable[str | Path]) -> Imported:
    """Execute Python files that register methods, each once, and return their SHA-256 by path.

    Each file is a separate module; the modules that it imports must be installed. If it raises, its
    methods are unregistered. A file that has changed since it was imported is executed again.
    """
    return {str(path): _import(path) for path in (user_path(p).absolute() for p in paths)}


def imported_for(method: type[Method]) -> Imported:
    """Return the file that registered a method, with its SHA-256; empty if no file did."""
    classes = (*method.__mro__, *getattr(method, "wrapped", method).__mro__)
    bases = (base for base in classes if base.__module__.startswith(_MODULE))
    files = [sys.modules[base.__module__].__file__ for base in bases]
    return {str(path): _known[str(path)] for path in dict.fromkeys(files) if path in _known}


class NotImportedError(ValueError):
    """A method of a spec or model comes from a file that was not imported or has changed."""


def import_again(wanted: Mapping[str, str]) -> None:
    """Import the files of a spec in a worker process, as its parent process has done."""
    import_methods(wanted)
    check_imported(wanted)


def check_imported(wanted: Mapping[str, str]) -> None:
    """Raise unless files with these SHA-256 have been imported; the paths may differ."""
    for path, sha256 in wanted.items():
        if sha256 in _known.values():
            continue
        if path in _known:
            raise NotImportedError(
                f"{path} has changed since the method was first used (SHA-256 {_known[path][:12]}),"
                f" expected the file unchanged ({sha256[:12]}), or another output folder"
            )
        there = "" if Path(path).is_file() else ", which is missing"
        raise NotImportedError(f"the method comes from {path}{there}, expected --import {path}")


def _import(path: Path) -> str:
    sha256, code = _read(path)
    if _known.get(str(path)) == sha256 and any(map(_is_from(path), METHODS.values())):
        return sha256
    load_entry_points()
    with _undone():
        _execute(path, code)
        if not any(map(_is_from(path), METHODS.values())):
            wanted = 'at least one class with @register("name")'
            raise ValueError(f"{path} registers no method, expected {wanted}")
        _known[str(path)] = sha256
    return sha256


def _read(path: Path) -> tuple[str, bytes]:
    wanted = "a Python file that registers a method"
    try:
        code = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing, expected {wanted}") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, expected {wanted}") from None
    return hashlib.sha256(code).hexdigest(), code


def _execute(path: Path, code: bytes) -> None:
    """Execute a file as a separate module."""
    module = types.ModuleType(_module_name(path))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look there
    try:
        exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be imported: {_where(path, error)}") from error


def _module_name(path: Path) -> str:
    place = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{_MODULE}{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{place}"


def _is_from(path: Path) -> Callable[[type[Method]], bool]:
    name = _module_name(path)
    return lambda method: method.__module__ == name


def _where(path: Path, error: BaseException) -> str:
    """Return the message of an error, with the last line of the file in its traceback."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{f'line {line}: ' if line else ''}{kind}{reason(error)}"


@contextmanager
def _undone() -> Iterator[None]:
    """Unregister the methods that the block registered if it raises."""
    before = dict(METHODS)
    try:
        yield
    except BaseException:
        METHODS.clear()
        METHODS.update(before)
        raise
