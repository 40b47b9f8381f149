"""Residuals of a curve fit, their Jacobian, and checks of the values of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.errors import explain_jax_errors
from fnopt.numerics import is_array_like
from fnopt.programs import MAX_PROGRAMS, copy_function, is_eager, is_jitted
from fnopt.residuals import formed
from fnopt.solvers import SCHEMES

LIKELIHOODS = (None, "poisson")


@jax.tree_util.register_static
class _Static:
    """A leaf that isn't an array, compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Boxed(Value):
    """A tree whose leaves may be functions, strings or other objects."""

    tree: Any

    def opened(self) -> Any:
        """Return the original tree."""
        is_static = lambda node: isinstance(node, _Static)  # noqa: E731
        return jax.tree.map(
            lambda node: node.value if is_static(node) else node, self.tree, is_leaf=is_static
        )


def boxed(tree: Any) -> Boxed:
    """Make leaves static that JAX can't take as arguments."""
    return Boxed(jax.tree.map(lambda leaf: leaf if is_array_like(leaf) else _Static(leaf), tree))


def call_model(f: Any, passing: str, params: Any, x: Any) -> Any:
    """The model's values: `f(x, *params)`, `f(x, **params)` or `f(x, params)`."""
    if passing == "numbers":
        return f(x, *params)
    return f(x, **params) if passing == "names" else f(x, params)


def curve_residuals(
    f: Any, passing: str, likelihood: str | None = None, as_vector: bool = False
) -> Callable[[Any, Boxed, jax.Array], jax.Array]:
    """The function `residuals(popt, positions, y)` whose sum of squares a fit minimizes.

    Args:
        f: The model.
        passing: The calling convention of the model; see :func:`call_model`.
        likelihood: The distribution of the data; None for normal errors.
        as_vector: Whether the residuals are raveled, for a covariance matrix.
    """
    is_kept = is_jitted(f) and is_eager(())
    return (_jitted_residuals if is_kept else _residuals)(f, passing, likelihood, as_vector)


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
    """Return jitted residuals of a jitted model, which repeated eager calls don't trace again."""
    return jax.jit(_residuals(*args))


def deviance_residuals(mu: jax.Array, y: jax.Array) -> jax.Array:
    r"""Residuals whose sum of squares is the Poisson deviance.

    .. math:: r = \operatorname{sign}(\mu - y) \sqrt{2 (\mu - y - y \ln(\mu / y))}

    NaN where `y` or :math:`\mu` is negative, or where :math:`\mu = 0` and `y` isn't. Near
    :math:`\mu = y` the square root is computed from the series :math:`t - \ln(1 + t) = t s - 2
    \sum_k s^{2k+1} / (2k + 1)`, with :math:`t = \mu / y - 1` and :math:`s = t / (2 + t)`.

    Reference:
        McCullagh and Nelder (1989), Generalized linear models, section 2.4.3.
    """
    mu = jnp.broadcast_to(mu, y.shape)
    empty = y == 0
    count = jnp.where(empty, jnp.ones_like(y), y)
    t = jnp.where(empty, jnp.ones_like(y), mu / count - 1)
    near = jnp.abs(t) < 0.1  # five terms of the series are exact to 4e-16 there
    small = jnp.where(near, t, jnp.zeros_like(t))
    w = 1 / (2 + small)
    z = jnp.square(small * w)
    tail = 1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z / 11)))
    inner = small * jnp.sqrt(w - 2 * small * w * jnp.square(w) * tail)
    large = jnp.where(near, jnp.ones_like(t), t)
    outer = jnp.sign(large) * jnp.sqrt(large - jnp.log1p(large))
    # The derivative of sqrt(2 mu) is infinite at 0.
    none = jnp.sqrt(2 * jnp.where(empty, mu, jnp.ones_like(mu)))
    return jnp.where(empty, none, jnp.sqrt(2 * count) * jnp.where(near, inner, outer))


