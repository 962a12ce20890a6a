"""What a session makes of the files of a folder, without a process of its own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dualcba.folders.model import MODEL, ModelSpec, read_model
from dualcba.folders.session import Session, check_folder, check_options_of
from dualcba.folders.summary import write_report
from dualcba.folders.watching import Look, Watcher
from dualcba.options import LearnCommand

GIVEN = {"once": True, "settle": 0.0, "wait": 0.0, "every": 0.001, "device": "cpu", "buffer": 20}


class Run:
    """Sessions on one folder and model, one after the other, and what they said."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.model = tmp_path / "photos", tmp_path / "model"
        self.model.mkdir()
        self.root.mkdir()
        self.lines: list[str] = []

    def __call__(self, **more: Any) -> Session:
        given = {**GIVEN, **more}
        self.lines = []
        options = LearnCommand(**given)
        session = Session(self.root, self.model, options, given, self.lines.append)
        session.resume()
        self.sizes = [n for n in session.steps() if n]
        session.save()
        return session

    def put(
        self, path: str, value: int = 0, size: tuple[int, int] = (8, 8), mode: str = "L"
    ) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(value).integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(pixels).convert(mode).save(target)
        os.utime(target, (1e9 + value, 1e9 + value))
        return target


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (12, [6, 6]), (33, [10, 10, 7, 6])])
def test_batches_are_full_and_the_rest_is_even(run: Run, count: int, sizes: list[int]) -> None:
    for k in range(count):
        run.put(f"{'ab'[k % 2]}/{k}.png", k)
    session = run()
    assert run.sizes == sizes
    assert len(session.ledger.answers) == count
    assert session.memory.total() == min(count, 20)


def test_nothing_is_learnt_twice(run: Run) -> None:
    for k in range(6):
        run.put(f"a/{k}.png", k)
    run.put("a/copy.png", 3)
    assert len(run().ledger.answers) == 6
    assert run().learnt == 0
    (run.root / "a" / "0.png").rename(run.root / "a" / "renamed.png")
    (run.root / "a" / "1.png").unlink()
    (run.root / "a" / "sub").mkdir()
    (run.root / "a" / "2.png").rename(run.root / "a" / "sub" / "2.png")
    (run.root / "a" / "4.png").touch()
    assert run().learnt == 0
    run.put("a/3.png", 33)  # another image under the same name
    session = run()
    assert (session.learnt, len(session.ledger.answers)) == (1, 7)


def test_a_copy_whose_original_vanishes_is_learnt(run: Run) -> None:
    for k in range(25):
        run.put(f"a/{k}.png", k)
    run.put("a/copy.png", 24)
    given = {**GIVEN, "save_every": 0.0}
    session = Session(run.root, run.model, LearnCommand(**given), given, print)
    steps = session.steps()
    assert [next(steps), next(steps)] == [10, 8]
    assert session.ready[-1].file.path == "a/24.png"  # the copy was seen, and left for later
    (run.root / "a" / "24.png").unlink()  # and the process ends
    assert len(run().ledger.answers) == 25


def test_images_wait_for_others_from_when_they_were_read(run: Run) -> None:
    given = {**GIVEN, "once": False, "wait": 0.3}
    session = Session(run.root, run.model, LearnCommand(**given), given, print)
    for k in range(25):
        run.put(f"a/{k}.png", k)
    begun, sizes = time.monotonic(), []
    for learnt in session.steps():
        sizes += [learnt] if learnt else []
        if sum(sizes) == 25:
            break
    assert sizes == [10, 8, 7]
    assert time.monotonic() - begun >= 0.3


