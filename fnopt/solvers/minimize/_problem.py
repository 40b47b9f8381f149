"""Conversion of the user's function of params to a function of a real vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import check_inexact, check_returned, where
from fnopt.jacobians import held_as_zeros, real_vector
from fnopt.manifolds import in_tangents
from fnopt.numerics import compute_dtype, real_dtype, wide_dtype
from fnopt.programs import convert_closure
from fnopt.residuals import (
    Box,
    Parametrization,
    fixed,
    free_box,
    parametrize,
    tied,
    value_and_slope,
)
from fnopt.sharding import replicate


class Evaluation(NamedTuple):
    """Value and gradient of the function at a point."""

    x: jax.Array  # [n]
    value: jax.Array
    gradient: jax.Array  # [n]

    def is_finite(self) -> jax.Array:
        """Whether value and gradient are finite."""
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.gradient))


class SmoothObjective(NamedTuple):
    """Objective and feasible set as functions of a vector."""

    f: Callable[[jax.Array], jax.Array]
    box: Box | None = None
    projection: Callable[[jax.Array], jax.Array] | None = None
    unflatten: Callable[[jax.Array], Any] = lambda x: x  # from the vector to the tree of variables
    flatten: Callable[[Any], jax.Array] = lambda tree: tree

    def evaluate(self, x: jax.Array) -> Evaluation:
        """Evaluate value and gradient at a point."""
        return Evaluation(x, *value_and_slope(self.f, x))

    def scaled(self, scale: jax.Array) -> SmoothObjective:
        """Return the problem of the scaled params, `u = x / scale`."""
        f, box, project = self.f, self.box, self.projection
        return SmoothObjective(
            f=lambda u: f(u * scale),
            box=None if box is None else Box(box.lower / scale, box.upper / scale),
            projection=None if project is None else lambda u: project(u * scale) / scale,
            unflatten=lambda u: self.unflatten(u * scale),
            flatten=lambda tree: self.flatten(tree) / scale,
        )

    def project(self, x: jax.Array) -> jax.Array:
        """Return the nearest feasible point."""
        if self.projection is not None:
            return self.projection(x)
        return x if self.box is None else self.box.nearest(x)

    def projected_gradient(self, point: Evaluation) -> jax.Array:
        r"""Return the projected gradient, which is zero at a stationary point.

        With bounds, it is the gradient with zeros for the params with an active bound. With a
        projection, it is :math:`x - P(x - g)`, the measure of stationarity of Birgin, Martínez
        and Raydan (2000).
        """
        x, g = point.x, point.gradient
        if self.projection is not None:
            return x - self.projection(x - g)
        if self.box is None:
            return g
        return jnp.where(self.box.held(x, g), jnp.zeros_like(g), g)


class FlatObjective(NamedTuple):
    """The minimization problem of a vector, and the conversion of vectors to params."""

    x: jax.Array  # [n], the initial guess
    problem: SmoothObjective
    params: Callable[[jax.Array], Any]  # from the vector to the user's params, in their dtypes
    value: Callable[[Any], Any]  # the user's function of the params
    # -1 for params on a lower bound, 1 on an upper bound, else 0; None without bounds.
    at_bound: Callable[[jax.Array], Any]

    def traced(self) -> FlatObjective:
        """Replace the objective by its jaxpr, so that the user's function is traced only once."""
        program, consts = convert_closure(self.problem.f, self.x)
        return self._replace(problem=self.problem._replace(f=lambda x: program(x, *consts)))


def _check_fitted(params: Any, constraints: Any) -> None:
    """Raise an error if a fitted param isn't numeric."""
    if constraints is None:  # constraints determine which params are fitted
        check_inexact(params, "params", fitted=True)


def evaluation_shapes(params: Any, constraints: Any) -> Any:
    """Return the params that the function receives, as `jax.ShapeDtypeStruct`s."""
    _check_fitted(params, constraints)  # constraints change neither shape nor dtype of a leaf
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), evaluation_dtype(leaf)), params
    )


def evaluation_dtype(leaf: Any) -> Any:
    """Return the dtype of a leaf in the search: at least 32 bits, to resolve small steps."""
    return wide_dtype(jnp.result_type(leaf))


