"""Leaf-wise arithmetic on trees, structure checks that name the leaf, and None gradients."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_flatten

from fnopt.core._apply import Params, is_pair_with
from fnopt.core._extra_args import translate_extra_args
from fnopt.core._rows import is_rows
from fnopt.errors import (
    EQUINOX_FILTER,
    check_inexact,
    differences,
    leaf_text,
    leaves_with_names,
    names_text,
    type_text,
    where,
)
from fnopt.numerics import (
    cast,
    compute_dtype,
    dtype_of,
    euclidean_norm,
    is_array_like,
    is_inexact,
    real_dtype,
    saturating_cast,
    shape_of,
)

_WRT_HINT = (
    "Compute the gradient with respect to the params (see argnums of jax.grad), and the state with "
    "init(params) of these params."
)


def check_same_tree(tree: Any, other: Any, what: str, other_what: str) -> None:
    """Raise a ValueError if two trees differ in their structures or in the shapes of leaves."""
    if same_tree(tree, other):
        return
    other_structure = jax.tree.structure(other)
    leaves, treedef = leaves_with_names(tree)
    other_leaves, other_treedef = leaves_with_names(other)
    if any(map(is_rows, jax.tree.leaves(tree, is_leaf=is_rows))):
        raise ValueError(
            f"{where()}the {what} contain Rows, expected arrays. Wrap the whole optimizer in "
            "fnopt.sparse_rows, as in sparse_rows(chain(...))."
        )
    if is_pair_with(tree, 1, other_structure):
        raise ValueError(
            f"{where()}the {what} are the pair (value, grads) of jax.value_and_grad, expected "
            "grads. Write value, grads = jax.value_and_grad(...)(...), and pass grads."
        )
    if treedef != other_treedef:
        raise ValueError(
            _structure_message(leaves, other_leaves, treedef, other_treedef, what, other_what)
        )
    for (path, a), (_, b) in zip(leaves, other_leaves, strict=True):
        if jnp.shape(a) != jnp.shape(b):
            raise ValueError(
                f"{where()}{leaf_text(path)}: {what} have shape {jnp.shape(a)}, "
                f"{other_what} have shape {jnp.shape(b)}, expected equal shapes.{_advice(what)}"
            )


def _advice(what: str) -> str:
    return f" {_WRT_HINT}" if what == "gradients" else ""


def same_tree(tree: Any, other: Any) -> bool:
    """Whether two trees have equal structures and leaf shapes."""
    # `tree_flatten` instead of its slower wrapper `jax.tree.flatten`, because every update calls
    # this function.
    leaves, structure = tree_flatten(tree)
    other_leaves, other_structure = tree_flatten(other)
    return structure == other_structure and all(map(same_shape, leaves, other_leaves))


def check_real_gradients(gradients: Any, params: Any) -> None:
    """Raise a TypeError for the first complex gradient of a real parameter."""
    for i, (g, p) in enumerate(zip(*map(jax.tree.leaves, (gradients, params)), strict=True)):
        if dtype_of(g).kind == "c" and dtype_of(p).kind != "c":
            raise TypeError(
                f"{where()}{leaf_text(leaves_with_names(params)[0][i][0])}: the gradient is "
                f"{type_text(g)}, the parameter is {type_text(p)}, expected a real gradient for a "
                "real parameter. Pass the real part, jnp.real(gradient)."
            )


def is_none(x: Any) -> bool:
    """Whether a node is None; as `is_leaf`, this function makes None a leaf."""
    return x is None


def same_shape(x: Any, y: Any) -> bool:
    """Whether two leaves have the same shape."""
    return shape_of(x) == shape_of(y)


def _structure_message(
    leaves: list[tuple[str, Any]],
    other_leaves: list[tuple[str, Any]],
    treedef: Any,
    other_treedef: Any,
    what: str,
    other_what: str,
) -> str:
    names, other_names = [p for p, _ in leaves], [p for p, _ in other_leaves]
    text = f"{where()}the tree of {what} does not match the tree of {other_what}: "
    paths_text = differences(names, other_names, what, other_what)
    if not leaves:
        paths_text = f"{what} contain no arrays, because every leaf is None or missing"
    # Equal paths in different containers: only the treedefs show the difference.
    treedefs_text = f"{what} have the structure {treedef}, {other_what} have {other_treedef}"
    all_arrays = all(is_array_like(x) for _, x in (*leaves, *other_leaves))
    hint = f" Remove leaves that aren't arrays (Equinox: {EQUINOX_FILTER})."
    hint = _advice(what) if all_arrays else hint
    return f"{text}{paths_text or treedefs_text}; expected equal structures.{hint}"


def map_leaves(
    fn: Callable[..., Any], updates: Any, *, hyper: Any = None, outputs: int = 1, **slots: Any
) -> Any:
    """Apply a function to every leaf of `updates` and the matching leaves of other trees.

    All operands of a leaf are first cast to their `compute_dtype` (bfloat16 and float16 to
    float32). The updates stay in the compute dtype, because rounding would discard small terms that
    later transforms add. Slots are cast back to their storage dtype. The outermost transform casts
    the updates to the dtype of the params.

    Args:
        fn: `fn(u, *companions)`, or `fn(h, u, *companions)` with `hyper`. The arguments are arrays
            in the compute dtype; companions are in the order of the keyword arguments.
        updates: A tree of floating arrays; `None` leaves are skipped.
        hyper: A value whose numeric leaves are cast to the (real) compute dtype of each leaf and
            passed to `fn` as the first argument.
        outputs: Number of arrays that `fn` returns. The first stays in the compute dtype. The
            others are cast back to the dtypes of the companions, in order.
        **slots: Trees that match `updates` leaf by leaf; errors name a tree by its keyword.

    Returns:
        A tree like `updates` if `outputs` is 1, else a tuple of trees.

    Raises:
        TypeError: If an update isn't floating; the message names the leaf.
        ValueError: If a companion tree has another structure, a leaf has another shape, or a number
            of `hyper` isn't a scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.core import map_leaves
        >>> trace = {"w": jnp.ones(2)}
        >>> map_leaves(lambda g, m: 0.9 * m + g, {"w": jnp.ones(2)}, trace=trace)
        {'w': Array([1.9, 1.9], dtype=float32)}
    """
    check_inexact(updates, "gradients")
    check_scalars(hyper)
    leaves, treedef = jax.tree.flatten(updates)
    for name, tree in slots.items():
        check_same_tree(updates, tree, "gradients", name)
    columns = [leaves, *(jax.tree.leaves(tree) for tree in slots.values())]
    casts: dict[Any, Any] = {}  # `hyper` in every dtype that a leaf needs
    rows = [_map_row(fn, row, hyper, casts, outputs) for row in zip(*columns, strict=True)]
    trees = tuple(jax.tree.unflatten(treedef, [row[i] for row in rows]) for i in range(outputs))
    return trees[0] if outputs == 1 else trees


def check_scalars(hyper: Any) -> None:
    """Raise a ValueError for the first number of a transform that isn't a scalar.

    The arrays of a stacked optimizer outside of `vmap` would broadcast against the gradients.
    """
    if all(isinstance(x, float) or jnp.ndim(x) == 0 for x in jax.tree.leaves(hyper)):
        return
    for path, x in leaves_with_names(hyper)[0]:
        if jnp.ndim(x) != 0:
            raise ValueError(
                f"{where()}{path} has shape {jnp.shape(x)}, expected a scalar. To run "
                "stacked optimizers, use jax.vmap(train)(optimizers)."
            )


def _map_row(
    fn: Callable[..., Any], row: tuple[Any, ...], hyper: Any, casts: dict[Any, Any], outputs: int
) -> Any:
    dtypes = [dtype_of(x) for x in row]
    dtype = compute_dtype(*dtypes)
    args = [cast(x, dtype) for x in row]
    if hyper is not None:
        real = real_dtype(dtype)
        # One cast per dtype instead of per leaf keeps the program small.
        if real not in casts:
            casts[real] = jax.tree.map(lambda x: jnp.asarray(x, real), hyper)
        args.insert(0, casts[real])
    # All operands have the same precision, so standard promotion only mixes real and complex.
    with jax.numpy_dtype_promotion("standard"):
        out = fn(*args)
    result, *companions = (out,) if outputs == 1 else out
    assert 1 + len(companions) == outputs <= len(dtypes)
    stored = map(saturating_cast, companions, dtypes[1:])
    return lax.convert_element_type(result, dtype), *stored


def without_gradient(
    tx: Any, updates: Any, params: Any, extra_args: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Remove the leaves whose gradient is None from params and extra arguments of a step.

    A filtered gradient, for example from `equinox.filter_grad`, has None in place of leaves that
    aren't floating arrays (functions, counters, keys). Such leaves don't change. The transform
    receives params with None in place of such leaves, and functions of the params receive the whole
    tree. A floating array may lack a gradient only if the transform's `left_out` contains the leaf.

    Raises:
        ValueError: If gradients and params differ otherwise; the message names the leaf.
    """
    gradients, treedef = jax.tree.flatten(updates, is_leaf=is_none)
    leaves, other = jax.tree.flatten(params, is_leaf=is_none)
    if treedef != other:
        check_same_tree(updates, params, "gradients", "params")
    left_out = jax.tree.leaves(tx.left_out(params), is_leaf=is_none)
    is_absent = [
        g is None and (allowed or not (hasattr(p, "dtype") and is_inexact(p)))
        for g, p, allowed in zip(gradients, leaves, left_out, strict=True)
    ]

    def drop_absent(tree: Any) -> Any:
        tree_leaves, structure = jax.tree.flatten(tree, is_leaf=is_none)
        if structure != treedef:
            check_same_tree(tree, params, "gradients", "params")
        rows = zip(is_absent, tree_leaves, strict=True)
        return treedef.unflatten([None if absent else x for absent, x in rows])

    def restore_absent(tree: Any) -> Any:
        rows = zip(is_absent, leaves, jax.tree.leaves(tree, is_leaf=is_none), strict=True)
        return treedef.unflatten([p if absent else x for absent, p, x in rows])

    present_params = drop_absent(params)
    check_same_tree(updates, present_params, "gradients", "params")
    return present_params, translate_extra_args(extra_args, drop_absent, restore_absent)


