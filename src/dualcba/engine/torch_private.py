"""All private or undocumented names of torch that the package uses.

`tests/engine/test_torch_private.py` checks the behaviour that is relied on, for torch 2.6 and
later. Functions of tensors are plain aliases, so a call costs the same as a call of the original.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim.optimizer import Optimizer

# ------------------------------------------------------------------ tensors

softmax_backward = torch._softmax_backward_data
"""`softmax_backward(grad, q, dim, dtype)`: q ⊙ (grad − ⟨q, grad⟩), the backward of q = softmax."""

foreach_copy_ = torch._foreach_copy_
"""`foreach_copy_(targets, sources)`: copy a list of tensors in place, dtypes may differ.

One kernel launch on a GPU if all targets share a dtype.
"""

foreach_add_ = torch._foreach_add_
"""`foreach_add_(targets, others, alpha=1)`: targets += alpha · others, in place."""

foreach_sub = torch._foreach_sub
"""`foreach_sub(a, b)`: the list of a − b."""

foreach_mul_ = torch._foreach_mul_
"""`foreach_mul_(targets, factor)`: targets *= factor in place; the factor may be a () tensor."""

foreach_lerp_ = torch._foreach_lerp_
"""`foreach_lerp_(targets, others, weight)`: targets += weight · (others − targets), in place."""

foreach_zero_ = torch._foreach_zero_
"""`foreach_zero_(targets)`: set a list of tensors to zero, in place."""

foreach_norm = torch._foreach_norm
"""`foreach_norm(tensors)`: the list of their Euclidean norms, two kernel launches on a GPU."""

mark_non_finite_ = torch._amp_foreach_non_finite_check_and_unscale_
"""`mark_non_finite_(tensors, found, one)`: set `found` to 1 if a value is not finite, one pass.

The tensors are multiplied by `one`, in place, so `one` must hold 1.
"""

cudnn_convolution_relu = torch.cudnn_convolution_relu
"""`(x, weight, bias, stride, padding, dilation, groups)`: relu(conv(x) + bias); CUDA only."""

cudnn_convolution_add_relu = torch.cudnn_convolution_add_relu
"""`(x, weight, z, alpha, bias, stride, padding, dilation, groups)`: relu(conv(x) + alpha·z + bias).

CUDA only.
"""

# ------------------------------------------------------------------ modules

BatchNormBase = _BatchNorm
"""The base class of BatchNorm1d, 2d, 3d and SyncBatchNorm.

Relied on: its constructor arguments; its buffers `running_mean`, `running_var` and
`num_batches_tracked`; that `forward` calls `_check_input_dim`, and reads `momentum`, `training` and
`track_running_stats` at each call.
"""

ConvBase = _ConvNd
"""The base class of Conv1d, 2d and 3d, for `isinstance` checks."""


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether hooks are registered for the module's forward, in `_forward_(pre_)hooks`."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


# ------------------------------------------------------------------ optimisers

sgd_step: Any = unwrap(torch.optim.SGD.step)
"""`SGD.step` without the wrappers that torch puts around it, called as `sgd_step(self, closure)`.

The wrappers set `__wrapped__`, so `inspect.unwrap` finds the function inside. The caller disables
gradients, as the wrapper does.
"""

fused_sgd_: Any = torch._fused_sgd_
"""The kernel of `SGD(fused=True)`: keyword arguments as in `dualcba.engine.optimizers`."""

adam_step: Any = unwrap(torch.optim.Adam.step)
"""`Adam.step`, as `sgd_step`."""

adamw_step: Any = unwrap(torch.optim.AdamW.step)
"""`AdamW.step`, as `sgd_step`."""

fused_adam_: Any = torch._fused_adam_
"""The kernel of `Adam(fused=True)`: keyword arguments as in `dualcba.engine.optimizers`."""

fused_adamw_: Any = torch._fused_adamw_
"""The kernel of `AdamW(fused=True)`, as `fused_adam_`."""

add_param_group = unwrap(Optimizer.add_param_group)
"""`Optimizer.add_param_group` without `torch._disable_dynamo`, which imports the compiler."""

optimizer_state = unwrap(Optimizer.state_dict)
"""`Optimizer.state_dict`, as `add_param_group`."""

load_optimizer_state = unwrap(Optimizer.load_state_dict)
"""`Optimizer.load_state_dict`, as `add_param_group`."""

with_step_hooks = Optimizer.profile_hook_step
"""`with_step_hooks(step)`: a step that also calls the hooks registered for it."""


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether hooks are registered for the optimiser's step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def mark_hooked(step: Any) -> Any:
    """Mark a `step` method so that `Optimizer.__init__` does not wrap it for the profiler."""
    step.hooked = True
    return step


NO_CAPTURABLE_WARNING = "_warned_capturable_if_run_uncaptured"
"""The attribute that suppresses torch's warning about a capturable optimiser outside a CUDA graph.

The constructor sets it, but a copied optimiser loses it and would warn.
"""


def has_matrix_units() -> bool:
    """Whether this CPU has AMX, units that multiply matrices in bfloat16."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
