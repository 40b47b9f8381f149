"""L-BFGS: products with an approximate inverse Hessian, and an optimizer with a line search."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import ScalarOrSchedule, Slot, Transformation, map_leaves, slot_zeros, static
from fnopt.numerics import safe_increment, zero_count
from fnopt.optimizers._recipe import recipe
from fnopt.sharding import explicit_spec, reshard_to
from fnopt.transforms import (
    Chain,
    chain,
    inner,
    real_dtype_of,
    scale,
    scale_by_learning_rate,
    scale_by_zoom_linesearch,
)


class ScaleByLBFGSState(NamedTuple):
    r"""State of `scale_by_lbfgs`.

    Attributes:
        count: The number of steps.
        params: The parameters of the last step.
        updates: The gradient of the last step.
        diff_params_memory: The differences :math:`s_j`, in a ring buffer: a tree like the params
            whose leaves have a leading axis of length `memory_size`.
        diff_updates_memory: The differences :math:`y_j`, in a ring buffer.
        weights_memory: :math:`\rho_j` of every pair, `[memory_size]`; 0 for an unused pair.
    """

    count: jax.Array
    params: Slot
    updates: Slot
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: jax.Array


class scale_by_lbfgs(Transformation):
    r"""Multiply gradients by an approximate inverse Hessian (L-BFGS).

    .. math:: u_k = P_k\, g_k, \qquad
              P_{j+1} = V_j^T P_j V_j + \rho_j\, s_j s_j^T, \quad V_j = I - \rho_j\, y_j s_j^T,
              \quad \rho_j = 1 / \langle s_j, y_j \rangle, \quad P_{k-m} = \gamma I

    with the differences :math:`s_j` of the params and :math:`y_j` of the gradients in the last
    :math:`m` steps, and :math:`\gamma = \langle s, y \rangle / \langle y, y \rangle` of the last
    step. The first step is along the gradient, with at most length 1.

    Pairs without positive curvature are omitted, so the negated result is always a descent
    direction.

    Args:
        memory_size: :math:`m`, the number of stored pairs :math:`(s_j, y_j)`.
        scale_init_precond: Whether to scale the initial inverse Hessian by :math:`\gamma`; if
            False, :math:`\gamma = 1`.

    Raises:
        ValueError: If `memory_size` is below 1.
        TypeError: If `memory_size` isn't an integer.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_lbfgs()
        >>> x = jnp.asarray([3.0, 4.0])
        >>> direction, state = tx.update(x, tx.init(x), x)
        >>> print(direction)
        [0.6 0.8]

    Reference:
        Liu and Nocedal (1989), On the limited memory BFGS method for large scale optimization;
        Nocedal and Wright (2006), Numerical Optimization, algorithm 7.4.
    """

    # Nocedal and Wright (2006), section 7.2: 3 to 20 pairs are enough.
    memory_size: int = static(default=10, least=1)
    scale_init_precond: bool = static(default=True)

    needs_params = True

    def init(self, params: Any) -> ScaleByLBFGSState:
        """Return the state with an empty memory."""
        x, g = slot_zeros(params), slot_zeros(params)

        def make_memory(slot: Any) -> Any:
            repeat = lambda z: jnp.broadcast_to(z, (self.memory_size, *jnp.shape(z)))  # noqa: E731
            return jax.tree.map(repeat, slot)

        weights = jnp.zeros(self.memory_size, real_dtype_of(x))
        return ScaleByLBFGSState(zero_count(), x, g, make_memory(x), make_memory(g), weights)

    def update(
        self, updates: Any, state: ScaleByLBFGSState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByLBFGSState]:
        """Multiply the gradient by the approximate inverse Hessian."""
        m, dtype = self.memory_size, state.weights_memory.dtype
        x, g = _as_slot(params, state.params), _as_slot(updates, state.updates)
        s = map_leaves(jnp.subtract, x, last=state.params)
        y = map_leaves(jnp.subtract, g, last=state.updates)
        sy, yy = inner(s, y).astype(dtype), inner(y, y).astype(dtype)
        # A pair without positive curvature would make the inverse Hessian indefinite, and a tiny
        # <s, y> would make it infinite. Such pairs have weight zero and aren't used.
        is_valid = (state.count > 0) & (sy > 0) & (yy > 0) & jnp.isfinite(1 / _safe_divisor(sy))
        weight = jnp.where(is_valid, 1 / _safe_divisor(sy), jnp.zeros((), dtype))
        slot = jnp.mod(state.count - 1, m)
        s, y, weights = jax.tree.map(
            lambda ring, new: ring.at[slot].set(
                reshard_to(jnp.where(is_valid, new, jnp.zeros_like(new)), explicit_spec(ring)[1:]),
                # `slot` is never negative; by default, JAX adds a select for negative indices.
                wrap_negative_indices=False,
            ),
            (state.diff_params_memory, state.diff_updates_memory, state.weights_memory),
            (s, y, weight),
        )
        gamma = self._gamma(is_valid, sy / _safe_divisor(yy), state.count, g)
        # The newest pair is in slot count - 1 (modulo m), so the oldest pair is in slot count.
        order = jnp.mod(state.count + jnp.arange(m, dtype=jnp.int32), m)
        direction = inverse_product(g, s, y, weights, gamma, order)
        return direction, ScaleByLBFGSState(safe_increment(state.count), x, g, s, y, weights)

    def _gamma(self, is_valid: jax.Array, ratio: jax.Array, count: jax.Array, g: Any) -> jax.Array:
        one = jnp.ones_like(ratio)
        if not self.scale_init_precond:
            return one
        square = inner(g, g).astype(ratio.dtype)
        # The first step has at most length 1, because the curvature is unknown.
        first = 1 / jnp.sqrt(jnp.maximum(square, one))
        return jnp.where(is_valid, ratio, jnp.where(count > 0, one, first))


def _safe_divisor(x: jax.Array) -> jax.Array:
    # `where` evaluates both branches, so the branch that isn't selected must not divide by 0.
    return jnp.where(x > 0, x, jnp.ones_like(x))


def _as_slot(tree: Any, slot: Any) -> Any:
    return jax.tree.map(lambda x, z: jnp.asarray(x, z.dtype), tree, slot)


def inverse_product(
    v: Any, s: Any, y: Any, rho: jax.Array, gamma: jax.Array, order: jax.Array
) -> Any:
    r"""Multiply a tree by the L-BFGS approximation of the inverse Hessian (two-loop recursion).

    Args:
        v: A tree of arrays.
        s: :math:`s_j`, the differences of the parameters. The tree is like `v`, and its leaves have
            a leading axis of pairs.
        y: :math:`y_j`, the differences of the gradients, a tree like `s`.
        rho: :math:`\rho_j = 1 / \langle s_j, y_j \rangle` of every pair; 0 omits the pair.
        gamma: :math:`\gamma`, the diagonal of the initial inverse Hessian.
        order: The indices of the pairs, from the oldest to the newest pair.

    Returns:
        A tree like `v`.
    """

    def pair(i: jax.Array) -> tuple[Any, Any]:
        return jax.tree.map(lambda ring: ring[i], (s, y))

    def backward(q: Any, i: jax.Array) -> tuple[Any, jax.Array]:
        si, yi = pair(i)
        alpha = rho[i] * inner(si, q).astype(rho.dtype)
        return map_leaves(lambda a, q, d: q - a.astype(d.dtype) * d, q, hyper=alpha, y=yi), alpha

    def forward(r: Any, entry: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        i, alpha = entry
        si, yi = pair(i)
        beta = rho[i] * inner(yi, r).astype(rho.dtype)
        return map_leaves(
            lambda a, r, d: r + a.astype(d.dtype) * d, r, hyper=alpha - beta, s=si
        ), None

    # Nocedal and Wright (2006), algorithm 7.4: the first loop begins with the newest pair.
    q, alphas = jax.lax.scan(backward, v, order, reverse=True)
    r = map_leaves(lambda h, q: h.astype(q.dtype) * q, q, hyper=gamma)
    return jax.lax.scan(forward, r, (order, alphas))[0]


# The line search of optax.lbfgs, which tries the full quasi-Newton step first.
_ZOOM = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


@recipe
def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: Any = _ZOOM,
) -> Chain:
    r"""L-BFGS: quasi-Newton steps with a limited-memory inverse Hessian and a line search.

    .. math:: u_t = -\alpha_t\, \eta_t\, P_t\, g_t

    with the step length :math:`\alpha_t` of the line search and the inverse Hessian :math:`P_t` of
    `scale_by_lbfgs`. Use L-BFGS for a deterministic function, which doesn't change between steps.
    `update` needs `value`, `grad` and `value_fn` for the line search. :func:`fnopt.minimize` passes
    these arguments, stops on convergence and supports bounds.

    Args:
        learning_rate: :math:`\eta`, the factor of the step before the line search, a number or a
            `Schedule`; None uses 1.
        memory_size: :math:`m`, the number of stored differences of parameters and gradients.
        scale_init_precond: Whether to scale the initial inverse Hessian by :math:`\gamma`, the
            inverse curvature of the last step; otherwise by 1.
        linesearch: The transform that scales the step, such as
            :class:`fnopt.scale_by_zoom_linesearch` or
            :class:`fnopt.scale_by_backtracking_linesearch`; None disables the line search.

    Returns:
        A chain of `scale_by_lbfgs`, the learning rate and the line search.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def f(x): return jnp.sum((x - 1) ** 2)
        >>> tx, x = fnopt.lbfgs(), jnp.zeros(3)
        >>> state, value_and_grad = tx.init(x), fnopt.value_and_grad_from_state(f)
        >>> for _ in range(3):
        ...     value, grad = value_and_grad(x, state=state)
        ...     u, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=f)
        ...     x = fnopt.apply_updates(x, u)
        >>> print(x.round(3))
        [1. 1. 1.]

    Reference:
        Liu and Nocedal (1989), On the limited memory BFGS method for large scale optimization.
    """
    rate = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    members = [scale_by_lbfgs(memory_size, scale_init_precond), rate]
    return chain(*members) if linesearch is None else chain(*members, linesearch)
