"""Evaluation of a function of a batch on a few examples at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import check_batch, check_choice, check_count, leaves_with_names
from fnopt.numerics import scan_chunks, wide_dtype
from fnopt.sharding import replicate, replicate_for_batch, reshard_like, use_mesh_of

_RULES = ("sum", "mean", "concat")
_SHARED = "List the arguments to split in argnums and argnames: all others are passed unsplit."


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = "sum",
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int = 0,
) -> Callable[..., Any]:
    r"""Apply a function of a batch to microbatches, one after the other, and combine the results.

    .. math:: f(x_1, \ldots, x_B) = \sum_k f(x_{(k-1)m+1}, \ldots, x_{km})

    The microbatches run in a loop, so the memory use is the memory for :math:`m` examples. The last
    microbatch may be smaller.

    Args:
        fun: A function of a batch whose results are sums, means or stacked arrays over the
            examples.
        argnums: The batched positional arguments.
        microbatch_size: :math:`m`, the number of examples in a microbatch; None for the whole
            batch.
        accumulator: `'sum'` over the microbatches, `'mean'` weighted by their sizes, or `'concat'`
            along the first axis, in the order of the examples. A single accumulator for all
            results, or a tree of accumulators that is a prefix of the results.
        argnames: The batched keyword arguments.
        in_axes: The axis of the examples.

    Returns:
        A function with the signature of `fun`.

    Raises:
        ValueError: If the batched arguments disagree in size, or the accumulator is unknown.
        TypeError: If the accumulator of an integer is `'mean'`.

    Example:
        >>> import fnopt
        >>> def total(w, x):
        ...     return jnp.sum((x @ w) ** 2)
        >>> grad = fnopt.microbatch(jax.grad(total), 1, microbatch_size=2)
        >>> grad(jnp.ones(2), jnp.arange(6.0).reshape(3, 2))
        Array([ 92., 122.], dtype=float32)
    """
    if microbatch_size is not None:
        check_count(microbatch_size, "microbatch_size", "microbatch")
    for rule in jax.tree.leaves(accumulator):
        check_choice(rule, _RULES, "accumulator", "microbatch")
    places = {argnums} if isinstance(argnums, int) else {*argnums}
    names = {argnames} if isinstance(argnames, str) else {*argnames}

    def accumulated(*args: Any, **kwargs: Any) -> Any:
        chosen = {i % len(args) for i in places}, names & kwargs.keys()
        batch = [args[i] for i in sorted(chosen[0])], {k: kwargs[k] for k in sorted(chosen[1])}
        batch = jax.tree.map(lambda x: jnp.moveaxis(jnp.asarray(x), in_axes, 0), batch)
        size = check_batch(leaves_with_names(batch)[0], "microbatch", _SHARED)

        def call(part: Any) -> Any:
            some, named = jax.tree.map(lambda x: jnp.moveaxis(x, 0, in_axes), part)
            given = list(args)
            for i, x in zip(sorted(chosen[0]), some, strict=True):
                given[i] = x
            return fun(*given, **{**kwargs, **named})

        with use_mesh_of(args, kwargs):
            return _accumulate(call, batch, size, microbatch_size, accumulator)

    return accumulated


def _accumulate(call: Any, batch: Any, size: int, part_size: int | None, rule: Any) -> Any:
    """Combine the results of microbatches: sums and means in the carry, other results stacked."""
    # One example suffices for shapes; concatenated results get their shapes from the microbatches.
    one = jax.eval_shape(lambda b: jax.tree.map(lambda x: replicate(x, 0)[:1], b), batch)
    leaves, treedef = jax.tree.flatten(jax.eval_shape(call, one))
    rules = _rule_by_leaf(rule, treedef.unflatten(leaves))
    # Sums of 16-bit numbers over many parts are accumulated in float32.
    zeros = [
        reshard_like(jnp.zeros(x.shape, wide_dtype(x.dtype)), x)
        for x in _summed_leaves(leaves, rules)
    ]

    def accumulate_part(sums: Any, part: Any) -> Any:
        results = treedef.flatten_up_to(call(part))
        # The last part may be smaller, so a mean is weighted by the number of its examples.
        weight = {"sum": 1, "mean": jax.tree.leaves(part)[0].shape[0] / size}
        kinds = [r for r in rules if r != "concat"]
        terms = zip(sums, _summed_leaves(results, rules), kinds, strict=True)
        sums = [s + jnp.asarray(x).astype(s.dtype) * weight[kind] for s, x, kind in terms]
        return sums, [x for x, r in zip(results, rules, strict=True) if r == "concat"]

    sums, lists = scan_chunks(accumulate_part, zeros, batch, size, part_size)
    sums, lists = iter(sums), iter(lists)
    merged = [
        next(lists) if r == "concat" else next(sums).astype(x.dtype)
        for x, r in zip(leaves, rules, strict=True)
    ]
    return treedef.unflatten(merged)


def _summed_leaves(leaves: list[Any], rules: list[str]) -> list[Any]:
    """Leaves that are summed, not concatenated."""
    return [x for x, rule in zip(leaves, rules, strict=True) if rule != "concat"]


def _rule_by_leaf(rule: Any, results: Any) -> list[str]:
    rules = jax.tree.map(lambda r, part: [r] * len(jax.tree.leaves(part)), rule, results)
    found = [r for rs in jax.tree.leaves(rules, is_leaf=lambda x: isinstance(x, list)) for r in rs]
    for r, x in zip(found, jax.tree.leaves(results), strict=True):
        if r == "mean" and not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(
                f"microbatch: a result is {x.dtype}, expected floats for 'mean'. Use 'sum' for it."
            )
    return found


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: int = 0,
    *,
    microbatch_size: int | None = None,
) -> Callable[..., Any]:
    """Apply `jax.vmap` in chunks of a few examples.

    Args:
        fun: A function of one example.
        in_axes: The axis of the examples, an int for all arguments or a sequence with None for
            shared arguments.
        out_axes: The axis of the examples in the results.
        microbatch_size: Number of examples at once; None for all.

    Returns:
        A function of a batch.

    Raises:
        ValueError: If batched arguments disagree in size.

    Example:
        >>> import fnopt
        >>> squares = fnopt.micro_vmap(lambda x: x @ x, microbatch_size=2)
        >>> squares(jnp.arange(6.0).reshape(3, 2))
        Array([ 1., 13., 41.], dtype=float32)
    """

    def mapped(*args: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)
        batched = [i for i, axis in enumerate(axes) if axis is not None]
        front = [
            x if a is None else jax.tree.map(lambda leaf, a=a: jnp.moveaxis(leaf, a, 0), x)
            for x, a in zip(args, axes, strict=True)
        ]
        batch = [front[i] for i in batched]
        front = [x if i in batched else replicate_for_batch(x, batch) for i, x in enumerate(front)]
        each = jax.vmap(fun, in_axes=tuple(None if a is None else 0 for a in axes))
        results = microbatch(each, batched, microbatch_size, "concat")(*front)
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, out_axes), results)

    return mapped
