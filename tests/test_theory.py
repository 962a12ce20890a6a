"""Theorem 2: the closed form equals the numerical solution, and fails where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dualcba.theory import (
    LinearProblem,
    by_descent,
    closed_form,
    inner_solution,
    outer_loss,
)


def problem(seed: int, p: int, n: int, m: int, c: int, *, noise: float = 1.0) -> LinearProblem:
    """Labels from one linear map in training and another on the buffer, plus noise."""
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    X_trn, X_buf, rule = randn(p, n), randn(p, m), randn(p, c)
    Y_trn = X_trn.T @ rule + noise * randn(n, c)
    Y_buf = X_buf.T @ (rule + 0.5 * randn(p, c)) + noise * randn(m, c)
    return LinearProblem(X_trn, Y_trn, X_buf, Y_buf)


def onehot(seed: int, p: int, n: int, m: int, c: int) -> LinearProblem:
    """One-hot labels, as in the paper: imbalanced in training, balanced on the buffer."""
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(p, c, generator=g, dtype=torch.float64)
    recent = torch.arange(1, c + 1, dtype=torch.float64)
    parts = []
    for size, weights in ((n, recent), (m, torch.ones(c, dtype=torch.float64))):
        y = torch.cat([torch.arange(c), torch.multinomial(weights, size - c, True, generator=g)])
        x = means[:, y] + torch.randn(p, size, generator=g, dtype=torch.float64)
        parts += [x, torch.nn.functional.one_hot(y, c).double()]
    return LinearProblem(*parts)


SIZES = {
    "usual": (6, 40, 20, 3),
    "as many samples as features": (5, 5, 9, 3),
    "as few buffer samples as classes": (7, 30, 4, 4),
    "as few features as classes": (4, 30, 12, 4),
    "one of everything": (1, 1, 1, 1),
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_the_closed_form_is_what_a_descent_finds(size: tuple[int, ...], seed: int) -> None:
    one = problem(seed, *size)
    exact, found = closed_form(one), by_descent(one)
    torch.testing.assert_close(found.theta, exact.theta, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.phi, exact.phi, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_with_classes_as_labels(seed: int) -> None:
    one = onehot(seed, 8, 60, 20, 4)
    exact, found = closed_form(one), by_descent(one)
    torch.testing.assert_close(found.theta, exact.theta, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.phi, exact.phi, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_neither_loss_can_be_lowered(seed: int) -> None:
    """Both gradients are zero: the inner one in θ, the outer one in φ through the argmin."""
    one = problem(seed, 6, 40, 20, 3)
    exact = closed_form(one)
    theta, phi = exact.theta.clone().requires_grad_(), exact.phi.clone().requires_grad_()
    inner = (one.X_trn.T @ theta @ exact.phi - one.Y_trn).square().sum()
    (slope,) = torch.autograd.grad(inner, theta)
    assert slope.abs().max() < 1e-9
    (slope,) = torch.autograd.grad(outer_loss(one, inner_solution(one, phi)), phi)
    assert slope.abs().max() < 1e-9
    lowest = outer_loss(one, exact.theta)
    apart = one.X_buf.T.numpy() @ exact.theta.numpy() - one.Y_buf.numpy()
    assert lowest.item() == pytest.approx((apart**2).sum() / 20)
    for k in range(20):
        g = torch.Generator().manual_seed(k)
        other = exact.phi + 0.1 * torch.randn(3, 3, generator=g, dtype=torch.float64)
        assert outer_loss(one, inner_solution(one, other)) > lowest


def test_the_solution_is_a_regression() -> None:
    """θ* φ* is a linear regression on the training data; θ* is refitted to the buffer."""
    one = problem(0, 6, 40, 20, 3)
    exact = closed_form(one)
    plain = torch.linalg.lstsq(one.X_trn.T, one.Y_trn).solution
    torch.testing.assert_close(exact.theta @ exact.phi, plain)
    P = one.X_buf.T @ plain
    refit = torch.linalg.lstsq(P, one.Y_buf).solution
    torch.testing.assert_close(exact.theta, plain @ refit)


def test_the_outer_loss_is_not_convex_in_phi() -> None:
    ones = torch.ones(1, 1, dtype=torch.float64)
    one = LinearProblem(ones, ones, ones, ones)  # the loss is (1/φ − 1)²
    a, b, middle = (outer_loss(one, inner_solution(one, k * ones)).item() for k in (1, 9, 5))
    assert middle > (a + b) / 2


# ---------------------------------------------------------------- no solution


def test_too_few_training_samples() -> None:
    with pytest.raises(ValueError, match=r"X_trn X_trnᵀ is singular .* at least p independent"):
        closed_form(problem(0, 6, 5, 20, 3))


def test_too_few_buffer_samples() -> None:
    with pytest.raises(ValueError, match=r"Pᵀ P is singular"):
        closed_form(problem(0, 6, 40, 2, 3))


def test_a_class_that_the_training_batch_lacks() -> None:
    """Common in a stream: the label matrix has a column of zeros."""
    full = onehot(0, 8, 60, 20, 4)
    Y = full.Y_trn.clone()
    Y[:, 1] = 0
    with pytest.raises(ValueError, match=r"Pᵀ P is singular .* expected training labels of rank c"):
        closed_form(LinearProblem(full.X_trn, Y, full.X_buf, full.Y_buf))


def test_a_class_that_the_buffer_lacks() -> None:
    full = onehot(0, 8, 60, 20, 4)
    Y = full.Y_buf.clone()
    Y[:, 1] = 0
    with pytest.raises(ValueError, match=r"Pᵀ Y_buf is singular .* buffer labels of rank c"):
        closed_form(LinearProblem(full.X_trn, full.Y_trn, full.X_buf, Y))


def test_nearly_singular() -> None:
    one = problem(0, 6, 40, 20, 3)
    X = one.X_trn.clone()
    X[0] = X[1] + 1e-7 * X[0]
    with pytest.raises(ValueError, match=r"nearly so \(condition number \d"):
        closed_form(LinearProblem(X, one.Y_trn, one.X_buf, one.Y_buf))


def test_matrices_that_do_not_fit() -> None:
    one = problem(0, 6, 40, 20, 3)
    with pytest.raises(ValueError, match=r"shape of Y_trn is \(39, 3\), expected \(40, 3\)"):
        LinearProblem(one.X_trn, one.Y_trn[:39], one.X_buf, one.Y_buf)
    with pytest.raises(ValueError, match=r"X_buf is .*float32.*, expected a finite matrix"):
        LinearProblem(one.X_trn, one.Y_trn, one.X_buf.float(), one.Y_buf)
    with pytest.raises(ValueError, match=r"Y_buf is .* expected a finite matrix"):
        LinearProblem(one.X_trn, one.Y_trn, one.X_buf, one.Y_buf * torch.nan)
