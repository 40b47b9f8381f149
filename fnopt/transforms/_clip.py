"""Clipping of elements, leaves, units and the global norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import (
    EmptyState,
    Leafwise,
    Scalar,
    Transformation,
    global_norm,
    hyper,
    map_leaves,
    static,
)
from fnopt.errors import is_integer, leaf_text, leaves_with_names, type_text, where
from fnopt.numerics import axis_norms
from fnopt.transforms._basic import divide_by_norm


class clip(Transformation):
    r"""Clip every element to an interval: :math:`u = \min(\max(g, -c), c)`.

    Args:
        max_delta: :math:`c`, the largest absolute value of an element.

    Raises:
        TypeError: From `update`, for complex gradients, which aren't ordered.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.clip(1.0)
        >>> tx.update({"w": jnp.asarray([3.0, -0.5])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1. , -0.5], dtype=float32)}
    """

    max_delta: Scalar = hyper(ge=0, infinite=True)

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Return the clipped updates."""
        if any(map(jnp.iscomplexobj, jax.tree.leaves(updates))):
            leaves = leaves_with_names(updates)[0]
            path, g = next((path, g) for path, g in leaves if jnp.iscomplexobj(g))
            raise TypeError(
                f"{where()}{leaf_text(path)} is {type_text(g)}, expected a real array, because "
                "complex numbers have no order. Clip the norm with fnopt.clip_by_global_norm, or "
                "put fnopt.split_real_and_imaginary around clip."
            )

        return map_leaves(
            lambda h, g: jnp.clip(g, -h.max_delta, h.max_delta), updates, hyper=self
        ), state


