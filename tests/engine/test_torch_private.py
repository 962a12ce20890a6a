"""What the package relies on in torch's private names, one test per name in `torch_private`."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import Optimizer

from dualcba.engine import optimizers
from dualcba.engine import torch_private as private

OPTIMIZERS = [
    (private.sgd_step, torch.optim.SGD),
    (private.adam_step, torch.optim.Adam),
    (private.adamw_step, torch.optim.AdamW),
]


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_backward_is_autograds(dtype: torch.dtype) -> None:
    z, s = random(5, 7, dtype=dtype).requires_grad_(), random(5, 7, dtype=dtype, seed=1)
    q = z.softmax(1)
    (want,) = torch.autograd.grad(q, z, s)
    got = private.softmax_backward(s, q.detach(), 1, q.dtype)
    assert torch.equal(got, want)
    torch.testing.assert_close(got, q * (s - (q * s).sum(1, keepdim=True)))


def test_foreach_copy_casts_and_copies_in_place() -> None:
    targets = [torch.zeros(2, dtype=torch.bfloat16), torch.zeros(3, 2)]
    sources = [torch.tensor([1.0, 2.5]), torch.arange(6).view(3, 2)]
    addresses = [t.data_ptr() for t in targets]
    private.foreach_copy_(targets, sources)
    assert [t.data_ptr() for t in targets] == addresses
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.to(target.dtype))


def test_foreach_add_takes_a_factor() -> None:
    a, b = [random(3), random(2, 2)], [random(3, seed=1), random(2, 2, seed=1)]
    want = [x - 0.1 * y for x, y in zip(a, b, strict=True)]
    private.foreach_add_(a, b, alpha=-0.1)
    torch.testing.assert_close(a, want)


def test_foreach_add_works_on_parameters_under_no_grad() -> None:
    p = nn.Parameter(torch.ones(2))
    with torch.no_grad():
        private.foreach_add_([p], [torch.ones(2)])
    assert p.tolist() == [2.0, 2.0]


def test_foreach_sub_and_mul_by_a_tensor() -> None:
    a, b = [random(3), random(2, 2)], [random(3, seed=1), random(2, 2, seed=1)]
    out = private.foreach_sub(a, b)
    private.foreach_mul_(out, torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(list(out), [0.5 * (x - y) for x, y in zip(a, b, strict=True)])


def test_the_fused_convolutions_exist() -> None:
    assert callable(private.cudnn_convolution_relu)
    assert callable(private.cudnn_convolution_add_relu)


@pytest.mark.gpu
def test_the_fused_convolutions_add_bias_residual_and_relu() -> None:
    x, w, b, z = (
        random(*s).cuda().float() for s in ((2, 8, 6, 6), (8, 8, 3, 3), (8,), (2, 8, 6, 6))
    )
    options = ((1, 1), (1, 1), (1, 1), 1)
    conv = F.conv2d(x, w, b, padding=1)
    close = {"rtol": 1e-2, "atol": 1e-2}
    got = private.cudnn_convolution_relu(x, w, b, *options)
    torch.testing.assert_close(got, F.relu(conv), **close)
    got = private.cudnn_convolution_add_relu(x, w, z, 0.5, b, *options)
    torch.testing.assert_close(got, F.relu(conv + 0.5 * z), **close)


# ---------------------------------------------------------------- modules


def test_the_base_of_batch_normalisation() -> None:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    assert all(issubclass(kind, private.BatchNormBase) for kind in kinds)
    others = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)
    assert not any(issubclass(kind, private.BatchNormBase) for kind in others)
    names = list(inspect.signature(private.BatchNormBase.__init__).parameters)
    settings = ["num_features", "eps", "momentum", "affine", "track_running_stats"]
    assert names[1:6] == settings
    assert {"device", "dtype"} <= set(names)
    buffers = {name for name, _ in nn.BatchNorm1d(3).named_buffers()}
    assert buffers == {"running_mean", "running_var", "num_batches_tracked"}


def test_batch_normalisation_reads_its_attributes_at_each_call() -> None:
    layer, x = nn.BatchNorm1d(3), random(8, 3, dtype=torch.float32) + 1
    layer.track_running_stats = False
    layer(x)
    assert not layer.running_mean.any()
    layer.track_running_stats, layer.momentum = True, 1.0
    layer(x)
    torch.testing.assert_close(layer.running_mean, x.mean(0))
    layer.training = False
    torch.testing.assert_close(
        layer(layer.running_mean[None]), torch.zeros(1, 3), atol=1e-5, rtol=0
    )


def test_batch_normalisation_checks_its_input() -> None:
    class Checked(private.BatchNormBase):
        def _check_input_dim(self, input: torch.Tensor) -> None:
            raise KeyError

    with pytest.raises(KeyError):
        Checked(3)(torch.zeros(2, 3))


def test_a_forward_in_the_instance_is_called() -> None:
    """`grouped_statistics` replaces `forward` of an instance by its dictionary."""
    layer = nn.BatchNorm1d(3)
    vars(layer)["forward"] = lambda x: "replaced"
    assert layer(torch.zeros(2, 3)) == "replaced"
    del vars(layer)["forward"]
    assert layer(torch.zeros(2, 3)).shape == (2, 3)


def test_the_base_of_convolutions() -> None:
    assert all(issubclass(kind, private.ConvBase) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    assert not issubclass(nn.Linear, private.ConvBase)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_of_a_module_are_found(register: str) -> None:
    layer = nn.Linear(2, 2)
    assert not private.has_forward_hooks(layer)
    handle = getattr(layer, register)(lambda *_: None)
    assert private.has_forward_hooks(layer)
    handle.remove()
    assert not private.has_forward_hooks(layer)


# ---------------------------------------------------------------- optimisers


@pytest.mark.parametrize(("step", "kind"), OPTIMIZERS)
def test_a_step_without_wrappers_is_torchs(step: Any, kind: type[Optimizer]) -> None:
    assert step.__name__ == "step"
    assert not hasattr(step, "__wrapped__")
    assert step is not kind.step  # torch does wrap it
    ends = []
    for call in (kind.step, step):
        p = random(5).requires_grad_()
        optimizer = kind([p], lr=0.1)  # type: ignore[call-arg]
        for _ in range(3):
            p.grad = p.detach() ** 2
            with torch.no_grad():
                call(optimizer, None)
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_add_param_group_without_wrappers() -> None:
    assert list(inspect.signature(private.add_param_group).parameters) == ["self", "param_group"]
    assert not hasattr(private.add_param_group, "__wrapped__")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    private.add_param_group(optimizer, {"params": [torch.zeros(1, requires_grad=True)]})
    assert len(optimizer.param_groups) == 2


def test_the_state_of_an_optimizer_without_wrappers() -> None:
    one, two = (torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=r) for r in (0.1, 0.2))
    assert not hasattr(private.optimizer_state, "__wrapped__")
    assert not hasattr(private.load_optimizer_state, "__wrapped__")
    private.load_optimizer_state(two, private.optimizer_state(one))
    assert private.optimizer_state(two) == one.state_dict()


def test_step_hooks_are_found_and_called() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    calls: list[str] = []
    assert not private.has_step_hooks(optimizer)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    assert private.has_step_hooks(optimizer)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    step = private.with_step_hooks(lambda self, closure: calls.append("step"))
    step(optimizer, None)
    assert calls == ["before", "step", "after"]


def test_a_marked_step_is_not_wrapped() -> None:
    for kind in (optimizers.SGD, optimizers.Adam, optimizers.AdamW):
        step = kind.step
        kind([torch.zeros(1, requires_grad=True)], lr=0.1)
        assert kind.step is step
        assert step.hooked


def test_an_unmarked_step_is_wrapped() -> None:
    class Unmarked(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return None

    step = Unmarked.step
    Unmarked([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert Unmarked.step is not step


def test_a_copied_optimizer_loses_the_mark_that_suppresses_the_warning() -> None:
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)
    assert getattr(optimizer, private.NO_CAPTURABLE_WARNING) is True
    assert not hasattr(copy.deepcopy(optimizer), private.NO_CAPTURABLE_WARNING)


def test_whether_a_cpu_has_matrix_units() -> None:
    assert private.has_matrix_units() in (True, False)
