"""Orthogonalization of matrices: all singular values become nearly 1."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, hyper, static
from fnopt.numerics import as_dtype, nonzero, real_dtype, squared_modulus
from fnopt.optimizers._matrix_factors import frobenius_norm
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._newton_schulz import (
    PRECONDITIONINGS,
    STANDARD,
    as_coefficients,
    orthogonalize_matrices,
    polynomials,
)


class orthogonalize(Matrixwise):
    r"""Replace every matrix by its orthogonal polar factor, with Newton-Schulz iterations.

    .. math:: u \approx U V^\top \quad \text{of} \quad g = U S V^\top

    The result is the direction of steepest descent in the spectral norm. The iterations are odd
    polynomials of the matrix, which need only matrix products. Matrices of one shape are batched.
    With `'polar_express'` and 12 steps, the result is the polar factor up to float32 rounding
    error, for condition numbers up to 1e3.

    All leaves must be matrices; use `partition_matrices` to train other leaves with another
    optimizer. A NaN in one matrix doesn't affect other matrices.

    Args:
        ns_coeffs: :math:`(a, b, c)` of the polynomial :math:`a x + b x^3 + c x^5` of every step, a
            sequence of such triples for the steps, or a preset. `'standard'` is fast, and results
            in singular values between 0.7 and 1.2. `'polar_express'` is optimal for a given number
            of steps. `'dion'` is the sequence of Dion's authors.
        ns_steps: The number of steps; ignored for a sequence of triples.
        eps: A constant added to the norms by which matrices are divided; for `'aol'` and
            `'schatten'`, a lower bound of the norms.
        preconditioning: The method of scaling singular values below 1: `'frobenius'` divides by the
            Frobenius norm, `'schatten'` by the Schatten 4-norm, and `'spectral'` by the largest
            singular value; `'aol'` scales each row.
        adaptive: Whether to multiply the update by its inner product with the gradient, which is
            the nuclear norm of the gradient.
        balance_steps: The number of balancing steps, which make the rows along the longer side of a
            non-square matrix similar in norm (Aurora). Then no neuron has a short update. Each
            balancing step costs one orthogonalization. With 0, the result is the polar factor.
        balance_power: The exponent of the squared row norms in a balancing step.
        ns_dtype: The dtype of the products; Muon's author uses bfloat16 on accelerators.
        weight_dimension_numbers: The axes of the matrices: `MatrixDimensionNumbers` for all
            leaves, a tree of `MatrixDimensionNumbers`, or `fnopt.by_path(fn)`. None means that each
            leaf has two axes, rows and columns.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.orthogonalize("polar_express", 8), jnp.diag(jnp.asarray([9.0, -0.1]))
        >>> print(tx.update(g, tx.init(g))[0].round(2) + 0.0)
        [[ 1.  0.]
         [ 0. -1.]]

    Reference:
        Jordan et al., 2024, Muon; Bernstein and Newhouse, 2024, arXiv:2409.20325; Amsel et al.,
        2025, arXiv:2505.16932 (Polar Express); Ahn et al., 2025, arXiv:2504.05295 (Dion); Boissin
        et al., 2025, arXiv:2512.04632 (AOL); Grishina et al., 2025, arXiv:2506.10935 (Schatten);
        Dewulf et al., 2026, arXiv:2606.27715 (Aurora).
    """

    takes_complex = True

    ns_coeffs: Any = static(default=STANDARD, convert=as_coefficients)
    ns_steps: int = static(default=5, least=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    preconditioning: str = static(default="frobenius", choices=PRECONDITIONINGS)
    adaptive: bool = static(default=False)
    balance_steps: int = static(default=0, least=0)
    balance_power: Scalar = hyper(default=0.5, ge=0)
    ns_dtype: Any = static(default=None, convert=as_dtype)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    @property
    def factorizes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the preconditioning computes eigenvalues."""
        return self.preconditioning == "spectral"

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        is_balanced = self.balance_steps > 0 and g.shape[1] != g.shape[2]
        u = self._balance(h, g) if is_balanced else self._orthogonalize(h, g)
        if not self.adaptive:
            return u, {}
        # The dual norm of the spectral norm is the nuclear norm, <g, U V^T> = sum S.
        dual_norm = jnp.sum(jnp.real(jnp.conj(g) * u), axis=(1, 2), keepdims=True)
        return dual_norm.astype(u.dtype) * u, {}

    def _orthogonalize(self, h: Any, g: jax.Array) -> jax.Array:
        x = g if self.ns_dtype is None else g.astype(self.ns_dtype)
        eps = h.eps.astype(real_dtype(x.dtype))
        steps = polynomials(self.ns_coeffs, self.ns_steps)
        return orthogonalize_matrices(x, steps, eps, self.preconditioning).astype(g.dtype)

    def _balance(self, h: Any, g: jax.Array) -> jax.Array:
        """Return the polar factor of `g D`, with a diagonal `D` that equalizes the column norms."""
        # The columns of the m by n factor have the mean squared norm m / n. Each step scales the
        # columns of g by a power of m / n over their actual squared norms.
        _, m, n = g.shape
        norms = nonzero(frobenius_norm(jnp.abs(g), (1,)))
        g, d = g / norms.astype(g.dtype), jnp.ones_like(norms)
        u = self._orthogonalize(h, g)
        for _ in range(self.balance_steps - 1):
            squares = jnp.sum(squared_modulus(u), axis=1, keepdims=True)
            d = d * (m / n / nonzero(squares)) ** h.balance_power
            u = self._orthogonalize(h, d.astype(g.dtype) * g)
        return u
