"""The bias adaptor in a loop of one's own: its outer step, its optimiser, its state, its errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plugin_helpers import BATCH, CLASSES, Loop, bits, make_net, make_stream
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from dualcba.adaptors.virtual_step import follow
from dualcba.options import TrainingOptions
from dualcba.plugin import BiasAdaptor

Differ = Callable[[dict[str, Any], dict[str, Any]], list[str]]
WIDTH = 7


@pytest.fixture
def head() -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(WIDTH, CLASSES)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def begun(head: nn.Module, optimizer: Any = None, **given: Any) -> BiasAdaptor:
    """An adaptor in its second task."""
    optimizer = optimizer or torch.optim.SGD(head.parameters(), lr=0.5)
    adaptor = BiasAdaptor(head, optimizer, **({"width": 16} | given))
    for classes in ([0, 1, 2], [3, 4]):
        adaptor.new_task(classes)
    return adaptor


def batches(head: nn.Module) -> tuple[list[tuple[Tensor, Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Two inner batches of different sizes, and an outer one."""
    h, y = [normal(n, WIDTH, seed=n) for n in (4, 6, 5)], [torch.arange(n) % 5 for n in (4, 6, 5)]
    inner = [(head(a).detach(), a, b) for a, b in zip(h[:2], y[:2], strict=True)]
    return inner, (h[2], y[2])


# ---------------------------------------------------------------- the outer step


def reference(adaptor: BiasAdaptor, head: nn.Linear, loss: Any, lr: float) -> list[Tensor]:
    """∇φ of the outer loss after a plain step of the last layer, by autograd through both."""
    inner, (outer_h, outer_y) = batches(head)
    r = adaptor.adaptor(torch.cat([z for z, _, _ in inner])).split([len(z) for z, _, _ in inner])
    weight, bias = (p.detach().requires_grad_() for p in (head.weight, head.bias))
    total = sum(
        loss(F.linear(h, weight, bias) + part, y) for part, (_, h, y) in zip(r, inner, strict=True)
    )
    step = torch.autograd.grad(total, (weight, bias), create_graph=True)
    moved = [p - lr * g for p, g in zip((weight, bias), step, strict=True)]
    outer = F.cross_entropy(F.linear(outer_h, *moved), outer_y)
    return list(torch.autograd.grad(outer, list(adaptor.adaptor.parameters())))


def smooth(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, label_smoothing=0.1)


