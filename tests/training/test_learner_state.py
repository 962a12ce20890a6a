"""Damaged states: refused as a whole with the learner unchanged, or loaded exactly as given."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner
from dualcba.losses import Batch, Term
from dualcba.methods.er import ER

Make = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
State = dict[str, Any]

DAMAGES = 1000 if os.environ.get("DUALCBA_FUZZ") == "full" else 50


class Rereads(ER):
    """Keeps logits with the samples, and the samples of the task."""

    columns = ("logits",)
    rereads_task = True

    def terms(self, new: Batch, mem: Sequence[Batch]) -> list[Term]:
        return super().terms(new, mem)


LEARNERS: dict[str, dict[str, Any]] = {
    "er-dual-cba": {},
    "inferred": {"method": "er-dual-cba", "boundaries": "inferred"},
    "rereads": {"adaptor": "dual-cba"},
    "ss-il": {},  # balanced memory, teacher
    "bic": {},  # herding, counts
    "shares": {"method": "bic", "method_options": {"merge": True, "released": True}},
    "clser-cba": {},
    "adam": {"method": "er-dual-cba", "optimizer": "adam"},
    "er-balanced-cba": {"strength": True, "prior": True, "counts": True},
}


@pytest.fixture(params=LEARNERS)
def trained(request: pytest.FixtureRequest, make_learner: Make, make_batches: Any) -> Learner:
    """A learner in the middle of its second task."""
    options = {"method": request.param, **LEARNERS[request.param]}
    if request.param == "rereads":
        options["method"] = Rereads()
    learner = make_learner(**options)
    for k, batches in enumerate(make_batches(3, 4)[:2]):
        if request.param != "inferred":
            learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    return learner


# ---------------------------------------------------------------- one leaf at random is damaged


def flip(t: Tensor, rng: np.random.Generator) -> Tensor:
    """Flip one bit."""
    data = bytearray(t.contiguous().numpy().tobytes())
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return torch.frombuffer(data, dtype=t.dtype).reshape(t.shape).clone()


def fill(value: float) -> Callable[[Tensor, np.random.Generator], Tensor]:
    """Set one value."""

    def damage(t: Tensor, rng: np.random.Generator) -> Tensor:
        out = t.clone().reshape(-1)
        low, high = (-1, 1) if t.dtype == torch.bool else (-(2**62), 2**62)
        whole = int(np.clip(np.nan_to_num(value, nan=99), low, high))
        number = (
            value if t.is_floating_point() else whole % 256 if t.dtype == torch.uint8 else whole
        )
        out[int(rng.integers(len(out)))] = number
        return out.reshape(t.shape)

    return damage


TENSOR_DAMAGES: dict[str, Callable[[Tensor, np.random.Generator], Any]] = {
    "flip": flip,
    "flip again": flip,
    "nan": fill(float("nan")),
    "inf": fill(float("inf")),
    "negative": fill(-3.0),
    "large": fill(1e30),
    "longer": lambda t, _: torch.cat([t.reshape(-1), t.reshape(-1)]),
    "one more axis": lambda t, _: t.unsqueeze(0),
    "empty": lambda t, _: t.reshape(-1)[:0],
    "double": lambda t, _: t.double() if t.dtype != torch.float64 else t.float(),
    "complex": lambda t, _: t.to(torch.complex64),
    "sparse": lambda t, _: t.to_sparse() if t.dim() else t.reshape(1).to_sparse(),
    "meta": lambda t, _: t.to("meta"),
    "quantised": lambda t, _: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "list": lambda t, _: t.tolist(),
    "array": lambda t, _: t.numpy(),
    "none": lambda t, _: None,
}

META_DAMAGES: dict[str, Callable[[Any], Any]] = {
    "none": lambda v: None,
    "text": str,
    "float": lambda v: float(v) if isinstance(v, int) else 0.5,
    "negative": lambda v: -7,
    "large": lambda v: 2**70,
    "huge": lambda v: 2**300,
    "nan": lambda v: float("nan"),
    "bool": lambda v: True,
    "tensor": lambda v: torch.zeros(3, 3),
    "deep": lambda v: [[[[[v] * 9] * 9] * 9] * 9],
    "dict": lambda v: {"a": v},
    "reversed": lambda v: v[::-1] if isinstance(v, list | str) else v,
    "next": lambda v: v + 1 if isinstance(v, int) else v,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all entries in nested dicts and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


def damage(good: State, rng: np.random.Generator) -> tuple[State, str, str]:
    """Return a copy with one damaged leaf, its name and the kind of damage."""
    state = {"tensors": dict(good["tensors"]), "meta": copy.deepcopy(good["meta"])}
    if rng.random() < 0.6:
        return _damage_tensors(state, rng)
    path = places(good["meta"])[int(rng.integers(len(places(good["meta"]))))]
    inner = state["meta"]
    for key in path[:-1]:
        inner = inner[key]
    kind = str(rng.choice([*META_DAMAGES, "missing", "extra"]))
    if kind == "missing":
        del inner[path[-1]]
    elif kind == "extra":
        inner.insert(0, 1) if isinstance(inner, list) else inner.update(more=1)
    else:
        inner[path[-1]] = META_DAMAGES[kind](inner[path[-1]])
    return state, str(path[0]), kind


def _damage_tensors(state: State, rng: np.random.Generator) -> tuple[State, str, str]:
    tensors = state["tensors"]
    groups = sorted({name.split(".")[0] for name in tensors})  # so that no part is rare
    group = str(rng.choice(groups))
    name = str(rng.choice([n for n in tensors if n.split(".")[0] == group]))
    kind = str(rng.choice([*TENSOR_DAMAGES, "missing", "extra", "swapped"]))
    if kind == "missing":
        del tensors[name]
    elif kind == "extra":
        name = f"{name}{rng.choice(['.more', '0', ' '])}"
        tensors[name] = torch.zeros(2)
    elif kind == "swapped":
        tensors[name] = tensors[str(rng.choice([n for n in tensors if n != name]))]
    else:
        tensors[name] = TENSOR_DAMAGES[kind](tensors[name], rng)
    return state, name, kind


VALUES = {"flip", "flip again", "negative", "large", "swapped", "next", "bool", "text", "reversed"}
"""Damages that can give another valid state: a finite weight of another value, a later step."""


@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_damaged_states_are_refused_whole_or_loaded_exactly(
    trained: Learner, make_batches: Any, differ: Differ
) -> None:
    good, rng = trained.state_dict(), np.random.default_rng(0)
    refused = loaded = 0
    for _ in range(DAMAGES):
        state, name, kind = damage(good, rng)
        problem = attempt(trained, state)
        if problem is not None:
            refused += 1
            assert differ(good, trained.state_dict()) == [], (name, kind)
            assert "\n" not in problem, (name, kind)
            assert len(problem) < 500, (name, kind)
            named = (
                name.rpartition(".")[0] or name,
                "'sets.",
                "'memory.",
            )  # or what contradicts it
            assert any(part in problem for part in named), (name, problem)
            assert "expected" in problem, problem
            continue
        assert differ(state, trained.state_dict()) == [], (name, kind)
        if differ(state, good):
            loaded += 1
            whole = not good["tensors"].get(name, torch.zeros(1)).is_floating_point()
            assert kind in VALUES or (whole and kind in ("nan", "inf")), (name, kind)
            still_works(trained, *make_batches(3)[1][0])
        trained.load_state_dict(good)
        assert differ(good, trained.state_dict()) == []
    print(f"refused {refused}, loaded exactly as given {loaded} of {DAMAGES}")
    assert refused > DAMAGES / 2


def attempt(learner: Learner, state: State) -> str | None:
    """Load a state; return the message of the error, if it is refused."""
    try:
        learner.load_state_dict(state)
    except ValueError as error:
        return str(error)
    return None


def still_works(learner: Learner, x: Tensor, y: Tensor) -> None:
    """The loaded state is a working one, unless a weight is so large that a loss is infinite."""
    try:
        learner.observe(x, y)
        learner.predict(x)
    except FloatingPointError:
        pass


# ---------------------------------------------------------------- one rule each


def changed(learner: Learner, name: str, change: Callable[[Any], Any]) -> State:
    state = learner.state_dict()
    part = "tensors" if name in state["tensors"] else "meta"
    state[part][name] = change(state[part][name])
    return state


RULES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("network.module.7.weight", lambda t: t * torch.inf, "finite numbers"),
    ("network.module.1.running_var", lambda t: -t, "no negative value"),
    ("adaptor_optimizer.0.exp_avg_sq", lambda t: t - 1, "no negative value"),
    ("adaptor_optimizer.0.step", lambda t: t + 0.5, "a whole number of at least 0"),
    ("adaptor_optimizer.0.exp_avg", lambda t: t.log().log(), "finite numbers"),
    ("lr", lambda t: -t, "a number of at least 0"),
    ("losses", lambda t: t + torch.nan, "finite numbers"),
    ("memory.y", lambda t: t * 6, "labels of seen classes"),
    ("memory.y", lambda t: torch.where(t == 3, 5, t), "labels of seen classes"),
    ("memory.x", lambda t: t | 1, "zeros in the last row"),
    ("memory._extra_state", lambda t: -t, "a number of samples of at least 0"),
    ("sets._extra_state", lambda t: t + 1, "the number of tasks in task_starts less 1"),
    ("sets.owner", lambda t: t + 1, "the current task for new classes"),
    ("sets.before", lambda t: t + 2, "a task before the current one"),
    ("sets.seen", lambda t: ~t, "all classes that a task has announced"),
    ("sets.new", lambda t: t.byte().mul(2).view(torch.bool), "True or False"),
    ("sets.later", lambda t: t * 0, "0 in the first task and 1 later"),
    ("weights_rng", lambda t: t.roll(8), "torch generator"),
    ("seed", lambda v: -1, "a whole number of at least 0"),
    ("seed", lambda v: 1.0, "a whole number of at least 0"),
    ("step", lambda v: -1, "a whole number from 0"),
    ("step", lambda v: True, "a whole number from 0"),
    ("step", lambda v: 2, "from 0 to the current step"),
    ("task_starts", lambda v: v[::-1], "ascending order"),
    ("task_starts", lambda v: [1, 5], "from 0 to the current step"),
    ("task_starts", lambda v: [], "from 0 to the current step"),
    ("task_open", lambda v: 1, "True or False"),
    ("rng", lambda v: v | {"more": 1}, "'more'"),
]


@pytest.mark.parametrize("case", range(len(RULES)), ids=[f"{n}-{w}" for n, _, w in RULES])
def test_each_rule(case: int, make_learner: Make, teach: Any, differ: Differ) -> None:
    name, change, wanted = RULES[case]
    learner = teach(make_learner())
    before = learner.state_dict()
    with pytest.raises(ValueError, match=wanted) as caught:
        learner.load_state_dict(changed(learner, name, change))
    assert differ(before, learner.state_dict()) == []
    assert "\n" not in str(caught.value)


def test_sums_of_features_may_be_negative(differ: Differ) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4))  # no ReLU before the last layer
    learner = Learner(net, (5,), 4, method="icarl", dtype=torch.float32, buffer=8, batch_size=4)
    learner.new_task([0, 1])
    learner.observe(torch.randn(4, 5), torch.tensor([0, 1, 0, 1]))
    state = learner.state_dict()
    assert (state["tensors"]["method.sums"] < 0).any()
    learner.load_state_dict(state)
    assert differ(state, learner.state_dict()) == []


SHARES: list[Callable[[Tensor], Tensor]] = [
    lambda t: t - 1,
    lambda t: 1 - t,
    lambda t: t.masked_fill(t > 0, 3),
]


@pytest.mark.parametrize("case", range(len(SHARES)))
def test_shares_of_tasks_are_in_their_order(case: int, make_learner: Make, teach: Any) -> None:
    options = {"merge": True, "released": True}
    learner = teach(make_learner("bic", method_options=options), tasks=3)
    assert learner.memory.owner[:20].tolist() == [0] * 10 + [1] * 10
    state = learner.state_dict()
    learner.load_state_dict(state)
    state["tensors"]["memory.owner"][:20] = SHARES[case](state["tensors"]["memory.owner"][:20])
    wanted = "'memory.owner' has .*, expected the tasks of the shares in ascending order"
    with pytest.raises(ValueError, match=wanted):
        learner.load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], {}, {"tensors": [], "meta": {}}, {"meta": 1}])
def test_something_else_is_no_state(state: Any, make_learner: Make) -> None:
    with pytest.raises(ValueError, match="the state has no entry"):
        make_learner().load_state_dict(state)


def test_a_buffer_that_is_infinite_by_design_is_accepted(make_learner: Make, make_net: Any) -> None:
    def make() -> Learner:
        net: nn.Module = make_net()
        net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        return make_learner("er", network=net)

    state = make().state_dict()
    make().load_state_dict(state)
    state["tensors"]["network.module.mask"][0] = torch.nan
    with pytest.raises(ValueError, match=r"'network\.module\.mask' has .*expected finite numbers"):
        make().load_state_dict(state)


class Refuses(ER):
    """Has an entry that can be saved but not loaded."""

    def get_extra_state(self) -> Tensor:
        return torch.tensor(1)

    def set_extra_state(self, state: Tensor) -> None:
        if not int(state):
            raise RuntimeError("no")


def test_a_load_that_fails_half_way_changes_nothing(
    make_learner: Make, teach: Any, differ: Differ
) -> None:
    state = teach(make_learner(Refuses(), adaptor="dual-cba"), steps=3).state_dict()
    state["tensors"]["method._extra_state"] = torch.tensor(0)
    learner = teach(make_learner(Refuses(), adaptor="dual-cba", seed=1))
    before = learner.state_dict()
    with pytest.raises(RuntimeError, match="no"):
        learner.load_state_dict(state)
    assert differ(before, learner.state_dict()) == []
