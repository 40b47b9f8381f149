"""Flattening of a residual function of pytrees to a function of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import check_inexact, leaves_with_names, type_text, where
from fnopt.jacobians import check_real, checked_outputs, ravel, real_vector
from fnopt.residuals._derivative import Derivative
from fnopt.residuals._parameters import Parametrization
from fnopt.sharding import pvary_over_rows, row_shards, rows_sharded_over


class FlatResidual(NamedTuple):
    """Residual function from a vector of params to a vector of residuals."""

    r: Callable[[jax.Array], jax.Array]  # [n] -> [m]
    unravel: Callable[[jax.Array], Any]  # [n] -> params
    flatten: Callable[[Any], jax.Array]  # the residuals as the user returns them -> [m]
    unflatten: Callable[[jax.Array], Any]  # [m] -> the residuals as the user returns them
    m: int
    n: int
    derivative: Derivative | None = None  # the user's Jacobian, if any
    gram: Callable[..., jax.Array] | None = None  # x, factor -> J J^T [m, m] of factor * r
    graded: bool = False  # whether the sizes of Jacobian rows differ by many orders of magnitude

    @property
    def rows(self) -> int:
        """Number of residuals on all devices."""
        return self.m * row_shards()


def flat_residual(
    residual_fn: Any, params: Any, args: tuple[Any, ...] = ()
) -> tuple[jax.Array, FlatResidual]:
    r"""Flatten a residual function of pytrees.

    Args:
        residual_fn: `residual_fn(params, *args)` that returns the residuals as an array or a
            pytree of arrays; or a list, tuple or dict of such functions, whose residuals are
            concatenated. A complex residual is treated as two real residuals, its real and
            imaginary part.
        params: A pytree of real floating arrays.
        args: Further arguments of `residual_fn`.

    Returns:
        The params as a vector `x` of shape `[n]`, and the flattened function. The vector has the
        common dtype of the params (at least float32), and the residuals have the dtype of `x`.

    Raises:
        TypeError: If `residual_fn` is not a function, or params or residuals are not floating.
        ValueError: If there are no params or no residuals.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import flat_residual
        >>> x, flat = flat_residual(lambda p: {"a": p["u"] ** 2 - 1}, {"u": jnp.arange(3.0)})
        >>> flat.r(x)
        Array([-1.,  0.,  3.], dtype=float32)
    """
    fn = joined_function(residual_fn)
    x, unravel = ravel(params, "params")
    _check_fitted(params)

    @jax.jit  # all uses in a solver share one trace
    def residuals(vector: jax.Array) -> Any:
        # A fit inside the function must not inherit the sharding of these rows.
        with rows_sharded_over(None):
            return fn(unravel(vector), *args)

    shapes = jax.eval_shape(residuals, x)
    _check_residuals(shapes)
    layout = real_vector(shapes, x.dtype)

    return x, FlatResidual(
        r=lambda vector: pvary_over_rows(layout.flatten(residuals(pvary_over_rows(vector)))),
        unravel=unravel,
        flatten=layout.flatten,
        unflatten=layout.unflatten,
        m=layout.size,
        n=x.size,
    )


def param_shapes(parametrization: Parametrization) -> Any:
    """Shapes and dtypes of the params that a residual function receives."""
    free = parametrization.free
    check_inexact(free, "params", fitted=True)
    _check_fitted(free)
    if parametrization.kinds:
        x, unravel = ravel(free, "params")
        return jax.eval_shape(lambda x: parametrization.assemble(unravel(x)), x)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), free
    )


_WHAT = {
    "residual_fn": "the residuals (not their sum of squares)",
    "jac": "their Jacobian",
}


def joined_function(fns: Any, name: str = "residual_fn") -> Callable[..., Any]:
    """Combine a container of functions into one function that returns a container of results.

    Args:
        fns: A function, which is returned unchanged, or a list, tuple or dict of functions.
        name: The name of the argument, `'residual_fn'` or `'jac'`, for the message.

    Raises:
        TypeError: If `fns` isn't a function or a container of functions.
    """
    if callable(fns):
        return fns
    functions, treedef = jax.tree.flatten(fns)
    is_container = isinstance(fns, (list, tuple, dict))
    if not is_container or not functions or not all(map(callable, functions)):
        raise TypeError(
            f"{where()}{name} is {_describe(fns)}, expected a function of the params that "
            f"returns {_WHAT[name]}, or a list, tuple or dict of such functions."
        )
    return lambda *args: jax.tree.unflatten(treedef, [fn(*args) for fn in functions])


def _describe(x: Any) -> str:
    if isinstance(x, (list, tuple, dict)):
        kinds = sorted({type(leaf).__name__ for leaf in jax.tree.leaves(x)})
        name = type(x).__name__
        return f"a {name} of {', '.join(kinds)}" if kinds else f"an empty {name}"
    return f"an array, {type_text(x)}" if hasattr(x, "dtype") else f"{x!r}, a {type_text(x)}"


def _check_fitted(params: Any) -> None:
    """Raise an error if a param is complex, or if all params are empty."""
    leaves = jax.tree.leaves(params)
    if not sum(map(jnp.size, leaves)):
        raise ValueError(f"{where()}params contain no numbers, expected at least one to fit.")
    if any(map(jnp.iscomplexobj, leaves)):
        check_real(params, f"{where()}params")


def _check_residuals(residuals: Any) -> None:
    pairs, _ = leaves_with_names(checked_outputs(residuals, f"{where()}residual_fn"))
    if sum(leaf.size for _, leaf in pairs) == 0:
        shapes = [tuple(leaf.shape) for _, leaf in pairs]
        raise ValueError(
            f"{where()}residual_fn returned no residuals (shapes {shapes}), expected at least one. "
            "Check that the data aren't empty."
        )
