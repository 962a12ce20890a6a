"""The learner as a caller sees it: what it accepts, and what it refuses in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner, Transform
from dualcba.data.dataset import check_samples
from dualcba.experiments import Spec
from dualcba.experiments.spec import read_toml
from dualcba.methods.er import ER
from dualcba.methods.icarl import ICaRL
from dualcba.nets import MLP, make_network

Make = Callable[..., Learner]
Teach = Callable[..., Learner]
Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]


def test_it_learns(images: Dataset, make_learner: Make, make_batches: Any) -> None:
    learner = make_learner("er-dual-cba", lr=0.1)
    for k, batches in enumerate(make_batches(3, steps=40)):
        learner.new_task([2 * k, 2 * k + 1])
        for x, y in batches:
            learner.observe(x, y)
    right = learner.predict(images.test_x) == images.test_y
    assert right.float().mean() > 0.6


def test_arrays_lists_and_tensors_alike(
    images: Dataset, make_learner: Make, differ: Differ
) -> None:
    x, y = images.train_x[:8], torch.tensor([0, 1] * 4)
    states = []
    for form in (lambda t: t, lambda t: t.numpy(), lambda t: t.numpy().astype(t.numpy().dtype)):
        learner = make_learner()
        learner.new_task([0, 1])
        learner.observe(form(x), form(y))
        states.append(learner.state_dict())
        learner.predict(form(x))
    learner = make_learner()
    learner.new_task([0, 1])
    learner.observe(x, y.tolist())
    states.append(learner.state_dict())
    assert all(differ(states[0], s) == [] for s in states[1:])


def test_float_vectors_and_a_network_of_ones_own() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 4, bias=False)
            self.body = nn.Linear(5, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.body(x).relu())  # type: ignore[no-any-return]

    learner = Learner(
        Two(), (5,), 4, last_layer="out", dtype=torch.float32, buffer=10, batch_size=4, device="cpu"
    )
    assert learner.network.head_name == "out"
    rng = np.random.default_rng(0)
    for classes in ([0, 1], [2, 3]):
        learner.new_task(classes)
        for _ in range(6):
            learner.observe(rng.normal(size=(4, 5)), rng.choice(classes, 4))
    assert learner.predict_proba(rng.normal(size=(3, 5))).shape == (3, 4)
    assert learner.memory.x.dtype == torch.float32


def test_arrays_of_any_strides_and_byte_order(vectors: Make) -> None:
    learner = vectors()
    learner.new_task([0, 1])
    x = np.arange(20.0).reshape(4, 5)
    learner.observe(x[::-1].astype(">f8"), np.array([0, 1, 0, 1])[::-1].copy())
    with pytest.raises(ValueError, match="real numbers"):
        learner.observe(torch.zeros(4, 5, dtype=torch.complex64), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="observed x has masked values"):
        learner.observe(np.ma.masked_equal(x, 3.0), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="observed y has masked values"):
        learner.observe(x, np.ma.masked_equal([0, 1, 0, 1], 1))
    with pytest.raises(ValueError, match="ragged"):
        learner.observe([[1.0], [1.0, 2.0]], [0, 1])
    with pytest.raises(ValueError, match="labels"):
        learner.observe(x, None)


def test_read_only_arrays_are_learnt_without_a_warning_or_a_copy(vectors: Make) -> None:
    learner, x, y = vectors(), np.eye(4, 5, dtype=np.float32), np.array([0, 1, 0, 1])
    learner.new_task([0, 1])
    for array in (x, y):
        array.setflags(write=False)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learner.observe(x, y)
            learner.predict(x)
    finally:
        torch.set_warn_always(always)
    assert check_samples(x, "given", (5,)).data_ptr() == x.ctypes.data
    assert torch.equal(learner.memory.x[:4].sum(0), torch.from_numpy(x.sum(0)))


@pytest.mark.parametrize(
    "labels",
    [np.array([1, 0, 1, 0])[::-1], np.array([0, 1, 0, 1], ">i4"), np.array([[0, 1, 0, 1]]).T[:, 0]],
    ids=["reversed", "big-endian", "strided"],
)
def test_labels_may_lie_in_memory_as_they_like(labels: np.ndarray[Any, Any], vectors: Make) -> None:
    learner = vectors()
    learner.new_task([0, 1])
    learner.observe(torch.rand(4, 5), labels)
    assert learner.memory.y[:4].tolist() == [0, 1, 0, 1]


X = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)

Y = torch.tensor([0, 1, 0, 1])

FLOAT = torch.zeros(4, 3, 8, 8)


def nan(value: float) -> Tensor:
    x = FLOAT.clone()
    x[2, 1, 3, 3] = value
    return x


BAD_BATCHES: list[tuple[str, Any, Any, list[str]]] = [
    ("out of range", X, [0, 1, 6, 0], ["y[2]", "6", "0 to 5"]),
    ("negative", X, [0, -1, 1, 0], ["y[1]", "-1", "0 to 5"]),
    ("float", X, [0.0, 1.0, 0.0, 1.0], ["y", "float", "whole numbers"]),
    ("bool", X, [True, False, True, False], ["y", "bool", "whole numbers"]),
    ("text", X, ["a", "b", "a", "b"], ["y", "leave out num_classes to use labels of any type"]),
    ("text array", X, np.array(["a", "b"] * 2), ["whole numbers; leave out num_classes"]),
    ("shorter", X, [0, 1, 0], ["y", "(3,)", "(4,)"]),
    ("longer", X, [0, 1, 0, 1, 0], ["y", "(5,)", "(4,)"]),
    ("two-dimensional", X, [[0], [1], [0], [1]], ["y", "(4, 1)", "(4,)"]),
    ("empty x", X[:0], [], ["x", "(0, 3, 8, 8)"]),
    ("empty list", [], [], ["x", "(0,)"]),
    ("channels", X[:, :1], Y, ["x", "(1, 8, 8)", "(3, 8, 8)"]),
    ("size", X[..., :7], Y, ["x", "(3, 8, 7)", "(3, 8, 8)"]),
    ("flat", X.flatten(1), Y, ["x", "(192,)", "(3, 8, 8)"]),
    ("one image", X[0], Y, ["x", "(3, 8, 8)"]),
    ("dtype", FLOAT, Y, ["dtype", "float32", "uint8"]),
    ("strings", np.full((4, 3, 8, 8), "a"), Y, ["dtype", "<U1", "numbers"]),
]


@pytest.mark.parametrize(
    ("x", "y", "words"), [b[1:] for b in BAD_BATCHES], ids=[b[0] for b in BAD_BATCHES]
)
def test_bad_batches_are_named_and_change_nothing(
    x: Any, y: Any, words: list[str], make_learner: Make, teach: Teach, differ: Differ
) -> None:
    learner = teach(make_learner(), tasks=1)
    before = learner.state_dict()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        learner.observe(x, y)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert differ(before, learner.state_dict()) == []


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (X[:0], ["x", "(0, 3, 8, 8)"]),
        (X[:, :2], ["(2, 8, 8)", "(3, 8, 8)"]),
        (FLOAT, ["dtype", "float32", "uint8"]),
    ],
)
def test_bad_questions(x: Tensor, words: list[str], make_learner: Make) -> None:
    learner = make_learner()
    for ask in (learner.predict, learner.predict_proba):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            ask(x)
        assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinite_images(value: float, make_learner: Make, differ: Differ) -> None:
    learner = make_learner(dtype=torch.float32)
    learner.new_task([0, 1])
    before = learner.state_dict()
    for call in (lambda x: learner.observe(x, Y), learner.predict, learner.predict_proba):
        with pytest.raises(ValueError, match=r"x\[2\] holds a NaN or an infinite value, expected"):
            call(nan(value))
    assert differ(before, learner.state_dict()) == []


BAD_OPTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"method": "er-dualcba"}, ["method", "'er-dualcba'", "did you mean 'er-dual-cba'"]),
    ({"method": "sgd"}, ["method", "'sgd'", "er-cba"]),
    ({"method": "er", "adaptor": "cba"}, ["adaptor", "'cba'"]),
    ({"method": ER(), "adaptor": "dual"}, ["adaptor", "'dual'", "dual-cba"]),
    ({"buffer": 0}, ["buffer", "0", "at least 1"]),
    ({"buffer": -5}, ["buffer", "-5", "at least 1"]),
    ({"batch_size": 0}, ["batch_size", "0", "at least 1"]),
    ({"outer_every": 0}, ["outer_every", "0", "at least 1"]),
    ({"levels": "two"}, ["levels", "'two'", "'bi' or 'joint' or 'buffer'"]),
    ({"method": "er", "levels": "joint"}, ["levels", "'joint'", "no adaptor"]),
    ({"lr": 0.0}, ["lr", "0.0", "above 0"]),
    ({"lr": float("nan")}, ["lr", "nan", "above 0"]),
    ({"lr": float("inf")}, ["lr", "inf", "above 0"]),
    ({"adaptor_lr": -1.0}, ["adaptor_lr", "-1.0", "above 0"]),
    ({"dtype": torch.int16}, ["dtype", "int16", "uint8"]),
    ({"forward": "both"}, ["forward", "'both'", "'split' or 'concat'"]),
    ({"ibn_average": "mean"}, ["ibn_average", "'mean'", "'cumulative' or 'ema'"]),
    ({"precision": "fp16"}, ["precision", "'fp16'", "'fp32'", "'bf16'"]),
    ({"engine": "fast"}, ["engine", "'fast'", "'eager'"]),
    ({"engine": "captured"}, ["engine", "'captured'", "cpu"]),
    ({"device": "tpu"}, ["device", "'tpu'", "'cpu'"]),
    ({"device": "mps"}, ["device", "'mps'", "'cpu'"]),
    ({"device": "cuda:99"}, ["device", "'cuda:99'", "CUDA devices"]),
    ({"last_layer": "8"}, ["linear layer", "'8'", "7"]),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=lambda v: str(v)[:40])
def test_bad_options_name_the_value(
    options: dict[str, Any], words: list[str], make_learner: Make
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_learner(**options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_at_least_two_classes(make_net: Any) -> None:
    with pytest.raises(ValueError, match="num_classes is 1, expected a whole number of at least 2"):
        Learner(make_net(), (3, 8, 8), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_no_cuda_where_cuda_was_asked_for(make_learner: Make) -> None:
    with pytest.raises(ValueError, match=r"device is 'cuda', expected .* CUDA"):
        make_learner(device="cuda")


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv2d(3, 6, 8), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Softmax(1)),
        nn.Sequential(nn.Flatten(), nn.Linear(192, 5)),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 6)),
    ],
    ids=["no linear layer", "not the last", "outputs", "inputs"],
)
def test_networks_without_a_final_linear_layer(network: nn.Module, make_learner: Make) -> None:
    with pytest.raises(ValueError, match="network") as caught:
        make_learner(network=network)
    assert "\n" not in str(caught.value)


def test_an_adaptor_that_cannot_be_made_leaves_network_and_method_alone(tmp_path: Path) -> None:
    method, net = ER(), MLP((5,), 4, width=6).eval()
    given = {"method": method, "adaptor": "dual-cba", "dtype": torch.float32, "device": "cpu"}
    with pytest.raises(FileNotFoundError):
        Learner(net, (5,), 4, agnostic_from=tmp_path / "none", **given)
    assert not net.training
    Learner(net, (5,), 4, **given)  # the method is still free


def test_a_method_object_works_in_one_learner(vectors: Make) -> None:
    method = ER()
    vectors(method=method)
    with pytest.raises(ValueError, match=r"belongs to another learner"):
        vectors(method=method)


def test_combinations_that_make_no_sense(vectors: Make) -> None:
    with pytest.raises(ValueError, match="ICaRL has no logits to adapt"):
        vectors(method=ICaRL(), adaptor="cba")
    with pytest.raises(ValueError, match="method_options"):
        vectors(method=ER(), method_options={"alpha": 1})
    with pytest.raises(ValueError, match=r"method_options is \[1\], expected names and values"):
        vectors(method="er", method_options=[1])
    with pytest.raises(
        ValueError, match="width is 3, expected no value: the method has no adaptor"
    ):
        vectors(method="er", width=3)
    with pytest.raises(TypeError, match="did you mean 'width'"):
        vectors(method="er-cba", wdith=3)
    with pytest.raises(ValueError, match=r"epochs is 2, expected 1"):
        Spec(method="bic", epochs=2)
    with pytest.raises(ValueError, match="buffer is 3, expected at least 4"):
        vectors(method="icarl", buffer=3)


@pytest.mark.parametrize(
    "field",
    [{"buffer": 2.5}, {"buffer": True}, {"lr": "a"}, {"seed": -1}, {"method": ER}, {"lr": 0}],
)
def test_arguments_of_another_kind_are_named(field: Any, vectors: Make) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(field))} is .* expected"):
        vectors(**field)


def test_a_network_that_is_no_module() -> None:
    with pytest.raises(ValueError, match=r"network is 3, expected an nn.Module"):
        Learner(3, (5,), 4)  # type: ignore[arg-type]
    frozen = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    frozen[1].eval()
    Learner(frozen, (5,), 4, dtype=torch.float32, device="cpu")
    assert not frozen[1].training


def build_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def build(network: nn.Module | None = None, **options: Any) -> Learner:
    given = {"input_shape": (6,), "num_classes": 4, "method": "er-dual-cba", "dtype": torch.float32}
    given |= {"buffer": 20, "batch_size": 8, "outer_every": 2, "device": "cpu"}
    return Learner(network or build_network(), **(given | options))


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.out(x * mask)  # type: ignore[no-any-return]


class Tokens(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.embedding = layer(50, 8, max_norm=1.0)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(x).flatten(1))  # type: ignore[no-any-return]


def frozen_head() -> nn.Module:
    network = build_network()
    network[-1].requires_grad_(False)
    return network


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "double": (
        lambda: build(build_network().double()),
        r"dtype of the network's 0.weight is torch.float64, expected torch.float32",
    ),
    "frozen": (
        lambda: build(build_network().requires_grad_(False)),
        "no parameter of the network requires a gradient, expected at least one",
    ),
    "frozen head": (
        lambda: build(frozen_head()),
        "network's 3.weight requires no gradient, expected a trainable last layer: the adaptor",
    ),
    "max_norm": (
        lambda: build(Tokens(nn.Embedding), input_shape=(1,), dtype=torch.int64),
        r"max_norm of the network's embedding is 1.0, expected None: with max_norm every",
    ),
    "max_norm of bags": (
        lambda: build(Tokens(nn.EmbeddingBag), input_shape=(5,), dtype=torch.int64),
        r"max_norm of the network's embedding is 1.0, expected None: with max_norm every",
    ),
    "arguments": (
        lambda: build(TwoArguments()),
        r"does not accept inputs of shape \(6,\): .*missing 1 required positional argument",
    ),
    "shape": (lambda: build(input_shape=6), "input_shape is 6, expected the shape of one"),
    "no shape": (lambda: build(input_shape=()), r"input_shape is \(\), expected the shape"),
    "transform": (lambda: build(transform="crop"), "transform is 'crop', expected a Tran"),
    "channels": (
        lambda: build(transform=Transform([0.0] * 3, [1.0] * 3)),
        r"length of the transform's mean and std is 3, expected 1 or 6",
    ),
    "crop": (
        lambda: build(transform=Transform([0.0], [1.0], pad=1)),
        r"input_shape is \(6,\), expected \(channels, height, width\) for a transform that crops",
    ),
    "vectors": (
        lambda: make_network("resnet18", (64,), 10),
        r"input shape for resnet18 is \(64,\), expected .*; the network 'mlp' accepts any shape",
    ),
    "task": (lambda: build().new_task(3), "new task is 3, expected a list of labels"),  # type: ignore[arg-type]
    "mask": (
        lambda: build().new_task(torch.tensor([False, True, True])),
        r"new task is \[False, True, True\], expected at least one label from 0",
    ),
    "names": (
        lambda: build().new_task(["cat"]),
        r"new task is \['cat'\], expected at least one label .*; leave out num_classes to use",
    ),
    "std": (lambda: Transform([0.0], [0.0]), r"std is \[0\.0\], expected numbers above 0"),
    "pad": (lambda: Transform([0.0], [1.0], pad=-1), "pad is -1, expected a whole number of at"),
    "width": (
        lambda: build(width="8"),
        "width is '8', expected a whole number of at least 1",
    ),
    "state": (
        lambda: build().load_state_dict({}),
        "the state has no entry 'meta', expected the result of state_dict",
    ),
    "bytes": (
        lambda: build(dtype=torch.uint8).predict(np.zeros((2, 6), np.int64)),
        "dtype of given x is 'int64', expected torch.uint8",
    ),
    "folder": (
        lambda: read_toml(Path(__file__).parent),
        "tests is a folder, expected a TOML file",
    ),
    "ibn": (lambda: build(ibn="no"), "ibn is 'no', expected True or False"),
    "seen": (lambda: build(seen_only="no"), "seen_only is 'no', expected True or False"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_at_once(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises((ValueError, OSError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the public face

METHODS = {
    "observe", "observe_on_device", "predict", "predict_proba", "new_task", "end_task",
    "state_dict", "load_state_dict", "save", "load", "save_agnostic", "check_finite",
    "evaluating", "scores", "add_classes", "attach", "snapshot", "export",
}  # fmt: skip
PROPERTIES = {
    "network", "method", "adaptor", "memory", "class_sets", "num_classes", "input_shape", "dtype",
    "batch_size", "device", "seed", "statistics", "step", "task", "task_starts", "parts",
    "outliers", "memory_batch", "optimizer", "classes_", "inputs",
}  # fmt: skip


def test_nothing_else_is_public(vectors: Make) -> None:
    learner = vectors()
    assert {name for name in dir(learner) if not name.startswith("_")} == METHODS | PROPERTIES
    assert all(getattr(Learner, name).__doc__ for name in METHODS | PROPERTIES)


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_properties_can_only_be_read(name: str, vectors: Make) -> None:
    learner = vectors()
    with pytest.raises(AttributeError):
        setattr(learner, name, getattr(learner, name))


def test_what_the_properties_say(make_learner: Make, teach: Teach) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 6))
    learner = teach(make_learner("er-cba", network, seed=3), tasks=2, steps=4)
    assert learner.network.module is network
    assert (learner.num_classes, learner.input_shape, learner.batch_size) == (6, (3, 8, 8), 8)
    assert (learner.device, learner.dtype) == (torch.device("cpu"), torch.uint8)
    assert (learner.step, learner.task, learner.task_starts) == (8, 1, [0, 4])
    assert (learner.seed, learner.statistics) == (3, "bn")
    assert learner.class_sets.new.tolist() == [False, False, True, True, False, False]
    assert learner.memory.seen == 64
    learner.task_starts.append(7)  # a copy
    assert learner.task_starts == [0, 4]


def test_labels_that_no_task_announced_give_a_warning_once_per_task() -> None:
    learner = build()
    x = np.zeros((4, 6), np.float32)
    learner.new_task([0, 1])
    with pytest.warns(
        UserWarning, match=r"observed y is \[3\], expected announced classes, \[0, 1\]"
    ):
        learner.observe(x, [0, 1, 3, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.observe(x, [0, 1, 3, 3])
        learner.new_task([2, 3])
        learner.observe(x, [0, 1, 2, 3])  # those of an earlier task are old
