"""Riemannian version of any optimizer, for parameters on manifolds."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import custom_slots, declared_slots, translate_extra_args
from fnopt.manifolds._manifold import Manifold
from fnopt.manifolds._on import map_points
from fnopt.numerics import compute_dtype
from fnopt.transforms import Wrapper


class RiemannianState(NamedTuple):
    """State of `riemannian`: the inner state, whose slots are tangents."""

    inner_state: Any


class riemannian(Wrapper):
    r"""Run an optimizer in the tangent spaces of parameters on manifolds.

    `riemannian` must be the outermost transform. With a later transform, as in
    `chain(riemannian(sgd), scale(0.5))`, the params leave their manifold, and fnopt can't detect
    this.

    .. math:: v = \mathrm{inner}(DR_x(0)^\top g), \qquad u = R_x(v) - x

    Leaves made by :func:`fnopt.manifolds.on` move along their manifold; the inner optimizer trains
    all other leaves as usual. For points, the inner optimizer receives Riemannian gradients, and
    zero tangents as params, so weight decay doesn't change points. `fnopt.apply_updates` adds the
    updates; the sum equals the retracted point, up to rounding. Each retraction corrects the
    rounding errors of the previous step, so they don't accumulate.

    Slots that average gradients (momentum, `mu`) are first transported to the current point, so SGD
    with momentum is exactly Riemannian. Elementwise averages of squares are not transported.
    Methods such as Adam therefore approximate the methods of Bécigneul and Ganea, which have one
    average of squares per point. The state of another library's optimizer isn't transported;
    instead the retraction projects its updates onto the tangent space.

    Args:
        inner: The optimizer, an fnopt optimizer or any `(init, update)` pair.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> from fnopt.manifolds import UnitVector, on, riemannian
        >>> A = jnp.diag(jnp.asarray([3.0, 2.0, 1.0]))
        >>> loss = lambda p: p["x"].value @ A @ p["x"].value
        >>> tx = riemannian(fnopt.sgd(0.1, momentum=0.5))
        >>> params = {"x": on(UnitVector, jnp.full(3, 3**-0.5))}
        >>> state = tx.init(params)
        >>> for _ in range(100):
        ...     updates, state = tx.update(jax.grad(loss)(params), state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> print(jnp.abs(params["x"].value).round(4))
        [0. 0. 1.]

    Reference:
        Absil, Mahony and Sepulchre (2008), Optimization algorithms on matrix manifolds, chapters 4
        and 8. Bécigneul and Ganea (2019), Riemannian adaptive optimization methods,
        arXiv:1810.00760.
    """

    needs_params = True
    wide_updates = True

    def init(self, params: Any) -> RiemannianState:
        """Make the inner state for tangents."""
        return RiemannianState(self.inner.init(_origin(params)))

    def update(
        self, updates: Any, state: RiemannianState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, RiemannianState]:
        """Return the retracted points minus the params."""

        def to_tangents(gradients: Any) -> Any:
            return map_points(_gradient, params, gradients)

        def to_points(tangents: Any) -> Any:
            return map_points(_retract, params, tangents)

        # The inner optimizer sees only tangents at the current points: gradients, state and params.
        origin = _origin(params)
        steps, inner_state = self.inner.update(
            to_tangents(updates),
            _transport_state(state.inner_state, params, origin),
            origin,
            **translate_extra_args(extra_args, to_tangents, to_points),
        )
        return map_points(_difference, params, steps), RiemannianState(inner_state)


def _origin(params: Any) -> Any:
    """Replace every point of the params by a zero tangent."""

    def zero(manifold: Manifold, x: Any) -> jax.Array:
        return jnp.zeros(manifold.tangent_shape(jnp.shape(x)), x.dtype)

    return map_points(zero, params)


# One trace for all leaves of equal manifold, shape and dtype.
_jit = functools.partial(jax.jit, static_argnums=0)


def _widen(*arrays: Any) -> list[jax.Array]:
    dtype = compute_dtype(*(a.dtype for a in arrays))
    return [jnp.asarray(a, dtype) for a in arrays]


@_jit
def _gradient(manifold: Manifold, x: Any, g: Any) -> jax.Array:
    return manifold.gradient(*_widen(x, g)).astype(g.dtype)


def _retract(manifold: Manifold, x: Any, v: Any) -> jax.Array:
    return manifold.retract(*_widen(x, v)).astype(x.dtype)


@_jit
def _difference(manifold: Manifold, x: Any, v: Any) -> jax.Array:
    x, v = _widen(x, v)
    return manifold.retract(x, v) - x


@_jit
def _transport(manifold: Manifold, x: Any, v: Any) -> jax.Array:
    return manifold.transport(*_widen(x, v)).astype(v.dtype)


def _transport_state(state: Any, params: Any, origin: Any) -> Any:
    """Transport averages of gradients in a state to the tangent spaces of the current points."""
    if hasattr(state, "_fields"):
        is_real_slot, custom = declared_slots(type(state)), custom_slots(type(state))
        # A real slot is an average of squares, which isn't transported.
        transported = {name for name, is_real in is_real_slot.items() if not is_real} - custom
        parts = {
            name: _transport_slot(part, params, origin)
            if name in transported
            else _transport_state(part, params, origin)
            for name, part in state._asdict().items()
        }
        return type(state)(**parts)
    if isinstance(state, dict):
        return {name: _transport_state(part, params, origin) for name, part in state.items()}
    if isinstance(state, tuple):
        return type(state)(_transport_state(part, params, origin) for part in state)
    return state


def _transport_slot(slot: Any, params: Any, origin: Any) -> Any:
    """Transport a slot of tangents; return a slot of another structure or shapes unchanged."""
    if jax.tree.structure(slot) != jax.tree.structure(origin):
        return slot
    if [*map(jnp.shape, jax.tree.leaves(slot))] != [*map(jnp.shape, jax.tree.leaves(origin))]:
        return slot
    return map_points(_transport, params, slot)
