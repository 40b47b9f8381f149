"""The user's function as a function of a real vector, and the conversion back to params."""

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
    Parametrisation,
    fixed,
    free_box,
    parametrised,
    tied,
    value_and_slope,
)
from fnopt.sharding import replicate


class Evaluation(NamedTuple):
    """A point, with the value and the gradient of the function at this point."""

    x: jax.Array  # [n]
    value: jax.Array
    gradient: jax.Array  # [n]

    def is_finite(self) -> jax.Array:
        """Whether value and gradient are finite."""
        return jnp.isfinite(self.value) & jnp.all(jnp.isfinite(self.gradient))


class SmoothObjective(NamedTuple):
    """The minimization problem as a function of a vector."""

    f: Callable[[jax.Array], jax.Array]
    box: Box | None = None
    projection: Callable[[jax.Array], jax.Array] | None = None
    unflatten: Callable[[jax.Array], Any] = lambda x: x  # from the vector to the variables' tree
    flatten: Callable[[Any], jax.Array] = lambda tree: tree

    def evaluate(self, x: jax.Array) -> Evaluation:
        """Compute value and gradient at a point."""
        return Evaluation(x, *value_and_slope(self.f, x))

    def in_unit(self, unit: jax.Array) -> SmoothObjective:
        """Return the problem in scaled params."""
        f, box, project = self.f, self.box, self.projection
        return SmoothObjective(
            f=lambda u: f(u * unit),
            box=None if box is None else Box(box.lower / unit, box.upper / unit),
            projection=None if project is None else lambda u: project(u * unit) / unit,
            unflatten=lambda u: self.unflatten(u * unit),
            flatten=lambda tree: self.flatten(tree) / unit,
        )

    def project(self, x: jax.Array) -> jax.Array:
        """Return the nearest feasible point."""
        if self.projection is not None:
            return self.projection(x)
        return x if self.box is None else self.box.nearest(x)

    def projected_gradient(self, point: Evaluation) -> jax.Array:
        r"""Return the projected gradient, which is zero at a stationary point.

        With bounds, the entries of params with an active bound are zero. With a projection, the
        projected gradient is :math:`x - P(x - g)`, the measure of stationarity of Birgin, Martinez
        and Raydan (2000).
        """
        x, g = point.x, point.gradient
        if self.projection is not None:
            return x - self.projection(x - g)
        if self.box is None:
            return g
        return jnp.where(self.box.held(x, g), jnp.zeros_like(g), g)


class FlatObjective(NamedTuple):
    """The problem as a function of a vector, and the conversion back to params."""

    x: jax.Array  # [n], the initial guess
    problem: SmoothObjective
    params: Callable[[jax.Array], Any]  # from the vector to the user's params, in their dtypes
    value: Callable[[Any], Any]  # the user's function of the params
    at_bound: Callable[[jax.Array], Any]  # -1 and 1 for params on a bound; None without any

    def traced(self) -> FlatObjective:
        """Return the problem with the function traced once."""
        program, consts = convert_closure(self.problem.f, self.x)
        return self._replace(problem=self.problem._replace(f=lambda x: program(x, *consts)))


def _check_fitted(params: Any, constraints: Any) -> None:
    """Raise if a param that isn't fixed isn't numeric."""
    if constraints is None:  # otherwise constraints determine the fitted params
        check_inexact(params, "params", fitted=True)


def seen_by(params: Any, constraints: Any) -> Any:
    """Return the shapes and dtypes of the params that the function receives."""
    _check_fitted(params, constraints)  # a constraint keeps the shape and the dtype of a leaf
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), widened(leaf)), params)


def widened(leaf: Any) -> Any:
    """Return the dtype in which the function receives a leaf: 16 bits are too few for a search."""
    return wide_dtype(jnp.result_type(leaf))


def set_up(
    fn: Callable[..., Any],
    params: Any,
    args: tuple[Any, ...],
    has_aux: bool,
    bounds: Any,
    constraints: Any,
    projection: Callable[[Any], Any] | None,
) -> FlatObjective:
    """Flatten the params, build the problem of a vector, and check concrete arguments."""
    _check_fitted(params, constraints)
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, widened(leaf)), params)
    parametrisation = parametrised(wide, constraints)
    free = jax.tree.map(jnp.asarray, parametrisation.free)
    leaves = jax.tree.leaves(free)
    dtype = real_dtype(compute_dtype(*(leaf.dtype for leaf in leaves)))
    laid = real_vector(free, dtype)

    def flat(tree: Any) -> jax.Array:
        return replicate(laid.flatten(tree)) if laid.size else jnp.zeros((0,), dtype)

    def f(x: jax.Array) -> jax.Array:
        out = fn(parametrisation.assemble(laid.unflatten(x)), *args)
        return as_scalar(out, has_aux, dtype)

    def narrowed(x: jax.Array) -> Any:
        tree = parametrisation.assemble(laid.unflatten(x))
        return jax.tree.map(lambda a, p: jnp.asarray(a, jnp.result_type(p)), tree, params)

    def project(x: jax.Array) -> jax.Array:
        assert projection is not None
        tree = projection(laid.unflatten(x))
        returned, expected = (
            (jax.tree.structure(t), [*map(jnp.shape, jax.tree.leaves(t))]) for t in (tree, free)
        )
        if returned != expected:
            raise ValueError(
                f"{where()}projection returned {returned[0]} of shapes {returned[1]}, expected "
                f"those of the params, {expected[0]} of shapes {expected[1]}."
            )
        return flat(tree)

    if projection is not None and parametrisation.kinds:
        raise ValueError(f"{where()}got a projection and constraints, expected one of them.")
    box = free_box(bounds, held_as_zeros(wide), parametrisation, dtype)
    problem = SmoothObjective(f, box, projection and project, laid.unflatten, flat)
    at_bound = _sides(box, params, parametrisation)
    return FlatObjective(flat(free), problem, narrowed, lambda p: fn(p, *args), at_bound)


def _sides(
    box: Box | None, params: Any, parametrisation: Parametrisation
) -> Callable[[jax.Array], Any]:
    """Return the function that marks params on a bound, with tangents for points on manifolds."""
    leaves, tree = jax.tree.flatten(in_tangents(params))

    def sides(x: jax.Array) -> Any:
        if box is None:
            return None
        side, at, found = box.side(x), 0, []
        for leaf, kind in zip(leaves, parametrisation.kinds or (None,) * len(leaves), strict=True):
            size = 0 if isinstance(kind, (fixed, tied)) else np.size(leaf)
            zeros = jnp.zeros(np.shape(leaf), jnp.int32)
            found.append(side[at : at + size].reshape(zeros.shape) if size else zeros)
            at += size
        return tree.unflatten(found)

    return sides


def as_scalar(out: Any, has_aux: bool, dtype: Any) -> jax.Array:
    """Convert the value that a user's function returned to a scalar."""
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
            f"{where()}fun returned {type(out).__name__}, expected one number. Is there a return "
            "statement?"
        )
    out = jnp.asarray(out)
    if out.size != 1:
        raise ValueError(
            f"{where()}fun returned an array of shape {out.shape}, expected one number. For a sum "
            "of squares see fnopt.least_squares; else take the sum."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(
            f"{where()}fun returned {out.dtype}, expected a real floating number. Does it "
            "depend on the params?"
        )
    return jnp.reshape(out, ()).astype(dtype)
