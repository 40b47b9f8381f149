"""Quantization of slots to codes of eight or four bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import static
from fnopt.errors import check_choice, count_text, leaves_with_names, type_text, where
from fnopt.numerics import safe_increment, widen, zero_count
from fnopt.sharding import unsharded_leaves
from fnopt.transforms._block_codes import (
    CODES,
    block_length,
    block_scales,
    code_dtype,
    decode,
    decode_part,
    encode_part,
    encode_with,
    unsharded_size,
)
from fnopt.transforms._stored_slots import StoredSlots, is_coded, pattern_items


class QuantizedStateState(NamedTuple):
    """Number of previous updates, and the inner state with codes and scales in place of leaves."""

    count: jax.Array
    inner_state: Any


class quantized_state(StoredSlots):
    r"""Store slots as 8-bit or 4-bit codes, with one float32 scale per block.

    .. math:: s_i \approx \max_{j \in \mathrm{block}} |s_j| \cdot q(c_i), \qquad
              E[q(c_i)] = \frac{s_i}{\max_j |s_j|}

    Adam with quantized mean and mean square needs 2.03 bytes of state per parameter, instead of 8.
    A code consists of the leading bits of a float with a small bias, as in the mu-law of ITU-T
    G.711: an octave, and three mantissa bits for signed slots or four for unsigned slots. Codes of
    magnitudes below 2^-15 of the largest magnitude of a block are evenly spaced. With `bits=4`,
    signed slots have no mantissa bits and unsigned slots have one; codes are evenly spaced below
    2^-7. A nonzero mean square is never rounded to zero, because the step is divided by its root.
    Small leaves (norms, biases) stay float32. Training of embeddings is stable because few rows
    share a scale.

    A number is rounded at random to one of its two neighbors, more often to the nearer neighbor.
    The random bits are a hash of the number's last digits and the step number. With rounding to
    nearest, the code of a mean square that changes by a thousandth per step would never change. The
    mean square would then follow the scale of its block instead of its gradients.

    If a block contains a NaN or infinity, the whole block becomes NaN or infinite. Wrap the
    optimizer in `apply_if_finite` if this may happen.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        slots: A dict from the name of a slot (see `slot_names`), its path or a glob to `'signed'`
            or `'unsigned'`. Use `'unsigned'` for nonnegative slots; it stores negative numbers as
            zero.
        block_size: The number of elements per scale. If a smaller size (at least half) divides the
            last axis, blocks have this smaller size. A last axis shorter than two blocks is one
            block. The scales of blocks of 256 take 4/256 byte per element.
        min_size: Leaves with fewer elements aren't quantized.
        bits: The number of bits of a code, 8 or 4. Codes of four bits are `jnp.int4`, and XLA
            stores two of them in a byte. With blocks of 128 (Li et al.), Adam needs 1.06 bytes of
            state per parameter. Checkpoint files store a byte per code.

    Raises:
        TypeError: If `slots` isn't a dict.
        ValueError: If a name matches no slot, a form is neither `'signed'` nor `'unsigned'`, or
            `bits` is neither 8 nor 4.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.quantized_state(fnopt.adamw(1e-3))
        >>> state = tx.init({"kernel": jnp.ones((256, 256)), "bias": jnp.ones(256)})
        >>> codes, scale = fnopt.slots(state)["mu"]["kernel"]
        >>> codes.dtype, codes.shape, scale.shape
        (dtype('uint8'), (256, 256), (256,))
        >>> fnopt.slots(state)["mu"]["bias"].dtype
        dtype('float32')

    Reference:
        Dettmers et al., 2021, arXiv:2110.02861, for block-wise 8-bit states; the codes in this
        paper are a dynamic tree, with rounding to nearest. Li et al., 2023, arXiv:2309.01507, for
        4-bit states.
    """

    slots: Any = static(default=(("mu", "signed"), ("nu", "unsigned")), convert=pattern_items)
    block_size: int = static(default=256, least=1)
    # Quantizing small leaves saves little memory; bitsandbytes (Dettmers et al., 2022) has the same
    # bound.
    min_size: int = static(default=4096, least=1)
    bits: int = static(default=8, choices=(8, 4))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, form in self.slots:
            check_choice(form, ("signed", "unsigned"), f"slots[{name!r}]", "quantized_state")

    def init(self, params: Any) -> QuantizedStateState:
        """Return the inner state with quantized slots."""
        inner_state = self.inner.init(params)
        self._check_names(inner_state)
        return self._encode(zero_count(), inner_state)

    def update(
        self, updates: Any, state: QuantizedStateState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, QuantizedStateState]:
        """Take a step of the inner transform with its slots in float32."""

        def step(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
            inner_state = self._map_slots(self._decode, state.inner_state)
            return self.inner.update(updates, inner_state, params, **extra_args)

        count, args = safe_increment(state.count), (updates, state, params)
        scales_of: Callable[..., jax.Array] = block_scales
        if _recomputes_step():
            scales: list[jax.Array] = []

            def record_scales(x: jax.Array, block_size: int) -> jax.Array:
                scales.append(block_scales(x, block_size))
                return scales[-1]

            self._encode(count, step(*args)[1], record_scales)
            # As in `jax.checkpoint`, the barrier prevents XLA from storing and reusing the slots of
            # the first computation.
            args, first_scales = jax.lax.optimization_barrier((args, scales))
            scales_of = lambda *_: first_scales.pop(0)  # noqa: E731
        new_updates, inner_state = step(*args)
        return new_updates, self._encode(count, inner_state, scales_of)

    def _encode(
        self, count: jax.Array, state: Any, scales_of: Callable[..., jax.Array] = block_scales
    ) -> QuantizedStateState:
        def encode_leaf(form: str, x: Any, shape: Any) -> Any:
            size = x.size if shape is None else unsharded_size(x, shape)
            # Codes represent real numbers only, so complex leaves are stored unchanged.
            if jnp.iscomplexobj(x) or size < self.min_size:
                return x
            x = widen(x)
            code, block_size = CODES[form, self.bits], self.block_size
            if shape is not None:
                return encode_part(x, shape, code, block_size, count, scales_of)
            scales = scales_of(x, block_size)
            return encode_with(x, scales, code, block_size, count), scales

        state = self._map_slots(lambda form, slot: self._map_leaves(encode_leaf, form, slot), state)
        return QuantizedStateState(count, state)

    def _decode(self, form: str, slot: Any) -> Any:
        def decode_leaf(form: str, x: Any, shape: Any) -> Any:
            if not is_coded(x):
                return x
            (codes, scales), code = x, CODES[form, self.bits]
            self._check_codes(codes, scales, shape)
            if shape is None:
                return decode(codes, scales, code, self.block_size)
            return decode_part(codes, scales, shape, code, self.block_size)

        return self._map_leaves(decode_leaf, form, slot)

    def _check_codes(self, codes: Any, scales: Any, shape: Any) -> None:
        """Raise a ValueError if the codes were made with other options."""
        length = block_length(codes.shape, self.block_size)
        blocks = scales.size if shape is not None else -(-codes.size // length)
        if codes.dtype == code_dtype(self.bits) and scales.size == blocks:
            return
        raise ValueError(
            f"{where()}quantized_state: the state has codes {type_text(codes)} with "
            f"{count_text(scales.size, 'scale')}, expected {code_dtype(self.bits)} with "
            f"{count_text(blocks, 'scale')}. Pass the bits and the block_size of the optimizer "
            "whose init made the state."
        )

    def _map_leaves(self, fn: Any, form: str, slot: Any) -> Any:
        """Apply `fn(form, leaf, shape)` to the leaves of a slot.

        `shape` is the shape of the unsharded leaf if the leaf is a shard, else None.
        """
        unsharded = unsharded_leaves()
        if unsharded is None:
            return jax.tree.map(lambda x: fn(form, x, None), slot, is_leaf=is_coded)
        # A probe tests whether a step needs whole leaves. Encoding doesn't, because the blocks of a
        # shard are inside the shard.
        if unsharded.is_probe:
            return slot
        leaves, treedef = leaves_with_names(slot, is_coded)
        return treedef.unflatten([fn(form, x, unsharded.shapes[name]) for name, x in leaves])


def _recomputes_step() -> bool:
    """Whether the step is computed for the scales, and again for the codes.

    The scale of a block depends on all numbers of the block. On a GPU, XLA would therefore store
    the slots in float32, which takes 32 bytes of memory traffic per param for Adam instead of 22.
    On a CPU, XLA recomputes the formula automatically.
    """
    return jax.default_backend() != "cpu"