def fisher_rows(J: jax.Array, r: jax.Array, mu: jax.Array, y: jax.Array) -> jax.Array:
    r"""The Jacobian whose Gram matrix is the Fisher information.

    A row of the Jacobian of deviance residuals is :math:`(1 - y / \mu) / r` times the derivative of
    :math:`\mu`. In the Fisher information :math:`\sum_i \nabla \mu_i \nabla \mu_i^T / \mu_i` the
    factor is :math:`1 / \sqrt{\mu}`.
    """
    mu, r, y = (jnp.ravel(v) for v in (jnp.broadcast_to(mu, y.shape), r, y))
    root = jnp.sqrt(mu)
    # At mu = y the slope is 1 / sqrt(mu); nearby, the quotient has the residual's rounding error.
    near = jnp.abs(mu - y) <= jnp.finfo(mu.dtype).eps ** 0.5 * mu
    slope = (mu - y) / jnp.where(near, jnp.ones_like(r), r) / mu
    factor = jnp.where(near, jnp.ones_like(mu), 1 / (root * slope))
    return J * factor[:, None]


def as_wide_as(model: Any, start: Any, x: Any, y: jax.Array) -> jax.Array:
    """Broadcast data that are a single number to the shape of the model's values."""
    if y.ndim:
        return y
    # A copy, because JAX caches traces by function, and globals that it reads may change.
    value = jax.eval_shape(copy_function(model), start, x)
    return jnp.broadcast_to(y, getattr(value, "shape", ()))


def check_enough(size: int, n: int, box: Any, name: str, instead: str, of: str = "") -> None:
    """Raise an error for fewer data than params, as SciPy does without bounds.

    Args:
        size: Number of data.
        n: Number of params.
        box: The bounds, or None.
        name: The function that was called, for the message.
        instead: Another function, which returns one of the many solutions, for the message.
        of: The owner of the data and params, such as `' of a fit'`, for the message.
    """
    if size < n and box is None:
        raise TypeError(
            f"{name}: there are fewer data than params{of} ({size} < {n}), so the params "
            "are undetermined. Pass more data, fix params by writing their values into "
            f"f, or use {instead} for one of the many solutions."
        )


def checked_values(values: Any, params: Any, x: Any, y: jax.Array) -> Any:
    """Check that the model's values have the shape of the data, and return the values."""
    if isinstance(values, (list, tuple)):
        values = jnp.stack([jnp.asarray(value, y.dtype) for value in values])
    if not hasattr(values, "shape"):
        raise TypeError(
            f"curve_fit: f returned {values!r}, expected an array like ydata. Is there a return "
            "statement?"
        )
    if jnp.iscomplexobj(y) and not jnp.iscomplexobj(values):
        raise TypeError(
            f"curve_fit: ydata are {y.dtype}, but f returned {values.dtype}, expected "
            "complex values. A real model can't fit imaginary parts. Pass ydata.real, or "
            "a model with complex values."
        )
    if values.shape == () != y.shape and sum(map(jnp.size, jax.tree.leaves(params))) > 1:
        raise ValueError(
            f"curve_fit: f returned one number for {y.size} ydata, expected an array of shape "
            f"{y.shape}. Does f sum over x? One number determines one param at most."
        )
    if values.shape not in {y.shape, ()}:
        x_shape = f" for xdata of shape {x.shape}" if hasattr(x, "shape") else ""
        ask = "Do xdata and ydata have the same length?"
        if values.size == y.size:
            ask = "Ravel both of them, or neither."
        raise ValueError(
            f"curve_fit: f returned shape {values.shape}{x_shape}, but ydata have shape {y.shape}; "
            f"expected the same. {ask}"
        )
    return values


def has_jacobian(jac: Any, passing: str, name: str) -> bool:
    """Whether `jac` is a function; raise an error if it doesn't match the params."""
    if not callable(jac):
        if jac not in (None, *SCHEMES):
            raise ValueError(f"{name}: jac = {jac!r}, expected a function jac(x, a, b, ...).")
        return False
    if passing != "numbers":
        raise ValueError(f"{name}: jac is given, but p0 is a tree; expected numbers in a row.")
    return True


def residual_jacobian(jac: Any, passing: str, matrix: bool) -> Callable[..., jax.Array] | None:
    """The Jacobian of the residuals, `(p, x, y) -> J`, from the Jacobian of the model.

    Args:
        jac: `jac(x, a, b, ...)` of shape `[m, n]`, or None or a name of SciPy.
        passing: The calling convention of the model, for a vector of params.
        matrix: Whether the residuals are raveled, for a covariance matrix.

    Returns:
        The function; None without `jac`.
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
