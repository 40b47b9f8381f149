"""A function as a value: what it computes is its identity, so its programs can be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend import core as jex

from fnopt.core import Value, check_returned, config_name, where
from fnopt.programs import _read as jaxprs
from fnopt.programs._key import UnidentifiedError, key_of, like
from fnopt.programs._tracing import any_traced, uncached

# Programs. On a CPU one of a least-squares fit takes some 310 memory mappings, and Linux gives a
# process 65,530 by default; a compilation that gets none ends in an error or ends the process.
KEPT = 32


class Record:
    """The operations of a function; equal to those of any other function that has the same."""

    def __init__(self, key: Any, jaxpr: Any, returns: Any) -> None:
        self.key, self.jaxpr, self.returns = (key, jax.tree.structure(returns)), jaxpr, returns
        self._hash = hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.key == other.key


@jax.tree_util.register_pytree_node_class
class Recorded:
    """A function of arrays as a value: its operations, and the arrays that it closes over.

    As a pytree its leaves are those arrays, and its structure the operations. So `jax.jit` of a
    function that takes it as an argument compiles again when it *does* something else, not when
    it is another object; and other data are no reason.

    Args:
        record: The operations.
        closed_over: The arrays.
    """

    def __init__(self, record: Record, closed_over: tuple[Any, ...]) -> None:
        self.record, self.closed_over = record, closed_over

    def __call__(self, *args: Any) -> Any:
        """The function's result, for arguments of the types that it was recorded with."""
        jaxpr = self.record.jaxpr
        pairs = zip(jax.tree.leaves(args), jaxpr.invars, strict=True)
        leaves = [jax.lax.convert_element_type(leaf, var.aval.dtype) for leaf, var in pairs]
        outputs = eval_jaxpr(jaxpr, list(self.closed_over), *leaves)
        return jax.tree.unflatten(jax.tree.structure(self.returns), outputs)

    @property
    def returns(self) -> Any:
        """The shapes and dtypes of what it returns."""
        return self.record.returns

    def tree_flatten(self) -> tuple[tuple[Any, ...], Record]:
        """For JAX."""
        return self.closed_over, self.record

    @classmethod
    def tree_unflatten(cls, record: Record, closed_over: Any) -> Self:
        """For JAX."""
        return cls(record, tuple(closed_over))


def recorded(fn: Callable[..., Any], *args: Any) -> Recorded | None:
    """Record the operations of a function as a value, if its program can be compared.

    Every call traces the function, so the value is never stale: globals and closures are read as
    they are now. The trace takes a millisecond or two. Keys by the identity of the function, as
    `jax.jit` has them, would save the trace, but a lambda or closure that is made in every pass of
    a loop over data sets would compile the whole solver in every pass (1 to 2 seconds), and
    changed globals would be missed.

    Args:
        fn: A function of pytrees of arrays. If it has derivatives of its own
            (`jax.custom_jvp`), they are told apart up to the second order, by the first argument.
        *args: Its arguments, or their shapes and dtypes.

    Returns:
        The function as a value; None if it closes over traced arrays, or if two traces of it
        can't be compared: with a `jax.custom_vjp`, or data that only a derivative rule reads.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import recorded
        >>> def scaling(a):
        ...     return recorded(lambda x: a * x, jnp.ones(3))
        >>> one, two = scaling(jnp.float32(1)), scaling(jnp.float32(2))
        >>> jax.tree.structure(one) == jax.tree.structure(two), two(jnp.ones(3)).tolist()
        (True, [2.0, 2.0, 2.0])
    """
    closed, shapes = operations(fn, args)
    if any_traced(closed.consts):
        return None
    try:
        key = key_of(closed.jaxpr, len(jax.tree.leaves(args[0])))
        return Recorded(Record(key, closed.jaxpr, shapes), tuple(closed.consts))
    except UnidentifiedError:
        return None


def operations(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[jex.ClosedJaxpr, Any]:
    """The operations of a function as it is now, and the shapes that it returns.

    Functions under `jax.jit` in it close over nothing: it does so for them.
    """
    closed, shapes = jax.make_jaxpr(uncached(_returning_arrays(fn)), return_shape=True)(*args)
    calls = filter(jaxprs.is_call, jaxprs.equations(closed.jaxpr))
    if not any(sub.consts for eqn in calls for sub in jaxprs.sub_jaxprs(eqn)):
        return closed, shapes

    def inlined(*args: Any) -> list[Any]:
        return jaxprs.run(
            closed.jaxpr, closed.consts, args, lambda place, eqn, ins: jaxprs.bind(eqn, ins)
        )

    return jax.make_jaxpr(inlined)(*map(like, closed.in_avals)), shapes


def _returning_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        found = fn(*args)
        check_returned(found, f"{where()}what the function returned")
        return found

    return run


def is_data(tree: Any) -> bool:
    """Whether a tree holds arrays, numbers and values of this library, and no function."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, Value))
    return all(_is_plain(node) if isinstance(node, Value) else _is_array(node) for node in nodes)


def _is_plain(value: Value) -> bool:
    """Whether a value does what its fields say, without code of a user."""
    children, aux = value._flatten()
    ours = config_name(type(value)).startswith("fnopt.")
    return ours and not any(map(callable, aux)) and is_data(children)


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
