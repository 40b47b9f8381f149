"""Functions of a batch, evaluated on microbatches to save memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import check_batch, check_choice, check_count, leaves_with_names
from fnopt.numerics import scan_chunks, wide_dtype
from fnopt.sharding import replicate, replicate_for_batch, reshard_like, use_mesh_of

_RULES = ("sum", "mean", "concat")
_SHARED = "List the batched arguments in argnums and argnames. Other arguments are passed unsplit."


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = "sum",
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int = 0,
) -> Callable[..., Any]:
    r"""Apply a function of a batch to microbatches in a loop and combine the results.

    .. math:: f(x_1, \ldots, x_B) = \sum_k f(x_{(k-1)m+1}, \ldots, x_{km})

    The memory use is the memory for :math:`m` examples. The last microbatch may be smaller.

    Args:
        fun: A function of a batch whose results are sums, means or stacked arrays over the
            examples.
        argnums: The batched positional arguments.
        microbatch_size: :math:`m`, the number of examples in a microbatch; None for the whole
            batch.
        accumulator: `'sum'` over the microbatches, `'mean'` weighted by their sizes, or `'concat'`
            along the first axis, in the order of the examples. One accumulator applies to all
            results; a tree of accumulators must be a prefix of the results.
        argnames: The batched keyword arguments.
        in_axes: The axis of the examples.

    Returns:
        A function with the signature of `fun`.

    Raises:
        ValueError: If the batched arguments have different sizes, or the accumulator is unknown.
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
    positions = {argnums} if isinstance(argnums, int) else {*argnums}
    names = {argnames} if isinstance(argnames, str) else {*argnames}

    def run_microbatches(*args: Any, **kwargs: Any) -> Any:
        indices, keywords = sorted({i % len(args) for i in positions}), names & kwargs.keys()
        batch = [args[i] for i in indices], {k: kwargs[k] for k in sorted(keywords)}
        batch = jax.tree.map(lambda x: jnp.moveaxis(jnp.asarray(x), in_axes, 0), batch)
        size = check_batch(leaves_with_names(batch)[0], "microbatch", _SHARED)

        def call(part: Any) -> Any:
            batch_args, batch_kwargs = jax.tree.map(lambda x: jnp.moveaxis(x, 0, in_axes), part)
            call_args = list(args)
            for i, x in zip(indices, batch_args, strict=True):
                call_args[i] = x
            return fun(*call_args, **{**kwargs, **batch_kwargs})

        with use_mesh_of(args, kwargs):
            return _accumulate(call, batch, size, microbatch_size, accumulator)

    return run_microbatches


def _accumulate(call: Any, batch: Any, size: int, part_size: int | None, rule: Any) -> Any:
    """Combine the results of microbatches by a scan.

    Sums and means are accumulated in the carry. Concatenated results are the outputs of the scan.
    """
    # The shapes of sums don't depend on the batch size, so that one example suffices.
    example = jax.eval_shape(lambda b: jax.tree.map(lambda x: replicate(x, 0)[:1], b), batch)
    leaves, treedef = jax.tree.flatten(jax.eval_shape(call, example))
    rules = _rule_by_leaf(rule, treedef.unflatten(leaves))
    # Long sums lose digits in 16-bit dtypes.
    zeros = [
        reshard_like(jnp.zeros(x.shape, wide_dtype(x.dtype)), x)
        for x in _summed_leaves(leaves, rules)
    ]

    def accumulate_part(sums: Any, part: Any) -> Any:
        results = treedef.flatten_up_to(call(part))
        # The last part may be smaller, so means are weighted by the number of examples.
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
    """Select the leaves that are summed or averaged."""
    return [x for x, rule in zip(leaves, rules, strict=True) if rule != "concat"]


def _rule_by_leaf(rule: Any, results: Any) -> list[str]:
    lists = jax.tree.map(lambda r, part: [r] * len(jax.tree.leaves(part)), rule, results)
    rules = [r for rs in jax.tree.leaves(lists, is_leaf=lambda x: isinstance(x, list)) for r in rs]
    for r, x in zip(rules, jax.tree.leaves(results), strict=True):
        if r == "mean" and not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(
                f"microbatch: a result is {x.dtype}, expected a float dtype for 'mean'. Use the "
                "accumulator 'sum' for this result."
            )
    return rules


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: int = 0,
    *,
    microbatch_size: int | None = None,
) -> Callable[..., Any]:
    """Apply `jax.vmap` to chunks of a few examples in a loop.

    Args:
        fun: A function of one example.
        in_axes: The axis of the examples: an int for all arguments, or a sequence with one entry
            per argument, `None` for shared arguments.
        out_axes: The axis of the examples in the results.
        microbatch_size: Number of examples to process at once; None for all.

    Returns:
        A function of a batch.

    Raises:
        ValueError: If the batched arguments have different sizes.

    Example:
        >>> import fnopt
        >>> squares = fnopt.micro_vmap(lambda x: x @ x, microbatch_size=2)
        >>> squares(jnp.arange(6.0).reshape(3, 2))
        Array([ 1., 13., 41.], dtype=float32)
    """

    def run_chunks(*args: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)
        batch_argnums = [i for i, axis in enumerate(axes) if axis is not None]
        moved_args = [
            x if a is None else jax.tree.map(lambda leaf, a=a: jnp.moveaxis(leaf, a, 0), x)
            for x, a in zip(args, axes, strict=True)
        ]
        batch = [moved_args[i] for i in batch_argnums]
        # `vmap` rejects shared arguments that are sharded over the mesh axis of the examples.
        moved_args = [
            x if i in batch_argnums else replicate_for_batch(x, batch)
            for i, x in enumerate(moved_args)
        ]
        vmapped = jax.vmap(fun, in_axes=tuple(None if a is None else 0 for a in axes))
        results = microbatch(vmapped, batch_argnums, microbatch_size, "concat")(*moved_args)
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, out_axes), results)

    return run_chunks
