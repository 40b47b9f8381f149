"""The user's loss of one example: checks, and binding to the arguments of a call."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.errors import (
    accepts_args,
    check_batch,
    check_key,
    check_number,
    check_params,
    check_returned,
    count_text,
    explain_example_errors,
    leaf_text,
    leaves_with_names,
    type_text,
)
from fnopt.sharding import pvary_like, replicate_for_batch, use_mesh_of

PASS_BY_KEYWORD = (
    "Pass what all examples share by keyword, or list the batched arguments in batch_argnums."
)


def check_not_empty(params: Any, name: str) -> None:
    """Check that the parameters contain an array."""
    if not jax.tree.leaves(params):
        raise ValueError(f"{name}: the params contain no array, expected at least one array.")


def check_weights(weights: Any, size: int, name: str) -> jax.Array:
    """Check that weights are real and have the shape `[size]`."""
    if getattr(weights, "shape", None) != (size,):
        raise ValueError(
            f"{name}: weights are {type_text(weights)}, expected shape ({size},): one weight per "
            "example. Pass the weights as the last positional argument, after the batch."
        )
    if jnp.issubdtype(weights.dtype, jnp.complexfloating) or not (
        jnp.issubdtype(weights.dtype, jnp.number) or weights.dtype == jnp.bool_
    ):
        raise TypeError(f"{name}: weights are {type_text(weights)}, expected real numbers.")
    return jnp.asarray(weights)


def check_clip_norm(clip_norm: Any, name: str) -> None:
    """Check that a clipping norm is one positive number; the values of tracers aren't checked."""
    check_number(clip_norm, "clip_norm", name)
    if not isinstance(clip_norm, Tracer) and not clip_norm > 0:
        raise ValueError(f"{name}: clip_norm is {clip_norm}, expected a positive number.")


def fold_in_step(key: Any, step: Any, name: str) -> Any:
    """Fold the step into a key; a step of `None` leaves the key unchanged."""
    if step is None:
        return key
    step = jnp.asarray(step)
    if step.shape != () or not jnp.issubdtype(step.dtype, jnp.integer):
        # A float step is rounded, so two large steps could get the same key.
        raise TypeError(f"{name}: the argument `step` is {type_text(step)}, expected one integer.")
    return jax.random.fold_in(key, step.astype(jnp.uint32))


