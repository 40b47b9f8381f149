"""Constraints on updates: params that stay nonnegative, gradients without NaN."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, Transformation, is_inexact


class keep_params_nonnegative(Leafwise):
    r"""Shorten updates where they would make a parameter negative: :math:`u = \max(g, -\theta)`.

    It belongs at the end of a chain. Params that are negative at the start go to zero.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.keep_params_nonnegative())
        >>> params = {"w": jnp.asarray([0.5, 3.0])}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0., 2.], dtype=float32)}
    """

    needs_params = True

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        if jnp.iscomplexobj(p):
            raise TypeError("keep_params_nonnegative: complex params have no sign; mask them out.")
        return jnp.maximum(g, -p)


class ZeroNansState(NamedTuple):
    """For every leaf, whether the last gradient had a NaN."""

    found_nan: Any


class zero_nans(Transformation):
    r"""Replace NaN by zero; infinities stay.

    A NaN is seldom alone: the other entries of that gradient are doubtful too. To skip the
    whole step and keep the state, use `apply_if_finite`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.zero_nans(), {"w": jnp.asarray([jnp.nan, 2.0])}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> updates, state.found_nan["w"]
        ({'w': Array([0., 2.], dtype=float32)}, Array(True, dtype=bool))
    """

    def init(self, params: Any) -> ZeroNansState:
        """No NaN was found."""
        return ZeroNansState(jax.tree.map(lambda _: jnp.zeros((), bool), params))

    def update(
        self, updates: Any, state: ZeroNansState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ZeroNansState]:
        """The updates without NaN, and where there was one."""
        found = jax.tree.map(
            lambda g: jnp.any(jnp.isnan(g)) if is_inexact(g) else jnp.zeros((), bool), updates
        )
        return jax.tree.map(_without_nan, updates), ZeroNansState(found)


def _without_nan(g: Any) -> Any:
    return jnp.where(jnp.isnan(g), jnp.zeros_like(g), g) if is_inexact(g) else g
