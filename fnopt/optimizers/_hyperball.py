"""Steps on the sphere of matrices with a fixed norm."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import ScalarOrSchedule, hyper, static
from fnopt.numerics import nonzero
from fnopt.optimizers._matrix_factors import frobenius_norm
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._recipe import one_of

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

    `hyperball` replaces `scale_by_learning_rate`: the learning rate is the angle of a step, and
    weight decay has no effect. After `ema` and `orthogonalize` the chain is MuonH, after
    `scale_by_adam` AdamH.
    The norm is taken from the current matrix, so the transform needs no state for it; in float32
    its rounding error grows with the square root of the number of steps. A matrix of zeros stays at
    zero.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        norm_of: The arrays whose norms are kept: every `'matrix'` (Frobenius norm), or every
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
    norm_of: str = static(default="matrix", convert=one_of(tuple(_AXES), "norm_of", "hyperball"))
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
