"""States: exact continuation from any step, and damaged files."""

from __future__ import annotations

import errno
import json
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dualcba import Dataset, Learner
from dualcba.checkpoint import check_same_layout, entries_of, read_state_file, write_state_file
from dualcba.io import atomic_write
from dualcba.losses import Batch, CrossEntropy, MeanSquaredError, Term
from dualcba.methods.er import ER

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


class Everything(ER):
    """A method with two draws, stored logits, noise, a buffer, and the samples of the task."""

    draws = 2
    columns = ("logits", "raw_logits")
    rereads_task = True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        terms = super().terms(new, mem)
        return [*terms, *(MeanSquaredError(b, b.columns["logits"], 0.1) for b in mem)]

    def outer_terms(self, outer_batch: Batch) -> list[Term]:
        return [
            CrossEntropy(outer_batch),
            MeanSquaredError(outer_batch, outer_batch.columns["raw_logits"]),
        ]

    def noise(self, rng: np.random.Generator, step: int) -> np.ndarray:
        return rng.random(6)

    def after_step(self, noise: Tensor | None) -> None:
        assert noise is not None
        self.mean.lerp_(noise.float(), 0.1)

    def end_task(self, x: Tensor, y: Tensor) -> None:
        self.mean += x.float().mean() + len(y)


def build(make_learner: Make, method: str, **options: Any) -> Learner:
    if method == "everything":
        return make_learner(Everything(), adaptor="dual-cba", **options)
    return make_learner(method, **options)


def actions(make_batches: Any, steps: int = 4) -> list[Callable[[Learner], None]]:
    """Return a stream of three tasks as a list of actions: begin, observe, …, end."""
    out: list[Callable[[Learner], None]] = []
    for k, batches in enumerate(make_batches(3, steps)):
        out.append(lambda n, k=k: n.new_task([2 * k, 2 * k + 1]))
        out.extend(lambda n, x=x, y=y: n.observe(x, y) for x, y in batches)
        if k == 1:
            out.append(lambda n: n.end_task())
    return out


