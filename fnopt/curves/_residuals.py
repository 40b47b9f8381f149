"""Residuals of a curve fit, their Jacobian, and checks of the model's values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.errors import count_text, explain_jax_errors, names_text, type_text
from fnopt.numerics import is_array_like
from fnopt.programs import MAX_PROGRAMS, copy_function, is_eager, is_jitted
from fnopt.residuals import formed
from fnopt.solvers import SCHEMES

LIKELIHOODS = (None, "poisson")


@jax.tree_util.register_static
class _Static:
    """Static pytree node, compared by identity, for a leaf that isn't an array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Boxed(Value):
    """Pytree of arrays and static objects, made from a tree with functions or strings as leaves."""

    tree: Any

    def opened(self) -> Any:
        """Convert to the original tree."""
        is_static = lambda node: isinstance(node, _Static)  # noqa: E731
        return jax.tree.map(
            lambda node: node.value if is_static(node) else node, self.tree, is_leaf=is_static
        )


def boxed(tree: Any) -> Boxed:
    """Convert a tree to a `Boxed`, in which all leaves that aren't arrays are static."""
    return Boxed(jax.tree.map(lambda leaf: leaf if is_array_like(leaf) else _Static(leaf), tree))


def call_model(f: Any, passing: str, params: Any, x: Any) -> Any:
    """Call the model by its calling convention.

    Args:
        f: The model.
        passing: `'numbers'` for `f(x, *params)`, `'names'` for `f(x, **params)`, `'tree'` for
            `f(x, params)`.
        params: The params.
        x: The positions of the data.
    """
    if passing == "numbers":
        return f(x, *params)
    return f(x, **params) if passing == "names" else f(x, params)


def curve_residuals(
    f: Any, passing: str, likelihood: str | None = None, as_vector: bool = False
) -> Callable[[Any, Boxed, jax.Array], jax.Array]:
    """Make the residual function `residuals(popt, positions, y)` of a curve fit.

    Args:
        f: The model.
        passing: The calling convention of the model; see :func:`call_model`.
        likelihood: The distribution of the data; None for normal errors.
        as_vector: Whether the residuals are raveled, as a covariance matrix requires.
    """
    is_cacheable = is_jitted(f) and is_eager(())
    return (_jitted_residuals if is_cacheable else _residuals)(f, passing, likelihood, as_vector)


def _residuals(
    f: Any, passing: str, likelihood: str | None, as_vector: bool
) -> Callable[[Any, Boxed, jax.Array], jax.Array]:
    def residuals(popt: Any, positions: Boxed, y: jax.Array) -> jax.Array:
        x = positions.opened()
        values = checked_values(call_model(f, passing, popt, x), popt, x, y)
        r = values - y if likelihood is None else deviance_residuals(values, y)
        return jnp.ravel(r) if as_vector else r

    return residuals


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def _jitted_residuals(*args: Any) -> Callable[..., jax.Array]:
    """Jit the residuals of a jitted model, so that repeated eager fits don't trace the model."""
    return jax.jit(_residuals(*args))


def deviance_residuals(mu: jax.Array, y: jax.Array) -> jax.Array:
    r"""Compute residuals whose sum of squares is the Poisson deviance.

    .. math:: r = \operatorname{sign}(\mu - y) \sqrt{2 (\mu - y - y \ln(\mu / y))}

    A residual is NaN if `y` or :math:`\mu` is negative, or if :math:`\mu = 0` and :math:`y > 0`.
    Near :math:`\mu = y`, the formula cancels. The square root is computed there from the series
    :math:`t - \ln(1 + t) = t s - 2 \sum_k s^{2k+1} / (2k + 1)`, with :math:`t = \mu / y - 1` and
    :math:`s = t / (2 + t)`.

    Reference:
        McCullagh and Nelder (1989), Generalized linear models, section 2.4.3.
    """
    mu = jnp.broadcast_to(mu, y.shape)
    is_zero = y == 0
    count = jnp.where(is_zero, jnp.ones_like(y), y)
    t = jnp.where(is_zero, jnp.ones_like(y), mu / count - 1)
    is_near = jnp.abs(t) < 0.1  # five terms of the series have an error of 4e-16 at most
    small = jnp.where(is_near, t, jnp.zeros_like(t))
    w = 1 / (2 + small)
    z = jnp.square(small * w)
    tail = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z / 11)))
    # The factor t^2 is taken out of the root, because the derivative of sqrt(t^2) is NaN at 0.
    series = small * jnp.sqrt(w - 2 * small * w * jnp.square(w) * tail)
    large = jnp.where(is_near, jnp.ones_like(t), t)
    formula = jnp.sign(large) * jnp.sqrt(large - jnp.log1p(large))
    # For y = 0 only; the derivative of sqrt(2 mu) at 0 is infinite, and infinity times 0 is NaN.
    of_zero = jnp.sqrt(2 * jnp.where(is_zero, mu, jnp.ones_like(mu)))
    return jnp.where(is_zero, of_zero, jnp.sqrt(2 * count) * jnp.where(is_near, series, formula))