def check_example_loss(output: Any, has_aux: bool, name: str) -> tuple[jax.Array, Any]:
    """Check the result of a loss and convert it to `(value, aux)`."""
    if has_aux and not (isinstance(output, tuple) and len(output) == 2):
        raise TypeError(
            f"{name}: the loss returned {type_text(output)}, expected a pair (value, aux), because "
            "has_aux=True."
        )
    value, aux = output if has_aux else (output, None)
    if not isinstance(value, (int, float)) and not hasattr(value, "dtype"):
        hint = " Pass has_aux=True if it returns (value, aux)." if isinstance(value, tuple) else ""
        raise TypeError(
            f"{name}: the loss returned {type_text(value)}, expected one floating scalar.{hint}"
        )
    # A loss may return a Python number, for example 0.0 if no term applies to the example.
    value = jnp.asarray(value)
    if value.shape:
        raise TypeError(
            f"{name}: the loss of ONE example returned {type_text(value)}, expected a scalar. "
            "Write the loss for a single example, without the batch axis, and sum over the axes "
            "of the example (time, pixels). fnopt maps the loss over the batch."
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{name}: the loss returned {type_text(value)}, expected a real float.")
    check_returned(aux, f"{name}: the aux of the loss")
    return value, aux


class BoundLoss(NamedTuple):
    """A loss bound to the arguments of a call.

    Attributes:
        loss: Function `(params, example) -> (value, aux)` that closes over the shared arguments.
        params: A tuple of the differentiated arguments.
        batch: A tree; every leaf has a leading axis of `size` examples.
        size: Number of examples.
        given: The user's params before replication, which set the dtypes and shardings of sums.
    """

    loss: Callable[[Any, Any], tuple[jax.Array, Any]]
    params: tuple[Any, ...]
    batch: Any
    size: int
    given: tuple[Any, ...]

    def mesh_context(self) -> AbstractContextManager[None]:
        """Context of the mesh that shards the params or the batch, if any."""
        return use_mesh_of(self.given, self.batch)


@dataclasses.dataclass(frozen=True)
class ExampleLoss:
    """A loss of one example, with its differentiated, batched and shared arguments.

    Attributes:
        fn: The loss of ONE example.
        argnums: The arguments to differentiate, as in `jax.grad`.
        batch_argnums: The arguments with a leading example axis; `None` for all arguments after the
            last differentiated argument.
        has_aux: Whether `fn` returns `(value, aux)`.
        name: The public function that the user called, for messages.
    """

    fn: Callable[..., Any]
    argnums: int | Sequence[int]
    batch_argnums: int | Sequence[int] | None
    has_aux: bool
    name: str

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(
                f"{self.name}: the loss is {type(self.fn).__name__}, expected a function "
                "loss_fn(params, example)."
            )

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any, axis_name: Any = None
    ) -> BoundLoss:
        """Check the arguments of a call and split them into params, batch and shared arguments.

        Args:
            args: The positional arguments.
            kwargs: Arguments shared by all examples.
            key: A PRNG key, from which the keys of the examples are derived, or `None`.
            axis_name: The named axis along which the batch is sharded, if any.
        """
        argnums, batch_argnums = self._positions(len(args))
        user_params = tuple(args[i] for i in argnums)
        batch = tuple(args[i] for i in batch_argnums)
        check_params(named_leaves({i: args[i] for i in argnums}), self.name)
        leaves = named_leaves({i: args[i] for i in batch_argnums})
        size = check_batch(leaves, self.name, PASS_BY_KEYWORD)
        keys = None
        # Without this check, a forgotten key would raise an error inside the user's loss.
        if key is None:
            self._check_key_given(args, kwargs)
        else:
            keys = _example_keys(check_key(key, self.name), size, axis_name)
        positions = (*argnums, *batch_argnums)
        shared = tuple(None if i in positions else arg for i, arg in enumerate(args))
        with use_mesh_of(user_params, batch):
            params, shared, kwargs = replicate_for_batch((user_params, shared, kwargs), batch)
        # Inside shard_map, JAX sums the derivative with respect to an unvarying value over devices.
        # The gradients must cover this device's examples only.
        params = pvary_like(params, (args, kwargs, key))

        fn, name, has_aux = functools.partial(self.fn, **kwargs), self.name, self.has_aux

        def loss(params: tuple[Any, ...], example: Any) -> tuple[jax.Array, Any]:
            batched, example_key = example
            call_args = [*shared]
            for i, value in zip(positions, (*params, *batched), strict=True):
                call_args[i] = value
            key_kwarg = {} if example_key is None else {"key": example_key}
            with explain_example_errors(name, batched, params[0]):
                output = fn(*call_args, **key_kwarg)
            return check_example_loss(output, has_aux, name)

        return BoundLoss(loss, params, (batch, keys), size, user_params)

    def _check_key_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not accepts_args(self.fn, *args, **kwargs) and accepts_args(
            self.fn, *args, **kwargs, key=None
        ):
            raise TypeError(
                f"{self.name}: key is None, expected a PRNG key, because the loss takes a key. "
                "Call it as (params, batch, key=jax.random.key(seed)). Every example gets a key "
                "derived from this key."
            )

    def batch_of(self, args: tuple[Any, ...]) -> Any:
        """Batched argument, or a tuple of several batched arguments, as in `with_batch`."""
        batch = tuple(args[i] for i in self._positions(len(args))[1])
        return batch[0] if len(batch) == 1 else batch

    def with_batch(self, args: tuple[Any, ...], batch: Any) -> tuple[Any, ...]:
        """Replace the batched arguments by `batch`, a tuple if several arguments are batched."""
        _, positions = self._positions(len(args))
        batched = (batch,) if len(positions) == 1 else batch
        if not isinstance(batched, tuple) or len(batched) != len(positions):
            raise TypeError(
                f"{self.name}: the argument `other` is {type_text(batch)}, expected a tuple of the "
                f"{len(positions)} batched arguments."
            )
        new_args = list(args)
        for i, value in zip(positions, batched, strict=True):
            new_args[i] = value
        return tuple(new_args)

    def like_argnums(self, grads: tuple[Any, ...]) -> Any:
        """Return the gradients as in `jax.grad`: a tuple only if `argnums` is a sequence."""
        return grads[0] if isinstance(self.argnums, int) else grads

    def outputs(self, losses: Any, aux: Any, grads: tuple[Any, ...], with_value: bool) -> Any:
        """Return the results in the form of `jax.grad` or `jax.value_and_grad`."""
        gradient = self.like_argnums(grads)
        if with_value:
            return ((losses, aux) if self.has_aux else losses), gradient
        return (gradient, aux) if self.has_aux else gradient

    def _positions(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        argnums = self._normalize_positions("argnums", self.argnums, count)
        if self.batch_argnums is None:
            batch_argnums = tuple(range(max(argnums) + 1, count))
        else:
            batch_argnums = self._normalize_positions("batch_argnums", self.batch_argnums, count)
        if not batch_argnums:
            raise TypeError(
                f"{self.name}: got {count_text(count, 'positional argument')} and no batch, "
                "expected (params, batch, ...). Arguments after the last of argnums are batched; "
                "to change this, list the batched arguments in batch_argnums."
            )
        if common := sorted({*argnums} & {*batch_argnums}):
            raise ValueError(
                f"{self.name}: argument {common[0]} is in argnums and in batch_argnums, expected "
                "different arguments. For a gradient with respect to the examples, use "
                "jax.vmap(jax.grad(loss_fn, ...))."
            )
        return argnums, batch_argnums

    def _normalize_positions(
        self, what: str, nums: int | Sequence[int], count: int
    ) -> tuple[int, ...]:
        nums = (nums,) if isinstance(nums, int) else tuple(nums)
        if not nums or any(not -count <= i < count for i in nums):
            raise ValueError(
                f"{self.name}: {what} is {nums}, expected indices of the "
                f"{count_text(count, 'positional argument')}. Keyword arguments are shared by all "
                "examples."
            )
        # Negative positions count from the end, as in `jax.grad`.
        positions = tuple(i % count for i in nums)
        if len({*positions}) < len(positions):
            raise ValueError(
                f"{self.name}: {what} is {nums}, which contains an argument twice; expected "
                "distinct indices."
            )
        return positions


def named_leaves(args: Mapping[int, Any]) -> list[tuple[str, Any]]:
    """Pairs of a name for error messages and a leaf, for all leaves of positional arguments."""
    return [
        (f"argument {i}, {leaf_text(path)}", leaf)
        for i, arg in args.items()
        for path, leaf in leaves_with_names(arg)[0]
    ]


def _example_keys(key: Any, size: int, axis_name: Any) -> jax.Array:
    # `fold_in` instead of `split`: an example's key depends only on its index in the batch.
    index = jnp.arange(size, dtype=jnp.uint32)
    if axis_name is not None:
        index += (size * jax.lax.axis_index(axis_name)).astype(jnp.uint32)
        key = pvary_like(key, index)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index)
