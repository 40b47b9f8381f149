"""Storage dtypes of the slots, and the compute dtype, of an optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    as_dtype,
    compute_dtype,
    count_of,
    first_count,
    is_inexact,
    is_narrow,
    next_count,
    static,
    stochastic_round_leaves,
    where,
)
from fnopt.transforms._keys import key_words, step_key
from fnopt.transforms._stored_slots import StoredSlots, pattern_items


class PrecisionPolicyState(NamedTuple):
    """The number of updates made, and the inner state with its slots as they are stored."""

    count: jax.Array | None
    inner_state: Any


def _parse_dtypes(given: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, as_dtype(dtype)) for name, dtype in pattern_items(given))


class precision_policy(StoredSlots):
    r"""Set the storage dtypes of slots, by name, and the compute dtype of an optimizer.

    .. math:: (u, s') = \mathrm{inner}\big(c(g),\ c(s),\ c(\theta)\big), \qquad
              s'_{\mathrm{stored}} = \mathrm{round}(s')

    It works around any optimizer: `precision_policy(adamw(1e-3), {"mu": "bfloat16"})`,
    `{"*": "bfloat16"}` for all slots. The step itself is computed in at least float32; a slot is
    rounded once, when it is stored.

    A slow average must not be rounded to the nearest: with `b2=0.999` a mean square in bfloat16
    never decays. With a `key`, slots of 16 bits and less are rounded stochastically, without bias,
    at the cost of random numbers.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        slots: A dict from the name of a slot (see `slot_names`), its path or a glob to a dtype.
        compute_dtype: float32 or wider: what gradients, params and slots are cast to before the
            step. None for the widest that is among them, but at least float32.
        key: A whole number or a key of `jax.random`: slots are rounded at random.

    Raises:
        ValueError: If no slot has one of the names, or the compute dtype has less than 32 bits.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.precision_policy(fnopt.adam(1e-3), {"mu": "bfloat16"})
        >>> slots = fnopt.slots(tx.init({"w": jnp.ones(2)}))
        >>> slots["mu"]["w"].dtype, slots["nu"]["w"].dtype
        (dtype(bfloat16), dtype('float32'))

    Reference:
        Zamirai et al., 2020, arXiv:2010.06192.
    """

    slots: Any = static(default=(), convert=_parse_dtypes)
    compute_dtype: Any = static(default=None, convert=as_dtype)
    key: Any = static(default=None, convert=lambda key: None if key is None else key_words(key))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compute_dtype is not None and (
            is_narrow(self.compute_dtype) or not jnp.issubdtype(self.compute_dtype, jnp.inexact)
        ):
            raise ValueError(
                f"{where()}precision_policy: compute_dtype = {self.compute_dtype}, expected "
                "float32 or wider: narrower dtypes lose averages and epsilons."
            )

    @property
    def reads_step(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether slots are rounded at random."""
        return self.key is not None

    def init(self, params: Any) -> PrecisionPolicyState:
        """The inner state, with its slots as they are stored."""
        inner_state = self.inner.init(self._cast(params))
        self._check_names(inner_state)
        return PrecisionPolicyState(first_count(self), self._store(inner_state, None))

    def update(
        self, updates: Any, state: PrecisionPolicyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, PrecisionPolicyState]:
        """A step of the inner transform in the compute dtype."""
        params = None if params is None else self._cast(params)
        inner_state = self._map(lambda _, x: self._wide(x), state.inner_state)
        new, inner_state = self.inner.update(self._cast(updates), inner_state, params, **extra_args)
        count = count_of(self, state)
        key = None if self.key is None or count is None else step_key(self.key, count)
        stored = self._store(inner_state, key)
        return new, PrecisionPolicyState(next_count(count), stored)

    def _store(self, state: Any, key: Any) -> Any:
        wanted: list[tuple[jax.Array, Any]] = []  # what is rounded at random, and to what

        def is_random(dtype: Any, x: Any) -> bool:
            return key is not None and is_narrow(dtype) and not jnp.iscomplexobj(x)

        def collect(dtype: Any, x: Any) -> Any:
            if is_random(dtype, x):
                wanted.append((x.astype(jnp.float32), dtype))
            return x

        self._map(collect, state)
        rounded = iter(stochastic_round_leaves([x for x, _ in wanted], [d for _, d in wanted], key))

        def store_leaf(dtype: Any, x: Any) -> jax.Array:
            if jnp.iscomplexobj(x):  # of the same width, if there is one
                return x.astype(jnp.complex128 if dtype == jnp.float64 else jnp.complex64)
            return (next(rounded) if is_random(dtype, x) else x).astype(dtype)

        return self._map(store_leaf, state)

    def _cast(self, tree: Any) -> Any:
        if self.compute_dtype is None:
            return tree
        return jax.tree.map(lambda x: self._wide(x) if is_inexact(x) else x, tree)

    def _wide(self, x: Any) -> jax.Array:
        x = jnp.asarray(x)
        dtype = self.compute_dtype or compute_dtype(x.dtype)
        if jnp.iscomplexobj(x) and dtype.kind != "c":
            dtype = compute_dtype(dtype, jnp.complex64)
        return x.astype(dtype)
