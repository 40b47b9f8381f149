"""Leaf by leaf arithmetic over trees that belong together, with errors that name the leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core._dtypes import compute_dtype, is_inexact, real_dtype
from fnopt.core._errors import listing, where
from fnopt.core._paths import leaves_with_names, shown

_WRT_HINT = (
    "Was the gradient taken with respect to the params (see argnums of jax.grad), and is the "
    "state from init(params) of these params?"
)


def _describe(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(jnp.shape(leaf))}"
    return type(leaf).__name__


def check_inexact(tree: Any, what: str) -> None:
    """Raises a TypeError that names the first leaf which is not a floating or complex array."""
    for path, leaf in leaves_with_names(tree)[0]:
        if is_inexact(leaf):
            continue
        raise TypeError(
            f"{where()}{what}: {shown(path)} is {_describe(leaf)}, expected a floating array. "
            "Freeze such leaves with fnopt.freeze or fnopt.partition, or filter them out of the "
            "tree first (Equinox: eqx.filter(model, eqx.is_inexact_array))."
        )


def check_same_tree(tree: Any, other: Any, what: str, other_what: str) -> None:
    """Raises a ValueError where two trees differ in structure, or leaves in shape."""
    mine, treedef = leaves_with_names(tree)
    theirs, other_treedef = leaves_with_names(other)
    if treedef != other_treedef:
        raise ValueError(_structure_message(mine, theirs, treedef, other_treedef, what, other_what))
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        if jnp.shape(a) != jnp.shape(b):
            raise ValueError(
                f"{where()}{shown(path)}: {what} have shape {jnp.shape(a)}, "
                f"{other_what} have shape {jnp.shape(b)}, expected the same. {_WRT_HINT}"
            )


def _structure_message(
    mine: list[tuple[str, Any]],
    theirs: list[tuple[str, Any]],
    treedef: Any,
    other_treedef: Any,
    what: str,
    other_what: str,
) -> str:
    names, other_names = [p for p, _ in mine], [p for p, _ in theirs]
    extra = [p for p in names if p not in set(other_names)]
    lacking = [p for p in other_names if p not in set(names)]
    text = f"{where()}the tree of {what} does not match that of {other_what}: "
    if lacking:
        text += f"{what} lack {listing(lacking)}; "
    if extra:
        text += f"{what} have {listing(extra)}, which {other_what} lack; "
    if not (lacking or extra):
        text += f"{what} are {treedef}, {other_what} are {other_treedef}; "
    return text + f"expected the same tree. {_WRT_HINT}"


def _cast(x: Any, dtype: Any) -> jax.Array:
    """Casts to the compute dtype; a real leaf stays real where others are complex."""
    x = jnp.asarray(x)
    return x.astype(dtype if jnp.iscomplexobj(x) else real_dtype(dtype))


def map_leaves(
    fn: Callable[..., Any], updates: Any, *, hyper: Any = None, outputs: int = 1, **slots: Any
) -> Any:
    """Applies a function to every leaf of `updates` and to its companions in other trees.

    It is where precision is decided: all operands of a leaf are cast to their `compute_dtype`
    first (bfloat16 and float16 to float32), results go back to the dtype that they came from.

    Args:
        fn: `fn(u, *companions)`, or `fn(h, u, *companions)` if `hyper` is given: arrays in the
            compute dtype, in the order of the keyword arguments.
        updates: A tree of floating arrays; `None` leaves are skipped.
        hyper: A value whose numeric leaves are cast to the (real) compute dtype of each leaf and
            passed as first argument.
        outputs: How many arrays `fn` returns. The first goes back to the dtype of the update, the
            next ones to those of the companions, in order.
        **slots: Trees that match `updates` leaf by leaf; the keyword is their name in errors.

    Returns:
        A tree like `updates` if `outputs` is 1, else a tuple of trees.

    Raises:
        TypeError: If an update isn't floating; the message names the leaf.
        ValueError: If a companion tree has another structure, or a leaf another shape, or a number
            of `hyper` isn't a scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.core import map_leaves
        >>> trace = {"w": jnp.ones(2)}
        >>> map_leaves(lambda g, m: 0.9 * m + g, {"w": jnp.ones(2)}, trace=trace)
        {'w': Array([1.9, 1.9], dtype=float32)}
    """
    check_inexact(updates, "gradients")
    _check_scalars(hyper)
    leaves, treedef = jax.tree.flatten(updates)
    for name, tree in slots.items():
        check_same_tree(updates, tree, "gradients", name)
    columns = [leaves, *(jax.tree.leaves(tree) for tree in slots.values())]
    rows = [_map_row(fn, row, hyper, outputs) for row in zip(*columns, strict=True)]
    trees = tuple(jax.tree.unflatten(treedef, [row[i] for row in rows]) for i in range(outputs))
    return trees[0] if outputs == 1 else trees


def _check_scalars(hyper: Any) -> None:
    """A stacked optimizer outside `vmap` would broadcast its numbers against the gradients."""
    for path, x in leaves_with_names(hyper)[0]:
        if jnp.ndim(x) != 0:
            raise ValueError(
                f"{where()}{path} has shape {jnp.shape(x)}, expected a scalar. A stack of "
                "optimizers is used under jax.vmap: jax.vmap(train)(optimizers)."
            )


def _map_row(fn: Callable[..., Any], row: tuple[Any, ...], hyper: Any, outputs: int) -> Any:
    dtypes = [jnp.result_type(x) for x in row]
    dtype = compute_dtype(*dtypes)
    args = [_cast(x, dtype) for x in row]
    if hyper is not None:
        args.insert(0, jax.tree.map(lambda x: jnp.asarray(x, real_dtype(dtype)), hyper))
    out = fn(*args)
    out = (out,) if outputs == 1 else out
    assert len(out) == outputs <= len(dtypes)
    return tuple(x.astype(dt) for x, dt in zip(out, dtypes, strict=False))


def slot_zeros(params: Any, dtype: Any = None, *, fill: Any = 0.0, real: bool = False) -> Any:
    """A fresh slot: a tree like `params`, filled with one value.

    Args:
        params: A tree of floating arrays (abstract ones too).
        dtype: The storage dtype; by default that of each leaf, but at least float32, because slow
            averages lose their increments in 16 bits.
        fill: The value to start from, a scalar.
        real: Whether complex leaves get a real slot (second moments).

    Returns:
        A tree of strongly typed arrays, sharded like `params`.

    Raises:
        TypeError: If a leaf isn't floating; the message names it.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.core import slot_zeros
        >>> slot_zeros({"w": jnp.ones(2, jnp.bfloat16)})
        {'w': Array([0., 0.], dtype=float32)}
    """
    check_inexact(params, "params")

    def one(p: Any) -> jax.Array:
        slot_dtype = dtype or compute_dtype(jnp.result_type(p))
        slot_dtype = real_dtype(slot_dtype) if real else slot_dtype
        return jnp.full_like(p, jnp.asarray(fill, slot_dtype), dtype=slot_dtype)

    return jax.tree.map(one, params)
