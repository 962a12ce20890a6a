"""Learn from a growing folder: find new images, predict them, learn them, save the model."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dualcba.data.readers.folder import channel_mean_and_std, is_ignored
from dualcba.data.readers.images import ByteArray, ImageShape, is_other_file
from dualcba.engine import resolve_device
from dualcba.engine.threads import threads_for
from dualcba.errors import expected
from dualcba.experiments.fitting_network import network_for
from dualcba.folders.ledger import BROKEN, KNOWN, LEARNT, OTHER, Entry, Ledger
from dualcba.folders.model import MODEL, SEEN, ModelSpec, read_model, save_model
from dualcba.folders.reading import (
    ChangedError,
    Content,
    Sample,
    decode,
    fitting_shape,
    read_content,
    read_header,
)
from dualcba.folders.watching import File, Look, Watcher
from dualcba.learner import Learner
from dualcba.methods import check_options, parse_method
from dualcba.methods.files import imported_for
from dualcba.options import (
    RECIPES,
    LearnCommand,
    protocol_preset,
    recipe_method,
    with_recipe,
)
from dualcba.training.unannounced import even_batches, unannounced_options

FIRST = 100
"""Number of images that determine the input size, colours and normalisation of a new model."""

GROWING = 50_000
"""Assumed final number of images, to choose a network that a CPU can train."""

AT_ONCE = 50
"""Largest number of files to read before the next step."""

SCAN_SHARE = 10
"""Scanning a large folder takes at most 1 / `SCAN_SHARE` of the time."""

FIXED = ("method", "method_options", "network", "buffer", "batch_size", "memory_batch", "lr",
         "flip", "seed")  # fmt: skip
"""Options that are fixed when a model is made."""

UNLESS_RECIPE = {"memory_batch": 32, "lr": 0.03}
"""Defaults of the learner; a recipe uses the defaults of its protocol."""

Say = Callable[[str], None]


@dataclass
class Session:
    """A folder, the model that learns from it, and the images that wait to be learnt."""

    root: Path
    model: Path
    options: LearnCommand
    given: Mapping[str, Any]
    """The options given by the user."""

    say: Say
    """Prints one line."""

    spec: ModelSpec | None = None
    learner: Learner | None = None
    ledger: Ledger = field(default_factory=Ledger)
    waiting: deque[File] = field(default_factory=deque)
    """Files that were found but not read yet."""

    ready: deque[Sample] = field(default_factory=deque)
    """The next images to learn, in order; at most two batches."""

    learnt: int = 0
    """Number of images learnt by this process."""

    _look: Look = field(default_factory=lambda: Look([], 0, 0))
    _looked_at: float = -1e9
    _look_seconds: float = 0.0
    _saved_at: float = field(default_factory=time.monotonic)
    _in_step: bool = False
    _said_colour: bool = False
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._watcher = Watcher(self.root, self.options.settle)

    # ------------------------------------------------------------------ the loop

    def resume(self) -> bool:
        """Continue with the model in its folder; return whether there is one."""
        if not (self.model / MODEL).exists():
            return False
        stored = read_model(self.model)
        check_same(stored.spec, self.given, self.model)
        self.spec = _moved(stored.spec, self.root, self.model)
        self.learner = stored.load(self.options.device)
        self.ledger = Ledger.read(self.model / SEEN, stored.seen)
        return True

    def steps(self) -> Iterator[int]:
        """Learn, and yield the number of images of each step, 0 while there is nothing to learn.

        With the option `once`, it ends when all files have been learnt. It saves at intervals, and
        when there is nothing to learn; the caller saves at the end.
        """
        while True:
            self._find()
            batch = self._batch()
            if batch:
                self._learn(batch)
            idle = not batch and not self.waiting
            if idle or time.monotonic() - self._saved_at >= self.options.save_every:
                self.save()
            if idle and self.options.once and self._is_done():
                return
            yield len(batch)

    def save(self) -> None:
        """Write the model if there are new entries, unless a step was interrupted."""
        if self.spec and self.learner and self.ledger.unsaved and not self._in_step:
            save_model(self.model, self.spec, self.learner, self.ledger)
        self._saved_at = time.monotonic()

    @property
    def memory(self) -> Counter[str]:
        """The number of images in the memory by class."""
        if self.learner is None:
            return Counter()
        memory = self.learner.memory
        with self.learner.parts.engine.scope():
            labels = memory.y[: memory.filled].tolist()
        return Counter(self.learner.classes_[k] for k in labels)

    def _is_done(self) -> bool:
        """Return whether a scan after the last step has found nothing."""
        if self.waiting or self.ready:
            return False
        self._find(at_once=True)
        return not (self.waiting or self.ready or self._look.unsettled)

    # ------------------------------------------------------------------ finding and reading

    def _find(self, *, at_once: bool = False) -> None:
        """Scan the folder if it is due, and read the next images."""
        now = time.monotonic()
        pause = max(self.options.every, SCAN_SHARE * self._look_seconds)
        if at_once or now - self._looked_at >= pause:
            read = {sample.file.path: sample.file.mark for sample in self.ready}
            self._look = self._watcher.look({**self.ledger.marks, **read})
            self.waiting = deque(self._look.settled)
            self._looked_at = time.monotonic()
            self._look_seconds = self._looked_at - now
            self._remark_on_look()
        unsettled = self.options.once and self._look.unsettled  # wait: all determine the model
        if self.waiting and self.spec is None and not unsettled:
            self._begin()
        for _ in range(AT_ONCE):
            if self.spec and self.waiting and len(self.ready) < 2 * self.spec.batch_size:
                self._read(self.waiting.popleft())

    def _remark_on_look(self) -> None:
        if not self.root.is_dir():
            self._once(f"{self.root} was removed; waiting for it")
        elif self._look.loose:
            self._once(f"files directly in {self.root} are left out, since they have no class")

    def _read(self, file: File) -> None:
        """Read a file into `ready`, or record why it is not learnt."""
        content = self._content(file)
        if content is None or self._is_ready(content.sha256, file.label):
            return  # a later scan finds it again if it still exists
        if self.ledger.knows(content.sha256, file.label):
            self.ledger.add(Entry(file, KNOWN, content.sha256))
            return
        assert self.spec is not None
        image = self._decoded(content, self.spec.shape)
        if image is None:
            return
        if self.spec.shape[0] == 1 and not self._said_colour:
            self._remark_on_colour(content)
        self.ready.append(Sample(file, content.sha256, image, time.monotonic()))

    def _remark_on_colour(self, content: Content) -> None:
        header = read_header(content.data)
        if header is not None and not header[2]:
            self._said_colour = True
            path = named(content.file.path)
            self.say(f"{path} is in colour, but learnt as grey, since the first images were grey")

    def _is_ready(self, sha256: str, label: str) -> bool:
        return any(s.sha256 == sha256 and s.file.label == label for s in self.ready)

    def _content(self, file: File) -> Content | None:
        try:
            return read_content(self.root, file)
        except ChangedError:
            return None
        except OSError as error:
            self.ledger.add(Entry(file, BROKEN))
            self.say(f"left out: {named(file.path)}: {error.strerror or error}")
            return None

    def _decoded(self, content: Content, shape: ImageShape | None) -> ByteArray | None:
        """Return the image of a file, or record the problem and return None."""
        try:
            return decode(content.data, shape)
        except ValueError as error:
            other = False
            with suppress(OSError):
                other = is_other_file(self.root / content.file.path)
            self.ledger.add(Entry(content.file, OTHER if other else BROKEN, content.sha256))
            if not other:
                self.say(f"left out: {named(content.file.path)} is not a complete image: {error}")
            return None

    # ------------------------------------------------------------------ learning

    def _begin(self) -> None:
        """Make the learner, with the input size and normalisation of the first images."""
        read = [self._content(file) for file in list(self.waiting)[:FIRST]]
        contents = [content for content in read if content is not None]
        headers = [header for c in contents if (header := read_header(c.data)) is not None]
        shape = fitting_shape(headers, self.options.size, self.options.colour) if headers else None
        images = [self._decoded(content, shape) for content in contents]
        whole = [image for image in images if image is not None]
        if shape is not None and whole:
            self.spec = make_spec(self.options, self.root, shape, np.stack(whole))
            self.learner = self.spec.make_learner(self.options.device)
            self.say(f"learning {self.root} into {self.model}: {self.spec.text}")
        self.waiting = deque(f for f in self.waiting if self.ledger.marks.get(f.path) != f.mark)

    def _batch(self) -> list[Sample]:
        """Take the next batch from `ready`, or an empty one to wait for more images.

        With two full batches it is one of them. After a while, the remaining images are split
        evenly, so that no batch is needlessly small.
        """
        if self.spec is None or not self.ready:
            return []
        size = self.spec.batch_size
        if len(self.ready) >= 2 * size:
            return [self.ready.popleft() for _ in range(size)]
        complete = self.options.once and not self._look.unsettled
        waited = time.monotonic() - self.ready[0].since
        if self.waiting or (waited < self.options.wait and not complete):
            return []
        part = even_batches(len(self.ready), size)[0]
        return [self.ready.popleft() for _ in range(part.stop)]

    def _learn(self, batch: list[Sample]) -> None:
        """Predict images, then learn from them."""
        learner = self.learner
        assert learner is not None
        x, labels = np.stack([s.image for s in batch]), [s.file.label for s in batch]
        new = [label for label in dict.fromkeys(labels) if label not in learner.classes_]
        self._in_step = True
        with threads_for(small=self.spec is not None and self.spec.network == "mlp"):
            said = learner.predict(x).tolist() if learner.classes_ else [None] * len(batch)
            learner.observe(x, labels)
        for sample, answer in zip(batch, said, strict=True):
            self.ledger.add(Entry(sample.file, LEARNT, sample.sha256, answer))
        self._in_step = False
        self.learnt += len(batch)
        for label in new:
            self.say(f"new class: {named(label)}")

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def named(path: str) -> str:
    """Return a path for a terminal, with control characters escaped."""
    return path if path.isprintable() else repr(path)[1:-1]


# ---------------------------------------------------------------------- options of a model


def make_spec(options: LearnCommand, root: Path, shape: ImageShape, images: ByteArray) -> ModelSpec:
    """Return the spec of a new model for images of a shape; `images` are the first ones."""
    mean, std = channel_mean_and_std(images)
    device = resolve_device(options.device)
    network = options.network or network_for(shape, GROWING, device)[0]
    fixed = {name: getattr(options, name) for name in FIXED if name != "network"}
    method, of_recipe = recipe_method(options.method), _recipe_options(options, shape)
    usual = protocol_preset(of_recipe["protocol"]) if of_recipe else UNLESS_RECIPE
    fixed |= {name: usual[name] for name in UNLESS_RECIPE if fixed[name] is None}
    return ModelSpec(
        folder=str(root.absolute()), shape=shape, mean=tuple(mean), std=tuple(std),
        pad=0 if network == "mlp" else min(4, min(shape[1:]) // 8), network=network,
        imports=imported_for(parse_method(method)[0]),
        readout=unannounced_options(method)["readout"], options=of_recipe, **fixed,
    )  # fmt: skip


def _recipe_options(options: LearnCommand, shape: ImageShape) -> dict[str, Any]:
    """Return the options of the recipe if the method is the name of one.

    A recipe flips colour images, so its augmentation applies only if `flip` is on.
    """
    if options.method not in RECIPES:
        return {}
    named = {"method": options.method, "method_options": options.method_options}
    return with_recipe(named, colour=shape[0] == 3 and options.flip)


def check_same(spec: ModelSpec, given: Mapping[str, Any], model: Path) -> None:
    """Raise a ValueError if a given option differs from the model's."""
    height, width = spec.shape[1:]
    own: dict[str, Any] = {name: getattr(spec, name) for name in FIXED}
    own |= {"size": height if height == width else [height, width]}
    own |= {"colour": "grey" if spec.shape[0] == 1 else "rgb"}
    for name, value in given.items():
        if name in own and value not in (own[name], "auto"):
            wanted = f"{own[name]!r} as in the model in {model}, or another --model"
            raise ValueError(expected(name, value, wanted))


