"""Evaluation of functions on microbatches, with optax's rules for the accumulation of results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import count_text
from fnopt.interop.optax_api._types import AccumulationType
from fnopt.numerics import wide_dtype


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """Rule for the accumulation of the results of microbatches.

    Args:
        init: `init(like)` returns the initial carry for a result with the shapes `like`.
        update: `update(carry, result, index)` returns the carry after a microbatch.
        finalize: `finalize(carry)` returns the final result.
        aggregate: `aggregate(results)` combines the stacked results of single examples.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


def as_accumulator(rule: Any, parts: Any, like: Any) -> Accumulator:
    """Convert a rule to an `Accumulator`.

    Args:
        rule: An `Accumulator`, an `AccumulationType`, or the name of one.
        parts: Number of microbatches.
        like: The shapes and dtypes of a microbatch's result.
    """
    if isinstance(rule, Accumulator):
        return rule
    rule = AccumulationType(rule)
    if rule == AccumulationType.CONCAT:
        return _leafwise(
            _empty_list(parts),
            lambda stack, y, i: stack.at[i].set(y),
            # Microbatch `i` of `k` has the examples `i`, `i + k`, ..., so that a transpose restores
            # the order of the batch.
            lambda stack: jnp.swapaxes(stack, 0, 1).reshape(-1, *stack.shape[2:]),
            lambda y: y,
        )
    means = rule in (AccumulationType.MEAN, AccumulationType.RUNNING_MEAN)
    if means and not all(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(like)):
        raise ValueError(
            "microbatch: got a result that isn't floating, expected a floating array for "
            f"{rule.value}. Accumulate this result by 'sum'."
        )
    wide = _leafwise(
        _wide_zeros,
        _update_mean
        if rule == AccumulationType.RUNNING_MEAN
        else lambda total, y, i: total + y.astype(total.dtype),
        lambda total: total / parts if rule == AccumulationType.MEAN else total,
        functools.partial(jnp.mean if means else jnp.sum, axis=0),
    )

    def narrow(carry: Any) -> Any:
        results = wide.finalize(carry)
        return jax.tree.map(lambda result, x: result.astype(x.dtype), results, like)

    return dataclasses.replace(wide, finalize=narrow)


def _leafwise(init: Any, update: Any, finalize: Any, aggregate: Any) -> Accumulator:
    """Extend a rule for one array to a tree of arrays."""
    tree_map = jax.tree.map
    return Accumulator(
        functools.partial(tree_map, init),
        lambda carry, results, i: tree_map(lambda c, y: update(c, y, i), carry, results),
        functools.partial(tree_map, finalize),
        functools.partial(tree_map, aggregate),
    )


def _wide_zeros(like: Any) -> jax.Array:
    """Zeros in at least float32, because long sums are inaccurate in 16 bits."""
    return jnp.zeros(like.shape, wide_dtype(like.dtype))


def _update_mean(mean: jax.Array, y: jax.Array, i: Any) -> jax.Array:
    return mean + (y.astype(mean.dtype) - mean) / jnp.asarray(i + 1, mean.dtype)


def _empty_list(parts: Any) -> Callable[[Any], jax.Array]:
    # `vmap` adds the axis of microbatches without changing the sharding of an explicit mesh.
    def stack(like: Any) -> jax.Array:
        zeros = functools.partial(jnp.zeros, like.shape, like.dtype, device=like.sharding)
        return jax.vmap(lambda _: zeros())(jnp.arange(parts))

    return stack


