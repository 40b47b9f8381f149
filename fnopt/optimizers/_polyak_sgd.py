"""Gradient descent with Polyak's step size."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Transformation,
    global_norm,
    hyper,
    map_leaves,
    scalar_loss,
    static,
)
from fnopt.optimizers._lower_bound import LowerBound, first_lower_bound, next_lower_bound
from fnopt.transforms import Chain, chain, real_dtype_of, scale_by_learning_rate

_VARIANTS = ("sps", "sps+")


def _variant(variant: Any) -> str:
    if variant not in _VARIANTS:
        raise ValueError(f"scale_by_polyak: variant = {variant!r}, expected one of {_VARIANTS}.")
    return variant


class ScaleByPolyakState(NamedTuple):
    """State of the estimated lower bound of the loss."""

    lower_bound: LowerBound


class scale_by_polyak(Transformation):
    r"""Scale by the step that would reach the smallest loss if it were linear.

    .. math:: u = \min\left(\frac{f(\theta) - f^*}{\lVert g \rVert^2 + \epsilon},\;
              \eta_{max}\right) g

    `update` needs the loss as the extra argument `value`.

    Args:
        f_min: :math:`f^*`, the smallest loss there can be: 0 where a model can fit all data. By
            default it is estimated, as a level below the best loss so far. A number that is too
            high stops params at that loss; where a loss is below it, it is replaced by the
            estimate, and `below_count` in the state is above 0.
        max_learning_rate: :math:`\eta_{max}`.
        eps: :math:`\epsilon`.
        variant: `'sps'`, or `'sps+'` which takes no step back where the loss is below :math:`f^*`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_polyak(), {"w": jnp.asarray([4.0])}
        >>> tx.update(g, tx.init(g), value=jnp.asarray(8.0))[0]  # 8 / 4^2 of it
        {'w': Array([2.], dtype=float32)}

    Reference:
        Loizou, Vaswani, Laradji and Lacoste-Julien, 2020, arXiv:2002.10542.
    """

    f_min: Scalar | None = hyper(default=None)
    max_learning_rate: Scalar = hyper(default=1.0, ge=0, infinite=True)
    eps: Scalar = hyper(default=0.0, ge=0)
    variant: str = static(default="sps", convert=_variant)

    def init(self, params: Any) -> ScaleByPolyakState:
        """No loss seen yet."""
        return ScaleByPolyakState(first_lower_bound(real_dtype_of(params)))

    def update(
        self,
        updates: Any,
        state: ScaleByPolyakState,
        params: Any = None,
        *,
        value: Any,
        **extra_args: Any,
    ) -> tuple[Any, ScaleByPolyakState]:
        """The scaled updates."""
        norm = global_norm(updates)
        number = lambda x: jnp.asarray(x).astype(norm.dtype)  # noqa: E731
        dtype = state.lower_bound.best_value.dtype
        value = scalar_loss(value, dtype)
        given = None if self.f_min is None else jnp.asarray(self.f_min).astype(dtype)
        bound, seen = next_lower_bound(given, value, state.lower_bound)
        gap = (value - bound).astype(norm.dtype)
        gap = jnp.maximum(gap, jnp.zeros_like(gap)) if self.variant == "sps+" else gap
        square = norm * norm + number(self.eps)
        still = square <= jnp.finfo(norm.dtype).tiny  # a zero gradient has no step
        ratio = gap / jnp.where(still, jnp.ones_like(square), square)
        step = jnp.minimum(ratio, number(self.max_learning_rate))
        step = jnp.where(still, jnp.zeros_like(step), step)
        return map_leaves(
            lambda g: step.astype(jnp.finfo(g.dtype).dtype) * g, updates
        ), ScaleByPolyakState(seen)


def polyak_sgd(
    max_learning_rate: Scalar = 1.0,
    scaling: ScalarOrSchedule = 1.0,
    f_min: Scalar | None = None,
    eps: Scalar = 0.0,
    variant: str = "sps",
) -> Chain:
    r"""Gradient descent with Polyak's step size, which needs no learning rate.

    .. math:: u_t = -s_t \min\left(\frac{f(\theta_t) - f^*}{\lVert g_t \rVert^2 + \epsilon},\;
              \eta_{max}\right) g_t

    Args:
        max_learning_rate: :math:`\eta_{max}`.
        scaling: :math:`s`, a number or a `Schedule`.
        f_min: :math:`f^*`, the smallest loss there can be: 0 where a model can fit all data. By
            default it is estimated, as a level below the best loss so far. A number that is too
            high stops params at that loss; where a loss is below it, it is replaced by the
            estimate, and `below_count` in the state is above 0.
        eps: :math:`\epsilon`.
        variant: `'sps'`, or `'sps+'` which takes no step back where the loss is below :math:`f^*`.

    Returns:
        A chain of `scale_by_polyak` and `scale_by_learning_rate`. Its `update` needs the extra
        argument `value`, the loss at the params.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> loss = lambda params: jnp.sum((params["w"] - 3.0) ** 2)
        >>> tx, params = fnopt.polyak_sgd(), {"w": jnp.zeros(1)}
        >>> value, g = jax.value_and_grad(loss)(params)
        >>> updates, _ = tx.update(g, tx.init(params), params, value=value)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([1.5], dtype=float32)}

    Reference:
        Loizou, Vaswani, Laradji and Lacoste-Julien, 2020, arXiv:2002.10542.
    """
    return chain(
        scale_by_polyak(f_min, max_learning_rate, eps, variant), scale_by_learning_rate(scaling)
    )
