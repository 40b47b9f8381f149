"""Averages of gradients, for custom optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import is_none
from fnopt.numerics import bias_correction as weight_sum
from fnopt.numerics import cast, compute_dtype, ema, real_dtype


def _update_moments(fn: Callable[..., Any], updates: Any, moments: Any) -> Any:
    """Map `fn(g, m, real_dtype)` in the compute dtype, and cast results to the moments' dtypes."""

    def update_leaf(g: Any, m: Any) -> Any:
        if g is None:
            return None
        dtype = compute_dtype(jnp.result_type(g), jnp.result_type(m))
        result = fn(cast(g, dtype), cast(m, dtype), real_dtype(dtype))
        return result.astype(jnp.result_type(m))

    return jax.tree.map(update_leaf, updates, moments, is_leaf=is_none)


def _power(x: jax.Array, order: Any) -> jax.Array:
    is_integer = float(order).is_integer() if isinstance(order, (int, float)) else False
    # A floating exponent would use exp and log, whose derivative at 0 is NaN.
    return x ** int(order) if is_integer else x ** jnp.asarray(order, jnp.finfo(x.dtype).dtype)


def update_moment(updates: Any, moments: Any, decay: Any, order: Any) -> Any:
    r"""The exponential average of a power: :math:`m \leftarrow \beta m + (1 - \beta) g^k`.

    Args:
        updates: :math:`g`, a tree of gradients; a `None` stays `None`.
        moments: :math:`m`, a tree of the same structure.
        decay: :math:`\beta`.
        order: :math:`k`; a complex gradient itself is raised to this power, not its modulus.

    Returns:
        The new averages, with the dtypes of `moments`.

    Example:
        >>> from fnopt import tree
        >>> tree.update_moment({"w": jnp.full(2, 2.0)}, {"w": jnp.zeros(2)}, decay=0.9, order=1)
        {'w': Array([0.20000...], dtype=float32)}
    """
    return _update_moments(
        lambda g, m, real: ema(m, _power(g, order), jnp.asarray(decay, real)), updates, moments
    )


def update_moment_per_elem_norm(updates: Any, moments: Any, decay: Any, order: Any) -> Any:
    r"""The exponential average of a power of the modulus of complex gradients.

    .. math:: m \leftarrow \beta m + (1 - \beta) |g|^k

    For real gradients the power is :math:`g^k`, as in `update_moment`.

    Args:
        updates: :math:`g`, a tree of gradients; a `None` stays `None`.
        moments: :math:`m`, a tree of the same structure, real.
        decay: :math:`\beta`.
        order: :math:`k`.

    Returns:
        The new averages, with the dtypes of `moments`.

    Example:
        >>> from fnopt import tree
        >>> g = {"w": jnp.asarray(3 + 4j)}
        >>> tree.update_moment_per_elem_norm(g, {"w": jnp.asarray(0.0)}, decay=0.5, order=2)
        {'w': Array(12.5, dtype=float32)}
    """

    def update_norm(g: jax.Array, m: jax.Array, real: Any) -> jax.Array:
        if not jnp.iscomplexobj(g):
            return ema(m, _power(g, order), jnp.asarray(decay, real))
        # The base is the squared modulus, as in optax, because the modulus has no derivative at
        # zero.
        square = jnp.square(jnp.real(g)) + jnp.square(jnp.imag(g))
        return ema(m, _power(square, order / 2), jnp.asarray(decay, real))

    return _update_moments(update_norm, updates, moments)


def update_infinity_moment(updates: Any, moments: Any, decay: Any, eps: Any) -> Any:
    r"""The decaying maximum of AdaMax: :math:`u \leftarrow \max(|g| + \epsilon, \beta u)`.

    Args:
        updates: :math:`g`, a tree of gradients; a `None` stays `None`.
        moments: :math:`u`, a tree of the same structure.
        decay: :math:`\beta`.
        eps: :math:`\epsilon`.

    Returns:
        The new maxima, with the dtypes of `moments`.

    Example:
        >>> from fnopt import tree
        >>> g, u = {"w": jnp.asarray([-1.0, 3.0])}, {"w": jnp.asarray([4.0, 2.0])}
        >>> tree.update_infinity_moment(g, u, decay=0.5, eps=0.0)
        {'w': Array([2., 3.], dtype=float32)}

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980, section 7.
    """
    number = jnp.asarray
    return _update_moments(
        lambda g, m, real: jnp.maximum(jnp.abs(g) + number(eps, real), number(decay, real) * m),
        updates,
        moments,
    )


def bias_correction(moment: Any, decay: Any, count: Any) -> Any:
    r"""Correct the bias of an average that started at zero: :math:`m / (1 - \beta^t)`.

    Args:
        moment: :math:`m`, a tree of averages.
        decay: :math:`\beta`.
        count: :math:`t`, the number of averaged steps, at least 1.

    Returns:
        A tree with the dtypes of `moment`.

    Example:
        >>> from fnopt import tree
        >>> tree.bias_correction({"w": jnp.asarray([0.75])}, decay=0.5, count=2)
        {'w': Array([1.], dtype=float32)}

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980.
    """

    def correct_leaf(m: Any) -> jax.Array:
        m = jnp.asarray(m)
        dtype = compute_dtype(m.dtype)
        # `weight_sum` computes 1 - beta^t by expm1, which doesn't cancel for beta near 1.
        weight = weight_sum(jnp.asarray(decay, real_dtype(dtype)), jnp.asarray(count))
        return (m.astype(dtype) / weight).astype(m.dtype)

    return jax.tree.map(correct_leaf, moment)
