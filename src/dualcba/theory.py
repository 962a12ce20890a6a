"""Theorem 2: the linear model, in closed form and by descent.

A linear network and a linear adaptor, squared errors (the paper's Section IV-B, its symbols):

    φ* = argmin_φ ‖X_bufᵀ θ(φ) − Y_buf‖²        θ(φ) = argmin_θ ‖X_trnᵀ θ φ − Y_trn‖²

with X_trn (p, n), Y_trn (n, c), X_buf (p, m), Y_buf (m, c), θ (p, c), φ (c, c) invertible. What it
means, when it holds and what the paper leaves out stands in `docs/theory.md`.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from dualcba.errors import expected

WORST = 1e10
"""The largest condition number that is solved: in float64 about six digits are left."""


@dataclass(frozen=True)
class LinearProblem:
    """Training and buffer data of the linear model; columns of X are samples, rows of Y labels."""

    X_trn: Tensor
    Y_trn: Tensor
    X_buf: Tensor
    Y_buf: Tensor

    def __post_init__(self) -> None:
        for name, value in zip(("X_trn", "Y_trn", "X_buf", "Y_buf"), astuple(self), strict=True):
            if value.dim() != 2 or value.dtype != torch.float64 or not value.isfinite().all():
                given = f"{value.dtype} of shape {tuple(value.shape)}"
                raise ValueError(expected(name, given, "a finite matrix in float64"))
        p, n = self.X_trn.shape
        c, m = self.Y_trn.shape[1], self.X_buf.shape[1]
        wanted = {"Y_trn": (n, c), "X_buf": (p, m), "Y_buf": (m, c)}
        for name, shape in wanted.items():
            has = tuple(getattr(self, name).shape)
            if has != shape:
                raise ValueError(expected(f"shape of {name}", has, str(shape)))


@dataclass(frozen=True)
class LinearSolution:
    """θ* (p, c) and φ* (c, c)."""

    theta: Tensor
    phi: Tensor


def closed_form(problem: LinearProblem) -> LinearSolution:
    """The paper's solution, θ* = X† Y_trn φ*⁻¹ and φ* = (Pᵀ Y_buf)⁻¹ Pᵀ P with P = A Y_trn.

    X† = (X_trn X_trnᵀ)⁻¹ X_trn and A = X_bufᵀ X†, so P is what plain regression on the training
    data answers on the buffer. Three inverses stand in it, and each must exist.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> solution = closed_form(LinearProblem(one, 2 * one, one, 3 * one))  # 2 taught, 3 remembered
    >>> solution.theta.item(), round(solution.phi.item(), 4)
    (3.0, 0.6667)
    """
    X, Y, X_buf, Y_buf = problem.X_trn, problem.Y_trn, problem.X_buf, problem.Y_buf
    plain = _solve("X_trn X_trnᵀ", X @ X.T, X @ Y, "at least p independent training samples")
    P = X_buf.T @ plain
    why = "labels of c independent kinds in training, told apart on the buffer"
    psi = _solve("Pᵀ P", P.T @ P, P.T @ Y_buf, why)  # φ*⁻¹
    phi = _solve("Pᵀ Y_buf", P.T @ Y_buf, P.T @ P, "buffer labels that P can tell apart")
    return LinearSolution(plain @ psi, phi)


def inner_solution(problem: LinearProblem, phi: Tensor) -> Tensor:
    """θ(φ), from the normal equations X Xᵀ θ φ φᵀ = X Y φᵀ; differentiable in φ."""
    X, Y = problem.X_trn, problem.Y_trn
    right = torch.linalg.solve(X @ X.T, X @ Y @ phi.T)
    return torch.linalg.solve(phi @ phi.T, right, left=False)  # type: ignore[no-any-return]


def outer_loss(problem: LinearProblem, theta: Tensor) -> Tensor:
    """‖X_bufᵀ θ − Y_buf‖² / m."""
    return (problem.X_buf.T @ theta - problem.Y_buf).square().sum() / len(problem.Y_buf)


def by_descent(problem: LinearProblem, *, iterations: int = 1000) -> LinearSolution:
    """The same without the theorem: descend the outer loss through the inner argmin, by L-BFGS.

    The descent is in φ⁻¹, where the outer loss is convex. In φ it is not: it flattens out towards
    infinity and has a wall where φ is singular, so that a descent can end far from the solution.
    """
    inverse = torch.eye(problem.Y_trn.shape[1], dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [inverse], max_iter=iterations, history_size=50,
        tolerance_grad=1e-13, tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> float:
        optimizer.zero_grad()
        loss = outer_loss(problem, inner_solution(problem, torch.linalg.inv(inverse)))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    phi = torch.linalg.inv(inverse.detach())
    return LinearSolution(inner_solution(problem, phi), phi)


def _solve(name: str, matrix: Tensor, right: Tensor, wanted: str) -> Tensor:
    """matrix⁻¹ · right, if that means anything."""
    condition = torch.linalg.cond(matrix).item()
    if not condition < WORST:
        raise ValueError(
            f"{name} is singular or nearly so (condition number {condition:.1e}), expected {wanted}"
        )
    return torch.linalg.solve(matrix, right)  # type: ignore[no-any-return]
