"""The simplest transforms: nothing, zero, a factor, and a user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import EmptyState, Leafwise, Scalar, Transformation, hyper, static


class identity(Transformation):
    r"""Return updates unchanged: :math:`u = g`.

    Example:
        >>> import fnopt
        >>> tx = fnopt.identity()
        >>> tx.update({"w": 2.0}, tx.init({"w": 1.0}))[0]
        {'w': 2.0}
    """

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Returns the updates unchanged."""
        return updates, state


class set_to_zero(Transformation):
    r"""Replace updates by zeros: :math:`u = 0`; the parameters stay.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.set_to_zero()
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0., 0.], dtype=float32)}
    """

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Zeros of the updates' shapes and dtypes."""
        return jax.tree.map(jnp.zeros_like, updates), state

    def left_out(self, params: Any) -> Any:
        """All leaves."""
        return jax.tree.map(lambda _: True, params)


class scale(Leafwise):
    r"""Scale by a constant: :math:`u = c\, g`. It adds no minus sign.

    Args:
        step_size: :math:`c`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale(2.0)
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([2., 2.], dtype=float32)}
    """

    is_short = True

    step_size: Scalar = hyper()

    def leaf(self, h: Any, g: Any) -> Any:
        return h.step_size * g


class stateless(Transformation):
    r"""A transform from a plain function: :math:`u = f(g, \theta)`.

    Args:
        fn: `fn(updates, params) -> updates` on whole trees; `params` is None if the caller gave
            none. A function defined at the top of a module can be pickled and put in a config.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx = fnopt.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
        >>> tx.update({"w": jnp.asarray([3.0, -2.0])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}
    """

    fn: Callable[[Any, Any], Any] = static()

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """The function's result for the updates."""
        return self.fn(updates, params), state
