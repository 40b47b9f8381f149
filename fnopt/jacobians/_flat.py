"""Functions of vectors, and their Jacobians in the cheaper mode and with bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from fnopt.errors import (
    check_params,
    explain_jax_errors,
    explain_missing_keys,
    leaf_text,
    leaves_with_names,
    type_text,
    where,
)
from fnopt.jacobians._ravel import ravel, real_vector
from fnopt.numerics import is_inexact, matmul
from fnopt.programs import copy_function, jaxprs
from fnopt.sharding import pvary_like, reshard_like

MODES = ("auto", "forward", "reverse")
# Products with at most 256 vectors are computed at once, with more vectors in chunks of 64. 1,024
# products with two layers of width 1,024 take 650, 390, 130 and 100 ms in chunks of 8, 16, 64 and
# 256 (CPU time). Smaller chunks need less memory.
_MOST_AT_ONCE, _CHUNK = 256, 64


def jacobian_mode(mode: str, m: int, n: int, what: str = "jacobian") -> str:
    """Choose forward mode (`n` tangents) or reverse mode (`m` cotangents), whichever has fewer.

    Args:
        mode: `'auto'`, `'forward'` or `'reverse'`.
        m: Number of outputs.
        n: Number of inputs.
        what: Name of the option, for the message.

    Returns:
        `'forward'` or `'reverse'`.

    Raises:
        ValueError: If `mode` has another value.

    Example:
        >>> from fnopt.jacobians import jacobian_mode
        >>> jacobian_mode("auto", m=100, n=3), jacobian_mode("auto", m=8, n=1000)
        ('forward', 'reverse')
    """
    if mode not in MODES:
        raise ValueError(f"{where()}{what} = {mode!r}, expected one of {MODES}.")
    if mode == "auto":
        return "forward" if n <= m else "reverse"
    return mode


def value_and_jacobian(
    fn: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    m: int,
    mode: str = "auto",
    chunk_size: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    r"""Evaluate a function and its Jacobian :math:`J_{ij} = \partial f_i / \partial x_j`.

    The function is traced once. Forward mode propagates `n` unit tangents, reverse mode propagates
    `m` unit cotangents.

    Args:
        fn: A function from `[n]` to `[m]`.
        x: The point, of shape `[n]`.
        m: The number of outputs.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents that are propagated at once, which bounds the
            memory of intermediate values. By default, all if there are at most 256, else 64.

    Returns:
        `fn(x)` of shape `[m]` and the Jacobian of shape `[m, n]`.

    Raises:
        ValueError: If `mode` has another value.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.jacobians import value_and_jacobian
        >>> value_and_jacobian(lambda x: x**2, jnp.asarray([1.0, 2.0]), m=2)[1]
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
    """
    if jacobian_mode(mode, m, x.size) == "forward":
        value, push = jax.linearize(fn, x)
        if fits_at_once(x.size, chunk_size):
            # Inside shard_map, a tangent must vary over the same mesh axes as its primal.
            units = pvary_like(jnp.eye(x.size, dtype=x.dtype), x)
            return value, jax.vmap(push, out_axes=1)(units)
        return value, map_in_chunks(push, _unit_vector(x.size, x), x.size, chunk_size).T
    value, pull = jax.vjp(fn, x)

    def pull_back(e: jax.Array) -> jax.Array:
        return pull(reshard_like(e, value))[0]

    if fits_at_once(m, chunk_size):
        return value, jax.vmap(pull_back)(pvary_like(jnp.eye(m, dtype=value.dtype), value))
    return value, map_in_chunks(pull_back, _unit_vector(m, value), m, chunk_size)


def fits_at_once(size: int, chunk_size: int | None = None) -> bool:
    """Whether products of a linear map with so many vectors are computed at once."""
    return size <= (_MOST_AT_ONCE if chunk_size is None else chunk_size)


def map_in_chunks(
    linear: Callable[[jax.Array], jax.Array],
    seed: Callable[[jax.Array], jax.Array],
    size: int,
    chunk_size: int | None = None,
) -> jax.Array:
    """Apply a linear map to the vectors `seed(0)` to `seed(size - 1)`, in chunks, as rows."""
    batch_size = _CHUNK if chunk_size is None else chunk_size
    # Each vector is made in its chunk, because all vectors together may not fit in memory.
    return lax.map(lambda i: linear(seed(i)), jnp.arange(size), batch_size=batch_size)


def _unit_vector(size: int, like: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Function from an index to the unit vector, with the dtype and sharding axes of an array."""
    return lambda i: pvary_like((jnp.arange(size) == i).astype(like.dtype), like)


