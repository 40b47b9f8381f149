"""The Gauss-Newton diagonal from labels sampled from the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Transformation, map_leaves, static
from fnopt.errors import where
from fnopt.numerics import safe_increment, squared_modulus, widen


class GaussNewtonBartlettState(NamedTuple):
    """The number of estimates made; it and the seed determine the labels of an estimate."""

    count: jax.Array


class gauss_newton_bartlett_estimator_diag_hessian(Transformation):
    r"""Replace the updates by an estimate of the Gauss-Newton matrix's diagonal.

    .. math:: \hat h = B\, \hat g \odot \hat g, \qquad \hat g = \nabla_\theta \frac{1}{B}
              \sum_{b=1}^B \mathrm{CE}(z_b(\theta), \hat y_b), \qquad
              \hat y_b \sim \mathrm{softmax}(z_b(\theta))

    The estimator is for models with softmax outputs and cross-entropy. Its expectation is the
    diagonal of the Gauss-Newton matrix of the mean loss, which is never negative; the cost is about
    one gradient. `update` needs the extra argument `logits_fn`, a function of the params alone that
    returns logits of shape (..., classes), with one example (or token) per leading index.

    Args:
        random_seed: An integer, the seed of the labels.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> curvature = fnopt.gauss_newton_bartlett_estimator_diag_hessian()
        >>> tx = fnopt.sophia(0.1, hessian_diagonal_fn=curvature)
        >>> x, params = jnp.ones((4, 2)), {"w": jnp.zeros((2, 3))}
        >>> logits = lambda params: x @ params["w"]
        >>> updates, state = tx.update(params, tx.init(params), params, logits_fn=logits)
        >>> print(bool((fnopt.slots(state)["nu"]["w"] >= 0).all()))
        True

    Reference:
        Liu, Li, Hall, Liang and Ma, 2023, arXiv:2305.14342.
    """

    State = GaussNewtonBartlettState
    needs_params = True

    random_seed: int = static(default=0)

    def update(
        self,
        updates: Any,
        state: GaussNewtonBartlettState,
        params: Any = None,
        *,
        logits_fn: Callable[[Any], Any],
        **extra_args: Any,
    ) -> tuple[Any, GaussNewtonBartlettState]:
        """Return the estimate; the updates are ignored."""
        logits, pull = jax.vjp(logits_fn, params)
        _check(logits)
        wide = widen(logits)
        key = jax.random.fold_in(jax.random.key(self.random_seed), state.count)
        labels = jax.random.categorical(key, wide)
        examples = max(math.prod(logits.shape[:-1]), 1)
        drawn = jax.nn.one_hot(labels, logits.shape[-1], dtype=wide.dtype)
        slope = (jax.nn.softmax(wide) - drawn) / examples
        (gradient,) = pull(slope.astype(logits.dtype))
        estimate = map_leaves(lambda g: examples * squared_modulus(g), gradient)
        return estimate, GaussNewtonBartlettState(safe_increment(state.count))


def _check(logits: Any) -> None:
    real = hasattr(logits, "dtype") and jnp.issubdtype(logits.dtype, jnp.floating)
    if not real or logits.ndim < 1:
        what = f"{logits.dtype}{list(logits.shape)}" if hasattr(logits, "dtype") else repr(logits)
        raise ValueError(
            f"{where()}logits_fn returned {what}, expected one real array of shape (..., classes)."
        )
