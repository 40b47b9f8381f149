"""Checks of bounds on params, and their conversion to flat vectors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import leaf_text, leaves_with_names, where
from fnopt.manifolds import Manifold
from fnopt.residuals._curved import Parametrization, curved, manifolds_of
from fnopt.residuals._parameters import fixed, tied
from fnopt.residuals._prefix import as_leaf, broadcast_prefix, check_real_numbers, first_bad


class Box(NamedTuple):
    """Lower and upper bounds of every param, which are infinite without a bound."""

    lower: jax.Array  # [n]
    upper: jax.Array  # [n]

    def is_feasible(self) -> jax.Array:
        """Whether the box contains a point.

        Equal bounds are allowed and fix a parameter.
        """
        inf = jnp.inf
        return jnp.all((self.lower <= self.upper) & (self.lower < inf) & (self.upper > -inf))

    @property
    def fixed(self) -> jax.Array:
        """Mask of the params that are fixed by equal bounds, `[n]`."""
        return self.lower == self.upper

    def is_boundless(self) -> bool:
        """Whether all bounds are concrete (not traced) and infinite."""
        if isinstance(self.lower, Tracer) or isinstance(self.upper, Tracer):
            return False
        return bool(np.all(np.isinf(self.lower)) and np.all(np.isinf(self.upper)))

    def nearest(self, x: jax.Array) -> jax.Array:
        """Project `x` onto the box."""
        return jnp.clip(x, self.lower, self.upper)

    def side(self, x: jax.Array) -> jax.Array:
        """Return -1 for params on their lower bound, 1 on their upper bound, else 0, `int32[n]`."""
        return (x >= self.upper).astype(jnp.int32) - (x <= self.lower).astype(jnp.int32)

    def held(self, x: jax.Array, gradient: jax.Array) -> jax.Array:
        """Active set: mask `[n]` of params on a bound whose gradient points out of the box or is 0.

        To first order, a step of such a param into the box can't decrease the cost.
        """
        low = (x <= self.lower) & (gradient >= 0)
        high = (x >= self.upper) & (gradient <= 0)
        return low | high


def bounds_pair(bounds: Any, caller: str) -> tuple[Any, Any]:
    """Check a pair of bounds or SciPy's `Bounds`, and replace None by infinite bounds."""
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = bounds.lb, bounds.ub
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise TypeError(
            f"{caller}bounds = {bounds!r}, expected a pair (lower, upper). To convert one "
            "pair per param, use tuple(zip(*bounds))."
        )
    lower, upper = map(_fill_none, bounds, (-jnp.inf, jnp.inf))
    for bound in jax.tree.leaves((lower, upper)):
        check_real_numbers(bound, f"{caller}bounds")
    return lower, upper


def box_of(bounds: Any, params: Any, dtype: Any) -> list[Box] | None:
    """Broadcast bounds to params, leaf by leaf.

    Args:
        bounds: A pair `(lower, upper)`. Each is a number for all params, or a tree of arrays that
            broadcast to the params. The tree has the structure of the params or is a prefix of the
            params. None in place of a bound or a side is an infinite bound.
        params: The params, which have to satisfy the bounds.
        dtype: The dtype of the bounds, in which they are compared with the params.

    Returns:
        A box of flat vectors for every leaf of the params; None if `bounds` is None.

    Raises:
        TypeError: If `bounds` isn't a pair.
        ValueError: If a bound doesn't match the params, a lower bound exceeds its upper bound
            (equal bounds fix a param), or the params violate a bound.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import box_of
        >>> box_of((0.0, {"a": 1.0, "b": None}), {"a": 0.5, "b": 2.0}, jnp.float32)[1].upper
        Array([inf], dtype=float32)
    """
    if bounds is None:
        return None
    bounds = bounds_pair(bounds, where())
    pairs, _ = leaves_with_names(params)
    lower, upper = (
        [
            _bound_vector(value, leaf, path, dtype)
            for value, (path, leaf) in zip(
                broadcast_prefix(side, params, "bounds"), pairs, strict=True
            )
        ]
        for side in bounds
    )
    boxes = []
    for box, manifold, (path, leaf) in zip(
        map(Box, lower, upper), manifolds_of(params), pairs, strict=True
    ):
        if manifold is None:
            _check_leaf(box, jnp.asarray(leaf, dtype), path)
        boxes.append(box if manifold is None else _tangent_box(box, manifold, path, leaf))
    return boxes