METHODS = ["er", "er-cba", "er-dual-cba", "everything"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", range(17))
def test_continuing_from_any_step_is_the_same_bit_for_bit(
    method: str, cut: int, make_learner: Make, make_batches: Any, differ: Differ, tmp_path: Path
) -> None:
    todo = actions(make_batches)
    whole = build(make_learner, method)
    for act in todo[:cut]:
        act(whole)
    path = tmp_path / "state.safetensors"
    whole.save(path)
    resumed = build(make_learner, method, seed=cut % 2)  # generators are loaded, too
    if cut % 3 == 0:  # also into a learner that was trained before
        for act in todo[:7]:
            act(resumed)
    resumed.load(path)
    assert differ(whole.state_dict(), resumed.state_dict()) == []
    for act in todo[cut:]:
        act(whole)
        act(resumed)
    assert differ(whole.state_dict(), resumed.state_dict()) == []


def test_predictions_are_the_same_after_loading(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner = teach(make_learner())
    other = make_learner()
    other.predict(images.test_x)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other.predict_proba(images.test_x), learner.predict_proba(images.test_x))


def test_estimates_made_before_loading_are_discarded(
    images: Dataset, make_learner: Make, teach: Teach
) -> None:
    learner, other = teach(make_learner()), teach(make_learner(lr=0.2))
    other.predict(images.test_x)  # at the step of the state
    other.load_state_dict(learner.state_dict())
    assert torch.equal(other.predict_proba(images.test_x), learner.predict_proba(images.test_x))


def test_the_seed_is_that_of_the_state(make_learner: Make, teach: Teach, images: Dataset) -> None:
    saved, other = teach(make_learner("er-dual-cba", seed=1)), make_learner("er-dual-cba", seed=2)
    other.load_state_dict(saved.state_dict())
    assert other.seed == 1
    x = images.test_x[:8]  # with IBN, whose pass depends on the seed
    assert torch.equal(other.predict_proba(x), saved.predict_proba(x))


def test_the_rate_may_change_after_loading(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner("er"))
    learner.load_state_dict(learner.state_dict())
    before = learner.network.head.weight.clone()
    learner.parts.context.lr.fill_(0.0)
    learner.observe(*make_batches(3)[1][0])
    assert torch.equal(learner.network.head.weight, before)


def test_a_state_does_not_change_with_the_learner(
    make_learner: Make, teach: Teach, make_batches: Any
) -> None:
    learner = teach(make_learner(Everything(), adaptor="dual-cba"))
    state = learner.state_dict()
    kept = {k: v.clone() for k, v in state["tensors"].items()}
    meta = json.dumps(state["meta"])
    for x, y in make_batches(3)[1]:
        learner.observe(x, y)
    assert all(torch.equal(v, kept[k]) for k, v in state["tensors"].items())
    assert json.dumps(state["meta"]) == meta


def test_a_loaded_learner_does_not_share_the_snapshot(
    make_learner: Make, teach: Teach, make_batches: Any, differ: Differ
) -> None:
    state = teach(make_learner(Everything(), adaptor="dual-cba")).state_dict()
    kept = {k: v.clone() for k, v in state["tensors"].items()}
    other = make_learner(Everything(), adaptor="dual-cba")
    other.load_state_dict(state)
    for x, y in make_batches(3)[1]:
        other.observe(x, y)
    assert all(torch.equal(v, kept[k]) for k, v in state["tensors"].items())
    before = other.state_dict()
    for tensor in state["tensors"].values():
        tensor.zero_()
    assert differ(before, other.state_dict()) == []


def test_what_the_state_holds(make_learner: Make, teach: Teach) -> None:
    """Weights, adaptor, both optimisers, memory with its age, generators, stream position."""
    state = teach(make_learner()).state_dict()
    names = set(state["tensors"])
    for part in ("network.", "adaptor.specific.", "adaptor.agnostic.", "adaptor_optimizer.0."):
        assert any(name.startswith(part) for name in names), part
    assert {"memory.x", "memory.y", "memory._extra_state", "sets.new", "weights_rng"} <= names
    assert int(state["tensors"]["memory._extra_state"]) == 80
    assert set(state["meta"]["rng"]) >= {"memory", "augmentation"}
    assert (state["meta"]["step"], state["meta"]["task_starts"]) == (10, [0, 5])
    json.dumps(state["meta"])


# ---------------------------------------------------------------- states that do not fit


def refuse(learner: Learner, state: dict[str, Any], differ: Differ, *words: str) -> None:
    before = learner.state_dict()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        learner.load_state_dict(state)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert differ(before, learner.state_dict()) == []


def test_other_shapes_name_the_leaf(make_learner: Make, differ: Differ) -> None:
    state = make_learner(buffer=30).state_dict()
    refuse(make_learner(), state, differ, "'memory.x'", "(31, 3, 8, 8)", "(21, 3, 8, 8)")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"buffer": 30}, {}, "saved with buffer 30, expected 20"),
        ({"dtype": torch.float32}, {}, "saved with dtype torch.float32, expected torch.uint8"),
        ({"method": "er"}, {}, "saved with a method without a bias adaptor, expected one with"),
        ({}, {"method": "er"}, "saved with a method with a bias adaptor, expected one without"),
        ({"method": "derpp"}, {"method": "er"}, "saved with another method, expected ER"),
        ({"method": "er"}, {"method": "clser"}, "saved with another method, expected CLSER"),
        ({"width": 8}, {}, "saved with another adaptor or other options of it"),
        ({"head": "cosine"}, {}, "saved with another network or other options of it"),
    ],
)
def test_the_option_that_differs_is_named(
    one: dict[str, Any], other: dict[str, Any], words: str, make_learner: Make, differ: Differ
) -> None:
    refuse(make_learner(**other), make_learner(**one).state_dict(), differ, words, "entry")


def test_other_types_name_the_leaf(make_learner: Make, differ: Differ) -> None:
    state = make_learner(dtype=torch.float32).state_dict()
    refuse(make_learner(), state, differ, "'memory.x'", "float32", "uint8")


def test_another_method_names_the_leaf(make_learner: Make, differ: Differ) -> None:
    refuse(make_learner("er"), make_learner().state_dict(), differ, "'adaptor.")
    refuse(make_learner(), make_learner("er").state_dict(), differ, "'adaptor.", "expected")


@pytest.mark.parametrize(
    "leaf", ["network.module.7.weight", "memory.y", "adaptor_optimizer.0.exp_avg"]
)
def test_a_leaf_of_another_shape(
    leaf: str, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner())
    state = learner.state_dict()
    shape = tuple(state["tensors"][leaf].shape)
    state["tensors"][leaf] = state["tensors"][leaf][:-1]
    refuse(teach(make_learner()), state, differ, repr(leaf), str(shape))


@pytest.mark.parametrize("leaf", ["network.module.7.weight", "sets.seen", "lr", "weights_rng"])
def test_a_missing_leaf(leaf: str, make_learner: Make, differ: Differ) -> None:
    state = make_learner().state_dict()
    del state["tensors"][leaf]
    refuse(make_learner(), state, differ, repr(leaf), "expected")


def test_an_unknown_leaf(make_learner: Make, differ: Differ) -> None:
    state = make_learner().state_dict()
    state["tensors"]["network.more"] = torch.zeros(1)
    refuse(make_learner(), state, differ, "'network.more'")