def reshape_batch_axis(tree: Any, microbatch_size: int, axis: int = 0) -> Any:
    """Split the example axis into an axis of microbatches and an axis of examples.

    Microbatch `i` of `k` contains the examples `i`, `i + k`, `i + 2 k`, ....
    """

    def reshape_leaf(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        shape = (*x.shape[:axis], microbatch_size, -1, *x.shape[axis + 1 :])
        return jnp.swapaxes(x.reshape(shape), axis, axis + 1)

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
    """Apply a function of a batch to microbatches in a loop and combine the results.

    `fnopt.microbatch` has fewer rules and accepts batches of any size.

    Args:
        fun: The function.
        argnums: The positions of the arguments with an example axis.
        microbatch_size: Number of examples per microbatch, a divisor of the batch size. None for
            the whole batch.
        accumulator: An `AccumulationType`, an `Accumulator`, or a tree of these that is a prefix
            of the results.
        argnames: The keyword arguments with an example axis.
        in_axes: The example axis: an int for all arguments, or a sequence with one axis for each of
            `argnums`, followed by `argnames`.
        num_real_microbatches: Number of microbatches to compute, by default all; may be traced.
    """
    if microbatch_size is None:
        return fun
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    keys = (*positions, *names)
    all_axes = (in_axes,) * len(keys) if isinstance(in_axes, int) else tuple(in_axes)
    axes = dict(zip(keys, all_axes, strict=True))

    def run_microbatches(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(enumerate(args)), **kwargs}
        parts, split = _split({key: arguments[key] for key in axes}, axes, microbatch_size)

        def call_on_part(i: Any) -> Any:
            part = {key: _part_at(tree, i, axes[key]) for key, tree in split.items()}
            part_args = [part.get(n, arg) for n, arg in enumerate(args)]
            return fun(*part_args, **{key: part.get(key, value) for key, value in kwargs.items()})

        like = jax.eval_shape(call_on_part, 0)
        rules = jax.tree.map(
            lambda rule, tree: as_accumulator(rule, parts, tree), accumulator, like
        )

        def step(i: Any, carry: Any) -> Any:
            return jax.tree.map(lambda a, c, y: a.update(c, y, i), rules, carry, call_on_part(i))

        start = jax.tree.map(lambda a, tree: a.init(tree), rules, like)
        count = parts if num_real_microbatches is None else num_real_microbatches
        # Not a scan, because `num_real_microbatches` may be traced.
        end = jax.lax.fori_loop(0, count, step, start)
        return jax.tree.map(lambda a, carry: a.finalize(carry), rules, end)

    return run_microbatches


def _split(trees: dict[Any, Any], axes: dict[Any, int], size: int) -> tuple[int, dict[Any, Any]]:
    """Split arguments into microbatches; return the number of microbatches and the arguments."""
    sizes = {x.shape[axes[key]] for key, tree in trees.items() for x in jax.tree.leaves(tree)}
    if len(sizes) != 1:
        raise ValueError(
            f"microbatch: the arguments have {sorted(sizes)} examples, expected the same number in "
            "all arguments."
        )
    (n,) = sizes
    if n % size:
        raise ValueError(
            f"microbatch: the batch has {count_text(n, 'example')}, expected a multiple of "
            f"microbatch_size = {size}. Use fnopt.microbatch, which allows a smaller last "
            "microbatch."
        )
    split = {key: reshape_batch_axis(tree, size, axes[key]) for key, tree in trees.items()}
    return n // size, split


def _part_at(tree: Any, i: Any, axis: int) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, axis, keepdims=False), tree)


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Any] = jax.vmap,
    accumulator: Any = AccumulationType.CONCAT,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """Apply `jax.vmap` to microbatches and accumulate the results by a rule.

    The example axis of keyword arguments is the first axis. See `microbatch`.
    """
    if out_axes != 0:
        raise NotImplementedError(f"micro_vmap: out_axes is {out_axes}, expected 0.")

    def run_microbatches(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)

        def map_and_merge(*args: Any, named: Any) -> Any:
            results = vmap_fn(lambda named, *args: fun(*args, **named), (0, *axes), 0)(named, *args)
            return jax.tree.map(
                lambda rule, tree: as_accumulator(rule, 1, tree).aggregate(tree),
                accumulator,
                results,
            )

        batched = {i: axis for i, axis in enumerate(axes) if axis is not None}
        return microbatch(
            map_and_merge,
            tuple(batched),
            microbatch_size,
            accumulator,
            argnames="named",
            in_axes=(*batched.values(), 0),
            num_real_microbatches=num_real_microbatches,
        )(*args, named=kwargs)

    return run_microbatches


class Aux(NamedTuple):
    """Values, metrics and auxiliary outputs of the examples, in the order of the batch."""

    values: Any
    metrics: Any
    aux: Any


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: Any = AccumulationType.SUM,
    transform_fn: Callable[[Any], Any] = lambda grads: grads,
    metrics_fn: Callable[[Any], Any] = lambda grads: None,
    num_real_microbatches: Any = None,
) -> Callable[..., tuple[Any, Aux]]:
    """Compute, transform and accumulate gradients of single examples.

    Use `fnopt.clipped_grad` or `fnopt.weighted_grad` where possible, because these functions don't
    form per-example gradients.

    Args:
        fun: A function of params and a batch.
        has_aux: Whether `fun` returns `(value, aux)`.
        argnums: The positional arguments to differentiate.
        batch_argnums: The positions of the arguments with an example axis.
        keep_batch_dim: Whether `fun` receives examples with an example axis of length 1.
        microbatch_size: Number of examples to process at once.
        accumulator: The rule that accumulates the results of `transform_fn`.
        transform_fn: A function of one example's gradient.
        metrics_fn: A function of one example's gradient that returns its metrics.
        num_real_microbatches: Number of microbatches to compute, by default all.

    Returns:
        A function with the arguments of `fun` that returns the gradients and an `Aux` with one
        entry per example.
    """
    batched = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    value_and_grad = jax.value_and_grad(fun, argnums, has_aux=has_aux)

    def grad_of_example(*args: Any, **kwargs: Any) -> Any:
        call_args = list(args)
        for i in batched if keep_batch_dim else ():
            call_args[i] = jax.tree.map(lambda x: x[None], call_args[i])
        value, grads = value_and_grad(*call_args, **kwargs)
        value, aux = value if has_aux else (value, None)
        return transform_fn(grads), Aux(value, metrics_fn(grads), aux)

    def grad_of_batch(*args: Any, **kwargs: Any) -> tuple[Any, Aux]:
        axes = [0 if i in batched else None for i in range(len(args))]
        rules = (accumulator, AccumulationType.CONCAT)
        return micro_vmap(
            grad_of_example,
            axes,
            microbatch_size=microbatch_size,
            accumulator=rules,
            num_real_microbatches=num_real_microbatches,
        )(*args, **kwargs)

    return grad_of_batch
