"""Functions of a batch, a part of it at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.interop.optax_api._accumulate import as_accumulator
from fnopt.interop.optax_api._types import AccumulationType


def reshape_batch_axis(tree: Any, microbatch_size: int, axis: int = 0) -> Any:
    """Arrays whose axis of examples is cut into an axis of parts and one of their examples.

    Neighbours go to different parts: part `i` has every `k`-th example from the `i`-th on.
    """

    def reshape_leaf(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        new = (*x.shape[:axis], microbatch_size, -1, *x.shape[axis + 1 :])
        return jnp.swapaxes(x.reshape(new), axis, axis + 1)

    return jax.tree.map(reshape_leaf, tree)


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """A function of a batch that is called on one part of it after another.

    `fnopt.microbatch` has fewer rules, and takes batches of any size.

    Args:
        fun: The function.
        argnums: Which arguments have an axis of examples.
        microbatch_size: How many examples a part has; it divides their number. None for all.
        accumulator: An `AccumulationType`, an `Accumulator`, or a tree of these that is a prefix
            of the results.
        argnames: Which keyword arguments have one.
        in_axes: That axis, for all or for each of `argnums` and then of `argnames`.
        num_real_microbatches: How many parts are computed, where not all; it may be traced.
    """
    if microbatch_size is None:
        return fun
    places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    given = (in_axes,) * len((*places, *names)) if isinstance(in_axes, int) else tuple(in_axes)
    axes = dict(zip((*places, *names), given, strict=True))

    def accumulated(*args: Any, **kwargs: Any) -> Any:
        every = {**dict(enumerate(args)), **kwargs}
        parts, cut = _cut({key: every[key] for key in axes}, axes, microbatch_size)

        def call_on_part(i: Any) -> Any:
            own = {key: _part_at(tree, i, axes[key]) for key, tree in cut.items()}
            some = [own.get(n, arg) for n, arg in enumerate(args)]
            return fun(*some, **{key: own.get(key, value) for key, value in kwargs.items()})

        like = jax.eval_shape(call_on_part, 0)
        rules = jax.tree.map(
            lambda rule, tree: as_accumulator(rule, parts, tree), accumulator, like
        )

        def step(i: Any, carry: Any) -> Any:
            return jax.tree.map(lambda a, c, y: a.update(c, y, i), rules, carry, call_on_part(i))

        start = jax.tree.map(lambda a, tree: a.init(tree), rules, like)
        count = parts if num_real_microbatches is None else num_real_microbatches
        end = jax.lax.fori_loop(0, count, step, start)
        return jax.tree.map(lambda a, carry: a.finalize(carry), rules, end)

    return accumulated


def _cut(trees: dict[Any, Any], axes: dict[Any, int], size: int) -> tuple[int, dict[Any, Any]]:
    """Number of microbatches, and the arguments with an axis of microbatches."""
    found = {x.shape[axes[key]] for key, tree in trees.items() for x in jax.tree.leaves(tree)}
    if len(found) != 1:
        raise ValueError(f"microbatch: arguments with {sorted(found)} examples, expected one size.")
    (n,) = found
    if n % size:
        raise ValueError(
            f"microbatch: {n} examples are not divisible by microbatch_size = {size}. "
            "fnopt.microbatch takes a last part that is smaller."
        )
    cut = {key: reshape_batch_axis(tree, size, axes[key]) for key, tree in trees.items()}
    return n // size, cut


def _part_at(tree: Any, i: Any, axis: int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, axis, keepdims=False), tree)