@pytest.mark.parametrize("damaged", [{}, "PCG64", {"bit_generator": "MT19937"}, None])
def test_a_generator_that_is_damaged(
    damaged: Any, make_learner: Make, teach: Teach, differ: Differ
) -> None:
    state = teach(make_learner()).state_dict()
    state["meta"]["rng"]["memory"] = damaged
    refuse(
        make_learner(), state, differ, f"'rng.memory' is {damaged!r}, expected the state of a PCG64"
    )


def test_the_generator_of_weights_that_is_damaged(
    make_learner: Make, teach: Teach, differ: Differ
) -> None:
    state = teach(make_learner()).state_dict()
    state["tensors"]["weights_rng"].zero_()
    refuse(make_learner(), state, differ, "expected the state of a torch generator")


def test_check_same_layout_and_entries_of() -> None:
    a = {"x.a": torch.zeros(2), "x.b": torch.zeros(1)}
    check_same_layout(a, {k: v.clone() for k, v in a.items()})
    assert set(entries_of(a, "x")) == {"a", "b"}
    assert entries_of(a, "y") == {}
    with pytest.raises(ValueError, match=r"'x\.a' is torch\.float64 of shape \(2,\), expected"):
        check_same_layout(a, {**a, "x.a": torch.zeros(2, dtype=torch.float64)})


# ---------------------------------------------------------------- files


@pytest.fixture
def saved(make_learner: Make, teach: Teach, tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    teach(make_learner()).save(path)
    return path


def test_a_file_restores_every_byte(
    make_learner: Make, teach: Teach, differ: Differ, tmp_path: Path
) -> None:
    learner = teach(make_learner())
    path = tmp_path / "deep" / "down" / "state.safetensors"
    learner.save(str(path))
    assert differ(learner.state_dict(), read_state_file(path)) == []
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_missing_file(make_learner: Make, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors is missing, expected"):
        make_learner().load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.9, 0.9999])
def test_a_truncated_file(share: float, saved: Path, make_learner: Make, differ: Differ) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    refuse_file(saved, make_learner(), differ)


def refuse_file(path: Path, learner: Learner, differ: Differ) -> None:
    before = learner.state_dict()
    with pytest.raises(ValueError, match=path.name):
        learner.load(path)
    assert differ(before, learner.state_dict()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 64, b"\xff" * 64, b"plain text\n" * 9])
def test_a_file_of_something_else(
    content: bytes, tmp_path: Path, make_learner: Make, differ: Differ
) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(content)
    refuse_file(path, make_learner(), differ)


def test_a_safetensors_file_of_something_else(
    tmp_path: Path, make_learner: Make, differ: Differ
) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(2)}, path)
    refuse_file(path, make_learner(), differ)


def test_a_header_whose_json_is_damaged(saved: Path, make_learner: Make) -> None:
    content = saved.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["dualcba"] = header["__metadata__"]["dualcba"][:-9]
    new = json.dumps(header).encode()
    saved.write_bytes(struct.pack("<Q", len(new)) + new + content[8 + length :])
    with pytest.raises(ValueError, match=saved.name):
        make_learner().load(saved)


class Touch:
    """Creates a file when its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_loading_runs_no_code(how: str, tmp_path: Path, make_learner: Make) -> None:
    path, trace = tmp_path / "evil.safetensors", tmp_path / "trace"
    if how == "pickle":
        path.write_bytes(pickle.dumps(Touch(trace)))
    else:
        torch.save({"tensors": Touch(trace), "meta": {}}, path)
    with pytest.raises(ValueError, match="safetensors"):
        make_learner().load(path)
    assert not trace.exists()


def test_a_save_that_fails_leaves_the_old_file(
    saved: Path, make_learner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        make_learner().save(saved)
    assert saved.read_bytes() == content
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_views_are_written_as_plain_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    base = torch.arange(12.0).view(3, 4)
    write_state_file(path, {"tensors": {"t": base.T, "u": base[1]}, "meta": {"n": 2**100}})
    state = read_state_file(path)
    assert torch.equal(state["tensors"]["t"], base.T)
    assert state["meta"] == {"n": 2**100}


def test_a_full_disk_is_an_os_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.safetensors"):
        write_state_file(tmp_path / "a.safetensors", {"tensors": {}, "meta": {}})
    with (
        pytest.raises(OSError, match=r"No space left on device: .*a\.json"),
        atomic_write(tmp_path / "a.json"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_state_without_meta_changes_nothing(vectors: Make) -> None:
    learner = vectors()
    learner.new_task([0])
    state = learner.state_dict()
    state["meta"] = {}
    with pytest.raises(ValueError, match="meta"):
        learner.load_state_dict(state)


def test_saved_files_have_the_users_own_mode(tmp_path: Path, vectors: Make) -> None:
    learner = vectors()
    plain = tmp_path / "plain"
    plain.write_text("")
    learner.save(tmp_path / "learner.safetensors")
    assert (tmp_path / "learner.safetensors").stat().st_mode == plain.stat().st_mode
