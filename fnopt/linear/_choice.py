"""The choice of the linear algebra by the shape of a problem."""

from __future__ import annotations

from fnopt.core import where

SOLVERS = ("auto", "qr", "cholesky", "cg")
_ACCURATE = 64  # up to that many unknowns on the smaller side, accuracy costs next to nothing
_DENSE = 8192  # beyond, factorising costs more than a few hundred products with the Jacobian


def linear_solver(name: str, m: int, n: int) -> str:
    r"""Chooses by the smaller side of the Jacobian, `k = min(m, n)`.

    ==============  =============  =====================================================
    `k`             choice         cost of a step
    ==============  =============  =====================================================
    at most 64      `'qr'`         :math:`2 m n k`, accurate to the condition number
    at most 8192    `'cholesky'`   :math:`m n k + k^3/3`, to the square of it
    above           `'cg'`         up to 100 products with `J` and with its transpose;
                                   `J` is never formed
    ==============  =============  =====================================================

    Args:
        name: `'auto'`, `'qr'`, `'cholesky'` or `'cg'`.
        m: How many residuals there are.
        n: How many params there are.

    Returns:
        `'qr'`, `'cholesky'` or `'cg'`.

    Raises:
        ValueError: If `name` is something else.

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
    return "qr" if k <= _ACCURATE else "cholesky" if k <= _DENSE else "cg"