def fisher_rows(J: jax.Array, r: jax.Array, mu: jax.Array, y: jax.Array) -> jax.Array:
    r"""Scale the Jacobian's rows so that the Gram matrix is the Fisher information of counts.

    A row of the Jacobian of deviance residuals is :math:`(1 - y / \mu) / r` times the gradient of
    :math:`\mu`. In the Fisher information :math:`\sum_i \nabla \mu_i \nabla \mu_i^T / \mu_i`, the
    factor of the gradient is :math:`1 / \sqrt{\mu}`.

    Args:
        J: The Jacobian of the deviance residuals.
        r: The deviance residuals.
        mu: The model's values, which are the expected counts.
        y: The counts.
    """
    mu, r, y = (jnp.ravel(v) for v in (jnp.broadcast_to(mu, y.shape), r, y))
    root = jnp.sqrt(mu)
    # At mu = y the slope is 1 / sqrt(mu). Near mu = y, the quotient tends to 0 / 0, and has a large
    # rounding error.
    is_near = jnp.abs(mu - y) <= jnp.finfo(mu.dtype).eps ** 0.5 * mu
    slope = (mu - y) / jnp.where(is_near, jnp.ones_like(r), r) / mu
    factor = jnp.where(is_near, jnp.ones_like(mu), 1 / (root * slope))
    return J * factor[:, None]


def broadcast_data(model: Any, start: Any, x: Any, y: jax.Array) -> jax.Array:
    """Broadcast data that are a single number to the shape of the model's values."""
    if y.ndim:
        return y
    # A copy, because JAX caches traces by function, and globals in the model may change.
    value = jax.eval_shape(copy_function(model), start, x)
    return jnp.broadcast_to(y, getattr(value, "shape", ()))


def check_enough(size: int, n: int, box: Any, name: str, instead: str, of: str = "") -> None:
    """Raise an error if there are fewer data than params without bounds, as in SciPy.

    Args:
        size: Number of data.
        n: Number of params.
        box: The bounds, or None.
        name: The function that the user called, for the message.
        instead: The option that allows fewer data than params, for the message.
        of: Text after "params" in the message, such as `' in a fit'`.
    """
    if size < n and box is None:
        raise TypeError(
            f"{name}: there are fewer data than params{of} ({size} < {n}), expected at least as "
            "many data. Pass more data, replace params of f by constants, or use "
            f"{instead} to get one of the many solutions."
        )


def checked_values(values: Any, params: Any, x: Any, y: jax.Array) -> Any:
    """Check that the model's values have the shape of the data, and return the values."""
    if isinstance(values, (list, tuple)):
        try:
            values = jnp.stack([jnp.asarray(value, y.dtype) for value in values])
        except (TypeError, ValueError):
            kinds = names_text([type_text(value) for value in values])
            raise TypeError(
                f"curve_fit: f returned a {type(values).__name__} of {kinds}, expected one array "
                f"of shape {y.shape}."
            ) from None
    if not hasattr(values, "shape"):
        raise TypeError(
            f"curve_fit: f returned {values!r}, expected an array like ydata. Is there a return "
            "statement?"
        )
    if jnp.iscomplexobj(y) and not jnp.iscomplexobj(values):
        raise TypeError(
            f"curve_fit: ydata are {y.dtype}, but f returned {values.dtype}, expected complex "
            "values, because a real model can't fit imaginary parts. Pass ydata.real, or a model "
            "with complex values."
        )
    if values.shape == () != y.shape and sum(map(jnp.size, jax.tree.leaves(params))) > 1:
        raise ValueError(
            f"curve_fit: f returned one number for {count_text(y.size, 'value')} of ydata, "
            f"expected an array of shape {y.shape}. Check whether f sums over x."
        )
    if values.shape not in {y.shape, ()}:
        x_shape = f" for xdata of shape {x.shape}" if hasattr(x, "shape") else ""
        advice = "Check that xdata and ydata have the same length."
        if values.size == y.size:
            advice = "Ravel both the returned array and ydata, or neither."
        raise ValueError(
            f"curve_fit: f returned shape {values.shape}{x_shape}, expected the shape of ydata, "
            f"{y.shape}. {advice}"
        )
    return values


def has_jacobian(jac: Any, passing: str, name: str) -> bool:
    """Check `jac` and its calling convention, and return whether `jac` is a function."""
    if not callable(jac):
        if jac not in (None, *SCHEMES):
            raise ValueError(f"{name}: jac = {jac!r}, expected a function jac(x, a, b, ...).")
        return False
    if passing != "numbers":
        raise ValueError(
            f"{name}: p0 is a tree, expected a sequence of numbers with jac. Omit jac for a tree."
        )
    return True


def residual_jacobian(jac: Any, passing: str, matrix: bool) -> Callable[..., jax.Array] | None:
    """Convert a user's Jacobian of the model to the Jacobian function of the residuals.

    Args:
        jac: `jac(x, a, b, ...)` returns shape `[m, n]`; None or a name of SciPy has no effect.
        passing: The calling convention of the model, which must be `'numbers'`.
        matrix: Whether the residuals are raveled, as a covariance matrix requires.

    Returns:
        A function of the params, the positions and the data; None if `jac` isn't a function.
    """
    if not has_jacobian(jac, passing, "curve_fit"):
        return None

    def jacobian(p: jax.Array, positions: Boxed, y: jax.Array) -> jax.Array:
        with explain_jax_errors("curve_fit", "jac", is_another=True):
            J = jnp.asarray(formed(jac(positions.opened(), *p)))
        if J.shape != (y.size, p.size):
            raise ValueError(
                f"curve_fit: jac returned shape {J.shape}, expected {(y.size, p.size)}."
            )
        J = J.astype(y.dtype)
        return J if matrix else J.reshape(*y.shape, p.size)

    return jacobian