class clip_by_global_norm(Transformation):
    r"""Clip the global norm of the updates.

    .. math:: u = g \cdot \frac{c}{\max(\lVert g \rVert_2,\, c)}

    The norm of all leaves is accumulated in at least float32. Infinite or NaN entries are not
    removed; put `apply_if_finite` around the chain to skip such steps. In float32, the factor
    underflows to zero if the norm is above 8e37 times :math:`c`, so the update is zero.

    Args:
        max_norm: :math:`c`, the largest norm that passes unchanged.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.clip_by_global_norm(1.0)
        >>> tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0.6, 0.8], dtype=float32)}

    Reference:
        Pascanu, Mikolov and Bengio, 2012, arXiv:1211.5063.
    """

    max_norm: Scalar = hyper(gt=0, infinite=True)

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Multiply all updates by the same factor."""
        norm = global_norm(updates)
        max_norm = lax.convert_element_type(self.max_norm, norm.dtype)
        # A scalar factor instead of a select between two trees or a division per element, because
        # XLA fuses a product into the next operation. A division would need a temporary buffer of
        # the params' size.
        factor = max_norm / lax.max(norm, max_norm)
        # `finfo(complex64).dtype` is float32, which avoids a complex product.
        return map_leaves(lambda g: g * factor.astype(jnp.finfo(g.dtype).dtype), updates), state


class clip_by_block_rms(Leafwise):
    r"""Clip the root mean square of every leaf.

    .. math:: u_\ell = \frac{g_\ell}{\max(1,\, \mathrm{rms}(g_\ell) / c)}

    Args:
        threshold: :math:`c`, the largest root mean square that passes unchanged.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.clip_by_block_rms(1.0)
        >>> tx.update({"w": jnp.full(4, 3.0)}, tx.init({"w": jnp.ones(4)}))[0]["w"].round(3)
        Array([1., 1., 1., 1.], dtype=float32)

    Reference:
        Shazeer and Stern, 2018, arXiv:1804.04235.
    """

    threshold: Scalar = hyper(gt=0, infinite=True)

    def leaf(self, h: Any, g: Any) -> Any:
        return clipped_rms(g, h.threshold)


class scale_by_param_block_norm(Leafwise):
    r"""Scale every leaf by the norm of its parameters.

    .. math:: u_\ell = \max(\lVert \theta_\ell \rVert,\, s)\, g_\ell

    Args:
        min_scale: :math:`s`, the lower bound of the norm.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_param_block_norm(), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update({"w": jnp.ones(2)}, tx.init(params), params)[0]
        {'w': Array([5., 5.], dtype=float32)}
    """

    needs_params = True

    min_scale: Scalar = hyper(default=1e-3, ge=0)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        return jnp.maximum(global_norm(p), h.min_scale) * g


class scale_by_param_block_rms(Leafwise):
    r"""Scale every leaf by the root mean square of its parameters.

    .. math:: u_\ell = \max(\mathrm{rms}(\theta_\ell),\, s)\, g_\ell

    Args:
        min_scale: :math:`s`, the lower bound of the root mean square.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_param_block_rms(), {"w": jnp.full(4, -2.0)}
        >>> tx.update({"w": jnp.ones(4)}, tx.init(params), params)[0]
        {'w': Array([2., 2., 2., 2.], dtype=float32)}

    Reference:
        Shazeer and Stern, 2018, arXiv:1804.04235.
    """

    needs_params = True

    min_scale: Scalar = hyper(default=1e-3, ge=0)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        return jnp.maximum(rms(p), h.min_scale) * g


def clipped_rms(x: jax.Array, threshold: jax.Array) -> jax.Array:
    """Scale an array down if its root mean square is above `threshold`."""
    return x / jnp.maximum(rms(x) / threshold, jnp.ones_like(threshold))


def rms(x: jax.Array) -> jax.Array:
    """Root mean square of an array; 0 for an empty array."""
    norm = global_norm(x)
    return norm / jnp.sqrt(jnp.asarray(max(x.size, 1), norm.dtype))


def _axes(axis: Any) -> Any:
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if axis is not None and not all(map(is_integer, axes)):
        raise TypeError(f"axis = {axis!r}, expected an int, a tuple of ints, or None.")
    return None if axis is None else axes


class adaptive_grad_clip(Leafwise):
    r"""Clip the gradient norm of every unit relative to the norm of its parameters.

    .. math:: u_j = g_j \cdot \min\left(1,\;
              \frac{c \max(\lVert \theta_j \rVert,\, \epsilon)}{\lVert g_j \rVert}\right)

    A unit is the group of weights of one output: a column of a matrix, the kernel of one channel of
    a convolution, or a whole vector. The last axis is the output axis.

    Args:
        clipping: :math:`c`, the largest ratio of the norms that passes unchanged.
        eps: :math:`\epsilon`, the lower bound of the params' norm.
        axis: The axes over which norms are computed, one or several ints. By default all axes
            except the last; for an array of 3 axes the first axis, for a vector its only axis.

    Raises:
        ValueError: For an array of more than 5 axes without `axis`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.adaptive_grad_clip(0.5), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update({"w": jnp.asarray([6.0, 8.0])}, tx.init(params), params)[0]["w"].round(1)
        Array([1.5, 2. ], dtype=float32)

    Reference:
        Brock, De, Smith and Simonyan, 2021, arXiv:2102.06171.
    """

    needs_params = True

    clipping: Scalar = hyper(ge=0, infinite=True)
    # Without a lower bound, weights of zero would never change (Brock et al., 2021).
    eps: Scalar = hyper(default=1e-3, ge=0)
    axis: Any = static(default=None, convert=_axes)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        axes = _unit_axes(g.shape) if self.axis is None else self.axis
        norm = axis_norms(g, axes)
        max_norm = h.clipping * jnp.maximum(axis_norms(p, axes), h.eps)
        # Division before multiplication, because `max_norm / norm` may overflow for a small norm.
        return jnp.where(norm <= max_norm, g, divide_by_norm(g, norm) * max_norm)


def _unit_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    # As in optax: the last axis of a dense or convolutional kernel is the output axis, and 3 axes
    # are a dense layer with several heads.
    if sum(n > 1 for n in shape) <= 1 and 0 not in shape:
        return tuple(range(len(shape)))
    if len(shape) > 5:
        raise ValueError(
            f"adaptive_grad_clip: a param has shape {shape}, expected at most 5 axes. Pass "
            "axis=..., the axes over which the norm of a unit is computed."
        )
    return (0,) if len(shape) <= 3 else tuple(range(len(shape) - 1))
