"""Bounds on the norms of matrices: fixed norms, spectral norms, and attention logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Transformation,
    compute_dtype,
    hyper,
    leaves_with_names,
    nonzero,
    safe_sqrt,
    static,
    where,
)
from fnopt.optimizers._matrix_factors import frobenius_norm
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._newton_schulz import gram
from fnopt.optimizers._recipe import one_of

# The axes that a norm is taken over, of stacks `[k, rows, columns]`.
_AXES = {"matrix": (1, 2), "output": (1,)}


class HyperballState(NamedTuple):
    """The number of updates made; None for a constant rate."""

    count: jax.Array | None


class hyperball(Matrixwise):
    r"""Step along a direction on the sphere of matrices that have the norm of the parameters.

    .. math:: \theta_{t+1} = R\, \frac{v}{\lVert v \rVert}, \qquad
              v = \theta_t - \eta_t R\, \frac{d}{\lVert d \rVert}, \qquad
              R = \lVert \theta_t \rVert

    It takes the place of `scale_by_learning_rate`: the rate is the angle of a step, and weight
    decay has no effect. Behind `ema` and `orthogonalize` it is MuonH, behind `scale_by_adam` AdamH.
    The norm is that of the current matrix, so it needs no state; in float32 its rounding error
    grows with the square root of the number of steps. A matrix of zeros stays at zero.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        norm_of: The arrays whose norms are kept: every `'matrix'` (Frobenius), or every `'output'`
            of it, the columns of a kernel.
        tangent: Whether :math:`d` is projected on the tangent space of the sphere first.
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


class cap_spectral_norm(Matrixwise):
    r"""Shorten matrices whose largest singular value would exceed a limit after the update.

    .. math:: \theta_{t+1} = \min\left(1,\ \frac{c}{\sigma_{\max}(\theta_t + u_t)}\right)
              (\theta_t + u_t)

    It belongs last in a chain. The singular value comes from the eigenvalues of the Gram matrix.

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
        size = frobenius_norm(moved, (1, 2))  # squares of what isn't divided by it may overflow
        # The squared singular values, as eigenvalues of the Gram matrix, cost less than an SVD.
        largest = size * safe_sqrt(jnp.linalg.eigvalsh(gram(moved / nonzero(size)))[:, -1:, None])
        shrink = jnp.minimum(h.limit / nonzero(largest), jnp.ones_like(largest))
        return moved * shrink - slots.params, {}


class floor_update_ratio(Matrixwise):
    r"""Lengthen updates whose norm is below a share of the parameters' norm.

    .. math:: u' = \max\left(1,\ \frac{c\, \lVert \theta \rVert}{\lVert u \rVert}\right) u

    Behind `scale_by_learning_rate` :math:`c` is the least relative change of a matrix in a step. A
    zero update stays zero.

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


class qk_clip(Transformation):
    r"""Rescale query and key kernels after a step, head by head, to bound attention logits.

    .. math:: \theta_{t+1} = \min\left(1, \frac{\tau}{S_h}\right)^{\alpha} (\theta_t + u_t), \qquad
              \alpha = \tfrac12 \text{ for queries and for keys}

    with the largest logit :math:`S_h` of head `h` in the batch. It belongs last in a chain, behind
    the learning rate. The update takes `max_logits`, a dict from the paths of the kernels that are
    clipped to the maxima of their heads, `[heads]`; give a query and its key the same maxima.

    Args:
        tau: :math:`\tau`, the largest logit allowed.
        alpha: :math:`\alpha`.
        head_axis: The axis of the heads in these kernels.

    Raises:
        ValueError: In use, if a path is none of the leaves, or a kernel has no such axis with that
            number of heads.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.qk_clip(tau=4.0, head_axis=1), {"q": jnp.ones((2, 2, 3))}
        >>> zero, maxima = {"q": jnp.zeros((2, 2, 3))}, {"q": jnp.asarray([2.0, 16.0])}
        >>> updates, _ = tx.update(zero, tx.init(params), params, max_logits=maxima)
        >>> fnopt.apply_updates(params, updates)["q"][0, :, 0]
        Array([1. , 0.5], dtype=float32)

    Reference:
        Kimi Team, 2025, Kimi K2, arXiv:2507.20534.
    """

    needs_params = True

    tau: Scalar = hyper(default=100.0, gt=0)
    alpha: Scalar = hyper(default=0.5, ge=0)
    head_axis: int = static(default=-2)

    def update(
        self, updates: Any, state: Any, params: Any = None, *, max_logits: Any, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The updates, and what shrinks the kernels of large logits."""
        pairs, treedef = leaves_with_names(updates)
        missing = sorted(max_logits.keys() - {name for name, _ in pairs})
        if missing:
            raise ValueError(
                f"{where()}max_logits has the path {missing[0]!r}, expected paths of params: "
                f"{', '.join(repr(name) for name, _ in pairs)}."
            )
        leaves = treedef.flatten_up_to(params)
        new = [
            self._clip_leaf(name, u, p, jnp.asarray(max_logits[name])) if name in max_logits else u
            for (name, u), p in zip(pairs, leaves, strict=True)
        ]
        return treedef.unflatten(new), state

    def _clip_leaf(self, name: str, u: Any, p: Any, top: jax.Array) -> jax.Array:
        axis = self.head_axis % max(u.ndim, 1)
        if not -u.ndim <= self.head_axis < u.ndim or top.shape != u.shape[axis : axis + 1]:
            raise ValueError(
                f"{where()}max_logits[{name!r}] has shape {top.shape}, and the leaf has shape "
                f"{u.shape}: expected one maximum for each entry of axis {self.head_axis}. "
                "Give qk_clip the head_axis of the kernels."
            )
        dtype = compute_dtype(u.dtype, p.dtype)
        top, tau, alpha = (jnp.asarray(x).astype(dtype) for x in (top, self.tau, self.alpha))
        # Heads whose logits are below tau have the factor 1, in every bit.
        factor = (tau / jnp.maximum(top, tau)) ** alpha
        p = p.astype(dtype)
        return (p + u.astype(dtype)) * jnp.expand_dims(factor, range(1, u.ndim - axis)) - p
