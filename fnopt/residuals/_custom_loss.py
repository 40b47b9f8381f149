"""A robust loss that is given as a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import hyper, static, takes, where, written_for_jax
from fnopt.residuals._robust import RobustLoss


class custom_loss(RobustLoss):
    r"""A loss by its function :math:`\rho(z)` of the scaled squares :math:`z = r^2 / c^2`.

    A function among the options of a fit is taken as this, with a scale of 1. Its derivatives are
    JAX's, unless it gives them: as in SciPy it may return :math:`\rho, \rho', \rho''`, as an array
    of shape `[3, m]` or three arrays.

    Args:
        fn: `fn(z)` for `z` of shape `[m]`, elementwise and written with `jax.numpy`; returns an
            array of the same shape, or three. With :math:`\rho(0) = 0` and :math:`\rho'(0) = 1`
            small residuals cost what they cost in least squares.
        scale: The residual :math:`c` from which on it bends, in units of the residuals: SciPy's
            `f_scale`.

    Raises:
        ValueError: When used, if `fn` returns another shape.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> y = jnp.asarray([1.0, 1.1, 0.9, 9.0])
        >>> fit = fnopt.least_squares(lambda p: p - y, jnp.zeros(()), loss=lambda z: jnp.log1p(z))
        >>> print(fit.params.round(2))
        1.04
    """

    fn: Callable[[jax.Array], Any] = static()
    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss of the scaled square."""
        at = jax.lax.stop_gradient(z)
        if not takes(self.fn, z):
            raise TypeError(
                f"{where()}loss: the function can't be called as loss(z), expected one of the "
                "scaled squares alone. Let it close over what else it needs."
            )
        with written_for_jax("loss", "the function", is_another=True):
            given = self.fn(z)
        if isinstance(given, (tuple, list)):
            given = jnp.stack(jnp.broadcast_arrays(*given))
        if jnp.shape(given) == z.shape:
            return jnp.asarray(given, z.dtype)
        if jnp.shape(given) != (3, *z.shape):
            raise ValueError(
                f"{where()}loss: the function returned shape {jnp.shape(given)} for z of shape "
                f"{z.shape}, expected the same, or {(3, *z.shape)} for rho and its two derivatives."
            )
        value, slope, curvature = (jnp.asarray(part, z.dtype) for part in self.fn(at))
        # Zero, but its derivatives are those that are given.
        step = z - at
        return value + slope * step + curvature * jnp.square(step) / 2
