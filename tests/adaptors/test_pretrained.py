"""Files with ν, loaded and frozen; and ν that is trained in the first tasks only."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dualcba import Learner
from dualcba.adaptors.adaptor import Adaptor
from dualcba.adaptors.pretrained import load_agnostic, save_agnostic
from dualcba.tasks.class_sets import ClassSets

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Run = Callable[..., Any]

FROM = {"dataset": "images", "seed": 3}
ROOT = Path(__file__).parents[2]


def weights(module: nn.Module | None) -> dict[str, Tensor]:
    assert module is not None
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def agnostic(learner: Learner) -> dict[str, Tensor]:
    assert learner.adaptor is not None
    return weights(learner.adaptor.agnostic)


def specific(learner: Learner) -> dict[str, Tensor]:
    assert learner.adaptor is not None
    return weights(learner.adaptor.specific)


@pytest.fixture
def taught(make_learner: Make, teach: Teach) -> Learner:
    return teach(make_learner("er-dual-cba", width=12))


@pytest.fixture
def file(taught: Learner, tmp_path: Path) -> Path:
    path = tmp_path / "nu.safetensors"
    taught.save_agnostic(path, FROM)
    return path


# ---------------------------------------------------------------- the file


def test_save_and_load(taught: Learner, file: Path) -> None:
    loaded = load_agnostic(file)
    assert same(weights(loaded.part), agnostic(taught))
    assert (loaded.space, loaded.divide, loaded.provenance) == ("logit", False, FROM)
    assert not any(p.requires_grad for p in loaded.part.parameters())
    assert file.stat().st_size < 2000
    assert [p.name for p in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("method", ["er", "er-cba"])
def test_nothing_to_save(method: str, make_learner: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no (adaptor|class-agnostic part), expected"):
        make_learner(method).save_agnostic(tmp_path / "x", {})
    assert not list(tmp_path.iterdir())


def tampered(**changes: Tensor | None) -> Callable[[Path, Path], None]:
    def write(path: Path, good: Path) -> None:
        tensors = load_agnostic(good).part.state_dict()
        names = {k.replace("_", "."): v for k, v in changes.items()}
        mixed = {k: v for k, v in (tensors | names).items() if v is not None}
        meta = {"kind": "class-agnostic part", "space": "logit", "divide": False, "provenance": {}}
        save_file(mixed, path, {"dualcba": json.dumps(meta)})

    return write


BAD: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "missing": (lambda path, good: None, "is missing, expected a class-agnostic part"),
    "text": (lambda path, good: path.write_text("x" * 50), "cannot be read as a class-agnostic"),
    "foreign": (
        lambda path, good: save_file({"a": torch.ones(1)}, path),
        "is not a class-agnostic part",
    ),
    "no bias": (tampered(net_hidden_bias=None), "no entry 'net.hidden.bias'"),
    "other": (tampered(other=torch.ones(3)), "an entry 'other'"),
    "shape": (tampered(net_output_weight=torch.ones(3, 12)), r"\(3, 12\), expected .*\(2, 12\)"),
    "width": (tampered(net_hidden_bias=torch.ones(9)), r"\(12, 2\), expected .*\(9, 2\)"),
    "type": (tampered(net_output_bias=torch.ones(2).double()), "float64 .*expected .*float32"),
}


@pytest.mark.parametrize("kind", BAD)
def test_invalid_files_are_one_line_errors(
    kind: str, file: Path, tmp_path: Path, make_learner: Make
) -> None:
    make, words = BAD[kind]
    path = tmp_path / "bad.safetensors"
    make(path, file)
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        make_learner("er-dual-cba", agnostic_from=path)
    assert "bad.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_saved_learner_is_not_a_class_agnostic_part(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "learner")
    with pytest.raises(ValueError, match="learner does not contain a class-agnostic"):
        load_agnostic(tmp_path / "learner")


@pytest.mark.parametrize(
    "options", [{"divide": True}, {"space": "probability"}, {"strength": True}, {"counts": True}]
)
def test_the_adaptor_must_have_the_options_of_the_training(
    options: dict[str, Any], file: Path, make_learner: Make, tmp_path: Path
) -> None:
    (field, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{field} is {value!r}, expected .* as in the loaded"):
        make_learner("er-dual-cba", agnostic_from=file, **options)
    adaptor = Adaptor(ClassSets(3), width=4, generator=torch.Generator(), **options)
    save_agnostic(adaptor, tmp_path / "other", {})
    make_learner("er-dual-cba", agnostic_from=tmp_path / "other", **options)


@pytest.mark.parametrize("options", [{"strength": True}, {"counts": True}])
def test_a_file_of_other_inputs_is_refused(
    options: dict[str, Any], file: Path, make_learner: Make, tmp_path: Path
) -> None:
    """A file says whether its part has a strength and counts; early files have neither."""
    ((field, _),) = options.items()
    adaptor = Adaptor(ClassSets(3), width=4, generator=torch.Generator(), **options)
    assert adaptor.agnostic is not None
    getattr(adaptor.agnostic, field).data.fill_(0.5)
    save_agnostic(adaptor, tmp_path / "other", {})
    loaded = load_agnostic(tmp_path / "other")
    assert getattr(loaded, field)
    assert same(weights(loaded.part), weights(adaptor.agnostic))
    with pytest.raises(ValueError, match=f"{field} is False, expected True, as in the loaded"):
        make_learner("er-dual-cba", agnostic_from=tmp_path / "other")
    tampered()(tmp_path / "early", file)
    early = load_agnostic(tmp_path / "early")
    assert not early.counts
    assert not early.strength


def test_pretrained_is_the_shipped_file(
    file: Path, taught: Learner, make_learner: Make, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr("dualcba.adaptors.pretrained.SHIPPED", {"dual-cba": file})
    assert same(agnostic(make_learner(agnostic_from="pretrained")), agnostic(taught))
    monkeypatch.setattr("dualcba.adaptors.pretrained.SHIPPED", {"dual-cba": tmp_path / "none"})
    with pytest.raises(FileNotFoundError, match="is missing, expected the pretrained class-agn"):
        make_learner(agnostic_from="pretrained")


# ---------------------------------------------------------------- loaded and frozen


def test_a_loaded_part_alone_has_no_outer_step(
    file: Path, make_learner: Make, teach: Teach, monkeypatch: Any, make_batches: Any
) -> None:
    """With a loaded ν alone there is no outer step; its width is that of the file."""
    learner = make_learner("er-dual-cba", agnostic_from=file, outer_every=1)
    before = agnostic(learner)
    assert before["net.hidden.weight"].shape == (12, 2)
    assert learner.adaptor is not None
    assert learner.adaptor.specific is None
    assert learner.parts.outer_loop.optimizer is None
    monkeypatch.setattr(learner.parts.outer_loop, "step", None)
    teach(learner, tasks=3)
    assert same(agnostic(learner), before)
    plain = teach(make_learner("er"), tasks=3)
    assert torch.equal(learner.memory.x, plain.memory.x)  # no outer draw
    assert not same(weights(learner.network), weights(plain.network))


@pytest.mark.parametrize("kind", ["single", "individual"])
def test_a_loaded_part_with_a_trained_class_specific_part(
    kind: str, file: Path, make_learner: Make, teach: Teach
) -> None:
    options = {"specific": kind, "width": 7}
    learner = make_learner("er-dual-cba", agnostic_from=file, **options)
    teach(learner, tasks=1)
    nu = agnostic(learner)
    learner.new_task([2, 3])
    omega = specific(learner)
    assert {p.shape[0] for n, p in omega.items() if "hidden" in n} == {7}
    teach(learner, tasks=1)
    assert not same(specific(learner), omega)
    assert same(agnostic(learner), nu)


def test_a_learner_with_a_loaded_part_is_saved_and_loaded(
    file: Path, make_learner: Make, teach: Teach, tmp_path: Path, differ: Any
) -> None:
    learner = teach(make_learner("er-dual-cba", agnostic_from=file))
    learner.save(tmp_path / "state")
    other = make_learner("er-dual-cba", agnostic_from=file)
    other.load(tmp_path / "state")
    assert differ(other.state_dict(), learner.state_dict()) == []


# ---------------------------------------------------------------- frozen after some tasks


def moments(learner: Learner) -> dict[str, Tensor]:
    """Return the state of Adam for ν."""
    assert learner.adaptor is not None
    assert learner.adaptor.agnostic is not None
    assert learner.parts.outer_loop.optimizer is not None
    state = learner.parts.outer_loop.optimizer.state
    named = learner.adaptor.agnostic.named_parameters()
    return {f"{n}.{k}": v.clone() for n, p in named for k, v in state[p].items()}


def step(learner: Learner, make_batches: Any, task: int, steps: int = 5) -> None:
    for x, y in make_batches(3, steps)[task]:
        learner.observe(x, y)


@pytest.mark.parametrize("levels", ["bi", "joint", "buffer"])
def test_nu_is_constant_after_freezing(levels: str, make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba", freeze_after=2, outer_every=1, levels=levels)
    learner.new_task([0, 1])
    step(learner, make_batches, 0)
    learner.new_task([2, 3])
    start = agnostic(learner)
    step(learner, make_batches, 1)
    assert not same(agnostic(learner), start)
    learner.new_task([4, 5])
    nu, adam, omega = agnostic(learner), moments(learner), specific(learner)
    assert any(v.any() for v in adam.values())
    step(learner, make_batches, 2)
    assert same(agnostic(learner), nu)
    assert same(moments(learner), adam)
    assert not same(specific(learner), omega)


def test_before_freezing_nothing_differs(make_learner: Make, teach: Teach, differ: Any) -> None:
    frozen, free = (teach(make_learner(freeze_after=k)) for k in (2, None))
    assert differ(frozen.state_dict(), free.state_dict()) == []


def test_a_step_with_frozen_nu_has_another_graph_key(
    make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    learner = make_learner("er-dual-cba", freeze_after=2, outer_every=1, buffer=8)
    learner.parts.training_step.stay_on_device()  # keys are those of the path of a GPU
    keys: dict[int, set[Any]] = {}
    run = learner.parts.engine.run

    def spy(key: Any, fn: Any, *inputs: Tensor) -> None:
        keys.setdefault(learner.task, set()).add(key)
        run(key, fn, *inputs)

    monkeypatch.setattr(learner.parts.engine, "run", spy)
    teach(learner, tasks=3)
    assert keys[1]
    assert keys[2]
    assert not keys[1] & keys[2]


def test_frozen_nu_alone_has_no_outer_step(
    make_learner: Make, teach: Teach, monkeypatch: Any
) -> None:
    options = {"specific": "none", "width": 8}
    learner = make_learner(freeze_after=2, outer_every=1, **options)
    at: list[int] = []
    outer = learner.parts.outer_loop.step
    monkeypatch.setattr(
        learner.parts.outer_loop, "step", lambda *a: at.append(learner.task) or outer(*a)
    )
    teach(learner, tasks=3)
    assert set(at) == {1}


@pytest.mark.parametrize("at", [1, 2])
def test_a_state_determines_what_is_frozen(
    at: int, make_learner: Make, make_batches: Any, differ: Any
) -> None:
    """Load a state from before the freezing into a learner after it, and the reverse."""

    def live(learner: Learner, first: int, last: int) -> Learner:
        for task in range(first, last):
            learner.new_task([2 * task, 2 * task + 1])
            step(learner, make_batches, task)
        return learner

    learner = live(make_learner(freeze_after=2), 0, at + 1)
    state = learner.state_dict()
    other = live(make_learner(freeze_after=2, seed=5), 0, 4 - at)
    other.load_state_dict(state)
    for each in (learner, other):
        step(each, make_batches, at, 3)
        live(each, at + 1, 3)
    assert differ(other.state_dict(), learner.state_dict()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "er", "agnostic_from": "x"}, "agnostic_from is 'x', .* has no adaptor"),
        ({"method": "er-cba", "agnostic_from": "x"}, "agnostic_from is 'x', .*'cba' has no such"),
        ({"method": "er-cba", "freeze_after": 2}, "freeze_after is 2, .*'cba' has no such option"),
        ({"agnostic": False, "freeze_after": 2}, "None if no class-agnostic part is trained"),
        ({"agnostic": False, "agnostic_from": "x"}, "None if agnostic is False"),
        ({"freeze_after": 1}, "freeze_after is 1, expected a whole number of at least 2"),
        ({"freeze_after": 2, "agnostic_from": "x"}, "freeze_after is 2, expected None if no"),
    ],
)
def test_impossible_combinations(options: dict[str, Any], words: str, make_learner: Make) -> None:
    with pytest.raises(ValueError, match=words):
        make_learner(**options)


# ---------------------------------------------------------------- from run to run


def test_a_run_saves_nu_and_another_loads_it(dualcba: Run) -> None:
    quick = ("--eval-every", 0, "--batch-size", 32, "--device", "cpu", "--quiet")
    got = dualcba("run", "--method", "er,er-cba,er-dual-cba", "--width", 32, "--out", "a", *quick)
    assert got.code == 0, got.err
    (path,) = [got.folder / p for p in got.files if p.endswith("agnostic.safetensors")]
    assert "er-dual-cba" in str(path)
    made = load_agnostic(path).provenance
    shown = {"dataset": "digits", "method": "er-dual-cba", "buffer": 100, "seed": 0}
    assert {k: made[k] for k in shown} == shown
    got = dualcba(
        "run", "--method", "er,er-dual-cba", "--agnostic-from", path, "--out", "b", *quick
    )
    assert got.code == 0, got.err
    assert not [p for p in got.files if p.startswith("b/") and p.endswith("agnostic.safetensors")]
    spec = json.loads(next((got.folder / "b").glob("*dual*/result.json")).read_text())["spec"]
    assert (spec["agnostic_from"], spec["specific"]) == (str(path), "none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--agnostic-from", "none.safetensors"),
            "none.safetensors is missing, expected a class-agn",
        ),
        (
            ("--agnostic-from", "x", "--no-agnostic"),
            "agnostic_from is 'x', expected None if agnostic",
        ),
        (("--agnostic-from", "x", "--method", "er-cba"), "agnostic_from is 'x', expected no value"),
        (("--agnostic-from", "x", "--freeze-after", 2), "freeze_after is 2, expected None if no"),
        (("--freeze-after", 1), "freeze_after is 1, expected a whole number of at least 2"),
        (("--freeze-after", 2, "--no-agnostic"), "freeze_after is 2, expected None if no"),
        (("--freeze-after", 2, "--method", "er"), "freeze_after is 2, expected no value"),
    ],
    ids=str,
)
def test_invalid_commands_are_one_line_errors(
    options: tuple[Any, ...], words: str, dualcba: Run
) -> None:
    method = () if "--method" in options else ("--method", "er-dual-cba")
    got = dualcba("run", *options, *method, "--out", "x")
    assert (got.code, got.out, got.files, len(got.lines)) == (2, "", [], 1)
    assert words in got.lines[0]


def test_pretraining_writes_the_file_and_its_provenance(tmp_path: Path, capsys: Any) -> None:
    path = ROOT / "tools" / "pretrain.py"
    spec = importlib.util.spec_from_file_location("pretrain", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = tmp_path / "agnostic.safetensors"
    module.main(["--commit", "abc", "--dataset", "digits", "--device", "cpu", "--out", str(out)])
    made = json.loads(out.with_suffix(".json").read_text())
    assert load_agnostic(out).provenance == made == json.loads(capsys.readouterr().out)
    shown = {"dataset": "digits", "method": "er-dual-cba", "specific": "individual", "seed": 0}
    assert {k: made[k] for k in shown} == shown
    assert {"buffer", "commit", "date", "acc"} <= made.keys()
