"""The layers against torch's functions and NumPy; conversion of networks; IBN."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dualcba.engine.torch_private import BatchNormBase
from dualcba.learner import Learner
from dualcba.nets import MLP, ResNet18
from dualcba.normalization.layers import (
    NORMALIZATIONS,
    AdaB2N,
    BatchNorm,
    ContinualNorm,
    collect_penalties,
    convert_normalization,
    sample_tasks,
)
from dualcba.normalization.statistics import (
    batch_norms,
    evaluation_mode,
    ibn_momentum,
    temporary_momentum,
    without_tracking,
)

KINDS = list(NORMALIZATIONS)
SHAPES = [(8, 16), (8, 16, 5), (8, 16, 3, 3)]


def batch(shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return 2 + 3 * torch.randn(*shape, generator=g, dtype=dtype)


def with_affine(layer, seed=1):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.normal_(1, 0.2, generator=g)
        layer.bias.normal_(0, 0.2, generator=g)
    return layer


def statistics(layer):
    return [layer.running_mean.clone(), layer.running_var.clone()]


# ---------------------------------------------------------------------- CN


@pytest.mark.parametrize(
    ("shape", "groups"),
    [((8, 64, 4, 4), 32), ((8, 20, 4, 4), 20), ((8, 48, 3), 24), ((8, 37, 2, 2), 1),
     ((8, 256), 32), ((8, 64), 8), ((8, 12), 1)],
)  # fmt: skip
def test_cn_is_group_norm_then_batch_norm(shape, groups):
    layer = with_affine(ContinualNorm(shape[1]))
    mean, var = torch.zeros(shape[1]), torch.ones(shape[1])
    for seed in range(3):
        x = batch(shape, seed)
        inner = F.group_norm(x, groups)
        wanted = F.batch_norm(inner, mean, var, layer.weight, layer.bias, True, 0.1, 1e-5)
        torch.testing.assert_close(layer(x), wanted)
    torch.testing.assert_close(statistics(layer), [mean, var])
    layer.eval()
    wanted = F.batch_norm(F.group_norm(x, groups), mean, var, layer.weight, layer.bias, False)
    torch.testing.assert_close(layer(x), wanted)


@given(st.integers(1, 200), st.booleans())
@settings(max_examples=60, deadline=None)
def test_cn_groups_divide_the_channels_and_do_not_zero_vectors(channels, vectors):
    x = batch((4, channels) if vectors else (4, channels, 4, 4), channels)
    layer = ContinualNorm(channels)
    groups = layer.groups(x)
    assert channels % groups == 0
    assert groups <= 32
    if vectors and channels > 1:
        assert channels // groups >= min(channels, 8)
        assert layer(x).abs().max() > 0.1


# ---------------------------------------------------------------------- AdaB²N


def oracle(x, tasks, psi, gamma, beta, state, *, eta=0.1, kappa, lam, eps=1e-5):
    """Compute the formulas of the docstring sample by sample and task by task, in float64."""
    n, C = x.shape[:2]
    tasks = np.clip(tasks, 0, len(psi) - 1)
    counts = {t: int((tasks == t).sum()) for t in set(tasks.tolist())}
    norm = sum(np.exp(psi[t]) + counts[t] for t in counts)
    weight = np.array([(np.exp(psi[t]) + counts[t]) / norm / counts[t] for t in tasks])
    out = np.empty_like(x)
    mu, var = np.empty(C), np.empty(C)
    for c in range(C):
        plane = x[:, c].reshape(n, -1)
        each = np.repeat(weight[:, None] / plane.shape[1], plane.shape[1], 1)
        mu[c] = (each * plane).sum()
        var[c] = (each * (plane - mu[c]) ** 2).sum()
        out[:, c] = gamma[c] * (x[:, c] - mu[c]) / np.sqrt(var[c] + eps) + beta[c]
    k, previous, run_mean, run_var = state
    rate = eta**kappa if k == 0 else previous / (previous + (1 - eta) ** kappa)
    run_mean = (1 - rate) * run_mean + rate * mu
    run_var = (1 - rate) * run_var + rate * var
    penalty = lam * (np.mean((mu - run_mean) ** 2) + np.mean((var - run_var) ** 2))
    return out, penalty, (k + 1, rate, run_mean, run_var)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kappa", [0.0, 0.4, 1.0])
def test_adab2n_equals_the_oracle(shape, kappa):
    C, lam = shape[1], 0.3
    layer = AdaB2N(C, kappa=kappa, lam=lam, tasks=4).double()
    with_affine(layer)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        layer.psi.copy_(torch.tensor([0.5, -1.0, 2.0, 0.1]))
    state = (0, None, np.zeros(C), np.ones(C))
    gamma, beta, psi = (p.detach().numpy() for p in (layer.weight, layer.bias, layer.psi))
    for seed in range(5):
        x = batch(shape, seed, torch.float64)
        tasks = rng.integers(0, 3 + seed, shape[0])  # later tasks share the last ψ
        with sample_tasks([layer], torch.from_numpy(tasks)):
            out = layer(x)
        wanted, penalty, state = oracle(
            x.numpy(), tasks, psi, gamma, beta, state, kappa=kappa, lam=lam
        )
        np.testing.assert_allclose(out.detach().numpy(), wanted, atol=1e-10)
        np.testing.assert_allclose(layer.penalty().item(), penalty, atol=1e-12)
        np.testing.assert_allclose(layer.running_mean.numpy(), state[2], atol=1e-12)
        np.testing.assert_allclose(layer.running_var.numpy(), state[3], atol=1e-12)
    assert int(layer.num_batches_tracked) == 5


@pytest.mark.parametrize(("kappa", "rates"), [(0.0, [1, 1 / 2, 1 / 3]), (1.0, [0.1, 0.1, 0.1])])
def test_adab2n_lies_between_a_cumulative_and_a_moving_average(kappa, rates):
    layer = AdaB2N(2, kappa=kappa)
    for rate in rates:
        assert layer.rate.item() == pytest.approx(rate)
        layer(batch((4, 2)))
    layer.reset_running_stats()
    assert layer.rate.item() == pytest.approx(rates[0])


def test_adab2n_without_tasks_normalises_as_batch_norm_does():
    for shape in SHAPES:
        x = batch(shape).requires_grad_()
        layer, plain = with_affine(AdaB2N(16)), with_affine(BatchNorm(16))
        torch.testing.assert_close(layer(x), plain(x))
        weight = batch(shape, 5)
        grads = [torch.autograd.grad((m(x) * weight).sum(), x)[0] for m in (layer, plain)]
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)
        assert layer.penalty().item() == 0.0


def test_adab2n_gives_exact_gradients_to_everything_it_learns():
    layer = AdaB2N(3, tasks=3).double()
    tasks = torch.tensor([0, 0, 0, 1, 2, 2])

    def value(x, psi, weight, bias):
        with sample_tasks([layer], tasks):
            learnt = {"psi": psi, "weight": weight, "bias": bias}
            return torch.func.functional_call(layer, learnt, (x,)), layer.penalty()

    x = batch((6, 3, 2, 2), 0, torch.float64).requires_grad_()
    psi, weight, bias = (batch((3,), s, torch.float64).requires_grad_() for s in (1, 2, 3))
    assert torch.autograd.gradcheck(lambda *a: value(*a)[0], (x, psi, weight, bias))
    # the running statistics are constants in the penalty, though they depend on x
    grads = torch.autograd.grad(value(x, psi, weight, bias)[1], (x, psi))
    counts = torch.tensor([3.0, 1.0, 2.0])
    share = ((psi.exp() + counts) / (psi.exp() + counts).sum() / counts)[tasks].view(6, 1, 1, 1)
    mean = (share * x / 4).sum((0, 2, 3))
    var = (share * (x - mean.view(3, 1, 1)) ** 2 / 4).sum((0, 2, 3))
    apart = torch.stack([mean - layer.running_mean, var - layer.running_var])
    want = torch.autograd.grad(0.1 * apart.square().mean(1).sum(), (x, psi))
    torch.testing.assert_close(grads, want)


def test_adab2n_increases_the_weight_of_a_rare_task():
    layer = AdaB2N(1, tasks=2)
    layer.tasks = torch.tensor([0] * 7 + [1])
    weights = layer.contributions(8)
    assert weights.sum().item() == pytest.approx(1.0)
    assert weights[7].item() == pytest.approx(2 / 10)
    assert weights[0].item() == pytest.approx(8 / 10 / 7)


def test_the_penalty_is_the_mean_over_forward_passes_and_is_returned_once():
    layer = AdaB2N(4, lam=1.0)
    values = []
    for seed in (0, 1):
        alone = copy.deepcopy(layer)
        for s in range(seed + 1):
            alone._pending = []
            with sample_tasks([alone], torch.zeros(8, dtype=torch.long)):
                alone(batch((8, 4), s))
        values.append(alone.penalty().item())
    layers = [layer, nn.ReLU(), copy.deepcopy(layer)]
    with sample_tasks(layers, torch.zeros(8, dtype=torch.long)):
        for seed in (0, 1):
            for one in layers:
                one(batch((8, 4), seed))
        with torch.no_grad():  # as that of the outer batch
            layer(batch((8, 4), 2))
    assert [one.tasks for one in (layer, layers[2])] == [None, None]
    assert collect_penalties(layers).item() == pytest.approx(2 * np.mean(values), rel=1e-5)
    assert collect_penalties([layer]).item() == 0.0
    assert collect_penalties([BatchNorm(4), nn.ReLU()]) is None


def adab2n_learner(lam=0.1):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
    net = convert_normalization(net, "adab2n", lam=lam)
    return Learner(net, (3,), 4, method="er", dtype=torch.float32, batch_size=8, device="cpu")


def test_a_step_of_the_learner_adds_the_penalty_to_the_loss():
    weights = []
    for lam in (0.0, 1.0):
        learner = adab2n_learner(lam)
        learner.new_task([0, 1])
        for seed in range(2):
            learner.observe(batch((8, 3), seed), torch.tensor([0, 1] * 4))
        weights.append(learner.network.module[0].weight)
    assert not torch.equal(*weights)


def test_a_step_that_failed_leaves_no_penalty_to_the_next(monkeypatch):
    learner = adab2n_learner()
    (layer,) = learner.parts.forward_pass.norm_layers
    loss, pending = learner.method.loss, []

    def watched(*args):
        pending.append(len(layer._pending))
        if len(pending) == 1:
            raise RuntimeError("no room")
        return loss(*args)

    monkeypatch.setattr(learner.method, "loss", watched)
    learner.new_task([0, 1])
    x, y = batch((8, 3)), torch.tensor([0, 1] * 4)
    with pytest.raises(RuntimeError, match="no room"):
        learner.observe(x, y)
    learner.observe(x, y)
    assert pending == [1, 1]


def test_samples_without_a_label_are_of_the_newest_task():
    learner = adab2n_learner()
    learner.new_task([0, 1])
    learner.new_task([2, 3])
    with learner.parts.forward_pass.sample_tasks(torch.tensor([-1, 0, 2])):
        assert learner.parts.forward_pass.norm_layers[0].tasks.tolist() == [1, 0, 1]


def test_a_copy_has_no_graph_pending():
    layer = AdaB2N(4)
    with sample_tasks([layer], torch.zeros(8, dtype=torch.long)):
        layer(batch((8, 4)))
        twin = copy.deepcopy(layer)
        again = pickle.loads(pickle.dumps(layer))
    assert twin.tasks is None
    assert twin.penalty().item() == again.penalty().item() == 0.0
    assert layer.penalty().item() > 0.0


def test_half_precision_is_normalised_in_full():
    x = batch((8, 16, 3, 3)).bfloat16()
    for name in KINDS:
        layer = convert_normalization(nn.BatchNorm2d(16), name)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        assert layer.running_mean.dtype == torch.float32
        full = convert_normalization(nn.BatchNorm2d(16), name)
        torch.testing.assert_close(out.float(), full(x.float()), atol=0.05, rtol=0.05)
        if name != "cn":  # its groups are normalised and rounded before
            torch.testing.assert_close(statistics(layer), statistics(full))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kappa": 1.5}, "kappa is 1.5"), ({"lam": -1.0}, "lam is -1.0"), ({"tasks": 0}, "tasks is")],
)
def test_impossible_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        AdaB2N(4, **options)


@pytest.mark.parametrize("name", KINDS)
def test_inputs_that_cannot_be_normalised_are_named(name):
    layer = NORMALIZATIONS[name](4)
    with pytest.raises(ValueError, match="shape of the input"):
        layer(torch.zeros(4))
    with pytest.raises(ValueError, match="shape of the input"):
        layer(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="more than"):
        layer(torch.zeros(1, 4))


# ---------------------------------------------------------------------- with IBN


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_tracking_uses_batch_statistics_and_keeps_the_running_ones(name, shape):
    layer = with_affine(NORMALIZATIONS[name](16))
    layer(batch(shape, 1))
    before = copy.deepcopy(layer.state_dict())
    x = batch(shape, 2)
    with without_tracking([layer]), torch.no_grad():
        out = layer(x)
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key]), key
    torch.testing.assert_close(out, layer(x))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("average", ["cumulative", "ema"])
def test_temporary_momentum_gives_a_running_average_with_that_momentum(name, average):
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16))
    convert_normalization(net, name)
    layer = net[1]
    net(batch((8, 3, 6, 6)))
    momentum = layer.momentum
    rate = layer.rate.clone() if name == "adab2n" else None
    mean, var = statistics(layer)
    layers = batch_norms(net)
    assert layers == [layer]
    with evaluation_mode(net, layers), temporary_momentum(layers) as set_momentum, torch.no_grad():
        for k in range(1, 5):
            x = batch((8, 3, 6, 6), k)
            set_momentum(ibn_momentum(k, average))
            net(x)
            inner = net[0](x)
            inner = F.group_norm(inner, 16) if name == "cn" else inner
            F.batch_norm(inner, mean, var, None, None, True, ibn_momentum(k, average))
    torch.testing.assert_close(statistics(layer), [mean, var])
    assert layer.momentum == momentum
    if rate is not None:
        assert torch.equal(layer.rate, rate)


@pytest.mark.parametrize("name", KINDS)
def test_a_learner_is_evaluated_with_ibn_and_training_is_unchanged(name):
    ends = []
    for look in (False, True):
        torch.manual_seed(0)
        net = convert_normalization(MLP((6,), 4, width=16), name)
        learner = Learner(
            net, (6,), 4, dtype=torch.float32, buffer=20, batch_size=8, method="er", device="cpu"
        )
        answers = []
        for task in ([0, 1], [2, 3]):
            learner.new_task(task)
            for step in range(4):
                y = torch.tensor(task).repeat(4)
                learner.observe(batch((8, 6), step) + y[:, None], y)
                if look:
                    with learner.evaluating("ibn"):
                        z, _ = learner.network(batch((5, 6), 9))
                        answers.append(z.clone())
        ends.append(learner.state_dict()["tensors"])
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    with learner.evaluating("bn"):
        assert not torch.allclose(answers[-1], learner.network(batch((5, 6), 9))[0])


# ---------------------------------------------------------------------- conversion


class Shared(nn.Module):
    """A network with a shared norm, one without statistics and one without parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.again = nn.ModuleDict({"inner": nn.Sequential(nn.Conv1d(8, 8, 1), self.norm)})
        self.bare = nn.BatchNorm1d(8, affine=False, momentum=None, eps=1e-3)
        self.untracked = nn.BatchNorm1d(8, track_running_stats=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = self.again["inner"](self.norm(self.first(x)))
        return self.fc(self.untracked(self.bare(x)).mean(2))


NETS = {
    "resnet": (lambda: ResNet18(1, 3, width=4), (4, 1, 8, 8), 20),
    "mlp": (lambda: MLP((5,), 3, width=16), (4, 5), 2),
    "user": (Shared, (4, 2, 6), 3),
}


@pytest.mark.parametrize("name", ["cn", "adab2n"])
@pytest.mark.parametrize("net", NETS)
def test_conversion_replaces_every_layer_and_keeps_what_it_learnt(net, name):
    make, shape, count = NETS[net]
    network = make().double()
    network(batch(shape, 0, torch.float64))
    network.eval()
    before = copy.deepcopy(network.state_dict())
    parameters = {k: id(p) for k, p in network.named_parameters()}
    assert convert_normalization(network, name) is network
    layers = [m for m in network.modules() if isinstance(m, BatchNormBase)]
    assert len(layers) == count
    assert {type(m) for m in layers} == {NORMALIZATIONS[name]}
    assert not any(m.training for m in layers)
    after = network.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    same = {k: id(p) for k, p in network.named_parameters() if k in parameters}
    assert same == parameters
    assert all(p.dtype == torch.float64 for p in network.parameters())
    network.train()
    network(batch(shape, 1, torch.float64)).sum().backward()


def test_plain_networks_stay_as_they_are_and_converted_ones_go_back():
    network = ResNet18(1, 3, width=4)
    layers = dict(network.named_modules())
    convert_normalization(network, "bn")
    assert dict(network.named_modules()) == layers
    x = batch((4, 1, 8, 8))
    plain = copy.deepcopy(network)
    convert_normalization(convert_normalization(network, "adab2n"), "bn")
    torch.testing.assert_close(network(x), plain(x))
    assert {m.momentum for m in batch_norms(network)} == {0.1}
    torch.testing.assert_close(network.bn1.running_mean, plain.bn1.running_mean)
    assert "bn1.psi" not in network.state_dict()


def test_a_shared_layer_remains_one_layer_and_settings_stay():
    network = convert_normalization(Shared(), "adab2n", kappa=0.7, tasks=5)
    assert network.norm is network.again["inner"][1]
    assert network.norm.kappa == 0.7
    assert len(network.norm.psi) == 5
    assert network.bare.weight is None
    assert network.bare.eps == 1e-3
    assert network.untracked.running_mean is None
    assert convert_normalization(network, "adab2n").norm is network.norm


def test_what_cannot_be_converted_is_named():
    with pytest.raises(ValueError, match="unknown normalisation 'adabn', did you mean 'adab2n'"):
        convert_normalization(nn.BatchNorm1d(2), "adabn")
    with pytest.raises(ValueError, match="LazyBatchNorm2d"):
        convert_normalization(nn.Sequential(nn.LazyBatchNorm2d()), "cn")


@pytest.mark.parametrize("name", KINDS)
def test_a_conversion_of_the_layer_itself_is_returned(name):
    layer = convert_normalization(nn.BatchNorm2d(4), name)
    assert isinstance(layer, nn.BatchNorm2d if name == "bn" else NORMALIZATIONS[name])


# ---------------------------------------------------------------------- static in shape


@pytest.mark.parametrize("name", KINDS)
def test_nothing_in_a_step_is_read_on_the_host(name):
    layer = NORMALIZATIONS[name](16, device="meta")  # tensors without values: reading raises
    x = torch.empty(8, 16, 3, 3, device="meta")
    with sample_tasks([layer], torch.empty(8, dtype=torch.long, device="meta")):
        loss = layer(x).sum()
    extra = collect_penalties([layer])
    (loss if extra is None else loss + extra).backward()
    with without_tracking([layer]):
        layer(x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_a_captured_step_equals_an_eager_one(name):
    ends = []
    for engine in ("eager", "captured"):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 36, 4),
        )  # fmt: skip
        learner = Learner(
            convert_normalization(net, name), (1, 6, 6), 4, dtype=torch.float32, buffer=20,
            batch_size=8, device="cuda", engine=engine, precision="fp32",
        )  # fmt: skip
        for task in ([0, 1], [2, 3]):
            learner.new_task(task)
            for step in range(20):
                y = torch.tensor(task).repeat(4)
                learner.observe(batch((8, 1, 6, 6), step) + y[:, None, None, None], y)
        if engine == "captured":
            assert learner.parts.engine.entries
            assert not learner.parts.engine.refused
        ends.append({k: v for k, v in learner.state_dict()["tensors"].items() if "network" in k})
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, atol=1e-3, rtol=1e-3)
