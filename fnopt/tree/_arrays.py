"""The error of what is no array in a tree."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fnopt.core import is_array_like, leaf_text, leaves_with_names, type_text

Given = ParamSpec("Given")
Result = TypeVar("Result")


def check_arrays(name: str, *trees: Any) -> None:
    """Raises a TypeError that names the first leaf which is neither array nor number."""
    for path, leaf in (pair for tree in trees for pair in leaves_with_names(tree)[0]):
        if not is_array_like(leaf):
            raise TypeError(
                f"{name}: {leaf_text(path)} is {type_text(leaf)}, expected an array or a number. "
                "Filter such leaves out of the tree first (Equinox: eqx.filter(model, "
                "eqx.is_array))."
            )


def of_arrays(fn: Callable[Given, Result]) -> Callable[Given, Result]:
    """Where a function of trees fails over what is no array, an error that names the leaf."""

    @functools.wraps(fn)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return fn(*args, **kwargs)
        except TypeError:  # the check takes longer than what it checks: only now
            check_arrays(f"tree.{fn.__name__}", *args, *kwargs.values())
            raise

    return checked
