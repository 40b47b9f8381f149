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
    r"""Replace every matrix by its orthogonal polar factor, using Newton-Schulz iterations.

    .. math:: u \approx U V^\top \quad \text{of} \quad g = U S V^\top

    The result is the direction of steepest descent in the spectral norm. The iterations are odd
    polynomials of the matrix, which need matrix products only; matrices of one shape are batched.
    With `'polar_express'` and 12 steps, the result is the polar factor up to float32 rounding
    error, for condition numbers up to 1e3.

    All leaves must be matrices; `partition_matrices` assigns other leaves to another optimizer. A
    NaN in one matrix doesn't affect other matrices.

    Args:
        ns_coeffs: :math:`(a, b, c)` of the polynomial :math:`a x + b x^3 + c x^5` of every step, a
            sequence of such triples, or a preset: `'standard'`, the default, which is fast and
            brings singular values between 0.7 and 1.2; `'dion'`; or `'polar_express'`, optimal for
            a given number of steps.
        ns_steps: The number of steps; not used for a sequence of triples.
        eps: Added to the norms by which matrices are divided.
        preconditioning: The method of scaling singular values below 1: `'frobenius'` divides by the
            Frobenius norm, `'schatten'` by the Schatten 4-norm, `'aol'` scales each row, and
            `'spectral'` divides by the largest singular value.
        adaptive: Whether an update is scaled by its product with the gradient, the dual norm.
        balance_steps: The number of balancing steps for the rows of a non-square matrix along its
            longer side, so that no neuron has a short update (Aurora). Each balancing step costs an
            orthogonalization. With 0, the result is the polar factor.
        balance_power: The exponent of the row norms in a balancing step.
        ns_dtype: The dtype of the products; Muon's author uses bfloat16 on accelerators.
        weight_dimension_numbers: The axes of the matrices: `MatrixDimensionNumbers` for all
            leaves, a tree of `MatrixDimensionNumbers`, or `fnopt.by_path(fn)`. None uses the two
            axes of each leaf.

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
        """Whether the largest singular values are computed from eigenvalues."""
        return self.preconditioning == "spectral"

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        is_balanced = self.balance_steps > 0 and g.shape[1] != g.shape[2]
        u = self._balance(h, g) if is_balanced else self._orthogonalize(h, g)
        if not self.adaptive:
            return u, {}
        dual = jnp.sum(jnp.real(jnp.conj(g) * u), axis=(1, 2), keepdims=True)
        return dual.astype(u.dtype) * u, {}

    def _orthogonalize(self, h: Any, g: jax.Array) -> jax.Array:
        narrow = g if self.ns_dtype is None else g.astype(self.ns_dtype)
        eps = h.eps.astype(real_dtype(narrow.dtype))
        steps = polynomials(self.ns_coeffs, self.ns_steps)
        return orthogonalize_matrices(narrow, steps, eps, self.preconditioning).astype(g.dtype)

    def _balance(self, h: Any, g: jax.Array) -> jax.Array:
        """Orthogonal factors of `g D`, with `D` such that their columns have one norm."""
        _, m, n = g.shape
        norms = nonzero(frobenius_norm(jnp.abs(g), (1,)))
        g, d = g / norms.astype(g.dtype), jnp.ones_like(norms)
        u = self._orthogonalize(h, g)
        for _ in range(self.balance_steps - 1):
            squares = jnp.sum(squared_modulus(u), axis=1, keepdims=True)
            d = d * (m / n / nonzero(squares)) ** h.balance_power
            u = self._orthogonalize(h, d.astype(g.dtype) * g)
        return u
