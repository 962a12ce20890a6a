"""Every method × adaptor × normalisation passes the suite; broken learners fail the right check."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from dualcba import Learner, Transform
from dualcba.checks import CHECKS, check_learner, held_bytes
from dualcba.methods import method_names
from dualcba.methods.er import ER
from dualcba.nets import MLP
from dualcba.normalization.layers import NORMALIZATIONS, convert_normalization

SHAPE, C = (2, 5, 5), 6


def tiny_conv(shape, classes):
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32, classes),
    )  # fmt: skip


NETS = {"mlp": lambda shape, classes: MLP(shape, classes, width=16), "conv": tiny_conv}


def maker(*, net=NETS["mlp"], norm="bn", learner=Learner, shape=SHAPE, classes=C, **options):
    settings = {"buffer": 24, "batch_size": 8, "method": "er", "device": "cpu", **options}

    def make(seed):
        torch.manual_seed(seed)
        network = convert_normalization(net(shape, classes), norm)
        return learner(network, shape, classes, seed=seed, **settings)

    return make


AUGMENT = Transform([0.5], [0.25], pad=1, flip=True)


ELSEWHERE = ("las", "pcr", "gsa", "obc", "er+")  # see tests/methods/test_frontier.py
NAMES = [name for name in method_names() if not name.startswith(ELSEWHERE)]


def in_grid(norm):
    """Without the cost of measuring coverage where the lines are those of BN, covered already."""
    return pytest.param(norm, marks=() if norm == "bn" else pytest.mark.no_cover)


@pytest.mark.parametrize("norm", [in_grid(norm) for norm in NORMALIZATIONS])
@pytest.mark.parametrize("method", NAMES)
def test_every_method_adaptor_and_normalisation_passes(method, norm):
    """The memory and time of each method with BN; those of each normalisation are below."""
    make = maker(net=NETS["conv"], norm=norm, method=method, transform=AUGMENT)
    check_learner(make, skip=() if norm == "bn" else ["memory", "time"])


@pytest.mark.no_cover
@pytest.mark.parametrize("method", NAMES)
def test_every_method_passes_with_a_perceptron(method):
    check_learner(maker(method=method), skip=["memory", "time"])


@pytest.mark.parametrize("norm", NORMALIZATIONS)
def test_every_normalisation_passes_with_vectors(norm):
    check_learner(maker(shape=(6,), dtype=torch.float32, norm=norm, method="derpp-dual-cba"))


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 2, "buffer": 1, "batch_size": 1, "method": "er-dual-cba"},
        {"forward": "concat", "method": "er-cba", "ibn": True, "ibn_average": "ema"},
        {"specific": "individual", "method": "er-dual-cba"},
        {"space": "probability", "method": "er-dual-cba", "outer_every": 1},
        {"levels": "joint", "method": "derpp-dual-cba"},
        {"levels": "buffer", "method": "er-cba"},
        {"precision": "bf16"},
    ],
    ids=["smallest", "concat", "individual", "probability", "joint", "buffer", "bf16"],
)
def test_other_settings_pass(options):
    check_learner(maker(**options))


def test_a_bias_before_a_normalisation_passes():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, C))
    check_learner(
        maker(net=lambda *_: net_like(net), shape=(6,), dtype=torch.float32), only=["gradient"]
    )


def net_like(net):
    for layer in net:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return net


# ---------------------------------------------------------------------- broken learners


class PredictTrains(Learner):
    """Each prediction changes the network."""

    def predict(self, x):
        answers = super().predict(x)
        with torch.no_grad():
            self.network.head.bias.add_(1e-3)
        return answers


class PredictDraws(Learner):
    """Each prediction advances a generator that training uses."""

    def predict(self, x):
        self.parts.sampler.rng["memory"].random()
        return super().predict(x)


class PredictRemembers(Learner):
    """Predictions change an attribute, outside the state, that training uses."""

    asked = 0

    def predict(self, x):
        self.asked += 1
        return super().predict(x)

    def observe(self, x, y):
        super().observe(x, y)
        with torch.no_grad():
            self.network.head.bias.add_(1e-3 * self.asked)


class TrainsLate(Learner):
    """Keeps the caller's arrays and trains on them a step later."""

    waiting = None

    def observe(self, x, y):
        if self.waiting is not None:
            super().observe(*self.waiting)
        self.waiting = (x, y)


class Overwrites(Learner):
    """Overwrites the caller's array."""

    def observe(self, x, y):
        super().observe(x, y)
        x[:] = 0


class SharesTensors(Learner):
    """Returns its own tensors in `state_dict`."""

    def state_dict(self):
        state = super().state_dict()
        state["tensors"]["network.module.fc.weight"] = self.network.head.weight.detach()
        return state


class KeepsSamples(Learner):
    """Keeps every sample outside its state."""

    def observe(self, x, y):
        self.__dict__.setdefault("hoard", []).append(torch.as_tensor(x).clone())
        super().observe(x, y)


class KeepsNumbers(Learner):
    """Keeps ten numbers per sample outside its state."""

    def observe(self, x, y):
        self.__dict__.setdefault("counted", []).extend(float(v) for v in range(10 * len(y)))
        super().observe(x, y)


class SlowsDown(Learner):
    """Each step takes longer than the last."""

    def observe(self, x, y):
        super().observe(x, y)
        time.sleep(2e-5 * self.step**2)


class IncompleteState(Learner):
    """Depends on a number that is not in its state."""

    drift = 0.0

    def observe(self, x, y):
        super().observe(x, y)
        self.drift += 1e-3
        with torch.no_grad():
            self.network.head.bias.add_(self.drift)


