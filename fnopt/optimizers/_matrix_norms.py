"""Fixed norms of matrices, and bounds on the norms of matrices and updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import nonzero, safe_sqrt
from fnopt.optimizers._matrix_factors import frobenius_norm
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._newton_schulz import gram

# The axes of a norm, in stacks `[k, rows, columns]`.
_AXES = {"matrix": (1, 2), "output": (1,)}


class HyperballState(NamedTuple):
    """The number of updates made; None for a constant rate."""

    count: jax.Array | None


class hyperball(Matrixwise):
    r"""Step along a direction on the sphere of matrices with the parameters' norm.

    .. math:: \theta_{t+1} = R\, \frac{v}{\lVert v \rVert}, \qquad
              v = \theta_t - \eta_t R\, \frac{d}{\lVert d \rVert}, \qquad
              R = \lVert \theta_t \rVert

    `hyperball` replaces `scale_by_learning_rate`. The learning rate is the angle of a step, and
    weight decay has no effect. After `ema` and `orthogonalize` the chain is MuonH, after
    `scale_by_adam` AdamH.
    The norm is computed from the current matrix, so the transform stores no norm; in float32 the
    rounding error of the norm grows with the square root of the number of steps. A zero matrix
    stays zero.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        norm_of: The arrays whose norms are fixed: every `'matrix'` (Frobenius norm), or every
            `'output'` of a matrix, the columns of a kernel.
        tangent: Whether :math:`d` is first projected onto the tangent space of the sphere.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.hyperball(0.75, tangent=True), {"w": jnp.asarray([[4.0, 0.0]])}
        >>> updates, _ = tx.update({"w": jnp.asarray([[1.0, -1.0]])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([[3.2, 2.4]], dtype=float32)}

    Reference:
        Wen, Dang, Lyu, Ma and Liang, 2025, Hyperball Optimization.
    """

    State = HyperballState
    needs_params = True
    reads_step = False
    wide = False
    factorizes = False
    gathers = False

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)
    norm_of: str = static(default="matrix", choices=tuple(_AXES))
    tangent: bool = static(default=False)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        p, axes = slots.params, _AXES[self.norm_of]
        # A matrix of zeros has the radius zero, and stays zero.
        radius = frobenius_norm(p, axes)
        if self.tangent:
            unit = p / nonzero(radius)
            g = g - unit * jnp.sum(unit * g, axis=axes, keepdims=True)
        moved = p - h.learning_rate * radius * (g / nonzero(frobenius_norm(g, axes)))
        return moved * (radius / nonzero(frobenius_norm(moved, axes))) - p, {}


class cap_spectral_norm(Matrixwise):
    r"""Scale down matrices whose largest singular value exceeds a limit after the update.

    .. math:: \theta_{t+1} = \min\left(1,\ \frac{c}{\sigma_{\max}(\theta_t + u_t)}\right)
              (\theta_t + u_t)

    Put `cap_spectral_norm` last in a chain. The singular value is computed from the eigenvalues of
    the Gram matrix.

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
        size = frobenius_norm(moved, (1, 2))  # divided out below, because squares may overflow
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
