"""Storage of slots in other dtypes, as codes, and in host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import count_of, first_count, map_slots, next_count, static
from fnopt.errors import matches, names_text, where
from fnopt.numerics import (
    as_dtype,
    compute_dtype,
    is_inexact,
    is_narrow,
    real_dtype,
    saturating_cast,
    stochastic_round_leaves,
)
from fnopt.sharding import place_state
from fnopt.transforms._chain import Wrapper
from fnopt.transforms._gradient_noise import key_words, step_key


def pattern_items(slots: Any) -> tuple[tuple[str, Any], ...]:
    """Convert a mapping from names of slots to hashable pairs."""
    if not isinstance(slots, (Mapping, tuple)):
        raise TypeError(
            f"{where()}slots = {slots!r}, expected a dict from the name of a slot to the slot's "
            "form, such as {'mu': ...}."
        )
    return tuple((str(name), value) for name, value in dict(slots).items())


def is_coded(x: Any) -> bool:
    """Whether a node of a slot is a pair of codes and scales."""
    dtypes = jnp.uint8, jnp.int4
    return isinstance(x, tuple) and len(x) == 2 and getattr(x[0], "dtype", None) in dtypes


def _matches_slot(pattern: str, path: str) -> bool:
    return pattern == path.rpartition("/")[2] or matches(path, pattern)


class StoredSlots(Wrapper):
    """Base class of wrappers that store some slots of the inner state in another form.

    `slots` maps the name of a slot, its path (`'1/trace'`, for ambiguous names) or a glob to a
    form. The first matching entry determines the form.
    """

    slots: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if _is_offloaded(self.inner):
            name = type(self).__name__
            raise ValueError(
                f"{where()}{name}: the inner optimizer contains offloaded, which stores the slots "
                "in host memory, expected slots on the device. Wrap in the other order: "
                f"offloaded({name}(...))."
            )

    def _map(self, fn: Callable[[Any, Any], Any], state: Any) -> Any:
        """Replace the leaves of the selected slots by `fn(form, leaf)`."""
        return self._map_slots(
            lambda form, tree: jax.tree.map(lambda x: fn(form, x), tree, is_leaf=is_coded), state
        )

    def _map_slots(self, fn: Callable[[Any, Any], Any], state: Any) -> Any:
        """Replace the selected slots by `fn(form, slot)`."""

        def map_slot(path: str, tree: Any) -> Any:
            forms = (form for pattern, form in self.slots if _matches_slot(pattern, path))
            form = next(forms, None)
            return tree if form is None else fn(form, tree)

        return map_slots(map_slot, state)

    def _check_names(self, state: Any) -> None:
        slots: dict[str, Any] = {}
        map_slots(slots.setdefault, state)
        for pattern, _ in self.slots:
            paths = [path for path in slots if _matches_slot(pattern, path)]
            if slots and not paths:
                raise ValueError(
                    f"{where()}no slot is named {pattern!r}, expected one of the slots "
                    f"{names_text([*slots])}."
                )
            coded = [
                path
                for path in paths
                if any(map(is_coded, jax.tree.leaves(slots[path], is_leaf=is_coded)))
            ]
            if coded:
                raise ValueError(
                    f"{where()}{pattern!r} selects the slot {coded[0]!r}, which an inner "
                    "quantized_state already stores as codes, expected a slot of arrays. Name "
                    "other slots here, or use quantized_state once, as the outermost wrapper."
                )


class PrecisionPolicyState(NamedTuple):
    """Number of previous updates, and the inner state with slots in their storage dtypes."""

    count: jax.Array | None
    inner_state: Any


class precision_policy(StoredSlots):
    r"""Set the storage dtypes of slots and the compute dtype of an optimizer.

    .. math:: (u, s') = \mathrm{inner}\big(c(g),\ c(s),\ c(\theta)\big), \qquad
              s'_{\mathrm{stored}} = \mathrm{round}(s')

    `precision_policy` can wrap any optimizer: `precision_policy(adamw(1e-3), {"mu": "bfloat16"})`,
    or `{"*": "bfloat16"}` for all slots. The step is computed in at least float32, and a slot is
    rounded once per step, when it is stored.

    Don't use rounding to nearest for a slow average: with `b2=0.999` a mean square in bfloat16
    never decays. With a `key`, slots of 16 bits and less are rounded stochastically, without bias,
    at the cost of random numbers.

    Numbers above the range of a dtype are stored as the largest number of the dtype, and tiny
    numbers as zero: below 3e-8 in float16, below 1e-3 in float8_e4m3fn. If a mean square is rounded
    to zero, Adam's steps become up to :math:`1 / \sqrt{1 - b_2}` times too large. `quantized_state`
    avoids this problem by a scale per block.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        slots: A dict from the name of a slot (see `slot_names`), its path or a glob to a dtype.
            For a complex dtype, the dtype of its parts is used.
        compute_dtype: The dtype to which gradients, params and slots are cast before the step,
            float32 or wider. With None, narrow slots are cast to float32, and gradients and params
            aren't cast.
        key: An integer or a key of `jax.random`, which enables stochastic rounding of slots.

    Raises:
        ValueError: If a name matches no slot, or the compute dtype has less than 32 bits.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.precision_policy(fnopt.adam(1e-3), {"mu": "bfloat16"})
        >>> slots = fnopt.slots(tx.init({"w": jnp.ones(2)}))
        >>> slots["mu"]["w"].dtype, slots["nu"]["w"].dtype
        (dtype(bfloat16), dtype('float32'))

    Reference:
        Zamirai et al., 2020, arXiv:2010.06192.
    """

    slots: Any = static(
        default=(),
        convert=lambda slots: tuple((k, real_dtype(as_dtype(x))) for k, x in pattern_items(slots)),
    )
    compute_dtype: Any = static(default=None, convert=as_dtype)
    key: Any = static(default=None, convert=lambda key: None if key is None else key_words(key))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compute_dtype is not None and (
            is_narrow(self.compute_dtype) or not jnp.issubdtype(self.compute_dtype, jnp.inexact)
        ):
            raise ValueError(
                f"{where()}precision_policy: compute_dtype = {self.compute_dtype}, expected "
                "float32 or wider, because slow averages and small epsilons vanish in narrower "
                "dtypes."
            )

    @property
    def reads_step(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether slots are rounded stochastically."""
        return self.key is not None

    def init(self, params: Any) -> PrecisionPolicyState:
        """Return the inner state with slots in their storage dtypes."""
        inner_state = self.inner.init(self._cast(params))
        self._check_names(inner_state)
        return PrecisionPolicyState(first_count(self), self._store(inner_state, None))

    def update(
        self, updates: Any, state: PrecisionPolicyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, PrecisionPolicyState]:
        """Take a step of the inner transform in the compute dtype."""
        params = None if params is None else self._cast(params)
        inner_state = self._map(lambda _, x: self._to_compute_dtype(x), state.inner_state)
        new_updates, inner_state = self.inner.update(
            self._cast(updates), inner_state, params, **extra_args
        )
        count = count_of(self, state)
        key = None if self.key is None or count is None else step_key(self.key, count)
        stored = self._store(inner_state, key)
        return new_updates, PrecisionPolicyState(next_count(count), stored)

    def _store(self, state: Any, key: Any) -> Any:
        pairs: list[tuple[jax.Array, Any]] = []  # arrays to round stochastically, and their dtypes

        def is_random(dtype: Any, x: Any) -> bool:
            return key is not None and is_narrow(dtype) and not jnp.iscomplexobj(x)

        def collect(dtype: Any, x: Any) -> Any:
            if is_random(dtype, x):
                pairs.append((x.astype(jnp.float32), dtype))
            return x

        # The first pass collects leaves, because one call rounds all leaves with shared random
        # draws. The second pass replaces the leaves in the same order.
        self._map(collect, state)
        results = iter(stochastic_round_leaves([x for x, _ in pairs], [d for _, d in pairs], key))

        def store_leaf(dtype: Any, x: Any) -> jax.Array:
            # Complex leaves stay complex. The narrowest complex dtype is complex64.
            if jnp.iscomplexobj(x):
                return x.astype(jnp.complex128 if dtype == jnp.float64 else jnp.complex64)
            return saturating_cast(next(results) if is_random(dtype, x) else x, dtype)

        return self._map(store_leaf, state)

    def _cast(self, tree: Any) -> Any:
        if self.compute_dtype is None:
            return tree
        return jax.tree.map(lambda x: self._to_compute_dtype(x) if is_inexact(x) else x, tree)

    def _to_compute_dtype(self, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        dtype = self.compute_dtype or compute_dtype(x.dtype)
        if jnp.iscomplexobj(x) and dtype.kind != "c":
            # With a real compute dtype, complex arrays are cast to its complex counterpart.
            dtype = compute_dtype(dtype, jnp.complex64)
        return x.astype(dtype)


class offloaded(Wrapper):
    r"""Store the state of an optimizer in host memory.

    `init` moves the arrays of the state to host memory, with their shardings. Inside the jitted
    step each array is copied to the device, updated and copied back. Between steps, the state takes
    no device memory. On an H200, XLA fetched the whole state before the computation. Therefore the
    peak memory of a step was the same as for a state on the device. :func:`fnopt.layered_step`
    fetches one layer at a time. Scalars (step counts) stay on the device. The updates are bitwise
    equal to the updates of the inner optimizer.

    The state has the structure of the inner optimizer's state. On a CPU the same program runs, and
    host and device memory are identical. Put other wrappers, such as `quantized_state` and
    `apply_if_finite`, inside `offloaded`. Outside, they would compute with the arrays in host
    memory, which JAX doesn't allow.

    Donate params and state together, and return them in the order of the arguments. JAX 0.10
    assigns donated buffers to outputs by shape and dtype, not by memory kind. With another order,
    or with only the state donated, the process aborts ("memory kind does not match").

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        memory_kind: The kind of memory, as in `jax.sharding.Sharding`. Inside `jax.jit`, only
            `'pinned_host'` and the device's kind are possible.

    Raises:
        ValueError: From `init` and `update`, if the backend has no such memory, or `jax.jit` can't
            copy to this memory.

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

    State = None

    memory_kind: str = static(default="pinned_host")

    def init(self, params: Any) -> Any:
        """Return the inner state in host memory."""
        return self._move(place_state(self.inner.init(params), params))

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Copy the state to the device, take the inner step, and copy the state to the host."""
        new_updates, state = self.inner.update(updates, on_device(state), params, **extra_args)
        return new_updates, self._move(state)

    def _move(self, state: Any) -> Any:
        """Move the arrays of a state to the memory of kind `memory_kind`."""
        # Not `jax.devices()[0]`, which belongs to another process in a multi-process program.
        device = jax.local_devices()[0]
        kinds = [memory.kind for memory in device.addressable_memories()]
        if self.memory_kind not in kinds:
            raise ValueError(
                f"{where()}memory_kind = {self.memory_kind!r}, but the backend "
                f"{device.platform!r} has the kinds {names_text(kinds)}, expected one of these "
                "kinds."
            )
        if self.memory_kind == device.default_memory().kind:
            return state
        return jax.tree.map(lambda x: _move_array(x, self.memory_kind) if jnp.ndim(x) else x, state)


def _is_offloaded(tx: Any) -> bool:
    return isinstance(tx, offloaded) or any(_is_offloaded(member.tx) for member in tx.members())


def on_device(tree: Any) -> Any:
    """Copy the arrays of a tree to the memory of their device."""
    return jax.tree.map(lambda x: _move_array(x, None) if jnp.ndim(x) else x, tree)


def _move_array(x: Any, kind: str | None) -> Any:
    """Move an array to memory of a kind (None for device memory); the sharding doesn't change."""
    if not isinstance(x, Tracer):
        x = jnp.asarray(x)  # restored checkpoints may contain NumPy arrays
        device_kind = next(iter(x.sharding.device_set)).default_memory().kind
        sharding = x.sharding.with_memory_kind(kind or device_kind)
        return x if x.sharding == sharding else jax.device_put(x, sharding)
    # `jax.memory.Space` doesn't exist in older releases of JAX.
    space = getattr(getattr(jax, "memory", None), "Space", None)
    if kind is None and (space is None or jax.typeof(x).memory_space == space.Device):
        return x
    if space is None or kind not in (None, "pinned_host"):
        raise ValueError(
            f"{where()}memory_kind = {kind!r}, expected "
            f"{'no copy' if space is None else repr('pinned_host')}, because inside jax.jit, JAX "
            f"{jax.__version__} can't copy to other kinds of memory."
        )
    return jax.device_put(x, space.Host if kind else space.Device)
