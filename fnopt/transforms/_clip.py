"""Clipping by element and by global norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import (
    EmptyState,
    Scalar,
    Transformation,
    global_norm,
    hyper,
    leaf_text,
    leaves_with_names,
    map_leaves,
    type_text,
    where,
)


class clip(Transformation):
    r"""Clip every element to an interval: :math:`u = \min(\max(g, -c), c)`.

    Args:
        max_delta: :math:`c`, the largest absolute value of an element.

    Raises:
        TypeError: From `update`, for complex gradients, which have no order.

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
        """The clipped updates."""
        if any(map(jnp.iscomplexobj, jax.tree.leaves(updates))):
            raise _complex_refused(updates)

        def clip_leaf(h: Any, g: Any) -> Any:
            return jnp.clip(g, -h.max_delta, h.max_delta)

        return map_leaves(clip_leaf, updates, hyper=self), state


def _complex_refused(updates: Any) -> TypeError:
    path, g = next((path, g) for path, g in leaves_with_names(updates)[0] if jnp.iscomplexobj(g))
    return TypeError(
        f"{where()}{leaf_text(path)} is {type_text(g)}, expected a real array: complex numbers "
        "have no order. Clip by their norm (fnopt.clip_by_global_norm), or put "
        "fnopt.split_real_and_imaginary around it."
    )


class clip_by_global_norm(Transformation):
    r"""Clip the global norm of the updates.

    .. math:: u = g \cdot \frac{c}{\max(\lVert g \rVert_2,\, c)}

    The norm runs over all leaves and is summed in at least float32. A gradient with infinite or
    NaN entries is not repaired; put `apply_if_finite` around the chain for that. The factor is a
    number of the dtype: in float32 a gradient longer than 8e37 times :math:`c` counts as zero.

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
        """Scale all updates by one factor."""
        norm = global_norm(updates)
        max_norm = lax.convert_element_type(self.max_norm, norm.dtype)
        # One scalar factor, not a select over two trees: XLA fuses a product into whatever comes
        # next, while a division per element would be kept in a temporary of the params' size.
        factor = max_norm / lax.max(norm, max_norm)
        return map_leaves(lambda g: g * factor.astype(jnp.finfo(g.dtype).dtype), updates), state
