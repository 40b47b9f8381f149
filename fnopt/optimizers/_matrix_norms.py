"""Constraints on the norms of matrices and of their updates."""

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

# The axes over which a norm is computed, in stacks `[k, rows, columns]`.
_AXES = {"matrix": (1, 2), "output": (1,)}


class HyperballState(NamedTuple):
    """State of `hyperball` and `floor_update_ratio`.

    Attributes:
        count: :math:`t`, the number of steps; None without a schedule.
    """

    count: jax.Array | None


class hyperball(Matrixwise):
    r"""Take steps on the sphere of matrices with the parameters' norm.

    .. math:: \theta_{t+1} = R\, \frac{v}{\lVert v \rVert}, \qquad
              v = \theta_t - \eta_t R\, \frac{d}{\lVert d \rVert}, \qquad
              R = \lVert \theta_t \rVert

    with the incoming direction :math:`d`. `hyperball` replaces `scale_by_learning_rate`. The
    learning rate is approximately the angle of a step, and weight decay has no effect. With `ema`
    and `orthogonalize` as the direction, the method is MuonH; with `scale_by_adam`, it is AdamH.

    The state doesn't contain the norm, which is computed from the current matrix. In float32, its
    rounding error grows with the square root of the number of steps. A zero matrix stays zero.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        norm_of: The arrays with fixed norms: `'matrix'` for the Frobenius norm of every matrix, or
            `'output'` for the norm of every column of a kernel.
        tangent: Whether to project :math:`d` onto the tangent space of the sphere first.
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
        radius = frobenius_norm(p, axes)
        if self.tangent:
            unit = p / nonzero(radius)
            g = g - unit * jnp.sum(unit * g, axis=axes, keepdims=True)
        v = p - h.learning_rate * radius * (g / nonzero(frobenius_norm(g, axes)))
        return v * (radius / nonzero(frobenius_norm(v, axes))) - p, {}


class cap_spectral_norm(Matrixwise):
    r"""Scale down updated matrices whose largest singular value exceeds a limit.

    .. math:: \theta_{t+1} = \min\left(1,\ \frac{c}{\sigma_{\max}(\theta_t + u_t)}\right)
              (\theta_t + u_t)

    Put `cap_spectral_norm` last in a chain. The singular value is computed from the eigenvalues of
    the Gram matrix.

    Args:
        limit: :math:`c`, the largest singular value allowed.
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
        updated = slots.params + g
        norm = frobenius_norm(updated, (1, 2))
        # The matrix is scaled to norm 1, because squares may overflow. Eigenvalues of the Gram
        # matrix cost less than an SVD.
        squares = jnp.linalg.eigvalsh(gram(updated / nonzero(norm)))
        largest = norm * safe_sqrt(squares[:, -1:, None])
        factor = jnp.minimum(h.limit / nonzero(largest), jnp.ones_like(largest))
        return updated * factor - slots.params, {}


class floor_update_ratio(Matrixwise):
    r"""Scale up updates whose norm is below a fraction of the parameters' norm.

    .. math:: u' = \max\left(1,\ \frac{c\, \lVert \theta \rVert}{\lVert u \rVert}\right) u

    Put `floor_update_ratio` after `scale_by_learning_rate`. A zero update stays zero.

    Args:
        ratio: :math:`c`, the smallest relative change of a matrix; a number or a `Schedule`.
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
        smallest = h.ratio * frobenius_norm(slots.params, (1, 2))
        factor = smallest / nonzero(frobenius_norm(g, (1, 2)))
        return g * jnp.maximum(factor, jnp.ones_like(factor)), {}
