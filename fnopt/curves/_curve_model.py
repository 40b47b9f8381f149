"""The values of a curve's model beside the data: shapes, and checks of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.programs import uncached


def as_wide_as(model: Any, start: Any, x: Any, y: jax.Array) -> jax.Array:
    """The data; a single number as often as the model has values."""
    if y.ndim:
        return y
    value = jax.eval_shape(uncached(model), start, x)
    return jnp.broadcast_to(y, getattr(value, "shape", ()))


def check_enough(size: int, n: int, box: Any, name: str, instead: str, of: str = "") -> None:
    """Refuses fewer data than params, as SciPy does without bounds.

    Args:
        size: How many data there are.
        n: How many params.
        box: The bounds, or None.
        name: The function that was called.
        instead: What to take for one of the many solutions.
        of: What the data and params belong to, with a space in front.
    """
    if size < n and box is None:
        raise TypeError(
            f"{name}: there are fewer data than params{of} ({size} < {n}), which can't determine "
            "them. Give more data, hold params by writing their values into f, or take "
            f"{instead} for one of the many solutions."
        )


def checked_values(values: Any, params: Any, x: Any, y: jax.Array) -> Any:
    """The model's result, if its shape fits the data."""
    if isinstance(values, (list, tuple)):
        values = jnp.stack([jnp.asarray(value, y.dtype) for value in values])
    if not hasattr(values, "shape"):
        raise TypeError(
            f"curve_fit: f returned {values!r}, expected an array like ydata. Is there a return "
            "statement?"
        )
    if jnp.iscomplexobj(y) and not jnp.iscomplexobj(values):
        raise TypeError(
            f"curve_fit: ydata are {y.dtype}, but f returned {values.dtype}: imaginary parts that "
            "nothing fits would count as data. Give ydata.real, or a model with complex values."
        )
    if values.shape == () != y.shape and sum(map(jnp.size, jax.tree.leaves(params))) > 1:
        raise ValueError(
            f"curve_fit: f returned one number for {y.size} ydata, expected an array of shape "
            f"{y.shape}. Does f sum over x? One number determines one param at most."
        )
    if values.shape not in {y.shape, ()}:
        x_shape = f" for xdata of shape {x.shape}" if hasattr(x, "shape") else ""
        ask = "Do xdata and ydata have the same length?"
        if values.size == y.size:
            ask = "Ravel both of them, or neither."
        raise ValueError(
            f"curve_fit: f returned shape {values.shape}{x_shape}, but ydata have shape {y.shape}; "
            f"expected the same. {ask}"
        )
    return values
