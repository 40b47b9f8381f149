"""Functions as values that are compared by their jaxprs, not by the identity of an object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend import core as jex

from fnopt.core import Value
from fnopt.errors import check_returned, where
from fnopt.programs import _jaxprs as jaxprs
from fnopt.programs._keys import MAX_PROGRAMS, NoKeyError, key_of, shape_struct
from fnopt.programs._tracing import has_tracers, is_jitted


class KeyedJaxpr:
    """A jaxpr with a hashable key, as a function of its constants and inputs.

    Args:
        key: The key.
        jaxpr: The jaxpr.
        structure: The structure of the traced function's result.
    """

    def __init__(self, key: Any, jaxpr: Any, structure: Any = None) -> None:
        self.key, self.jaxpr, self.structure = (key, structure), jaxpr, structure
        self._hash = hash(self.key)

    def __call__(self, *leaves: Any) -> list[Any]:
        """Evaluate the jaxpr."""
        start = len(self.jaxpr.constvars)
        return eval_jaxpr(self.jaxpr, list(leaves[:start]), *leaves[start:])

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyedJaxpr) and self.key == other.key


@jax.tree_util.register_pytree_node_class
class TracedFunction:
    """A function of arrays as a pytree: its jaxpr is the structure, captured arrays are leaves.

    Therefore a jitted function with a `TracedFunction` argument recompiles only for another jaxpr,
    not for another function object or other data of the same shapes.

    Args:
        keyed: The jaxpr of the function.
        closed_over: The arrays that the function captures.
    """

    def __init__(self, keyed: KeyedJaxpr, closed_over: tuple[Any, ...]) -> None:
        self.keyed, self.closed_over = keyed, closed_over

    def __call__(self, *args: Any) -> Any:
        """Evaluate the function, for arguments of the traced shapes."""
        pairs = zip(jax.tree.leaves(args), self.keyed.jaxpr.invars, strict=True)
        leaves = [jax.lax.convert_element_type(leaf, var.aval.dtype) for leaf, var in pairs]
        outputs = self.keyed(*self.closed_over, *leaves)
        return jax.tree.unflatten(self.keyed.structure, outputs)

    @property
    def returns(self) -> Any:
        """Shapes and dtypes of the result."""
        shapes = [shape_struct(atom.aval) for atom in self.keyed.jaxpr.outvars]
        return jax.tree.unflatten(self.keyed.structure, shapes)

    def tree_flatten(self) -> tuple[tuple[Any, ...], KeyedJaxpr]:
        """Return leaves and structure, for JAX."""
        return self.closed_over, self.keyed

    @classmethod
    def tree_unflatten(cls, keyed: KeyedJaxpr, closed_over: Any) -> Self:
        """Make the function from leaves and structure, for JAX."""
        return cls(keyed, tuple(closed_over))


def trace_function(fn: Callable[..., Any], *args: Any) -> TracedFunction | None:
    """Trace a function to a value that is compared by its jaxpr, if possible.

    Every call traces a plain function, so the value uses the current globals and closures. A trace
    takes about 1 ms for a small function. A function under `jax.jit` is traced once; later, JAX
    returns the cached trace in 20 us.

    Args:
        fn: A function of pytrees of arrays. Derivative rules (`jax.custom_jvp`) are compared up to
            the second derivative with respect to the first argument.
        *args: The arguments of `fn`, or their shapes and dtypes.

    Returns:
        The function as a value. None if the function closes over tracers, has a `jax.custom_vjp`,
        or has arrays that only a derivative rule reads. Such jaxprs can't be compared.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import trace_function
        >>> def scaling(a):
        ...     return trace_function(lambda x: a * x, jnp.ones(3))
        >>> one, two = scaling(jnp.float32(1)), scaling(jnp.float32(2))
        >>> jax.tree.structure(one) == jax.tree.structure(two), two(jnp.ones(3)).tolist()
        (True, [2.0, 2.0, 2.0])
    """
    closed, structure = make_jaxpr(fn, args)
    if has_tracers(closed.consts):
        return None
    # JAX caches only the jaxprs of jitted functions, so only their keys are cached. From JAX 0.12
    # on, jaxprs contain captured arrays, which a cache would keep in memory.
    keyed = _keyed if is_jitted(fn) and not closed.consts else _keyed.__wrapped__
    keyed_jaxpr = keyed(closed.jaxpr, structure, len(jax.tree.leaves(args[0])))
    return None if keyed_jaxpr is None else TracedFunction(keyed_jaxpr, tuple(closed.consts))


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def _keyed(jaxpr: Any, structure: Any, num_differentiated: int) -> KeyedJaxpr | None:
    try:
        return KeyedJaxpr(key_of(jaxpr, num_differentiated), jaxpr, structure)
    except NoKeyError:  # no cache can look up a program without a key
        return None


def make_jaxpr(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[jex.ClosedJaxpr, Any]:
    """Return the current jaxpr of a function, and the structure of its result.

    All captured arrays are constants of the outer jaxpr. Inner `jax.jit` calls that capture arrays
    are inlined, because their arrays wouldn't become constants of the outer jaxpr.
    """
    closed, shapes = _trace(fn, args)
    structure = jax.tree.structure(shapes)
    calls = filter(jaxprs.is_call, jaxprs.equations(closed.jaxpr))
    if not any(sub.consts for eqn in calls for sub in jaxprs.sub_jaxprs(eqn)):
        return closed, structure

    def inline_calls(*args: Any) -> list[Any]:
        return jaxprs.interpret(closed.jaxpr, closed.consts, args, jaxprs.bind)

    return jax.make_jaxpr(inline_calls)(*map(shape_struct, closed.in_avals)), structure


def _trace(fn: Any, args: tuple[Any, ...]) -> tuple[jex.ClosedJaxpr, Any]:
    if is_jitted(fn):
        traced: Any = fn.trace(*args)
        # Static arguments aren't inputs of the jaxpr, but captured tracers are.
        if len(traced.jaxpr.in_avals) == len(jax.tree.leaves(args)):
            return traced.jaxpr, traced.out_info
    return jax.make_jaxpr(_check_result(fn), return_shape=True)(*args)


def _check_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function, so that JAX has no cached trace of it, and check the result of each call."""

    def checked(*args: Any) -> Any:
        result = fn(*args)
        check_returned(result, f"{where()}what the function returned")
        return result

    return checked


def is_data(tree: Any) -> bool:
    """Whether a tree contains only arrays, numbers and values of this library, and no function."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Value))
    return all(_is_plain(node) if isinstance(node, Value) else _is_array(node) for node in nodes)


def _is_plain(value: Value) -> bool:
    """Whether a value belongs to this library and its fields contain no function."""
    children, aux = value._flatten()
    is_fnopt = type(value).__module__.partition(".")[0] == "fnopt"
    return is_fnopt and not any(map(callable, aux)) and is_data(children)


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
