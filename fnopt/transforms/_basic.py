"""Scaling of updates by numbers, schedules, signs and norms, and transforms of plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import (
    EmptyState,
    Leafwise,
    Scalar,
    ScalarOrSchedule,
    Transformation,
    global_norm,
    hyper,
    map_leaves,
    static,
)
from fnopt.numerics import add_epsilon, nonzero, range_divisor
from fnopt.sharding import sharded_full_like


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
        """Return the updates unchanged."""
        return updates, state


class set_to_zero(Transformation):
    r"""Replace updates by zeros: :math:`u = 0`; the parameters don't change.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.set_to_zero()
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0., 0.], dtype=float32)}
    """

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Return zeros of the updates' shapes and dtypes."""
        return jax.tree.map(jnp.zeros_like, updates), state

    def left_out(self, params: Any) -> Any:
        """Mask of all leaves."""
        return jax.tree.map(lambda _: True, params)


class scale(Leafwise):
    r"""Scale by a constant: :math:`u = c\, g`, without a minus sign.

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
    r"""Make a transform from a plain function: :math:`u = f(g, \theta)`.

    Args:
        fn: `fn(updates, params) -> updates` on whole trees; `params` is None if the caller passed
            no params. A function defined at module level can be pickled and stored in a
            configuration.

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
        """Apply the function to updates and params."""
        return self.fn(updates, params), state


class scale_by_sign(Leafwise):
    r"""Take the sign of updates: :math:`u = \operatorname{sign} g` (:math:`g / |g|` if complex).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_sign()
        >>> tx.update({"w": jnp.asarray([3.0, -2.0])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}
    """

    def leaf(self, h: Any, g: Any) -> Any:
        return jnp.sign(g)


class ScaleByScheduleState(NamedTuple):
    """Number of previous updates; None for a constant factor."""

    count: jax.Array | None


class scale_by_schedule(Leafwise):
    r"""Scale by a schedule: :math:`u_t = c_t\, g_t`, without a minus sign.

    Args:
        step_size_fn: :math:`c`, a `Schedule` or a number.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_schedule(fnopt.linear_schedule(2.0, 0.0, transition_steps=2))
        >>> _, state = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        >>> tx.update({"w": jnp.ones(2)}, state)[0]
        {'w': Array([1., 1.], dtype=float32)}
    """

    State = ScaleByScheduleState
    is_short = True
    reads_step = False

    step_size_fn: ScalarOrSchedule = hyper(schedule=True)

    def leaf(self, h: Any, g: Any) -> Any:
        return h.step_size_fn * g


class ScaleByLearningRateState(NamedTuple):
    """Number of previous updates; None for a constant rate."""

    count: jax.Array | None


