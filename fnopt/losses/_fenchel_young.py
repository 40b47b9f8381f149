"""Fenchel-Young losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import floats


def make_fenchel_young_loss(max_fun: Callable[..., Any]) -> Callable[..., jax.Array]:
    r"""The Fenchel-Young loss of a maximum function.

    .. math:: \ell(x, y) = F(x) - \langle y, x \rangle, \qquad
              F(x) = \max_{y \in \mathcal C} \langle y, x \rangle - \Omega(y)

    Its gradient is :math:`\hat y(x) - y`, with :math:`\hat y` where the maximum is reached. (The
    constant :math:`\Omega(y)` is left out.) With the logarithm of the sum of exponentials it is
    the cross entropy; with a maximum that `fnopt.discrete.make_perturbed_fun` made smooth it
    learns structured predictions.

    Args:
        max_fun: :math:`F`, from scores `[n]` and further arguments to a scalar.

    Returns:
        A function `(scores [..., n], targets [..., n], *args, **kwargs) -> losses [...]`; further
        arguments go to `max_fun`.

    Raises:
        TypeError: If `max_fun` isn't a function, or scores aren't floating.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import make_fenchel_young_loss
        >>> cross_entropy = make_fenchel_young_loss(jax.nn.logsumexp)
        >>> cross_entropy(jnp.asarray([2.0, 0.0]), jnp.asarray([1.0, 0.0]))
        Array(0.12692..., dtype=float32)

    Reference:
        Blondel, Martins and Niculae, 2020, arXiv:1901.02324.
    """
    if not callable(max_fun):
        raise TypeError(f"make_fenchel_young_loss: max_fun is {max_fun!r}, expected a function.")

    def fenchel_young_loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> jax.Array:
        scores, targets = floats("fenchel_young_loss", scores=scores, targets=targets)

        def maximum_of_row(x: jax.Array) -> jax.Array:
            return jnp.asarray(max_fun(x, *args, **kwargs)).astype(scores.dtype)

        # Summed rather than as a matrix product, which an accelerator rounds.
        return jnp.vectorize(maximum_of_row, signature="(n)->()")(scores) - jnp.sum(
            targets * scores, -1
        )

    return fenchel_young_loss
