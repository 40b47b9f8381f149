"""Arguments and results of the methods `leaf` and `scalars` of a `Leafwise` transform."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import count_text, names_text, type_text, where


class LeafNumbers(SimpleNamespace):
    """Argument `h` of `leaf` and `scalars`: a namespace of numbers."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # JAX and Python probe special names, such as `__jax_array__`
            raise AttributeError(name)
        raise AttributeError(
            f"{where()}the argument `h` of `leaf` and `scalars` has no attribute {name!r}, "
            f"expected one of {names_text(sorted(vars(self)))}: the numeric fields of the class "
            "and the results of scalars(h, t). Read flags and functions from self.",
            name=name,
            obj=self,
        )


def check_scalars_result(owner: str, scalars: Any) -> None:
    """Check that the method `scalars` returned a dict of scalars."""
    if not isinstance(scalars, dict):
        raise TypeError(
            f"{where()}{owner}.scalars returned {type_text(scalars)}, expected a dict from names "
            "to scalars ({} for none)."
        )
    for name, x in scalars.items():
        if getattr(x, "shape", ()):
            raise ValueError(
                f"{where()}{owner}.scalars returned {type_text(x)} as {name!r}, expected a scalar."
            )


def check_leaf_result(owner: str, out: Any, slots: tuple[str, ...], g: Any, old: Any) -> Any:
    """Check the result of `leaf`, and return the update and the new slots as a tuple.

    Raises:
        TypeError: If the number of slots differs from the number that the class declares.
        ValueError: If the update has another shape than the leaf, or a slot has another shape than
            before.
    """
    returned = out if slots else (out,)
    if not isinstance(returned, tuple) or len(returned) != 1 + len(slots):
        is_tuple = isinstance(returned, tuple)
        count = count_text(len(returned), "value") if is_tuple else type_text(returned)
        raise TypeError(
            f"{where()}{owner}.leaf returned {count}, expected {1 + len(slots)}: the update and "
            f"the new {names_text([*slots])}."
        )
    for what, new, was in zip(("update", *slots), returned, (g, *old), strict=True):
        # A comparison without flattening, which suffices if both are arrays.
        is_same_array = getattr(new, "shape", None) == getattr(was, "shape", ())
        if not is_same_array and _shapes(new) != _shapes(was):
            reference = "the gradient" if what == "update" else "the previous slot"
            raise ValueError(
                f"{where()}{owner}.leaf returned {_text(new)} as the {what} of a leaf of shape "
                f"{jnp.shape(g)}, expected {_text(was)} like {reference}."
            )
    return returned


def _shapes(x: Any) -> Any:
    leaves, treedef = jax.tree.flatten(x)
    return treedef, [*map(jnp.shape, leaves)]


def _text(x: Any) -> str:
    is_leaf = jax.tree.structure(x).num_nodes == 1
    return type_text(x) if is_leaf else str(jax.tree.map(type_text, x))
