"""Contra-Muon: orthogonal updates minus a multiple of the momentum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, hyper, static
from fnopt.numerics import matmul, nonzero
from fnopt.optimizers._matrix_factors import frobenius_norm, transpose
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.transforms import Wrapper


class subtract_direction(Wrapper):
    r"""Subtract a multiple of the incoming direction from the updates of an inner transform.

    .. math:: v = \mathrm{inner}(g) - c\, \frac{g}{\sigma_1(g)}, \qquad
              u = \frac{\lVert \mathrm{inner}(g) \rVert}{\lVert v \rVert}\, v

    with the incoming direction :math:`g` of a matrix and its largest singular value
    :math:`\sigma_1`. With `orthogonalize` as the inner transform, the method is Contra-Muon: the
    update is shorter along singular vectors with large singular values. The norm of each matrix's
    update is preserved. :math:`\sigma_1` is computed by power iterations that start from a vector
    of ones.

    Args:
        inner: The inner transform, which is also applied to :math:`g`.
        strength: :math:`c`, the multiple; the authors use 0.2.
        power_steps: The number of power iterations for :math:`\sigma_1`.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: In use, for complex updates.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.subtract_direction(fnopt.orthogonalize("polar_express", 8), 0.5)
        >>> g = {"w": jnp.diag(jnp.asarray([4.0, 0.0, 2.0]))}
        >>> tx.update(g, tx.init(g))[0]["w"].diagonal().round(2)
        Array([0.78, 0.  , 1.18], dtype=float32)

    Reference:
        Contra-Muon, 2026, https://github.com/nilin/contra-muon.
    """

    State = None

    strength: Scalar = hyper(default=0.2, ge=0)
    power_steps: int = static(default=5, least=1)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Subtract the direction from the inner updates."""
        inner, state = self.inner.update(updates, state, params, **extra_args)
        part = _Subtract(self.strength, self.power_steps, self.weight_dimension_numbers)
        return part.update(inner, part.init(updates), updates)[0], state


class _Subtract(Matrixwise):
    """Formula of `subtract_direction`; `slots.params` is the incoming direction."""

    needs_params = True
    wide = False
    factorizes = False

    strength: Scalar = hyper()
    power_steps: int = static()
    weight_dimension_numbers: Any = static()

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        direction = slots.params / nonzero(_spectral_norm(slots.params, self.power_steps))
        v = g - h.strength * direction
        return v * (frobenius_norm(g) / nonzero(frobenius_norm(v))), {}


def _spectral_norm(x: jax.Array, steps: int) -> jax.Array:
    """Estimate the largest singular values of matrices by power iterations, `[k, 1, 1]`."""
    v = jnp.ones((len(x), x.shape[1], 1), x.dtype)
    v = v / frobenius_norm(v)
    for _ in range(steps):
        u = matmul(transpose(x), v)
        v = matmul(x, u / nonzero(frobenius_norm(u)))
        v = v / nonzero(frobenius_norm(v))
    return frobenius_norm(matmul(transpose(x), v))