def test_once_learns_images_that_settle_in_its_last_look(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(3):
        run.put(f"a/{k}.png", k)
    looks, look = iter([Look([], 3, 0)]), Watcher.look
    monkeypatch.setattr(Watcher, "look", lambda self, known: next(looks, None) or look(self, known))
    assert len(run().ledger.answers) == 3


def test_an_image_in_the_folder_of_another_class_is_learnt_under_it(run: Run) -> None:
    run.put("cat/1.png", 1)
    run.put("cat/2.png", 2)
    run()
    (run.root / "dog").mkdir()
    (run.root / "cat" / "2.png").rename(run.root / "dog" / "2.png")
    session = run()
    assert session.learner is not None
    assert session.learner.classes_ == ["cat", "dog"]
    assert (session.learnt, session.ledger.relabelled) == (1, 1)


def test_broken_images_are_one_line_each_until_they_are_whole(run: Run) -> None:
    whole = run.put("a/1.png", 1).read_bytes()
    run.put("a/2.png", 2)
    (run.root / "a" / "half.png").write_bytes(whole[:80])
    (run.root / "a" / "empty.jpg").touch()
    (run.root / "a" / "notes.txt").write_text("text")
    (run.root / "a" / "odd\n.png").write_text("text")
    session = run()
    said = [line for line in run.lines if line.startswith("left out")]
    assert len(session.ledger.answers) == 2
    assert len(said) == 3
    assert all("\n" not in line and "BytesIO" not in line for line in said)
    assert "left out: a/empty.jpg is not a complete image: the file is empty" in said
    run()
    assert run.lines == []
    run.put("a/half.png", 3)
    assert run().learnt == 1


def test_a_file_that_cannot_be_opened_is_left_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.put("a/1.png", 1)
    run.put("a/2.png", 2)
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "1.png":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert run().learnt == 1
    assert "left out: a/1.png: Permission denied" in run.lines


def test_a_file_that_changes_while_it_is_read_is_read_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.put("a/1.png", 1)
    path = run.put("a/2.png", 2)
    read, changed = Path.read_bytes, []

    def growing(one: Path) -> bytes:
        content = read(one)
        if one == path and not changed:
            changed.append(run.put("a/2.png", 22))
        return content

    monkeypatch.setattr(Path, "read_bytes", growing)
    session = run()
    assert changed
    assert session.learnt == 2
    assert not [line for line in run.lines if line.startswith("left out")]


def test_images_of_any_size_and_mode_are_fitted(run: Run) -> None:
    for k, (size, mode) in enumerate([((8, 8), "L"), ((8, 8), "1"), ((30, 9), "L")]):
        run.put(f"a/{k}.png", k, size, mode)
    session = run()
    assert session.spec is not None
    assert session.spec.shape == (1, 8, 8)
    run.put("b/colour.png", 7, (50, 40), "RGB")
    run.put("b/alpha.png", 8, (50, 40), "RGBA")
    assert run().learnt == 2
    assert len([line for line in run.lines if "is in colour, but learnt as grey" in line]) == 1


def test_a_class_may_have_any_name(run: Run) -> None:
    odd = [os.fsdecode(b"caf\xff"), "\x1b[31mred\n", "a|b <c>", "all"]
    for k, name in enumerate(odd):
        run.put(f"{name}/{k}.png", k)
    session = run()
    assert {label for label, _ in session.ledger.answers} == set(odd)
    assert run().learnt == 0
    page = write_report(session).read_text()
    assert "a|b &lt;c&gt;" in page
    assert "\x1b" not in page + "".join(run.lines)


def test_size_and_colour_can_be_given(run: Run) -> None:
    run.put("a/1.png", 1, (200, 100))
    run.put("a/2.png", 2, (200, 100))
    session = run(size=12, colour="rgb")
    assert session.spec is not None
    assert session.spec.shape == (3, 12, 12)


def test_large_images_are_made_small_by_default(run: Run) -> None:
    run.put("a/1.png", 1, (200, 100), "RGB")
    run.put("a/2.png", 2, (200, 20), "RGB")
    run.put("a/3.png", 2, (200, 20), "RGB")
    session = run()
    assert session.spec is not None
    assert session.spec.shape == (3, 20, 32)
    assert session.spec.network == "mlp"  # on a CPU


def test_a_folder_without_an_image_makes_no_model(run: Run) -> None:
    (run.root / "a").mkdir()
    (run.root / "a" / "b.png").write_text("text")
    (run.root / "loose.png").write_text("text")
    session = run()
    assert session.spec is None
    assert not (run.model / MODEL).exists()
    assert [line for line in run.lines if "have no class" in line]


def test_an_interrupted_step_is_not_saved(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(30):
        run.put(f"a/{k}.png", k)
    given = {**GIVEN, "save_every": 1000.0}
    session = Session(run.root, run.model, LearnCommand(**given), given, print)
    steps = session.steps()
    assert next(steps) == 10
    session.save()
    add = session.ledger.add

    def interrupted(entry: Any) -> None:
        add(entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(session.ledger, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        while True:
            next(steps)
    session.save()
    assert read_model(run.model).state["meta"]["step"] == 1
    assert len(run().ledger.answers) == 30


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"buffer": 30}, "buffer is 30, expected 20 as in the model in"),
        ({"method": "er"}, "method is 'er', expected 'er-balanced-cba' as in the model in"),
        ({"size": 16}, "size is 16, expected 8 as in the model in"),
        ({"colour": "rgb"}, "colour is 'rgb', expected 'grey' as in the model in"),
        ({"network": "resnet18"}, "network is 'resnet18', expected 'mlp' as in the model in"),
    ],
)
def test_a_model_keeps_its_options(run: Run, given: dict[str, Any], message: str) -> None:
    run.put("a/1.png", 1)
    run()
    with pytest.raises(ValueError, match=message):
        run(**given)