def free_box(bounds: Any, params: Any, parametrization: Parametrization, dtype: Any) -> Box | None:
    """Concatenate the bounds of all free variables to one box.

    The result is None if `bounds` is None.

    Args:
        bounds: As for :func:`box_of`.
        params: The params.
        parametrization: The params as a function of the free variables.
        dtype: The dtype of the bounds.

    Raises:
        TypeError: If a complex param has bounds.
        ValueError: If a tied or transformed param has bounds, or as for :func:`box_of`.
    """
    boxes = box_of(bounds, params, dtype)
    if boxes is None:
        return None
    pairs, _ = leaves_with_names(params)
    kinds = parametrization.kinds or (None,) * len(boxes)
    for box, kind, (path, leaf) in zip(boxes, kinds, pairs, strict=True):
        if jnp.iscomplexobj(leaf):
            raise TypeError(
                f"{where()}{leaf_text(path)} is complex and has bounds, expected no bounds "
                "(None) for a complex parameter."
            )
        if kind is not None and not isinstance(kind, fixed) and not box.is_boundless():
            raise ValueError(
                f"{where()}{leaf_text(path)} has both bounds and the constraint {kind!r}, expected "
                "one of them. Pass None as the bounds of this leaf, or remove the constraint."
            )
    free = [b for b, kind in zip(boxes, kinds, strict=True) if not isinstance(kind, (fixed, tied))]
    return Box(*map(jnp.concatenate, zip(*free, strict=True))) if free else None


def _tangent_box(box: Box, manifold: Manifold, path: str, leaf: Any) -> Box:
    """Make infinite bounds for a point's tangent coordinates, or raise an error for finite ones."""
    if not box.is_boundless():
        raise ValueError(
            f"{where()}{leaf_text(path)} is on the manifold {manifold!r} and has bounds, expected "
            "no bounds (None) for a parameter on a manifold."
        )
    size = jax.eval_shape(curved(manifold).start, leaf).size
    with jax.ensure_compile_time_eval():  # keeps infinite bounds concrete under jit
        inf = jnp.full(size, jnp.inf, box.lower.dtype)
        return Box(-inf, inf)


def _fill_none(side: Any, end: float) -> Any:
    """Replace None in a tree of bounds by an infinite bound."""
    return jax.tree.map(lambda x: end if x is None else x, side, is_leaf=lambda x: x is None)


def _bound_vector(value: Any, leaf: Any, path: str, dtype: Any) -> jax.Array:
    # Evaluation at compile time keeps concrete bounds concrete under jit, so they can be checked.
    traced = isinstance(value, Tracer)
    with contextlib.nullcontext() if traced else jax.ensure_compile_time_eval():
        return as_leaf(value, leaf, path, "bounds", dtype)


def _check_leaf(box: Box, x: jax.Array, path: str) -> None:
    # NumPy reshapes concrete bounds, because a JAX operation would return a tracer under jit.
    lower, upper = (s if isinstance(s, Tracer) else np.reshape(s, x.shape) for s in box)
    name = leaf_text(path) if path else "params"
    check_bounds(lower, upper, x, lambda i: f"{name}{[*i] if i else ''}", where())


def check_bounds(
    lower: Any,
    upper: Any,
    x: Any,
    name: Callable[[tuple[int, ...]], str],
    caller: str,
) -> None:
    """Check that the bounds aren't crossed and that the initial guess satisfies them.

    Traced arrays aren't checked.

    Args:
        lower: The lower bounds, of the shape of `x`.
        upper: The upper bounds, of the shape of `x`.
        x: The initial guess.
        name: Function from the index of an entry to its name, for the message.
        caller: The beginning of the message.

    Raises:
        ValueError: If a lower bound exceeds its upper bound, or the initial guess violates a bound.
    """
    bad = first_bad(np.less_equal, lower, upper)
    if bad is not None:
        fault = "crossed" if lower[bad] > upper[bad] else "NaN"
        raise ValueError(
            f"{caller}bounds of {name(bad)} are {fault}: lower {lower[bad]} and upper "
            f"{upper[bad]}, expected lower <= upper. Equal bounds fix a parameter."
        )
    # Written with `~`, so that a NaN in the initial guess passes here.
    bad = first_bad(lambda a, b, x: ~((x < a) | (x > b)), lower, upper, x)
    if bad is not None:
        raise ValueError(
            f"{caller}{name(bad)} starts at {x[bad]}, outside its bounds [{lower[bad]}, "
            f"{upper[bad]}]; expected an initial guess inside the bounds."
        )
