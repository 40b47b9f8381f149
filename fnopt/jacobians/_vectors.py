"""A function of trees as a function of vectors, and its Jacobian back as a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    check_params,
    explain_jax_errors,
    explain_missing_keys,
    is_inexact,
    leaf_text,
    leaves_with_names,
    type_text,
)
from fnopt.jacobians._flat import jacobian_mode
from fnopt.jacobians._ravel import ravel, real_vector
from fnopt.programs import copy_function, jaxprs
from fnopt.sharding import pvary_like


class VectorFunction(NamedTuple):
    """A function of a tree as a function of vectors."""

    fn: Callable[[jax.Array], jax.Array]  # [n] -> [m]
    x: jax.Array  # [n], where it is taken
    m: int
    unflatten: Callable[[jax.Array], Any]  # [m, ...] -> the outputs, with leaves [*shape, ...]
    params: Any

    def tree(self, J: jax.Array) -> Any:
        """The blocks of a matrix `[m, n]`: a tree like the outputs of trees like the params."""
        leaves, treedef = jax.tree.flatten(self.params)
        columns, start = [], 0
        for leaf in leaves:
            part = J[:, start : start + jnp.size(leaf)]
            columns.append(part.reshape(self.m, *jnp.shape(leaf)))
            start += jnp.size(leaf)
        return blocks(self.unflatten, jax.tree.unflatten(treedef, columns))


def blocks(unflatten: Callable[[jax.Array], Any], rows: Any) -> Any:
    """A tree like the outputs of trees like the params, from one of rows `[m, *param]`."""
    by_param, params = jax.tree.flatten(rows)
    pieces = [unflatten(part) for part in by_param]
    outputs = jax.tree.structure(pieces[0])
    transposed = zip(*map(jax.tree.leaves, pieces), strict=True)
    return jax.tree.unflatten(outputs, [jax.tree.unflatten(params, parts) for parts in transposed])


def vector_function(fn: Callable[[Any], Any], params: Any, name: str) -> VectorFunction:
    """Convert a function of trees to a function of vectors.

    Args:
        fn: A function of the params.
        params: A tree of real floating arrays.
        name: The public function that the user called, for messages.

    Returns:
        The function of a vector, in the params' common dtype (at least float32).
    """
    check_real(params, name)
    with explain_jax_errors(name, "the function"), explain_missing_keys(params):
        found = jax.eval_shape(copy_function(fn), params)
    outputs = checked_outputs(found, name)
    # Inside shard_map, so that every device has the derivatives of its own outputs.
    params = pvary_like(params, outputs)
    x, unravel = ravel(params, "params")
    layout = real_vector(outputs, x.dtype)
    return VectorFunction(
        lambda x: layout.flatten(fn(unravel(x))), x, layout.size, layout.unflatten, params
    )


def check_real(params: Any, name: str) -> None:
    """Check that params have a real derivative."""
    leaves = [(leaf_text(path), leaf) for path, leaf in leaves_with_names(params)[0]]
    if not leaves:
        raise TypeError(f"{name}: the params hold no array, so there is nothing to differentiate.")
    check_params(leaves, name)
    for path, leaf in leaves:
        if jnp.iscomplexobj(leaf):
            raise TypeError(
                f"{name}: {path} of the params is {type_text(leaf)}, expected a real array. Make "
                "its real and imaginary part params of their own."
            )


def checked_outputs(outputs: Any, name: str) -> Any:
    """Outputs (their shapes and dtypes) that have a derivative."""
    pairs, _ = leaves_with_names(outputs)
    if not pairs:
        raise TypeError(f"{name}: the function returned {outputs!r}, expected arrays.")
    for path, leaf in pairs:
        if not is_inexact(leaf):
            raise TypeError(
                f"{name}: {leaf_text(path)} of the outputs is {type_text(leaf)}, expected floats."
            )
    return outputs


def cheaper_mode(mode: str, function: VectorFunction) -> str:
    """The mode with fewer passes; reverse for a `custom_vjp`, which has no forward mode."""
    if mode == "auto" and function.x.size <= function.m and lacks_forward(function.fn, function.x):
        return "reverse"
    return jacobian_mode(mode, function.m, function.x.size)


def lacks_forward(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether there is a `custom_vjp` in the function, which only has a reverse mode."""
    equations = jaxprs.equations(jax.make_jaxpr(fn)(*args).jaxpr)
    return any(eqn.primitive.name.startswith("custom_vjp") for eqn in equations)


def is_about_forward_mode(error: BaseException) -> bool:
    """Whether an error of JAX says that a `custom_vjp` has no forward mode."""
    # JAX calls what a custom_vjp leaves behind custom_lin, where its derivative is derived.
    return "custom_vjp" in str(error) or "custom_lin" in str(error)