class scale_by_learning_rate(Leafwise):
    r"""Scale by minus the learning rate: :math:`u_t = -\eta_t\, g_t`.

    Only this transform adds the minus sign of descent. Put `scale_by_learning_rate` last in a
    chain.

    Args:
        learning_rate: :math:`\eta`, a number, an array scalar or a `Schedule`.

    Raises:
        ValueError: If the rate is negative or not finite. To maximize a function, negate the
            function.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_learning_rate(0.5)
        >>> tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([-0.5, -0.5], dtype=float32)}
    """

    State = ScaleByLearningRateState
    is_short = True
    reads_step = False

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Compute minus the learning rate, which all leaves share."""
        return {"step": -h.learning_rate}

    def leaf(self, h: Any, g: Any) -> Any:
        # `*` is a jitted function of `jnp`, which is traced again for every leaf; `lax.mul` isn't.
        return lax.mul(h.step, g) if h.step.dtype == g.dtype else h.step * g


def divide_by_norm(x: jax.Array, length: jax.Array) -> jax.Array:
    """Compute `x / length`, or `x` if the length is zero.

    The function divides twice, because the reciprocal of a float32 length above 2^126 is subnormal
    and flushed to zero.
    """
    divisor = range_divisor(length)
    quotient = length / divisor
    return x / divisor / lax.select(quotient > 0, quotient, sharded_full_like(quotient, 1))


class normalize_by_update_norm(Transformation):
    r"""Divide all updates by their global norm.

    .. math:: u = \frac{c}{\lVert g \rVert_2 + \epsilon}\, g

    Zero updates stay zero, even without an epsilon.

    Args:
        scale_factor: :math:`c`, the global norm of the result (for :math:`\epsilon = 0`).
        eps: :math:`\epsilon`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.normalize_by_update_norm(eps=0.0), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update(g, tx.init(g))[0]["w"].round(3)
        Array([0.6, 0.8], dtype=float32)
    """

    scale_factor: Scalar = hyper(default=1.0)
    eps: Scalar = hyper(default=1e-6, ge=0)

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """Multiply all updates by the same factor."""
        norm = global_norm(updates)
        length = add_epsilon(norm, jnp.asarray(self.eps, norm.dtype))
        scale_factor = jnp.asarray(self.scale_factor, norm.dtype)

        numbers = {"length": length, "factor": scale_factor}
        # Division before multiplication, because `scale_factor / length` overflows for gradients of
        # 1e-40.
        return map_leaves(
            lambda h, g: divide_by_norm(g, h["length"]) * h["factor"], updates, hyper=numbers
        ), state


class scale_by_trust_ratio(Leafwise):
    r"""Scale every leaf by the ratio of parameter norm and update norm.

    .. math:: u = c\, \frac{\max(\lVert \theta \rVert, n)}{\max(\lVert g \rVert, n) + \epsilon}\, g

    A leaf with zero params or a zero update passes unchanged.

    Args:
        min_norm: :math:`n`, the lower bound of both norms.
        trust_coefficient: :math:`c`.
        eps: :math:`\epsilon`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_trust_ratio(), {"w": jnp.asarray([6.0, 8.0])}
        >>> tx.update({"w": jnp.asarray([0.0, 2.0])}, tx.init(params), params)[0]
        {'w': Array([ 0., 10.], dtype=float32)}

    Reference:
        You, Gitman and Ginsburg, 2017, arXiv:1708.03888.
    """

    needs_params = True

    min_norm: Scalar = hyper(default=0.0, ge=0)
    trust_coefficient: Scalar = hyper(default=1.0, ge=0)
    eps: Scalar = hyper(default=0.0, ge=0)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        param_norm = jnp.maximum(global_norm(p), h.min_norm)
        update_norm = jnp.maximum(global_norm(g), h.min_norm)
        ratio = h.trust_coefficient * param_norm / (nonzero(update_norm) + h.eps)
        # The update of zero params isn't scaled, because a ratio of zero would keep them at zero.
        is_zero = (param_norm == 0) | (update_norm == 0)
        return jnp.where(is_zero, jnp.ones_like(ratio), ratio) * g


class centralize(Leafwise):
    r"""Subtract from every matrix its mean over all axes but the last.

    .. math:: u_{\cdot j} = g_{\cdot j} - \frac{1}{m} \sum_i g_{ij}

    Vectors and scalars pass unchanged. The last axis is the output axis, as in the kernels of flax
    and Keras.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.centralize(), {"w": jnp.asarray([[1.0, 4.0], [3.0, 4.0]])}
        >>> print(tx.update(g, tx.init(g))[0]["w"])
        [[-1.  0.]
         [ 1.  0.]]

    Reference:
        Yong, Huang, Hua and Zhang, 2020, arXiv:2004.01461.
    """

    def leaf(self, h: Any, g: Any) -> Any:
        if g.ndim < 2:
            return g
        # Yong et al. (2020) subtract a mean per output, and the last axis is the output axis here.
        return g - jnp.mean(g, axis=tuple(range(g.ndim - 1)), keepdims=True)
