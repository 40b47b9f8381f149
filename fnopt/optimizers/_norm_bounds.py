"""Bounds on the norms of matrices and of their updates."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import nonzero, safe_sqrt
from fnopt.optimizers._hyperball import HyperballState
from fnopt.optimizers._matrix_factors import frobenius_norm
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._newton_schulz import gram


class cap_spectral_norm(Matrixwise):
    r"""Scale down matrices whose largest singular value would exceed a limit after the update.

    .. math:: \theta_{t+1} = \min\left(1,\ \frac{c}{\sigma_{\max}(\theta_t + u_t)}\right)
              (\theta_t + u_t)

    Put it last in a chain. The singular value is computed from the eigenvalues of the Gram matrix.

    Args:
        limit: :math:`c`.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.cap_spectral_norm(2.0), {"w": jnp.diag(jnp.asarray([3.0, 1.0]))}
        >>> updates, _ = tx.update({"w": jnp.eye(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([[2., 0.],
               [0., 1.]], dtype=float32)

    Reference:
        Newhouse et al., 2025, arXiv:2507.13338.
    """

    needs_params = True

    limit: Scalar = hyper(default=1.0, gt=0)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        moved = slots.params + g
        size = frobenius_norm(moved, (1, 2))  # squares of undivided numbers may overflow
        # The squared singular values, as eigenvalues of the Gram matrix, cost less than an SVD.
        largest = size * safe_sqrt(jnp.linalg.eigvalsh(gram(moved / nonzero(size)))[:, -1:, None])
        shrink = jnp.minimum(h.limit / nonzero(largest), jnp.ones_like(largest))
        return moved * shrink - slots.params, {}


class floor_update_ratio(Matrixwise):
    r"""Scale up updates whose norm is below a fraction of the parameters' norm.

    .. math:: u' = \max\left(1,\ \frac{c\, \lVert \theta \rVert}{\lVert u \rVert}\right) u

    After `scale_by_learning_rate`, :math:`c` is the smallest relative change of a matrix in a step.
    A zero update stays zero.

    Args:
        ratio: :math:`c`, a number or a `Schedule`.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.floor_update_ratio(0.1), {"w": jnp.asarray([[3.0, 4.0]])}
        >>> tx.update({"w": jnp.asarray([[0.0, 0.1]])}, tx.init(params), params)[0]
        {'w': Array([[0. , 0.5]], dtype=float32)}
    """

    State = HyperballState
    needs_params = True
    reads_step = False
    factorizes = False
    gathers = False

    ratio: ScalarOrSchedule = hyper(ge=0, schedule=True)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        least = h.ratio * frobenius_norm(slots.params, (1, 2))
        factor = least / nonzero(frobenius_norm(g, (1, 2)))
        return g * jnp.maximum(factor, jnp.ones_like(factor)), {}
