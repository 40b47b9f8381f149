"""`System`, the interface of factorized linear models, and the choice of a linear solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from fnopt.errors import where

SOLVERS = ("auto", "qr", "cholesky", "cg")
# Largest smaller side of a Jacobian for which QR costs hardly more than Cholesky. A step takes 1.9,
# 1.0, 2.4 and 4.0 times as long for k = 32, 64, 128 and 256 (CPU time).
_MAX_QR = 64
# Largest smaller side for Cholesky. Its Gram matrix takes 0.5 GB in float64. Already for 2,048
# params and residuals, a step costs as much as 160 products with J and as many with its transpose
# (CPU time), but it is accurate for larger condition numbers.
_MAX_CHOLESKY = 8192


class DampedStep(NamedTuple):
    r"""A step of the linear model :math:`\tfrac12 \|A p + r\|^2`, and its properties."""

    p: jax.Array  # [n]
    lam: jax.Array  # damping of the step; 0 for an undamped step
    model_norm: jax.Array  # ||A p||^2
    predicted: jax.Array  # predicted reduction, (||r||^2 - ||A p + r||^2) / 2
    factor: Any = None  # the factorization, for `pull_back`
    solution_length: jax.Array | None = None  # ||p|| before the step was shortened to the radius
    # Increase of the damping that halves ||p||, by Hebden's formula.
    hebden: jax.Array | None = None


class System(Protocol):
    r"""A linear model :math:`A p + r` in factorized form, for repeated steps.

    Implemented by :class:`TriangleSystem`, :class:`LiftedSystem`, :class:`TallGramSystem`,
    :class:`WideGramSystem`, :class:`BandedGramSystem` and :class:`KrylovSystem`.
    """

    def trust_region(self, radius: jax.Array) -> DampedStep:
        r"""Return the minimizer of the model within :math:`\|p\| \le \Delta`."""
        ...

    def damped(self, lam: jax.Array) -> DampedStep:
        r"""Return the minimizer of :math:`\tfrac12 \|A p + r\|^2 + \tfrac\lambda2 \|p\|^2`."""
        ...

    def gauss_newton(self) -> DampedStep:
        r"""Return the minimum-norm least-squares solution of the model, without damping."""
        ...

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""Return :math:`\|A v\|^2`."""
        ...

    def pull_back(self, step: DampedStep) -> Callable[[jax.Array], jax.Array] | None:
        r"""Return :math:`w \mapsto (A^T A + \lambda I)^{-1} A^T w`, with the damping of a step.

        Return None if such a product costs as much as a step.
        """
        ...


def linear_solver(name: str, m: int, n: int) -> str:
    r"""Choose a linear solver by the smaller side of the Jacobian, `k = min(m, n)`.

    ==============  =============  =====================================================
    `k`             choice         cost of a step
    ==============  =============  =====================================================
    at most 64      `'qr'`         :math:`2 m n k`; errors grow with the condition number
    at most 8192    `'cholesky'`   :math:`m n k + k^3/3`; errors grow with its square
    above           `'cg'`         up to 100 products with `J` and with its transpose;
                                   `J` is never formed
    ==============  =============  =====================================================

    Args:
        name: `'auto'`, `'qr'`, `'cholesky'` or `'cg'`.
        m: Number of residuals.
        n: Number of params.

    Returns:
        `'qr'`, `'cholesky'` or `'cg'`.

    Raises:
        ValueError: If `name` is none of these.

    Example:
        >>> from fnopt.linear import linear_solver
        >>> linear_solver("auto", 200, 5), linear_solver("auto", 400, 3000)
        ('qr', 'cholesky')
    """
    if name not in SOLVERS:
        raise ValueError(f"{where()}linear_solver = {name!r}, expected one of {SOLVERS}.")
    if name != "auto":
        return name
    k = min(m, n)
    return "qr" if k <= _MAX_QR else "cholesky" if k <= _MAX_CHOLESKY else "cg"
