"""Messages of federated clients: changes of params as 8-bit codes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Slot, Value, check_same_tree, slot_zeros, static
from fnopt.distributed._packing import as_pairs, from_pairs
from fnopt.errors import check_count, check_inexact, count_text, leaf_text, leaves_with_names
from fnopt.numerics import compute_dtype, safe_increment, zero_count
from fnopt.transforms import SIGNED, decode, encode


class Codes(NamedTuple):
    """A leaf as 8-bit codes, with one scale for each block of numbers."""

    codes: jax.Array
    scales: jax.Array


class QuantizedDeltaState(NamedTuple):
    """State of `quantized_delta`: number of messages sent, and the rounding error not yet sent."""

    count: jax.Array
    error: Slot


def checked_block_size(block_size: Any, name: str) -> int:
    """Check the number of elements that share a scale."""
    check_count(block_size, "block_size", name)
    return int(block_size)


class quantized_delta(Value):
    r"""Codec that compresses a client's parameter changes to 8-bit codes, with error feedback.

    .. math:: q = Q(\theta - \theta_k + e), \qquad e' = \theta - \theta_k + e - q

    `encode(params, start, state)` returns a message and the next state. The message is a quarter of
    the size of float32 params. The rounding error in the state is added to the next message (error
    feedback). The server calls `decode(message, start)`, which returns the client's params up to
    rounding, and passes them to `federated`. The codes are equal to the codes of `quantized_state`,
    with unbiased stochastic rounding. A client that participates only once uses a new state.

    Args:
        block_size: Maximum number of elements that share a scale. With 256, the scales add 4/256
            byte per number.

    Raises:
        ValueError: If `block_size` isn't at least 1; in `encode` and `decode`, if trees differ.

    Example:
        >>> from fnopt import distributed
        >>> codec = distributed.quantized_delta()
        >>> start = {"w": jnp.zeros(1024)}
        >>> message, state = codec.encode({"w": jnp.arange(1024.0)}, start, codec.init(start))
        >>> sum(x.nbytes for x in jax.tree.leaves(message))
        1040
        >>> decoded = codec.decode(message, start)["w"]
        >>> bool(jnp.allclose(decoded - state.error["w"], jnp.arange(1024.0)))
        True

    Reference:
        Seide et al., 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy et al., 2019,
        arXiv:1901.09847; Dettmers et al., 2021, arXiv:2110.02861.
    """

    block_size: int = static(default=256)

    def __post_init__(self) -> None:
        self._set("block_size", checked_block_size(self.block_size, "quantized_delta"))
        super().__post_init__()

    def init(self, params: Any) -> QuantizedDeltaState:
        """Make a state with a zero count and zero rounding errors."""
        return QuantizedDeltaState(zero_count(), slot_zeros(params))

    def encode(
        self, params: Any, start: Any, state: QuantizedDeltaState
    ) -> tuple[Any, QuantizedDeltaState]:
        """Encode the message of a client.

        Args:
            params: The params of the client.
            start: The params of the server at the start of the round.
            state: The result of `init` or of the last `encode`.

        Returns:
            A tree whose leaves are `Codes`, and the next state.

        Raises:
            ValueError: If the structure or shapes of `params` and `start` differ.
        """
        check_inexact(start, "params of the server")
        check_same_tree(params, start, "params of the client", "params of the server")

        def encode_leaf(p: Any, x: Any, e: jax.Array) -> tuple[Codes, jax.Array]:
            # Error feedback: this message includes the rounding error of the last message.
            change = as_pairs(_cast(p, e.dtype) - _cast(x, e.dtype) + e)
            codes = Codes(*encode(change, SIGNED, self.block_size, state.count))
            return codes, from_pairs(change - self._decoded(codes), e.dtype)

        leaves, treedef = jax.tree.flatten(start)
        trees = jax.tree.leaves(params), jax.tree.leaves(state.error)
        pairs = [encode_leaf(p, x, e) for p, x, e in zip(leaves, *trees, strict=True)]
        message, error = (treedef.unflatten([pair[i] for pair in pairs]) for i in (0, 1))
        return message, QuantizedDeltaState(safe_increment(state.count), error)

    def decode(self, message: Any, start: Any) -> Any:
        """Decode the params of a client.

        Args:
            message: The result of `encode`; its arrays may be NumPy arrays.
            start: The params of the server at the start of the round.

        Returns:
            A tree like `start`.

        Raises:
                ValueError: If the message doesn't match `start`; the error names the leaf.
        """
        named_params, treedef = leaves_with_names(start)
        arrays = jax.tree.leaves(message)
        if len(arrays) != 2 * len(named_params):
            raise ValueError(
                f"quantized_delta: the message has {count_text(len(arrays), 'array')}, expected "
                f"{2 * len(named_params)}, the codes and scales of "
                f"{count_text(len(named_params), 'leaf', 'leaves')}. Pass as `start` the same "
                "params as in `encode`."
            )

        def decode_leaf(name: str, p: Any, codes: Any, scales: Any) -> jax.Array:
            dtype = compute_dtype(jnp.result_type(p))
            expected = jax.eval_shape(as_pairs, jax.ShapeDtypeStruct(jnp.shape(p), dtype)).shape
            if jnp.shape(codes) != expected or codes.dtype != jnp.uint8:
                raise ValueError(
                    f"quantized_delta: {leaf_text(name)} of the message is {codes.dtype} of shape "
                    f"{jnp.shape(codes)}, expected uint8 of shape {expected}. Pass as `start` the "
                    "same params as in `encode`."
                )
            change = from_pairs(
                self._decoded(Codes(jnp.asarray(codes), jnp.asarray(scales))), dtype
            )
            return (_cast(p, dtype) - change).astype(jnp.result_type(p))

        # One iterator twice, so that `zip` takes pairs of codes and scales.
        codes = [iter(arrays)] * 2
        return treedef.unflatten(
            [
                decode_leaf(name, p, c, s)
                for (name, p), c, s in zip(named_params, *codes, strict=True)
            ]
        )

    def _decoded(self, leaf: Codes) -> jax.Array:
        return decode(*leaf, SIGNED, self.block_size)


def _cast(x: Any, dtype: Any) -> jax.Array:
    return jnp.asarray(x).astype(dtype)
