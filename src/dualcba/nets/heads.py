"""The cosine head, and functions that check and resize last layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.tasks.outputs import fitted

Scale = Tensor | float


def check_weight(head: nn.Module, name: str) -> None:
    """Raise if the weight of a last layer is not a parameter, but computed from parameters."""
    if not isinstance(head._parameters.get("weight"), nn.Parameter):
        wanted = "a parameter: remove weight_norm, spectral_norm or the like"
        raise ValueError(f"{name} is computed from other parameters, expected {wanted}")


def head_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Return the input of a last layer, given by position or by keyword as in `layer(input=h)`."""
    return args[0] if args else next(iter(kwargs.values()))  # type: ignore[no-any-return]


def resize_head(head: nn.Module, outputs: int) -> None:
    """Change the number of outputs of a last layer; new outputs are copies of the last one.

    >>> head = nn.Linear(3, 2)
    >>> kept = head.weight.detach().clone()
    >>> resize_head(head, 4)
    >>> head.out_features, torch.equal(head.weight, kept[[0, 1, 1, 1]])
    (4, True)
    """
    check_weight(head, "head.weight")
    for name in ("weight", "bias"):
        old = getattr(head, name, None)
        if old is not None:
            made = fitted(old.detach(), (outputs, *old.shape[1:]))
            setattr(head, name, nn.Parameter(made, requires_grad=old.requires_grad))
    if isinstance(head, nn.Linear):
        head.out_features = outputs


class CosineHead(nn.Module):
    """A classifier whose logits are a scale times the cosine of features and class weights.

    Parameters
    ----------
    weight
        The initial weights (C, d); a copy is trained.
    scale
        The factor of the cosines.
    learnt
        Whether the scale is trained too.

    >>> head = CosineHead(torch.eye(2), 10.0, learnt=False)
    >>> head(torch.tensor([[3.0, 4.0]])).tolist()
    [[6.0, 8.0]]
    """

    samplewise = True

    def __init__(self, weight: Tensor, scale: float, *, learnt: bool = True) -> None:
        super().__init__()
        self.bias = None
        self.weight = nn.Parameter(weight.detach().clone())
        self.scale: Scale = nn.Parameter(weight.new_tensor(scale)) if learnt else scale

    @property
    def learnt(self) -> bool:
        """Whether the scale is trained."""
        return isinstance(self.scale, nn.Parameter)

    def reset_parameters(self) -> None:
        """Draw new weights as `nn.Linear` does; the scale stays."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def cosine(self, h: Tensor, frozen: Tensor | None = None) -> Tensor:
        """Return cosines (n, C) of features (n, d), without autocast for their precision.

        The weights of the classes in the mask `frozen` (C,) get no gradient.
        """
        weight: Tensor = self.weight
        if frozen is not None:
            weight = torch.where(frozen.unsqueeze(1), weight.detach(), weight)
        with torch.autocast(h.device.type, enabled=False):
            return F.linear(F.normalize(h.to(weight.dtype)), F.normalize(weight))

    def forward(self, input: Tensor) -> Tensor:  # the name of the argument of nn.Linear
        """Return logits (n, C) of features (n, d)."""
        return self.scale * self.cosine(input)


# With ĥ and ŵ the normalised features and weights, z_ic = s·⟨ĥ_i, ŵ_c⟩, so that
#     ∂z_ic/∂w_c = s/‖w_c‖ · (I − ŵ_c ŵ_cᵀ) ĥ_i        ∂z_ic/∂s = ⟨ĥ_i, ŵ_c⟩


def cosine_gradients(h: Tensor, weight: Tensor, scale: Scale, G: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of a loss with respect to weight and scale, from its gradient G at z."""
    pull, unit = G.T @ F.normalize(h), F.normalize(weight)  # both (C, d)
    along = (pull * unit).sum(1, keepdim=True)
    return scale / weight.norm(dim=1, keepdim=True) * (pull - along * unit), along.sum()


def cosine_change(
    h: Tensor, weight: Tensor, scale: Scale, d_weight: Tensor, d_scale: Tensor | None
) -> Tensor:
    """Return the first-order change of the logits (n, C) for a change of weight and scale."""
    unit = F.normalize(weight)
    along = (d_weight * unit).sum(1, keepdim=True)
    turn = scale / weight.norm(dim=1, keepdim=True) * (d_weight - along * unit)
    return F.linear(F.normalize(h), turn if d_scale is None else turn + d_scale * unit)
