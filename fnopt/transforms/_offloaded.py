"""Optimizer state in host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import names_text, static, where
from fnopt.sharding import place_state
from fnopt.transforms._wrapper import Wrapper


class offloaded(Wrapper):
    r"""Keep the state of an optimizer in the host's memory.

    `init` puts the arrays of the state there, in their shardings. Inside the jitted step each array
    is copied to the device, updated and copied back. Between steps the device has room for other
    arrays. On an H200 XLA fetched the whole state before it computed, so the peak within a step was
    that of a state on the device; :func:`fnopt.layered_step` fetches one layer at a time. Scalars
    (step counts) stay on the device. The updates are those of the inner optimizer, bit by bit.

    The state has the structure of the inner optimizer's. On a CPU the same program runs, and both
    memories are one. Put wrappers that keep an old state, such as `apply_if_finite`, inside:
    under `jax.vmap` they select between arrays, for which JAX needs them on the device.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        memory_kind: The kind of memory, as in `jax.sharding.Sharding`. Inside `jax.jit` only
            `'pinned_host'` and the device's own kind are possible.

    Raises:
        ValueError: From `init` and `update`, if the backend has no such memory, or `jax.jit` can't
            copy to it.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx = fnopt.offloaded(fnopt.adamw(1e-3))
        >>> params = {"w": jnp.ones(4)}
        >>> state = jax.jit(tx.init)(params)
        >>> fnopt.slots(state)["mu"]["w"].sharding.memory_kind
        'pinned_host'
        >>> updates, state = jax.jit(tx.update)(params, state, params)
        >>> fnopt.slots(state)["mu"]["w"].sharding.memory_kind
        'pinned_host'
    """

    has_own_state = False

    memory_kind: str = static(default="pinned_host")

    def init(self, params: Any) -> Any:
        """The inner state, in the other memory."""
        return self._move(place_state(self.inner.init(params), params))

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The inner update, with the state on the device."""
        new, state = self.inner.update(updates, on_device(state), params, **extra_args)
        return new, self._move(state)

    def _move(self, state: Any) -> Any:
        """The state with its arrays in the other memory."""
        device = jax.local_devices()[0]
        kinds = [memory.kind for memory in device.addressable_memories()]
        if self.memory_kind not in kinds:
            raise ValueError(
                f"{where()}memory_kind = {self.memory_kind!r}, but the backend "
                f"{device.platform!r} has the kinds {names_text(kinds)}: choose one of these."
            )
        if self.memory_kind == device.default_memory().kind:
            return state
        return jax.tree.map(lambda x: _move_array(x, self.memory_kind) if jnp.ndim(x) else x, state)


def on_device(tree: Any) -> Any:
    """The arrays of a tree in the memory of their device."""
    return jax.tree.map(lambda x: _move_array(x, None) if jnp.ndim(x) else x, tree)


def _move_array(x: Any, kind: str | None) -> Any:
    """An array in the memory of a kind, None for the device's own, with its sharding."""
    if not isinstance(x, Tracer):
        own = next(iter(x.sharding.device_set)).default_memory().kind
        sharding = x.sharding.with_memory_kind(kind or own)
        return x if x.sharding == sharding else jax.device_put(x, sharding)
    space = getattr(getattr(jax, "memory", None), "Space", None)
    if kind is None and (space is None or jax.typeof(x).memory_space == space.Device):
        return x
    if space is None or kind not in (None, "pinned_host"):
        raise ValueError(
            f"{where()}memory_kind = {kind!r}: inside jax.jit JAX {jax.__version__} copies to "
            f"{'no other memory' if space is None else repr('pinned_host') + ' only'}."
        )
    return jax.device_put(x, space.Host if kind else space.Device)