@pytest.mark.parametrize("loss", [None, F.cross_entropy, smooth])
def test_the_gradient_is_that_of_the_unrolled_step(head: nn.Linear, loss: Any) -> None:
    adaptor = begun(head, loss=loss)
    wanted = reference(adaptor, head, loss or F.cross_entropy, 0.5)
    adaptor.outer_step(*batches(head))
    found = [p.grad for p in adaptor.adaptor.parameters()]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
    assert any(float(g.abs().max()) > 1e-4 for g in wanted)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("split", [False, True], ids=["one-group", "two-groups"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_virtual_step_is_the_next_step_of_the_optimiser(
    head: nn.Linear, name: str, split: bool, steps: int
) -> None:
    """With groups, a scheduler, and state that torch makes in the first step."""
    params = list(head.parameters())
    groups = [{"params": [params[0]]}, {"params": [params[1]], "lr": 0.3, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[name](groups if split else params)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for k in range(steps):
        for p in params:
            p.grad = normal(*p.shape, seed=k)
        optimizer.step()
        scheduler.step()
    for p in params:
        p.grad = normal(*p.shape, seed=9)
    state = copy.deepcopy(optimizer.state_dict())
    step = follow(optimizer, params, TrainingOptions(virtual="optimizer"))
    with torch.no_grad():
        if isinstance(step, Tensor):
            virtual = [p - step * p.grad for p in params]
        else:
            virtual = [step.moved(p, p.grad)[0] for p in params]
    assert repr(state) == repr(optimizer.state_dict())  # nothing has changed
    before = [p.detach().clone() for p in params]
    optimizer.step()
    for p, old, moved in zip(params, before, virtual, strict=True):
        # 1 − β₂ of Adam has a relative error of 1e-5 in float32
        torch.testing.assert_close(p.detach() - old, moved - old, rtol=2e-5, atol=1e-6)


def test_the_outer_step_changes_the_adaptor_alone(head: nn.Linear) -> None:
    optimizer = torch.optim.AdamW(head.parameters())
    adaptor, before = begun(head, optimizer), bits(head)
    phi = bits(adaptor.adaptor)
    adaptor.outer_step(*batches(head))
    assert bits(head) == before
    assert optimizer.state_dict()["state"] == {}
    assert all(p.grad is None for p in head.parameters())
    assert bits(adaptor.adaptor) != phi


def test_no_gradient_of_the_loss_reaches_the_adaptor_and_logits_get_theirs(head: nn.Linear) -> None:
    adaptor = begun(head)
    z = normal(4, CLASSES).requires_grad_()
    adaptor.adapt(z).sum().backward()
    assert torch.equal(z.grad, torch.ones_like(z))
    assert all(p.grad is None for p in adaptor.adaptor.parameters())


def test_autocast_changes_neither_the_correction_nor_the_outer_step(head: nn.Linear) -> None:
    plain, mixed = begun(head), begun(head)
    inner, outer = batches(head)
    z = normal(4, CLASSES).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        adapted = mixed.adapt(z)
        with torch.no_grad():
            mixed.outer_step(inner, outer)
    assert adapted.dtype == torch.float32
    assert torch.equal(adapted, plain.adapt(z.float()))
    plain.outer_step(inner, outer)
    assert bits(plain.adaptor) == bits(mixed.adaptor)


def test_it_is_due_every_so_many_steps_from_the_second_task_on(head: nn.Linear) -> None:
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    adaptor = BiasAdaptor(head, optimizer, outer_every=3, outer_warmup=2)
    found = []
    for classes in ([0, 1], [2]):
        adaptor.new_task(classes)
        for _ in range(7):
            found.append(adaptor.due)
            adaptor.end_step(torch.tensor([0, 1]))
    assert found == [False] * 7 + [True, True, False, True, False, False, True]


# ---------------------------------------------------------------- forward passes


def test_features_of_the_outer_batch_leave_running_statistics_unchanged() -> None:
    net = make_net()
    adaptor = BiasAdaptor(net.last, torch.optim.SGD(net.parameters(), lr=0.1))
    before = bits(net)
    x = normal(BATCH, 5)
    h = adaptor.features(net, x)
    assert bits(net) == before
    assert not h.requires_grad
    z, again = adaptor.outputs(net, x)
    assert torch.equal(h, again)
    assert z.requires_grad
    assert bits(net) != before
    assert adaptor.features(net, x[:1]).shape == (1, 16)
    assert net.training
    assert not net.last._forward_pre_hooks


# ---------------------------------------------------------------- state


@pytest.mark.parametrize(
    ("kind", "cut", "settings"),
    [
        ("cba", 9, {}), ("dual-cba", 3, {}), ("dual-cba", 6, {}), ("dual-cba", 9, {}),
        ("balanced-cba", 9, {}), ("dual-cba", 15, {"freeze_after": 2}),
    ],
)  # fmt: skip
def test_a_saved_loop_goes_on_bit_for_bit(
    kind: str, cut: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    def make() -> Loop:
        net = make_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        return Loop(net, optimizer, kind, lambda x: x, settings)

    def go_on(loop: Loop, first: int, last: int) -> None:
        assert loop.adaptor is not None
        flat = [(c, k, b) for c, task in make_stream() for k, b in enumerate(task)]
        for classes, k, (x, y) in flat[first:last]:
            if k == 0:
                loop.adaptor.new_task(classes)
            loop.step(x, y)

    def parts(loop: Loop) -> list[Any]:
        return [loop.net, loop.optimizer, loop.memory, loop.adaptor]

    whole, first, second = make(), make(), make()
    go_on(whole, 0, 18)
    go_on(first, 0, cut)
    torch.save([part.state_dict() for part in parts(first)], tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    for part, state in zip(parts(second), saved, strict=True):
        part.load_state_dict(state)
    go_on(second, cut, 18)
    assert bits(whole.net) == bits(second.net)
    assert bits(whole.adaptor.adaptor) == bits(second.adaptor.adaptor)
    assert torch.equal(whole.memory.samples()[0], second.memory.samples()[0])


def spoilt(state: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    other = copy.deepcopy(state)
    change(other)
    return other


BAD_STATES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda s: s.pop("meta"), "the state has no entry 'meta', expected the result of state_dict"),
    (lambda s: s["meta"].update(kind="cba"), "kind of the state's adaptor is 'cba', expected 'd"),
    (lambda s: s["meta"].update(steps=-1), "the state's steps is -1, expected a count"),
    (lambda s: s["meta"].pop("steps"), r"fields of the state is \['kind'\], expected \['kind', "),
    (lambda s: s["tensors"].pop("sets.new"), "the state has no entry 'sets.new', expected torch.b"),
    (
        lambda s: s["tensors"]["adaptor.agnostic.net.hidden.bias"].fill_(torch.nan),
        "the state's entry 'adaptor.agnostic.net.hidden.bias' holds a NaN or an infinite value",
    ),
    (
        lambda s: s["tensors"].pop("adaptor_optimizer.1.exp_avg"),
        "the state has no entry 'adaptor_optimizer.1.exp_avg', expected torch.float32 of",
    ),
    (lambda s: s["tensors"].update(weights_rng=torch.zeros(3)), "the state's entry 'weights_rng'"),
]


@pytest.mark.parametrize(("change", "text"), BAD_STATES)
def test_a_state_that_does_not_fit_changes_nothing(
    head: nn.Linear, change: Any, text: str, differ: Differ
) -> None:
    adaptor = begun(head)
    adaptor.outer_step(*batches(head))
    before = adaptor.state_dict()
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
        adaptor.load_state_dict(spoilt(before, change))
    assert not differ(before, adaptor.state_dict())


# ---------------------------------------------------------------- errors


def frozen(head: nn.Linear) -> nn.Linear:
    head.bias.requires_grad_(False)
    return head


BAD_ARGUMENTS: list[tuple[Callable[[nn.Linear], Any], str]] = [
    (
        lambda h: BiasAdaptor(nn.Conv2d(1, 2, 3), sgd(h)),
        "type of head is 'Conv2d', expected Linear",
    ),
    (lambda h: BiasAdaptor(h.double(), sgd(h)), "dtype of head.weight is torch.float64, expected "),
    (
        lambda h: BiasAdaptor(weight_norm(h), sgd(h)),
        "head.weight is computed from other parameters",
    ),
    (lambda h: BiasAdaptor(frozen(h), sgd(h)), "head.bias requires no gradient, expected a train"),
    (lambda h: BiasAdaptor(h, None), "optimizer is None, expected an optimiser of the network's"),
    (
        lambda h: BiasAdaptor(h, sgd(nn.Linear(2, 2))),
        "the optimizer does not have the last layer's parameters, expected an optimiser of",
    ),
    (
        lambda h: BiasAdaptor(h, torch.optim.RMSprop(h.parameters())),
        "the optimizer is of type RMSprop, expected SGD, Adam or AdamW of torch.optim, or",
    ),
    (
        lambda h: BiasAdaptor(h, torch.optim.Adam(h.parameters(), amsgrad=True)),
        "amsgrad of Adam is True, expected False, or the option virtual='sgd'",
    ),
    (
        lambda h: BiasAdaptor(h, torch.optim.SGD(h.parameters(), 0.1, 0.9, dampening=0.5)),
        "dampening of SGD is 0.5, expected 0.0, or the option virtual='sgd'",
    ),
    (lambda h: BiasAdaptor(h, sgd(h), kind="dual"), "kind is 'dual', expected 'cba' or 'dual-cba'"),
    (
        lambda h: BiasAdaptor(h, sgd(h), kind="cba", divide=True),
        "divide is True, expected no value",
    ),
    (
        lambda h: BiasAdaptor(h, sgd(h), width=0),
        "width is 0, expected a whole number of at least 1",
    ),
    (lambda h: BiasAdaptor(h, sgd(h), virtual_lr=0.1), "virtual_lr is 0.1, expected None unless"),
    (
        lambda h: BiasAdaptor(h, sgd(h), seed=-1),
        "seed is -1, expected a whole number of at least 0",
    ),
    (lambda h: BiasAdaptor(h, sgd(h), loss="ce"), "loss is 'ce', expected a function of logits"),
    (
        lambda h: BiasAdaptor(h, sgd(h)).adapt(torch.zeros(2, CLASSES)),
        r"no task has begun, expected new_task\(classes\) before adapt",
    ),
    (
        lambda h: BiasAdaptor(h, sgd(h)).end_step(torch.zeros(2)),
        r"no task has begun, expected new_task\(classes\) before end_step",
    ),
    (
        lambda h: BiasAdaptor(h, sgd(h)).outer_step([], ()),
        r"no task has begun, expected new_task\(classes\) before outer_step",
    ),
]


def sgd(head: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(head.parameters(), lr=0.1)


@pytest.mark.parametrize(("make", "text"), BAD_ARGUMENTS)
def test_arguments_that_do_not_fit_are_one_line(head: nn.Linear, make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
        make(head)


def test_an_unknown_option_is_one_line(head: nn.Linear) -> None:
    with pytest.raises(
        TypeError, match=r"^unknown option 'outer_evry', did you mean 'outer_every'"
    ):
        BiasAdaptor(head, sgd(head), outer_evry=5)


H, Z, Y = torch.ones(3, WIDTH), torch.ones(3, CLASSES), torch.tensor([0, 1, 2])

BAD_CALLS: list[tuple[Callable[[BiasAdaptor], Any], str]] = [
    (
        lambda a: a.new_task([]),
        "classes of the new task is \\[\\], expected at least one label from",
    ),
    (lambda a: a.new_task([0, 6]), "classes of the new task is \\[0, 6\\], expected at least one "),
    (lambda a: a.new_task(3), "classes of the new task is 3, expected a list of labels"),
    (lambda a: a.end_step(torch.tensor(1)), r"shape of observed y is \(\), expected \(n,\)"),
    (lambda a: a.outer_step([3], (H, Y)), "inner has another structure, expected a list of"),
    (lambda a: a.adapt(H), r"shape of logits is \(3, 7\), expected \(n, 6\), n of at least 1"),
    (lambda a: a.adapt(Z.long()), "logits is torch.int64 on cpu, expected floats on cpu, as the "),
    (
        lambda a: a.end_step(torch.tensor([0, 6])),
        r"observed y\[1\] is 6, expected a label from 0 to",
    ),
    (
        lambda a: a.end_step(torch.tensor([-1])),
        r"observed y\[0\] is -1, expected a label from 0 to",
    ),
    (lambda a: a.end_step(torch.tensor([0.5])), "dtype of observed y is 'torch.float32', expected"),
    (lambda a: a.outer_step([], (H, Y)), "inner has another structure, expected a list of"),
    (lambda a: a.outer_step([(H, Y)], (H, Y)), "inner has another structure, expected a list of"),
    (
        lambda a: a.outer_step([(Z, H, Y)], H),
        r"outer has another structure, expected a tuple \(features, labels\)",
    ),
    (
        lambda a: a.outer_step([(H, Z, Y)], (H, Y)),
        r"shape of features of inner\[0\] is \(3, 6\), expected \(n, 7\), n of at least 1",
    ),
    (
        lambda a: a.outer_step([(Z, H, Y)], (H[:0], Y[:0])),
        r"shape of features of outer is \(0, 7\), expected \(n, 7\), n of at least 1",
    ),
    (
        lambda a: a.outer_step([(Z, H, Y), (Z[:2], H, Y)], (H, Y)),
        r"number of logits of inner\[1\] is 2, expected 3, as many as features",
    ),
    (
        lambda a: a.outer_step([(Z, H, Y + 4)], (H, Y)),
        r"inner\[0\] y\[2\] is 6, expected a label fr",
    ),
    (
        lambda a: a.outer_step([(Z, H, Y)], (H, Y[:2])),
        r"shape of outer y is \(2,\), expected \(3,\)",
    ),
    (
        lambda a: a.outputs(nn.Linear(2, 2), torch.ones(1, 2)),
        "the network did not call head, expec",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD_CALLS)
def test_calls_that_do_not_fit_are_one_line_and_change_nothing(
    head: nn.Linear, call: Any, text: str, differ: Differ
) -> None:
    adaptor = begun(head)
    before = adaptor.state_dict()
    with pytest.raises(ValueError, match=f"^{text}[^\n]*$"):
        call(adaptor)
    assert not differ(before, adaptor.state_dict())


def test_a_gradient_that_is_not_finite_changes_nothing(head: nn.Linear, differ: Differ) -> None:
    adaptor = begun(head)
    before = adaptor.state_dict()
    with pytest.raises(
        FloatingPointError, match=r"^the outer gradient is not finite, expected fin"
    ):
        adaptor.outer_step([(Z, H * torch.inf, Y)], (H, Y))
    assert not differ(before, adaptor.state_dict())


def test_an_adaptor_of_which_nothing_is_trained_has_no_outer_step(head: nn.Linear) -> None:
    adaptor = begun(head, agnostic_from="pretrained", width=256)
    assert not adaptor.due
    assert not torch.equal(adaptor.adapt(Z), Z)
    with pytest.raises(
        ValueError, match=r"^no part of the adaptor is trained, expected no call of"
    ):
        adaptor.outer_step([(Z, H, Y)], (H, Y))
