"""What a close reading of the learner found: each was wrong once."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dualcba import Learner
from dualcba.evaluation import Evaluator
from dualcba.experiments import Hardware, Run, Spec, make_specs
from dualcba.methods.er import ER
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.icarl import ICaRL
from dualcba.methods.rar import RAR
from dualcba.nets import MLP
from dualcba.normalization.statistics import batch_norms


def vectors(**options) -> Learner:
    torch.manual_seed(0)
    given = {"method": "er", "buffer": 8, "batch_size": 4, "dtype": torch.float32, "lr": 0.1}
    return Learner(MLP((5,), 4, width=6), (5,), 4, **(given | options), device="cpu")


def test_the_gradient_of_a_lone_sample_is_right():
    """The new sample is normalised by running statistics, which the memory's forward moves."""
    learner = vectors(batch_size=4)
    learner.new_task([0, 1, 2, 3])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 5)).astype(np.float32)
    y = rng.integers(0, 4, 9)
    learner.observe(x[:8], y[:8])
    before = MLP((5,), 4, width=6)
    before.load_state_dict(learner.network.module.state_dict())
    rows = torch.from_numpy(copy.deepcopy(learner.draws.rng["memory"]).choice(8, 4, replace=False))
    mem_x, mem_y, _ = learner.memory.read(rows)
    learner.observe(x[8:], y[8:])

    mem = F.cross_entropy(before(mem_x), mem_y)
    twin = MLP((5,), 4, width=6)  # its running statistics are those after the memory's forward
    twin.load_state_dict(before.state_dict())
    new = F.cross_entropy(twin.eval()(torch.from_numpy(x[8:])), torch.from_numpy(y[8:]))
    slopes = torch.autograd.grad(mem, list(before.parameters()))
    other = torch.autograd.grad(new, list(twin.parameters()))
    for p, old, a, b in zip(
        learner.network.module.parameters(), before.parameters(), slopes, other, strict=True
    ):
        torch.testing.assert_close(p, old - 0.1 * (a + b), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", ["bn", "cn", "adab2n"])
def test_single_samples_with_any_normalisation(norm):
    from dualcba.normalization.layers import convert_normalization

    net = convert_normalization(MLP((5,), 4, width=16), norm)
    learner = Learner(net, (5,), 4, dtype=torch.float32, buffer=8, batch_size=4, device="cpu")
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for k in range(6):
            learner.observe(np.random.default_rng(k).normal(size=(1, 5)), [classes[k % 2]])
    assert learner.predict_proba(np.zeros((2, 5))).isfinite().all()


def test_evaluating_may_be_nested(make_learner, teach, images):
    learner = teach(make_learner())
    before = [(n.running_mean.clone(), n.running_var.clone()) for n in batch_norms(learner.network)]
    with learner.evaluating("ibn"):
        inside = [n.running_mean.clone() for n in batch_norms(learner.network)]
        learner.predict(images.test_x[:3])
        again = [n.running_mean.clone() for n in batch_norms(learner.network)]
    assert all(torch.equal(a, b) for a, b in zip(inside, again, strict=True))
    for layer, (mean, var) in zip(batch_norms(learner.network), before, strict=True):
        assert torch.equal(layer.running_mean, mean)
        assert torch.equal(layer.running_var, var)


def test_an_adaptor_that_cannot_be_made_leaves_network_and_method_alone(tmp_path: Path):
    method, net = ER(), MLP((5,), 4, width=6).eval()
    given = {"method": method, "adaptor": "dual-cba", "dtype": torch.float32, "device": "cpu"}
    with pytest.raises(FileNotFoundError):
        Learner(net, (5,), 4, agnostic_from=tmp_path / "none", **given)
    assert not net.training
    Learner(net, (5,), 4, **given)  # the method is still free


def test_evaluating_under_a_norm_that_there_is_not():
    with pytest.raises(ValueError, match="norm is 'IBN', expected 'bn' or 'ibn'"):
        vectors().evaluating("IBN").__enter__()


def test_a_method_object_works_in_one_learner():
    method = ER()
    vectors(method=method)
    with pytest.raises(ValueError, match=r"works in another learner"):
        vectors(method=method)


def test_evaluators_never_share_a_graph():
    spec = Spec(method="er", eval_every=0)
    from dualcba import load_dataset

    run = Run(spec, load_dataset("digits"), Hardware("cpu"))
    keys = set()
    for _ in range(5):
        evaluator = Evaluator(run.learner, run.data, run.stream)
        keys.add(evaluator._key)
        del evaluator
    assert len(keys) == 5


def test_combinations_that_make_no_sense():
    with pytest.raises(ValueError, match="ICaRL has no logits to adapt"):
        vectors(method=ICaRL(), adaptor="cba")
    with pytest.raises(ValueError, match="method_options"):
        vectors(method=ER(), method_options={"alpha": 1})
    with pytest.raises(ValueError, match="adaptor_options"):
        vectors(method="er", adaptor_options={"width": 3})
    with pytest.raises(ValueError, match="did you mean 'width'"):
        vectors(method="er-cba", adaptor_options={"wdith": 3})
    with pytest.raises(ValueError, match=r"epochs is 2, expected 1"):
        Spec(method="bic", epochs=2)
    with pytest.raises(ValueError, match="buffer is 3, expected at least 4"):
        vectors(method="icarl", buffer=3)


@pytest.mark.parametrize(
    "field",
    [{"buffer": 2.5}, {"buffer": True}, {"lr": "a"}, {"seed": -1}, {"method": ER}, {"lr": 0}],
)
def test_arguments_of_another_kind_are_named(field):
    with pytest.raises(ValueError, match=rf"^{next(iter(field))} is .* expected"):
        vectors(**field)


@pytest.mark.parametrize("value", ["abc", -1, float("nan"), True, None])
def test_values_of_options(value):
    with pytest.raises(ValueError, match=r"'alpha' of 'derpp' is .*expected a number"):
        Spec(method="derpp", method_options={"alpha": value})


def test_options_and_tasks_from_a_file_are_checked():
    with pytest.raises(ValueError, match="options is 3, expected"):
        make_specs({"method_options": 3})
    from dualcba.data import load_dataset
    from dualcba.experiments.run import make_stream

    for field, value in (("tasks", [2.5, 3]), ("class_order", [0, 1, "x"])):
        with pytest.raises(ValueError, match=r"is .*expected"):
            make_stream(Spec(**{field: value}), load_dataset("digits"))


def test_later_epochs_are_not_read_again():
    from dualcba import load_dataset

    spec = Spec(method="icarl", epochs=3, eval_every=0, tasks=[[0, 1]])
    run = Run(spec, load_dataset("digits"), Hardware("cpu"))
    sizes = []
    for _ in run.steps():
        sizes.append(sum(len(y) for _, y in run.learner.tasks.data))
    assert max(sizes) == len(run.plan[0][0]) * 10


def test_fixmatch_hands_everything_on():
    inner = RAR(repeats=3)
    assert FixMatch(inner).repeats == 3
    hooks = ("bind", "make_memory", "make_transform", "outer_terms", "noise", "after_step",
             "begin_task", "end_task", "before_scores", "scores", "terms")  # fmt: skip
    assert all(name in vars(FixMatch) for name in hooks)


def test_only_classes_that_were_seen():
    learner = vectors(seen_only=True, buffer=20)
    x = np.random.default_rng(0).normal(size=(9, 5))
    assert torch.equal(learner.predict_proba(x), vectors(buffer=20).predict_proba(x))  # none yet
    learner.new_task([2])
    learner.observe(np.zeros((4, 5)), [2, 2, 2, 2])
    assert learner.predict(x).unique().tolist() == [2]
    assert learner.predict_proba(np.zeros((1, 5))).tolist() == [[0.0, 0.0, 1.0, 0.0]]


def test_new_task_takes_a_tensor_or_an_array():
    learner = vectors()
    learner.new_task(torch.tensor([0, 1]))
    learner.new_task(np.array([2]))
    assert learner.sets.new.tolist() == [False, False, True, False]


def test_arrays_of_any_strides_and_byte_order():
    learner = vectors()
    learner.new_task([0, 1])
    x = np.arange(20.0).reshape(4, 5)
    learner.observe(x[::-1].astype(">f8"), np.array([0, 1, 0, 1])[::-1].copy())
    with pytest.raises(ValueError, match="real numbers"):
        learner.observe(torch.zeros(4, 5, dtype=torch.complex64), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="ragged"):
        learner.observe([[1.0], [1.0, 2.0]], [0, 1])
    with pytest.raises(ValueError, match="labels"):
        learner.observe(x, None)


def test_a_state_without_meta_changes_nothing():
    learner = vectors()
    learner.new_task([0])
    state = learner.state_dict()
    state["meta"] = {}
    with pytest.raises(ValueError, match="meta"):
        learner.load_state_dict(state)


def test_saved_files_have_the_users_own_mode(tmp_path: Path):
    learner = vectors()
    plain = tmp_path / "plain"
    plain.write_text("")
    learner.save(tmp_path / "learner.safetensors")
    assert (tmp_path / "learner.safetensors").stat().st_mode == plain.stat().st_mode


def test_an_ema_of_batches_of_one():
    learner = vectors(batch_size=1, ibn=True, ibn_average="ema")
    learner.new_task([0, 1])
    for k in range(5):
        learner.observe(np.random.default_rng(k).normal(size=(2, 5)), [0, 1])
    assert learner.predict(np.zeros((1, 5))).shape == (1,)


def test_an_ema_leaves_no_sample_alone():
    """Of three samples in batches of two, one would have no batch statistics."""
    learner = vectors(batch_size=2, ibn=True, ibn_average="ema")
    learner.new_task([0, 1])
    learner.observe(np.random.default_rng(0).normal(size=(3, 5)), [0, 1, 0])
    assert learner.predict(np.zeros((1, 5))).shape == (1,)


def test_samples_that_require_a_gradient_get_none():
    learner = vectors()
    learner.new_task([0, 1])
    x = torch.ones(4, 5, requires_grad=True)
    learner.observe(x, [0, 1, 0, 1])
    assert x.grad is None


@pytest.mark.parametrize(
    "spec",
    [Spec(method="er"), Spec(method="er-dual-cba"), Spec(agnostic_from="pretrained")],
    ids=["er", "trained", "pretrained"],
)
def test_building_a_learner_leaves_the_global_generator_alone(spec):
    from dualcba import load_dataset
    from dualcba.experiments import make_learner

    torch.manual_seed(3)
    before = torch.get_rng_state()
    make_learner(spec, load_dataset("digits"), Hardware("cpu"))
    assert torch.equal(torch.get_rng_state(), before)


def test_specs_are_json():
    assert json.loads(json.dumps(Spec().to_dict()))["seen_only"] is False


def test_a_network_that_is_no_module():
    with pytest.raises(ValueError, match=r"network is 3, expected an nn.Module"):
        Learner(3, (5,), 4)  # type: ignore[arg-type]
    frozen = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    frozen[1].eval()
    Learner(frozen, (5,), 4, dtype=torch.float32, device="cpu")
    assert not frozen[1].training


def test_the_end_of_a_task_that_failed_can_be_had_again(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(nn.Linear(5, 4), (5,), 4, method="icarl", dtype=torch.float32, device="cpu")
    learner.new_task([0, 1])
    learner.observe(torch.randn(6, 5), torch.tensor([0, 1] * 3))
    end, ended = learner.method.end_task, []
    monkeypatch.setattr(learner.method, "end_task", fails)
    with pytest.raises(MemoryError):
        learner.end_task()
    monkeypatch.setattr(learner.method, "end_task", lambda x, y: (ended.append(len(x)), end(x, y)))
    learner.new_task([2])
    assert ended == [6]


def test_a_step_that_failed_counts_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = vectors()
    learner.new_task([0, 1])
    monkeypatch.setattr(learner.engine, "run", fails)
    with pytest.raises(MemoryError):
        learner.observe(torch.randn(4, 5), torch.tensor([0, 1] * 2))
    assert learner.memory.filled == 0


def fails(*_: object) -> None:
    raise MemoryError
