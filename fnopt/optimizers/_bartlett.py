"""Estimate of the Gauss-Newton diagonal from labels sampled from the model."""

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
    """State of `gauss_newton_bartlett_estimator_diag_hessian`.

    Attributes:
        count: Number of estimates. The seed and the count determine the sampled labels.
    """

    count: jax.Array


class gauss_newton_bartlett_estimator_diag_hessian(Transformation):
    r"""Replace updates by an estimate of the diagonal of the Gauss-Newton matrix.

    .. math:: \hat h = B\, \hat g \odot \hat g, \qquad \hat g = \nabla_\theta \frac{1}{B}
              \sum_{b=1}^B \mathrm{CE}(z_b(\theta), \hat y_b), \qquad
              \hat y_b \sim \mathrm{softmax}(z_b(\theta))

    with :math:`B` examples and the logits :math:`z_b` of example :math:`b`. The loss of the model
    must be the softmax cross-entropy. The estimate is unbiased and never negative, and costs about
    one gradient.

    `update` needs the extra argument `logits_fn`, a function of the params alone. It returns logits
    of shape (..., classes), with one example or token per leading index.

    Args:
        random_seed: The integer seed of the sampled labels :math:`\hat y`.

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
        logits, vjp_fn = jax.vjp(logits_fn, params)
        _check_logits(logits)
        wide_logits = widen(logits)
        key = jax.random.fold_in(jax.random.key(self.random_seed), state.count)
        labels = jax.random.categorical(key, wide_logits)
        batch_size = max(math.prod(logits.shape[:-1]), 1)
        one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=wide_logits.dtype)
        cotangent = (jax.nn.softmax(wide_logits) - one_hot) / batch_size
        (gradient,) = vjp_fn(cotangent.astype(logits.dtype))
        estimate = map_leaves(lambda g: batch_size * squared_modulus(g), gradient)
        return estimate, GaussNewtonBartlettState(safe_increment(state.count))


def _check_logits(logits: Any) -> None:
    is_real = hasattr(logits, "dtype") and jnp.issubdtype(logits.dtype, jnp.floating)
    if not is_real or logits.ndim < 1:
        got = f"{logits.dtype}{list(logits.shape)}" if hasattr(logits, "dtype") else repr(logits)
        raise ValueError(
            f"{where()}logits_fn returned {got}, expected one real array of shape (..., classes)."
        )
