"""`dualcba learn` and `dualcba ask`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from dualcba.cli.failures import InterruptedRunsError
from dualcba.cli.output import fail, note
from dualcba.cli.progress import MINUTE
from dualcba.data.readers.images import ByteArray, ImageShape, read_image
from dualcba.engine.threads import threads_for
from dualcba.experiments.stopping import stop
from dualcba.folders.ledger import accuracy
from dualcba.folders.model import LOCK, Stored, read_model
from dualcba.folders.session import Session, check_folder, check_options_of, named
from dualcba.folders.summary import (
    NOTE,
    WINDOW,
    class_rows,
    class_table,
    closing_data,
    remarks,
    write_report,
)
from dualcba.io import only_process, user_path
from dualcba.methods.files import import_methods
from dualcba.options import LearnCommand
from dualcba.report.names import count
from dualcba.report.tables.terminal import rich_table, wide_console

TICK = 0.1
"""Seconds between two checks for new images, display updates and signals."""


def learn_command(given: Mapping[str, Any], folder: Path) -> None:
    """Learn from a folder until an interrupt, or until all images are learnt."""
    options = LearnCommand(**given)
    import_methods(options.imports)
    root, model = user_path(folder), user_path(options.model)
    check_options_of(options)
    check_folder(root, model)
    with _locked(model), Display(show=options.verbose) as display:
        session = Session(root, model, options, given, display.say)
        resumed = session.resume()
        if resumed and options.verbose:
            display.say(_continuing(session))
        stopped = _learn(session, display)
        display.close()
        _end(session, options)
    if stopped:
        raise InterruptedRunsError(f"saved in {model}; run the same command again to continue")


@contextmanager
def _locked(model: Path) -> Iterator[None]:
    """Hold the lock of a model; `ask` needs none."""
    with ExitStack() as held:
        try:
            held.enter_context(only_process(model / LOCK))
        except BlockingIOError as error:
            wanted = "one `dualcba learn` per model; use another --model, or wait until it ends"
            raise BlockingIOError(f"{error}, expected {wanted}") from None
        yield


def _learn(session: Session, display: Display) -> bool:
    """Learn until the end or a signal, and save; return whether it was a signal."""
    stopped = False
    try:
        with stop.listening():
            try:
                _loop(session, display)
            finally:
                stopped = stop.requested
                stop.heed()
                session.save()
    except KeyboardInterrupt:  # the effect of the signal
        stopped = True
    return stopped


def _loop(session: Session, display: Display) -> None:
    for learnt in session.steps():
        display.show(session)
        if stop.requested:
            return
        if not learnt and not session.waiting:
            time.sleep(min(TICK, session.options.every))


def _continuing(session: Session) -> str:
    assert session.spec is not None
    known = f"{_total(session):,} images of {_classes(session)}"
    return f"continuing with {session.model}: {known}, {session.spec.text}"


def _end(session: Session, options: LearnCommand) -> None:
    """Print the table by class and write the report, if anything was learnt."""
    if options.json:
        typer.echo(json.dumps(closing_data(session)))
    if not session.ledger.answers:
        if options.verbose:
            note(f"{session.root} has no images in folders of classes; nothing was learnt")
        return
    path = write_report(session)
    if options.verbose:
        console = wide_console()
        console.print(rich_table(class_table(class_rows(session))))
        for remark in (NOTE, *remarks(session)):
            typer.echo(remark)
        total = f"{session.learnt:,} images learnt in this session, {_total(session):,} in total"
        typer.echo(f"{total}; report in {path}")


def _total(session: Session) -> int:
    return len(session.ledger.answers)


def _classes(session: Session) -> str:
    n = len(session.learner.classes_) if session.learner else 0
    return "1 class" if n == 1 else f"{n} classes"


class Display:
    """Progress: two live lines on a terminal, otherwise a line per minute."""

    def __init__(self, *, show: bool) -> None:
        self._console = Console(stderr=True)
        self._show = show
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._terminal = show and self._console.is_terminal
        self._rate = Rate()
        self._line_at = self._drawn_at = time.monotonic()

    def __enter__(self) -> Display:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the live lines."""
        if self._terminal:
            with suppress(OSError):  # the terminal may be closed
                self._live.stop()

    def say(self, line: str) -> None:
        """Print a line above the live lines."""
        if self._show:
            with suppress(OSError):
                text = Text(f"dualcba: {line}")
                self._console.print(text, soft_wrap=True, highlight=False)

    def show(self, session: Session) -> None:
        """Show the progress of a session."""
        now = time.monotonic()
        self._rate.add(now, session.learnt)
        if self._terminal and now - self._drawn_at >= TICK:
            self._drawn_at = now
            text = "\n".join(_lines(session, self._rate.value))
            with suppress(OSError):
                self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        elif not self._terminal and now - self._line_at >= MINUTE:
            self._line_at = now
            if self._rate.value:
                self.say("; ".join(_lines(session, self._rate.value)))


