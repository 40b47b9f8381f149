"""Residuals of Gaussian priors on parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.errors import where
from fnopt.manifolds import is_on
from fnopt.numerics import is_array_like, matmul


class prior(Value):
    r"""Compute the residuals of a Gaussian prior on a parameter.

    .. math:: r = A\, (x - \mu), \qquad r = A\, \mathrm{local}(\mu, x) \text{ on a manifold}

    :math:`\tfrac12 \|r\|^2` is the negative log density of a normal distribution with mean
    :math:`\mu` and covariance :math:`(A^T A)^{-1}`, up to a constant. On a manifold, this is the
    covariance of the tangent at the mean. Let the residual function return the residuals of a prior
    together with the residuals of the data. A prior on one pose of a pose graph determines the
    position of the whole graph.

    Args:
        mean: The mean :math:`\mu`, an array or a point on a manifold from
            :func:`fnopt.manifolds.on`.
        sqrt_information: The factor `A`: the inverse of the standard deviations (a number or an
            array `[d]`), or a square root `[..., d, d]` of the information matrix. `d` is the
            length of the last axis of the residuals.

    Returns:
        A function of the parameter, which is an array with the shape of the mean, or a leaf from
        :func:`fnopt.manifolds.on`. The residuals have the shape of the parameter. On a manifold,
        the residuals have the shape of the tangent.

    Raises:
        TypeError: If the parameter isn't an array, or its manifold isn't the manifold of the mean.
        ValueError: If the parameter doesn't have the shape of the mean, or `sqrt_information`
            doesn't match the residuals.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.manifolds import SE2, on
        >>> start = {"pose": on(SE2, jnp.eye(3)), "scale": 2.0}
        >>> pose_prior = fnopt.prior(on(SE2, jnp.eye(3)), jnp.asarray([10.0, 10.0, 100.0]))
        >>> scale_prior = fnopt.prior(1.5)
        >>> def residuals(p):
        ...     error = p["pose"].value[:2, 2] - p["scale"] * jnp.asarray([1.0, 1.0])
        ...     return error, pose_prior(p["pose"]), scale_prior(p["scale"])
        >>> fit = fnopt.least_squares(residuals, start)
        >>> print(fit.params["scale"].round(3), fit.params["pose"].value[:2, 2].round(3))
        0.503 [0.005 0.005]

    Reference:
        Dellaert and Kaess (2017), Factor graphs for robot perception, section 2.
    """

    mean: Any
    sqrt_information: Any = 1.0

    def __post_init__(self) -> None:
        point = self.mean.value if is_on(self.mean) else self.mean
        for name, value in (("mean", point), ("sqrt_information", self.sqrt_information)):
            if not is_array_like(value) and not isinstance(value, (list, tuple)):
                raise TypeError(
                    f"{where()}prior: {name} is {value!r:.60}, expected an array or a number."
                )
        super().__post_init__()

    def __call__(self, x: Any) -> jax.Array:
        """Residuals of the prior at a value of the parameter."""
        mean, manifold = self.mean, None
        if is_on(mean):
            mean, manifold = mean.value, mean.manifold
        if is_on(x) and x.manifold == manifold:
            x = x.value
        if not is_array_like(x):
            expected = "an array" if manifold is None else f"a leaf on {manifold!r}, or its array"
            raise TypeError(f"{where()}prior: the parameter is {x!r:.60}, expected {expected}.")
        x = jnp.asarray(x)
        mean = jnp.asarray(mean, x.dtype)
        if x.shape != mean.shape:
            raise ValueError(
                f"{where()}prior: the parameter has shape {x.shape}, expected the shape of the "
                f"mean, {mean.shape}."
            )
        r = x - mean if manifold is None else manifold.local(mean, x)
        A, d = jnp.asarray(self.sqrt_information, r.dtype), r.shape[-1:]
        shapes = [(), d, (*d, *d), (*r.shape, *d)]
        if A.shape not in shapes:
            expected = " or ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(
                f"{where()}prior: sqrt_information has shape {A.shape}, expected {expected}."
            )
        return A * r if A.ndim < 2 else matmul(A, r[..., None])[..., 0]