def check_options_of(options: LearnCommand) -> None:
    """Raise a ValueError if the method or the device cannot be used."""
    resolve_device(options.device)
    name = recipe_method(options.method)
    method = parse_method(name)[0]
    check_options(name, options.method_options)
    if method.needs_boundaries:
        wanted = "a method that needs no task boundaries, since a folder has none"
        raise ValueError(expected("method", options.method, wanted))


def check_folder(root: Path, model: Path) -> None:
    """Raise an error unless the folder exists, and the model is not inside one of its classes."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "is missing"
        raise FileNotFoundError(f"{root} {what}, expected a folder with a subfolder per class")
    inside = Path(os.path.realpath(model)), Path(os.path.realpath(root))
    if inside[0].is_relative_to(inside[1]):
        first = inside[0].relative_to(inside[1]).parts[:1]
        if not first or not is_ignored(first[0]):
            wanted = "another folder than that of the images"
            raise ValueError(expected("model", str(model), wanted))


def _moved(spec: ModelSpec, root: Path, model: Path) -> ModelSpec:
    """Return the spec with the current path of its folder; raise a ValueError if it is another."""
    now = str(root.absolute())
    if os.path.realpath(spec.folder) == os.path.realpath(now):
        return spec
    if Path(spec.folder).is_dir():
        wanted = f"{spec.folder} as in the model in {model}, or another --model"
        raise ValueError(expected("folder", str(root), wanted))
    return replace(spec, folder=now)  # it was moved; known images are found by content