class Rate:
    """Images per second over the last ten seconds; 0 after two seconds without an image."""

    LAST, IDLE = 10.0, 2.0

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def add(self, now: float, learnt: int) -> None:
        """Record the number of images learnt so far."""
        if self._points and learnt == self._points[-1][1]:
            if now - self._points[-1][0] > self.IDLE:
                self._points = [(now, learnt)]
            return
        self._points.append((now, learnt))
        while len(self._points) > 2 and now - self._points[1][0] >= self.LAST:
            self._points.pop(0)

    @property
    def value(self) -> float:
        """The rate in images per second."""
        (begun, before), (now, learnt) = self._points[0], self._points[-1]
        return (learnt - before) / (now - begun) if now > begun else 0.0


def _lines(session: Session, rate: float) -> list[str]:
    """Return the live lines of a session: its counts, and the accuracy of its predictions."""
    if session.learner is None:
        return [f"waiting for images in {named(str(session.root))}"]
    answers, memory = session.ledger.answers, session.learner.memory
    waiting = len(session.waiting) + len(session.ready)
    speed = f"{rate:.0f} images/s" if rate >= 10 else f"{rate:.1f} images/s" if rate else "idle"
    counts = [
        f"{len(answers):,} learnt, {waiting:,} waiting",
        _classes(session),
        f"memory {memory.filled}/{memory.size}",
        speed,
    ]
    right, latest = accuracy(answers), accuracy(answers[-WINDOW:])
    if right is None:
        return ["  ".join(counts)]
    before = f"accuracy before learning: {right:.1f} %"
    return ["  ".join(counts), f"{before}, of the latest {WINDOW}: {latest:.1f} %"]


# ---------------------------------------------------------------------- asking


def ask_command(
    images: Sequence[Path], model: Path, top: int, imports: Sequence[str], *, as_json: bool
) -> None:
    """Print the most likely classes of images; then name images that cannot be read."""
    import_methods(imports)
    stored = read_model(user_path(model))
    found, failed = _read_images(images, stored.spec.shape)
    if len(images) == 1 and failed:
        fail(failed[0], 2)
    answers = _answers(stored, list(found.values()), top) if found else []
    if as_json:
        typer.echo(json.dumps(_as_data(list(found), answers)))
    else:
        _print_answers(list(found), answers)
    for why in failed:
        note(why)
    if failed:
        fail(f"{len(failed)} of {count(len(images), 'image')} could not be read", 2)


def _read_images(
    paths: Sequence[Path], shape: ImageShape
) -> tuple[dict[Path, ByteArray], list[str]]:
    """Return images by path, and the errors of those that cannot be read."""
    found: dict[Path, ByteArray] = {}
    failed: list[str] = []
    for path in paths:
        try:
            found[path] = read_image(user_path(path), shape)
        except OSError as error:
            failed.append(f"{path} cannot be read: {error.strerror or error}, expected an image")
        except ValueError as error:
            failed.append(" ".join(str(error).split()))
    return found, failed


def _as_data(paths: Sequence[Path], answers: Sequence[Answers]) -> list[dict[str, Any]]:
    return [
        {"image": str(path), "answers": [{"class": c, "probability": p} for c, p in one]}
        for path, one in zip(paths, answers, strict=True)
    ]


Answers = list[tuple[str, float]]
"""Classes with their probabilities, the most likely first."""


def _answers(stored: Stored, images: Sequence[Any], top: int) -> list[Answers]:
    learner = stored.load("cpu")
    with threads_for(small=stored.spec.network == "mlp"):
        found = learner.predict_proba(np.stack(images))
    top = min(top, len(learner.classes_))
    likely = found.topk(top, dim=1)
    return [
        [(learner.classes_[k], p) for k, p in zip(classes, values, strict=True)]
        for classes, values in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    ]


def _print_answers(paths: Sequence[Path], answers: Sequence[Answers]) -> None:
    """Print a line per image: its classes, after its path if there are several."""
    shown = [named(str(path)) for path in paths]
    width = max(map(len, shown), default=0)
    for path, one in zip(shown, answers, strict=True):
        text = "  ".join(f"{named(label)} {100 * p:.1f} %" for label, p in one)
        typer.echo(f"{path:<{width}}  {text}" if len(shown) > 1 else text)
