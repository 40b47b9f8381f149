"""State in another memory than the device's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Member, beside, listing, static, where
from fnopt.transforms._wrapper import Wrapper


class offloaded(Wrapper):
    r"""Keep the state of an optimizer in the host's memory.

    `init` puts the arrays of the state there, in their shardings. Inside the jitted step each array
    is copied to the device, updated and copied back, so the device has room for the state only
    while it is used. XLA overlaps the copies with other work. Scalars (step counts) stay on the
    device. The updates are those of the inner optimizer, bit by bit.

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

    memory_kind: str = static(default="pinned_host")

    def init(self, params: Any) -> Any:
        """The inner state, in the other memory."""
        return self._moved(beside(self.inner.init(params), params), self._kind())

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The inner update, with the state on the device."""
        state = self._moved(state, None)
        new, state = self.inner.update(updates, state, params, **extra_args)
        return new, self._moved(state, self._kind())

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner transform, whose state is that of the whole."""
        return (Member(self.inner._place, self.inner, state),)

    def _kind(self) -> str | None:
        """The kind of memory, None for the device's own; checked for this backend."""
        device = jax.local_devices()[0]
        kinds = [memory.kind for memory in device.addressable_memories()]
        if self.memory_kind not in kinds:
            raise ValueError(
                f"{where()}memory_kind = {self.memory_kind!r}, but the backend "
                f"{device.platform!r} has the kinds {listing(kinds)}: choose one of these."
            )
        return None if self.memory_kind == device.default_memory().kind else self.memory_kind

    def _moved(self, state: Any, kind: str | None) -> Any:
        def one(x: Any) -> Any:
            return x if jnp.ndim(x) == 0 else _put(x, kind)

        return jax.tree.map(one, state)


def _put(x: Any, kind: str | None) -> Any:
    """An array in the memory of a kind, None for the device's own, with its sharding."""
    if isinstance(x, Tracer):
        if kind not in (None, "pinned_host"):
            raise ValueError(
                f"{where()}memory_kind = {kind!r}: inside jax.jit JAX copies to 'pinned_host' only."
            )
        space = jax.memory.Space  # pyright: ignore[reportAttributeAccessIssue]
        return jax.device_put(x, space.Host if kind else space.Device)
    own = next(iter(x.sharding.device_set)).default_memory().kind
    return jax.device_put(x, x.sharding.with_memory_kind(kind or own))
