"""Pytree node for a parameter on a manifold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Value, static
from fnopt.errors import type_text, where
from fnopt.manifolds._manifold import Manifold
from fnopt.numerics import compute_dtype


class on(Value):
    """Mark an array as a parameter on a manifold.

    The result is a pytree node whose only leaf is the array, so `jax.tree` functions, `jit`,
    `vmap`, `grad`, `scan` and checkpoints work. Functions of the params read the array as `.value`.

    :func:`fnopt.least_squares`, :func:`fnopt.minimize` and :func:`fnopt.root` move the parameter
    along the manifold. In a training loop use :class:`fnopt.manifolds.riemannian`.

    Args:
        manifold: The manifold, such as `fnopt.manifolds.SO3`.
        value: An array of points. The last axes are one point, and the leading axes are batch axes.
            Concrete (not traced) points must be on the manifold, to half of the digits of the
            dtype.

    Raises:
        TypeError: If `manifold` isn't a manifold, or the array isn't real and floating.
        ValueError: If the array doesn't have the shape of points, or isn't on the manifold.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.manifolds import SO3, on
        >>> pose = on(SO3, jnp.eye(3))
        >>> jax.tree.map(jnp.shape, pose).value
        (3, 3)
        >>> on(SO3, 2 * jnp.eye(3))
        Traceback (most recent call last):
        ...
        ValueError: on: value is 1 away from SO3, expected rotation matrices [..., 3, 3]. \
Project it: on(SO3, SO3.nearest(value)).
    """

    manifold: Manifold = static()
    value: Any

    def __post_init__(self) -> None:
        if not isinstance(self.manifold, Manifold):
            raise TypeError(
                f"{where()}on: manifold = {type_text(self.manifold)}, expected a manifold such as "
                "fnopt.manifolds.SO3. Pass the manifold first: on(SO3, value)."
            )
        if not hasattr(self.value, "dtype") or isinstance(self.value, np.ndarray):
            self._set("value", jnp.asarray(self.value))
        check_point(self.manifold, self.value, "value", "on")
        super().__post_init__()

    def _raise_type_error(self, *_: Any) -> Any:
        raise TypeError(
            f"{where()}got {self!r}, a pytree node without arithmetic and indexing, expected an "
            "array. Use the attribute `.value`."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _raise_type_error
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __rpow__ = _raise_type_error
    __neg__ = __getitem__ = _raise_type_error
    # NumPy then calls the reflected methods above instead of making an object array.
    __array_ufunc__ = None

    def __repr__(self) -> str:
        value = self.value
        array = f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)
        return f"on({self.manifold!r}, {array})"


def check_point(manifold: Manifold, value: Any, name: str, caller: str) -> None:
    """Check the dtype and shape of points, and that concrete points are on the manifold."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"{where()}{caller}: {name} is {value.dtype}, expected a real float array. Convert it: "
            "jnp.asarray(value, float)."
        )
    if not manifold.accepts(value.shape):
        raise ValueError(
            f"{where()}{caller}: {name} has shape {value.shape}, expected points of "
            f"{manifold!r}: {manifold.points}."
        )
    if isinstance(value, Tracer) or not isinstance(value, (jax.Array, np.ndarray)):
        return
    point = jnp.asarray(value, compute_dtype(value.dtype))
    # Concrete points are also checked while a function is traced.
    with jax.ensure_compile_time_eval():
        distance, size = manifold.distance(point), jnp.max(jnp.abs(point), initial=1)
    # `not <=` instead of `>`, so that NaN raises the error. sqrt(eps) is half of the digits.
    if not distance <= jnp.finfo(value.dtype).eps ** 0.5 * size:
        raise ValueError(
            f"{where()}{caller}: {name} is {float(distance):.3g} away from {manifold!r}, expected "
            f"{manifold.points}. Project it: on({manifold!r}, {manifold!r}.nearest(value))."
        )


def is_on(node: Any) -> bool:
    """Whether a node of a tree is a parameter on a manifold."""
    return isinstance(node, on)


def map_points(fn: Any, params: Any, *rest: Any) -> Any:
    """Replace the array of every `on` node by `fn(manifold, value, *values)`; keep other leaves.

    Args:
        fn: The function.
        params: A tree.
        rest: Trees with the structure of `params`. Leaves of the last tree replace leaves without a
            manifold.
    """

    def map_node(node: Any, *others: Any) -> Any:
        if not is_on(node):
            return others[-1] if others else node
        mapped = fn(node.manifold, node.value, *(other.value for other in others))
        # The constructor would check that the array is on the manifold.
        return on._unflatten((node.manifold,), (mapped,))

    return jax.tree.map(map_node, params, *rest, is_leaf=is_on)


def in_tangents(params: Any) -> Any:
    """Replace points on manifolds by the zero coordinates of their tangent spaces."""

    def zeros(manifold: Manifold, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        batch = x.shape[: x.ndim - manifold.axes]
        return jnp.zeros((*batch, manifold.dimension(x.shape)), x.dtype)

    return map_points(zeros, params)


def along_tangents(params: Any, tangents: Any) -> Any:
    """Retract params along tangents, whose coordinates replace the points in the second tree."""

    def move(manifold: Manifold, x: Any, c: Any) -> jax.Array:
        x = jnp.asarray(x)
        return manifold.retract(x, manifold.from_coordinates(x, c.astype(x.dtype)))

    return map_points(move, params, tangents)
