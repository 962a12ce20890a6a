"""`dualcba learn` and `ask` in processes: folders that grow, signals, kills, and what is learnt."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dualcba.folders import session
from dualcba.folders.ledger import LEARNT, Entry
from dualcba.folders.model import MODEL, SEEN, read_model

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

QUICK = ("--every", 0.05, "--settle", 0.2, "--wait", 0.2, "--save-every", 0, "--device", "cpu")


def learnt(model: Path) -> list[str]:
    """The paths that a model has learnt, in order."""
    lines = (model / SEEN).read_bytes()[: read_model(model).seen.size].splitlines()
    return [e.file.path for e in map(Entry.read, lines) if e.outcome == LEARNT]


def saved(model: Path) -> int:
    """The number of images in the last save; 0 if there is none."""
    return len(learnt(model)) if (model / MODEL).exists() else 0


def test_a_folder_that_grows_is_learnt_asked_about_and_gone_on_with(
    tmp_path: Path, write: Any, start: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    root, model = tmp_path / "photos", tmp_path / "model"
    write(root, [0, 1], 30)
    learning = start("learn", root, "--model", model, *QUICK)
    learning.until(lambda: saved(model) == 60)
    new = write(root, [2], 25, since=2e9)  # a new class, later than the others
    (root / "digit-2" / "broken.png").write_bytes(new[0].read_bytes()[:70])
    (root / "digit-2" / "notes.txt").write_text("no image")
    shutil.copy(new[1], root / "digit-2" / "copy.png")
    learning.until(lambda: saved(model) == 85)

    asked = start("ask", new[3], root / "digit-2" / "broken.png", "--model", model, "--json")
    assert asked.wait() == 2  # one of them is broken
    found = json.loads(asked.log.read_text().splitlines()[0])
    assert [one["image"] for one in found] == [str(new[3])]
    assert found[0]["answers"][0]["class"] == "digit-2"
    assert sum(answer["probability"] for answer in found[0]["answers"]) == pytest.approx(1)

    second = start("learn", root, "--model", model)
    assert second.wait() == 2
    assert f"in use by process {learning.pid}" in second.log.read_text()

    (root / "digit-1").rename(root / "one")  # a new label: learnt again under it
    learning.until(lambda: saved(model) == 115)
    assert learning.kill(signal.SIGTERM) == 128 + signal.SIGTERM
    text = learning.log.read_text()
    end = f"interrupted; saved in {model}; run the same command again to continue"
    new_classes = ("new class: digit-2", "new class: one")
    for line in (*new_classes, "broken.png is not a complete image", "report.html", end):
        assert text.count(line) == 1
    assert "notes.txt" not in text
    assert (model / "report.html").read_text().count("<section") == 4

    write(root, [3], 10, since=3e9)
    again = start("learn", root, "--model", model, *QUICK, "--once", "--json")
    assert again.wait() == 0
    report = json.loads(again.log.read_text())
    assert (report["seen"], report["learnt_now"]) == (125, 10)
    assert (report["known"], report["broken"], report["relabelled"]) == (1, 1, 30)
    assert {c["class"]: c["seen"] for c in report["classes"]} == {
        "digit-0": 30, "digit-1": 30, "digit-2": 25, "one": 30, "digit-3": 10,
    }  # fmt: skip
    assert max(Counter(learnt(model)).values()) == 1


def killed_at_the_fifth_save(moment: str) -> None:
    """Let this process save two steps, then none, and kill itself before, in or after a save."""
    save, count = session.save_model, iter(range(1, 100))

    def dying(folder: Path, spec: Any, learner: Any, ledger: Any) -> None:
        number = next(count)
        if number < 3 or (number == 5 and moment == "after"):
            save(folder, spec, learner, ledger)
        elif number == 5 and moment == "within":
            ledger.write(folder / SEEN)
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    session.save_model = dying


def test_a_killed_run_goes_on_to_the_same_model(
    tmp_path: Path, write: Any, start: Callable[..., Any]
) -> None:
    root = tmp_path / "photos"
    write(root, range(3), 43)
    options = (*QUICK, "--once", "--quiet", "--buffer", 50)
    whole = start("learn", root, "--model", tmp_path / "whole", *options)
    assert whole.wait() == 0
    model = tmp_path / "killed"
    for moment, images in (("before", 20), ("within", 40), ("after", 90)):
        prepare = partial(killed_at_the_fifth_save, moment)
        killed = start("learn", root, "--model", model, *options, prepare=prepare)
        assert killed.wait() == -signal.SIGKILL
        assert saved(model) == images
    assert start("learn", root, "--model", model, *options).wait() == 0

    one, other = (read_model(folder) for folder in (tmp_path / "whole", model))
    assert learnt(tmp_path / "whole") == learnt(model)
    assert one.seen == other.seen  # the answers before learning, too
    assert one.spec == other.spec
    assert one.state["meta"] == other.state["meta"]
    for name, tensor in one.state["tensors"].items():
        assert torch.equal(tensor, other.state["tensors"][name]), name


def test_digits_class_by_class_are_told_apart(
    tmp_path: Path, write: Any, start: Callable[..., Any]
) -> None:
    """89 to 92 % were measured on 360 held-out images with three seeds, 10 is by chance."""
    write(tmp_path / "train", range(10), 1000)
    held_out = write(tmp_path / "test", range(10), 1000, part="test")
    model = tmp_path / "model"
    learning = start("learn", tmp_path / "train", "--model", model, *QUICK[:6], "--once", "--quiet")
    assert learning.wait() == 0
    asked = start("ask", *held_out, "--model", model, "--json", "--top", 1)
    assert asked.wait() == 0
    found = json.loads(asked.log.read_text())
    right = sum(Path(one["image"]).parent.name == one["answers"][0]["class"] for one in found)
    assert len(found) == len(held_out) > 300
    assert right / len(found) > 0.8
