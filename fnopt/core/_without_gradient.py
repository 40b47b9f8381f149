"""Steps in which some gradients are None."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Iterable
from typing import Any

import jax

from fnopt.core._dtypes import is_inexact
from fnopt.core._errors import names_text, where
from fnopt.core._extra_args import translate_extra_args
from fnopt.core._leaves import check_same_tree, is_none
from fnopt.core._paths import leaves_with_names


def without_gradient(
    tx: Any, updates: Any, params: Any, extra_args: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Params and extra arguments of a step, without the leaves whose gradient is None.

    A filtered gradient, as `equinox.filter_grad` makes it, has None in place of what is no floating
    array (functions, counters, keys). Such a leaf stays as it is: the step is one of params that
    have None there, too, and functions of the params get the whole. A floating array may go without
    a gradient only where the transform has `left_out` it.

    Raises:
        ValueError: If gradients and params differ otherwise; the message names the leaf.
    """
    gradients, treedef = jax.tree.flatten(updates, is_leaf=is_none)
    leaves, other = jax.tree.flatten(params, is_leaf=is_none)
    if treedef != other:
        check_same_tree(updates, params, "gradients", "params")
    may_lack = jax.tree.leaves(tx.left_out(params), is_leaf=is_none)
    absent = [
        g is None and (may or not (hasattr(p, "dtype") and is_inexact(p)))
        for g, p, may in zip(gradients, leaves, may_lack, strict=True)
    ]

    def inward(tree: Any) -> Any:
        given, structure = jax.tree.flatten(tree, is_leaf=is_none)
        if structure != treedef:
            check_same_tree(tree, params, "gradients", "params")
        kept = zip(absent, given, strict=True)
        return treedef.unflatten([None if out else x for out, x in kept])

    def outward(tree: Any) -> Any:
        given = zip(absent, leaves, jax.tree.leaves(tree, is_leaf=is_none), strict=True)
        return treedef.unflatten([p if out else x for out, p, x in given])

    stepped = inward(params)
    check_same_tree(updates, stepped, "gradients", "params")
    return stepped, translate_extra_args(extra_args, inward, outward)


def floating_leaves(params: Any) -> Any:
    """Replace params that are no floating arrays by None, with a warning."""
    others = [name for name, p in leaves_with_names(params)[0] if not is_inexact(p)]
    if not others:
        return params
    warnings.warn(
        f"{where()}{names_text(others)} of the params are no floating arrays: they have no state "
        "and stay as they are, and their gradients have to be None.",
        stacklevel=4,
    )
    return jax.tree.map(lambda p: p if is_inexact(p) else None, params)


def left_out_by(transforms: Iterable[Any], params: Any) -> Any:
    """Tree of bools: the leaves that any of some transforms leaves out."""
    none = jax.tree.map(lambda _: False, params)
    return functools.reduce(_either, (tx.left_out(params) for tx in transforms), none)


def _either(a: Any, b: Any) -> Any:
    return jax.tree.map(operator.or_, a, b)