def flatten_objective(
    fn: Callable[..., Any],
    params: Any,
    args: tuple[Any, ...],
    has_aux: bool,
    bounds: Any,
    constraints: Any,
    projection: Callable[[Any], Any] | None,
) -> FlatObjective:
    """Flatten the params and build the problem of a vector; check the values of concrete arrays."""
    _check_fitted(params, constraints)
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, evaluation_dtype(leaf)), params)
    parametrization = parametrize(wide, constraints)
    free = jax.tree.map(jnp.asarray, parametrization.free)
    leaves = jax.tree.leaves(free)
    dtype = real_dtype(compute_dtype(*(leaf.dtype for leaf in leaves)))
    vector = real_vector(free, dtype)

    def flatten(tree: Any) -> jax.Array:
        return replicate(vector.flatten(tree)) if vector.size else jnp.zeros((0,), dtype)

    def f(x: jax.Array) -> jax.Array:
        out = fn(parametrization.assemble(vector.unflatten(x)), *args)
        return as_scalar(out, has_aux, dtype)

    def user_params(x: jax.Array) -> Any:
        tree = parametrization.assemble(vector.unflatten(x))
        return jax.tree.map(lambda a, p: jnp.asarray(a, jnp.result_type(p)), tree, params)

    def project(x: jax.Array) -> jax.Array:
        assert projection is not None
        tree = projection(vector.unflatten(x))
        returned, expected = (
            (jax.tree.structure(t), [*map(jnp.shape, jax.tree.leaves(t))]) for t in (tree, free)
        )
        if returned != expected:
            raise ValueError(
                f"{where()}projection returned {returned[0]} of shapes {returned[1]}, expected "
                f"the structure of the params, {expected[0]} of shapes {expected[1]}."
            )
        return flatten(tree)

    if projection is not None and parametrization.kinds:
        raise ValueError(
            f"{where()}got both a projection and constraints, expected one of them. Leave the "
            "constraints out, and let the projection satisfy them."
        )
    box = free_box(bounds, held_as_zeros(wide), parametrization, dtype)
    problem = SmoothObjective(f, box, projection and project, vector.unflatten, flatten)
    at_bound = _bound_sides(box, params, parametrization)
    return FlatObjective(flatten(free), problem, user_params, lambda p: fn(p, *args), at_bound)


def _bound_sides(
    box: Box | None, params: Any, parametrization: Parametrization
) -> Callable[[jax.Array], Any]:
    """Return the function that marks params on a bound, for `FlatObjective.at_bound`.

    The marks of a point on a manifold refer to its tangent coordinates.
    """
    leaves, tree = jax.tree.flatten(in_tangents(params))

    def sides_of(x: jax.Array) -> Any:
        if box is None:
            return None
        sides, start, marks = box.side(x), 0, []
        for leaf, kind in zip(leaves, parametrization.kinds or (None,) * len(leaves), strict=True):
            # Fixed and tied leaves aren't part of the vector.
            size = 0 if isinstance(kind, (fixed, tied)) else np.size(leaf)
            zeros = jnp.zeros(np.shape(leaf), jnp.int32)
            marks.append(sides[start : start + size].reshape(zeros.shape) if size else zeros)
            start += size
        return tree.unflatten(marks)

    return sides_of


def as_scalar(out: Any, has_aux: bool, dtype: Any) -> jax.Array:
    """Check that a user's function returned one real number, and convert it to a scalar."""
    if has_aux:
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise TypeError(
                f"{where()}with has_aux=True fun returned {type(out).__name__}, expected a pair "
                "(value, aux)."
            )
        out, aux = out
        check_returned(aux, f"{where()}the aux of fun")
    elif isinstance(out, (tuple, list)) and len(out) == 2:
        raise TypeError(
            f"{where()}fun returned a pair, expected one number. For a pair (value, aux) pass "
            "has_aux=True."
        )
    if not isinstance(out, (jax.Array, np.ndarray, np.generic, float, int)):
        raise TypeError(
            f"{where()}fun returned {type(out).__name__}, expected one number. Check that fun has "
            "a return statement."
        )
    out = jnp.asarray(out)
    if out.size != 1:
        raise ValueError(
            f"{where()}fun returned an array of shape {out.shape}, expected one number. Return the "
            "sum, or pass residuals to fnopt.least_squares."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(
            f"{where()}fun returned a value of dtype {out.dtype}, expected a real floating number. "
            "Check that the value depends on the params."
        )
    return jnp.reshape(out, ()).astype(dtype)