def forward_from_reverse(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    r"""Define the forward-mode derivative of a function by its reverse-mode derivative.

    .. math:: (J v)_i = \langle J^T e_i, v \rangle

    A function with a `jax.custom_vjp` has no forward-mode derivative. The derivative defined here
    takes one reverse pass per output of the function, for any number of tangents.

    Args:
        fn: A function of trees of arrays that returns an array.

    Returns:
        The same function with both derivatives.
    """

    @jax.custom_jvp
    def function(*args: Any) -> jax.Array:
        return fn(*args)

    def rule(args: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        leaves, treedef = jax.tree.flatten(args)
        changes = treedef.flatten_up_to(tangents)
        zero_types = (SymbolicZero, np.ndarray)  # tangents of integers are NumPy arrays of float0
        varying = [i for i, change in enumerate(changes) if not isinstance(change, zero_types)]

        def fn_of_varying(values: list[Any]) -> jax.Array:
            new = dict(zip(varying, values, strict=True))
            return fn(*treedef.unflatten([new.get(i, leaf) for i, leaf in enumerate(leaves)]))

        value, pull = jax.vjp(fn_of_varying, [leaves[i] for i in varying])

        def output_tangent(i: jax.Array) -> jax.Array:
            unit = jnp.zeros(value.size, value.dtype).at[i].set(1)
            (rows,) = pull(unit.reshape(value.shape))
            pairs = zip(rows, varying, strict=True)
            parts = [matmul(jnp.ravel(row), jnp.ravel(changes[j])) for row, j in pairs]
            return sum(parts, jnp.zeros((), value.dtype))

        change = jax.lax.map(output_tangent, jnp.arange(value.size), batch_size=_CHUNK)
        return value, change.reshape(value.shape)

    # Arguments with symbolic zeros as tangents are constants, which need no derivative.
    function.defjvp(rule, symbolic_zeros=True)
    return function


class VectorFunction(NamedTuple):
    """Function of a tree of params, converted to a function of vectors."""

    fn: Callable[[jax.Array], jax.Array]  # [n] -> [m]
    x: jax.Array  # [n], the params as a vector
    m: int
    unflatten: Callable[[jax.Array], Any]  # [m, ...] -> the outputs, with leaves [*shape, ...]
    params: Any

    def tree(self, J: jax.Array) -> Any:
        """Split a matrix `[m, n]` into a tree like the outputs, of trees like the params."""
        leaves, treedef = jax.tree.flatten(self.params)
        columns, start = [], 0
        for leaf in leaves:
            part = J[:, start : start + jnp.size(leaf)]
            columns.append(part.reshape(self.m, *jnp.shape(leaf)))
            start += jnp.size(leaf)
        return blocks(self.unflatten, jax.tree.unflatten(treedef, columns))


def blocks(unflatten: Callable[[jax.Array], Any], rows: Any) -> Any:
    """Convert Jacobian rows to the nested tree of `jax.jacobian`: outputs outside, params inside.

    Each leaf of `rows` has the shape `[m, *param]`.
    """
    leaves, params = jax.tree.flatten(rows)
    blocks_of_params = [unflatten(leaf) for leaf in leaves]
    outputs = jax.tree.structure(blocks_of_params[0])
    transposed = zip(*map(jax.tree.leaves, blocks_of_params), strict=True)
    return jax.tree.unflatten(outputs, [jax.tree.unflatten(params, parts) for parts in transposed])


def vector_function(fn: Callable[[Any], Any], params: Any, name: str) -> VectorFunction:
    """Convert a function of trees to a function of vectors.

    Args:
        fn: A function of the params.
        params: A tree of real floating arrays.
        name: The public function that the user called, for messages.

    Returns:
        The function from a vector to a vector, both in the params' common dtype (at least float32).

    Raises:
        TypeError: If params or outputs aren't floating, or params are complex.
    """
    check_real(params, name)
    with explain_jax_errors(name, "the function"), explain_missing_keys(params):
        # A copy, because JAX caches traces by function, and globals in the function may change.
        shapes = jax.eval_shape(copy_function(fn), params)
    outputs = checked_outputs(shapes, name)
    # Inside shard_map, the params vary over devices, so each device differentiates its own outputs.
    params = pvary_like(params, outputs)
    x, unravel = ravel(params, "params")
    layout = real_vector(outputs, x.dtype)
    return VectorFunction(
        lambda x: layout.flatten(fn(unravel(x))), x, layout.size, layout.unflatten, params
    )


def check_real(params: Any, name: str) -> None:
    """Check that params are real floating arrays, and that there is at least one."""
    leaves = [(leaf_text(path), leaf) for path, leaf in leaves_with_names(params)[0]]
    if not leaves:
        raise TypeError(f"{name}: the params contain no array, expected at least one.")
    check_params(leaves, name)
    for path, leaf in leaves:
        if jnp.iscomplexobj(leaf):
            raise TypeError(
                f"{name}: {path} of the params is {type_text(leaf)}, expected a real array. Pass "
                "the real part and the imaginary part as separate params."
            )


def checked_outputs(outputs: Any, name: str) -> Any:
    """Return outputs (arrays or `ShapeDtypeStruct`) if all of them are floating or complex."""
    pairs, _ = leaves_with_names(outputs)
    if not pairs:
        raise TypeError(
            f"{name}: the function returned {outputs!r}, expected arrays. Is there a return "
            "statement?"
        )
    for path, leaf in pairs:
        if not is_inexact(leaf):
            raise TypeError(
                f"{name}: {leaf_text(path)} of the outputs is {type_text(leaf)}, expected a "
                "floating or complex array."
            )
    return outputs


def cheaper_mode(mode: str, function: VectorFunction) -> str:
    """Choose the mode with fewer passes, or reverse mode for a function without forward mode."""
    if mode == "auto" and function.x.size <= function.m and lacks_forward(function.fn, function.x):
        return "reverse"
    return jacobian_mode(mode, function.m, function.x.size)


def lacks_forward(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether the function contains a `custom_vjp`, which has only a reverse mode."""
    equations = jaxprs.equations(jax.make_jaxpr(fn)(*args).jaxpr)
    return any(eqn.primitive.name.startswith("custom_vjp") for eqn in equations)


def is_about_forward_mode(error: BaseException) -> bool:
    """Whether an error of JAX means that a `custom_vjp` has no forward mode."""
    # JAX's error names the primitive custom_lin if the custom_vjp is inside a derivative.
    return "custom_vjp" in str(error) or "custom_lin" in str(error)
