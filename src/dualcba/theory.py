"""Theorem 2 of the paper: solve the linear bi-level problem in closed form or by gradient descent.

The problem has a linear network, a linear adaptor and squared errors. In the symbols of Section
IV-B of the paper:

    φ* = argmin_φ ‖X_bufᵀ θ(φ) − Y_buf‖²        θ(φ) = argmin_θ ‖X_trnᵀ θ φ − Y_trn‖²

with X_trn (p, n), Y_trn (n, c), X_buf (p, m), Y_buf (m, c), θ (p, c) and an invertible φ (c, c).
See `docs/theory.md` for the meaning of the theorem, its conditions and the gaps in its proof.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from dualcba.errors import expected

MAX_CONDITION = 1e10
"""Largest condition number accepted; in float64 about six digits of the solution are correct."""


@dataclass(frozen=True)
class LinearProblem:
    """Training and buffer data, as float64 matrices.

    The columns of X_trn and X_buf are samples, the rows of Y_trn and Y_buf their labels.
    """

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
            given_shape = tuple(getattr(self, name).shape)
            if given_shape != shape:
                raise ValueError(expected(f"shape of {name}", given_shape, str(shape)))


@dataclass(frozen=True)
class LinearSolution:
    """The solution θ* (p, c) and φ* (c, c)."""

    theta: Tensor
    phi: Tensor


def closed_form(problem: LinearProblem) -> LinearSolution:
    """Return the paper's solution, θ* = X† Y_trn φ*⁻¹ and φ* = (Pᵀ Y_buf)⁻¹ Pᵀ P.

    Here X† = (X_trn X_trnᵀ)⁻¹ X_trn and P = X_bufᵀ X† Y_trn. P is what a linear regression, fitted
    to the training data, predicts for the buffer. Raises a `ValueError` if one of the three
    inverses does not exist.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> problem = LinearProblem(X_trn=one, Y_trn=2 * one, X_buf=one, Y_buf=3 * one)
    >>> solution = closed_form(problem)
    >>> solution.theta.item(), round(solution.phi.item(), 4)
    (3.0, 0.6667)
    """
    X, Y, X_buf, Y_buf = problem.X_trn, problem.Y_trn, problem.X_buf, problem.Y_buf
    regression = _solve("X_trn X_trnᵀ", X @ X.T, X @ Y, "at least p independent training samples")
    P = X_buf.T @ regression
    wanted = "training labels of rank c, and predictions of rank c on the buffer"
    phi_inverse = _solve("Pᵀ P", P.T @ P, P.T @ Y_buf, wanted)
    phi = _solve("Pᵀ Y_buf", P.T @ Y_buf, P.T @ P, "buffer labels of rank c")
    return LinearSolution(regression @ phi_inverse, phi)


def inner_solution(problem: LinearProblem, phi: Tensor) -> Tensor:
    """Return θ(φ), differentiable in φ: the solution of X Xᵀ θ φ φᵀ = X Y φᵀ."""
    X, Y = problem.X_trn, problem.Y_trn
    theta_phi_phi = torch.linalg.solve(X @ X.T, X @ Y @ phi.T)  # θ φ φᵀ
    return torch.linalg.solve(phi @ phi.T, theta_phi_phi, left=False)  # type: ignore[no-any-return]


def outer_loss(problem: LinearProblem, theta: Tensor) -> Tensor:
    """Return ‖X_bufᵀ θ − Y_buf‖² / m."""
    return (problem.X_buf.T @ theta - problem.Y_buf).square().sum() / len(problem.Y_buf)


def by_descent(problem: LinearProblem, *, iterations: int = 1000) -> LinearSolution:
    """Solve the problem numerically: minimise the outer loss through the inner argmin with L-BFGS.

    The variable is φ⁻¹, in which the outer loss is convex. In φ itself it is not convex: it becomes
    flat towards infinity and grows without bound near a singular φ, so gradient descent may end far
    from the solution.
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
    """Return matrix⁻¹ · right; raise a `ValueError` if the matrix is nearly singular."""
    condition = torch.linalg.cond(matrix).item()
    if not condition < MAX_CONDITION:
        raise ValueError(
            f"{name} is singular or nearly so (condition number {condition:.1e}), expected {wanted}"
        )
    return torch.linalg.solve(matrix, right)  # type: ignore[no-any-return]
