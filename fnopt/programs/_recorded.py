"""A function as a value: what it computes is its identity, so its programs can be kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend import core as jex

from fnopt.core import Value, check_returned, config_name, where
from fnopt.programs import _read as jaxprs
from fnopt.programs._key import UnidentifiedError, key_of, like
from fnopt.programs._reads import UnseenError, reads
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

    def with_own_arrays(self) -> Recorded:
        """The function with copies of what it closes over: an array of NumPy may be written to."""
        return Recorded(self.record, tuple(array.copy() for array in self.closed_over))

    def tree_flatten(self) -> tuple[tuple[Any, ...], Record]:
        """For JAX."""
        return self.closed_over, self.record

    @classmethod
    def tree_unflatten(cls, record: Record, closed_over: Any) -> Self:
        """For JAX."""
        return cls(record, tuple(closed_over))


def recorded(fn: Callable[..., Any], *args: Any) -> Recorded | None:
    """Record the operations of a function as a value, if its program can be compared.

    It is traced in every call, unless all that it reads can be seen to be as it was
    (:func:`reads`), so it isn't stale: globals and closures are as they are now. That
    takes a millisecond or two, where tracing a solver that uses the function takes a hundred.

    Args:
        fn: A function of pytrees of arrays. If it has derivatives of its own
            (`jax.custom_jvp`), they are told apart up to the second order, by the first argument.
        *args: Its arguments, or their shapes and dtypes.

    Returns:
        The function as a value; None if it closes over traced arrays, or if two traces of it
        can't be seen to be the same: with a `jax.custom_vjp`, or a callback made in every trace.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import recorded
        >>> def scaling(a):
        ...     return recorded(lambda x: a * x, jnp.ones(3))
        >>> one, two = scaling(jnp.float32(1)), scaling(jnp.float32(2))
        >>> jax.tree.structure(one) == jax.tree.structure(two), two(jnp.ones(3)).tolist()
        (True, [2.0, 2.0, 2.0])
    """
    key = _key(fn, args)
    known = [] if key is None else _known(key)
    if not known:
        found = _told_apart(fn, args)
        if key is None or key != _key(fn, args):  # it counts its calls, say
            return found
        known.append(None if found is None else found.with_own_arrays())
    return known[0]


@functools.lru_cache(maxsize=KEPT)
def _known(key: Any) -> list[Recorded | None]:
    """The record of a function that reads the same and has such arguments, once it was made."""
    del key
    return []


def _key(fn: Callable[..., Any], args: Any) -> Any:
    """All that a trace depends on; None if that isn't seen."""
    leaves, structure = jax.tree.flatten(args)
    nodes = jax.tree.flatten(args, is_leaf=lambda node: type(node) not in _PLAIN_NODES)[1]
    if nodes != structure:  # there are nodes of a class, which may have code of its own
        return None
    try:
        return reads(fn), structure, tuple(map(_type_of, leaves))
    except UnseenError:
        return None


_PLAIN_NODES = {tuple, list, dict, type(None)}


def _type_of(leaf: Any) -> Any:
    given = isinstance(leaf, jax.ShapeDtypeStruct)
    return leaf if given else jax.typeof(leaf)


def _told_apart(fn: Callable[..., Any], args: tuple[Any, ...]) -> Recorded | None:
    found = _recorded(fn, args)
    if found is None:
        return None
    verdict = _verdict(found.record)
    if not verdict:
        again = _recorded(fn, args)
        verdict.append(again is not None and again.record == found.record)
    return found if verdict[0] else None


@functools.lru_cache(maxsize=KEPT)
def _verdict(record: Record) -> list[bool]:
    """Whether every trace of the function gives this record; empty until that is known."""
    del record
    return []


def _recorded(fn: Callable[..., Any], args: tuple[Any, ...]) -> Recorded | None:
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