@pytest.mark.parametrize(
    ("flip", "mode", "augmentation"),
    [(False, "RGB", "partial"), (True, "RGB", "full"), (True, "L", "partial")],
)
def test_a_recipe_flips_images_only_if_that_is_allowed(
    run: Run, flip: bool, mode: str, augmentation: str
) -> None:
    for k in range(12):
        run.put(f"{'ab'[k % 2]}/{k}.png", k, mode=mode)
    session = run(method="best", flip=flip)
    assert session.spec is not None
    assert session.spec.method == "best"
    options = session.spec.options
    found = options["method"], options.get("augmentation", "full")  # that of the protocol
    assert found == ("er+mkd", augmentation)
    assert options["test_flip"] is (flip and mode == "RGB")
    assert (session.spec.memory_batch, session.spec.lr) == (64, 0.0005)
    assert session.learner is not None
    shape = (2, *session.spec.shape)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    loaded = read_model(run.model).load("cpu").predict_proba(images)
    assert np.array_equal(session.learner.predict_proba(images), loaded)
    with pytest.raises(ValueError, match="method is 'er', expected 'best' as in the model"):
        run(method="er")
    with pytest.raises(
        ValueError,
        match=r"lr is 0\.03, expected 0\.0005 as in the model in .*model, or another --model",
    ):
        run(lr=0.03)
    run.put("c/1.png", 99, mode=mode)
    assert run(method="best", lr=0.0005, memory_batch=64).learnt == 1


def test_a_model_belongs_to_its_folder_which_may_be_moved(run: Run, tmp_path: Path) -> None:
    run.put("a/1.png", 1)
    run()
    other = tmp_path / "other"
    shutil.copytree(run.root, other)
    first, run.root = run.root, other
    with pytest.raises(
        ValueError, match=r"folder is .*other', expected .*photos as in the model in"
    ):
        run()
    shutil.rmtree(first)
    assert run().learnt == 0


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (damaged, r"model.safetensors is damaged, expected a saved model that matches its SHA-256"),
        (lambda path: path.write_bytes(b"x"), r"model.safetensors cannot be read as a saved model"),
    ],
)
def test_a_damaged_model_is_one_line(run: Run, harm: Callable[[Path], None], message: str) -> None:
    run.put("a/1.png", 1)
    run()
    harm(run.model / MODEL)
    with pytest.raises(ValueError, match=message):
        run()


def test_a_learner_is_no_model_of_a_folder(run: Run) -> None:
    run.put("a/1.png", 1)
    session = run()
    assert session.learner is not None
    session.learner.save(run.model / MODEL)
    with pytest.raises(ValueError, match="is a saved learner, expected a model of `dualcba learn`"):
        run()


def test_the_model_is_not_a_class_of_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a folder with a subfolder per class"):
        check_folder(tmp_path / "gone", tmp_path / "model")
    for inside in (tmp_path, tmp_path / "model"):
        with pytest.raises(ValueError, match="expected another folder than that of the images"):
            check_folder(tmp_path, inside)
    check_folder(tmp_path, tmp_path / ".model")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "er-cbaa"}, "unknown method 'er-cbaa', did you mean"),
        ({"method": "gsa"}, "method is 'gsa', expected a method that needs no task boundaries"),
        ({"method_options": {"alpha": 1}}, "alpha"),
        ({"device": "gpu"}, "device is 'gpu'"),
    ],
)
def test_options_are_checked_before_the_first_image(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_options_of(LearnCommand(**given))


def test_a_model_of_an_earlier_version_keeps_its_read_out() -> None:
    given = {
        "folder": "/photos", "shape": [1, 8, 8], "mean": [0.5], "std": [0.5], "pad": 0,
        "flip": False, "network": "mlp", "method": "er", "method_options": {}, "buffer": 10,
        "batch_size": 4, "memory_batch": 4, "lr": 0.1, "seed": 0, "imports": {},
    }  # fmt: skip
    assert ModelSpec.from_dict(given).make_learner("cpu")._predictor.readout == "head"
    assert ModelSpec.from_dict(given | {"readout": "both"}).readout == "both"