def floating_leaves(params: Any) -> Any:
    """Replace leaves that aren't floating arrays by None, and warn."""
    others = [name for name, p in leaves_with_names(params)[0] if not is_inexact(p)]
    if not others:
        return params
    warnings.warn(
        f"{where()}the leaves {names_text(others)} of the params aren't floating arrays. These "
        "leaves have no state and don't change, so None is expected as their gradient. Filter the "
        "params to suppress this warning.",
        stacklevel=4,
    )
    return jax.tree.map(lambda p: p if is_inexact(p) else None, params)


def select_tree(condition: jax.Array, tree: Any, other: Any) -> Any:
    """Select `tree` where a condition is True, `other` elsewhere, leaf by leaf."""
    return jax.tree.map(functools.partial(jnp.where, condition), tree, other)


def incremental_update(new_tensors: Params, old_tensors: Params, step_size: Any) -> Params:
    r"""Interpolate between two trees: :math:`\theta' + \tau\, (\theta - \theta')`.

    Args:
        new_tensors: :math:`\theta`, a tree of floating arrays.
        old_tensors: :math:`\theta'`, a tree of the same structure and shapes.
        step_size: :math:`\tau`, a scalar.

    Returns:
        A tree in the dtypes of `old_tensors`.

    Raises:
        ValueError: If structures or shapes differ.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.incremental_update({"w": jnp.ones(2)}, {"w": jnp.zeros(2)}, 0.25)
        {'w': Array([0.25, 0.25], dtype=float32)}

    Reference:
        Lillicrap et al., 2015, arXiv:1509.02971.
    """

    # Exact for step sizes of 0 and 1, unlike `old + step * (new - old)`.
    def interpolate(step: Any, new: Any, old: Any) -> Any:
        return new, step * new + (1 - step) * old

    step = jnp.asarray(step_size) if jnp.ndim(step_size) == 0 else step_size
    return map_leaves(interpolate, new_tensors, hyper=step, outputs=2, old_tensors=old_tensors)[1]