class FailsUntrained(Learner):
    """Raises an error if it predicts before it is trained."""

    def predict(self, x):
        if self.step == 0:
            raise RuntimeError("not fitted")
        return super().predict(x)


class FloatLabels(Learner):
    """Predicts float labels."""

    def predict(self, x):
        return super().predict(x).float()


class WrongSum(Learner):
    """Its probabilities do not sum to one."""

    def predict_proba(self, x):
        return super().predict_proba(x) / 2


class LeastProbable(Learner):
    """Predicts the least probable class."""

    def predict(self, x):
        return self.predict_proba(x).argmin(1)


class TorchRandom(ER):
    """Draws from torch's global generator."""

    def loss(self, new, mem, adapt):
        return super().loss(new, mem, adapt) * (1 + 0.1 * torch.rand(()))


class NumpyRandom(ER):
    """Draws from NumPy's global generator."""

    def loss(self, new, mem, adapt):
        return super().loss(new, mem, adapt) * np.random.uniform(0.9, 1.1)  # noqa: NPY002


class Overflows(ER):
    """Has a buffer that overflows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("size", torch.ones(1))

    def after_step(self, noise):
        self.size.mul_(1e6)


class UnusedParameter(ER):
    """Has a parameter that its loss does not use."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


class FrozenParameter(UnusedParameter):
    """Has a frozen parameter that its loss does not use."""

    def __init__(self):
        super().__init__()
        self.scale.requires_grad_(False)


BROKEN = [
    ("purity", "predict changed the state", {"learner": PredictTrains}),
    ("purity", "predict changed the state", {"learner": PredictDraws}),
    ("purity", "predicting during training changes what is learnt", {"learner": PredictRemembers}),
    ("aliasing", "changing x and y after observe", {"learner": TrainsLate}),
    ("aliasing", "observe changed the caller's arrays", {"learner": Overwrites}),
    ("aliasing", "changing a snapshot changes", {"learner": SharesTensors}),
    ("state", "training changed the snapshot taken before", {"learner": SharesTensors}),
    ("state", "reaches another final state", {"learner": IncompleteState}),
    ("memory", "grew by", {"learner": KeepsSamples}),
    ("memory", "grew by", {"learner": KeepsNumbers}),
    ("time", "ms late in the stream", {"learner": SlowsDown}),
    (
        "anytime",
        "before the first task raised RuntimeError: not fitted",
        {"learner": FailsUntrained},
    ),
    ("shapes", "expected torch.int64", {"learner": FloatLabels}),
    ("shapes", "rows of predict_proba do not sum to 1", {"learner": WrongSum}),
    ("shapes", "a class that is not the most probable", {"learner": LeastProbable}),
]

BROKEN_METHODS = [
    ("determinism", "the same seed gave two states", TorchRandom),
    ("determinism", "the same seed gave two states", NumpyRandom),
    ("finite", "method.size holds a value that is not finite", Overflows),
    ("gradient", "no gradient reaches method.scale", UnusedParameter),
]


@pytest.mark.parametrize(
    ("check", "message", "options"), BROKEN, ids=[f"{o['learner'].__name__}" for *_, o in BROKEN]
)
def test_a_broken_learner_fails_the_right_check(check, message, options):
    with pytest.raises(AssertionError, match=f"^{check}: .*{message}"):
        check_learner(maker(**options), only=[check])


@pytest.mark.parametrize(("check", "message", "method"), BROKEN_METHODS)
def test_a_broken_method_fails_the_right_check(check, message, method):
    def make(seed):
        return maker(method=method())(seed)

    with pytest.raises(AssertionError, match=f"^{check}: .*{message}"):
        check_learner(make, only=[check])


def test_learners_broken_in_one_way_pass_the_other_checks():
    check_learner(maker(learner=KeepsSamples), only=["determinism", "state", "purity", "aliasing"])
    check_learner(
        maker(learner=IncompleteState), only=["determinism", "purity", "aliasing", "memory"]
    )
    check_learner(maker(learner=PredictTrains), only=["determinism", "memory", "time", "gradient"])


def test_frozen_parameters_do_not_count():
    check_learner(lambda seed: maker(method=FrozenParameter())(seed), only=["gradient"])


def test_an_unseeded_network_and_a_seed_without_effect_are_found():
    def unseeded(seed):
        network = MLP(SHAPE, C, width=16)  # weights from the global generator
        return Learner(network, SHAPE, C, buffer=24, batch_size=8, method="er", seed=seed)

    with pytest.raises(AssertionError, match=r"^determinism: the same seed gave two states"):
        check_learner(unseeded)
    with pytest.raises(AssertionError, match=r"^determinism: two seeds gave the same"):
        check_learner(lambda _: maker()(0))


def test_only_and_skip_choose_by_name():
    broken = maker(learner=FloatLabels)
    check_learner(broken, only=["determinism"])
    check_learner(broken, skip=[name for name in CHECKS if name != "state"])
    with pytest.raises(ValueError, match="unknown check 'shape', did you mean 'shapes'"):
        check_learner(broken, only=["shape"])
    with pytest.raises(ValueError, match="unknown check"):
        check_learner(broken, skip=["everything"])


def test_the_suite_leaves_the_global_generators_as_they_were():
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    check_learner(maker(), only=["determinism"])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_held_bytes_counts_each_storage_once_and_follows_attributes():
    class Holder:
        __slots__ = ("x",)

        def __init__(self, x):
            self.x = x

    t = torch.zeros(1000)
    alone = held_bytes([Holder(t)])
    assert alone >= 4000
    assert held_bytes([Holder(t), t, t[10:]]) < alone + 100
    assert held_bytes([Holder(t)], leaving_out=[t]) < 100
    assert held_bytes(np.zeros(10)) == 80