def periodic_update(
    new_tensors: Params, old_tensors: Params, steps: Any, update_period: Any
) -> Params:
    """Replace old parameters by new parameters every `update_period` steps.

    Args:
        new_tensors: A tree of arrays.
        old_tensors: A tree of the same structure, shapes and dtypes.
        steps: The step number, an integer.
        update_period: Number of steps between replacements.

    Returns:
        `new_tensors` if the step is a multiple of the period, else `old_tensors`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.periodic_update({"w": jnp.ones(1)}, {"w": jnp.zeros(1)}, steps=6, update_period=3)
        {'w': Array([1.], dtype=float32)}

    Reference:
        Mnih et al., 2015, doi:10.1038/nature14236.
    """
    is_due = jnp.asarray(steps) % jnp.asarray(update_period, jnp.result_type(steps)) == 0
    return select_tree(is_due, new_tensors, old_tensors)


def global_norm(tree: Any) -> jax.Array:
    r"""Compute the Euclidean norm over all leaves, :math:`\sqrt{\sum_\ell \sum_i |x_{\ell i}|^2}`.

    Args:
        tree: A tree of floating or complex arrays; `None` leaves are skipped.

    Returns:
        A real scalar in the widest dtype of the leaves, at least float32. The norm is correct even
        if the squares overflow or underflow, as for float32 gradients of 1e20 or 1e-30. The
        derivative at zero is zero, not NaN.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.global_norm({"a": jnp.asarray([3.0]), "b": jnp.asarray(4.0)})
        Array(5., dtype=float32)
    """
    leaves = jax.tree.leaves(tree)
    for x in leaves:  # PRNG keys and float0 gradients have no norm
        if not (is_inexact(x) or (is_array_like(x) and jnp.issubdtype(dtype_of(x), jnp.integer))):
            check_inexact(tree, "global_norm")
    if not leaves:
        return jnp.zeros((), jnp.float32)
    return euclidean_norm([jnp.asarray(x) for x in leaves])
