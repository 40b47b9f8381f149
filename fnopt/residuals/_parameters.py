"""Free, fixed, tied and transformed params of a fit."""

from __future__ import annotations

import graphlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Value, hyper, static
from fnopt.errors import (
    explain_jax_errors,
    leaf_text,
    leaves_with_names,
    matches,
    names_text,
    where,
)
from fnopt.jacobians import ravel
from fnopt.numerics import default_float, is_inexact
from fnopt.programs import jaxprs
from fnopt.residuals._curved import Parametrisation, curved, manifolds_of, on_its_manifold
from fnopt.residuals._prefix import first_bad


class Constraint(Value):
    """Constraint of a parameter: fixed, tied, positive or interval."""


class fixed(Constraint):
    """Fix a parameter at its initial value; any dtype is allowed, such as an integer.

    Example:
        >>> from fnopt.residuals import fixed, parametrised
        >>> made = parametrised({"a": 1.0, "b": 2.0}, {"b": fixed()})
        >>> made.assemble((5.0,))
        {'a': 5.0, 'b': Array(2., dtype=float32)}
    """


class tied(Constraint):
    """Compute a parameter from other parameters.

    Args:
        fn: `fn(params)` returns the parameter, from a tree like the params. It may use all
            other params; ties between params must not form a cycle.

    Example:
        >>> from fnopt.residuals import parametrised, tied
        >>> made = parametrised({"a": 1.0, "b": 0.0}, {"b": tied(lambda p: 3 * p["a"])})
        >>> made.assemble((5.0,))
        {'a': 5.0, 'b': Array(15., dtype=float32)}
    """

    fn: Callable[[Any], Any] = static()


class positive(Constraint):
    r"""Fit the logarithm: :math:`\theta = e^u > 0`.

    Example:
        >>> from fnopt.residuals import parametrised, positive
        >>> parametrised({"rate": jnp.float32(1.0)}, {"rate": positive()}).free
        (Array(0., dtype=float32),)
    """

    def to_free(self, value: jax.Array) -> jax.Array:
        """The logarithm."""
        return jnp.log(jnp.maximum(value, jnp.asarray(jnp.finfo(value.dtype).tiny, value.dtype)))

    def from_free(self, u: jax.Array) -> jax.Array:
        """The exponential."""
        return jnp.exp(u)

    def allows(self, value: Any) -> Any:
        """Whether all entries are positive."""
        return value > 0


class interval(Constraint):
    r"""Fit the logit of the position in an interval: :math:`\theta = a + (b - a) / (1 + e^{-u})`.

    The parameter never reaches an end of the interval. If a fit converges to an end, the parameter
    is marked as undetermined. Use `bounds` instead if the best value may be an end.

    Args:
        lower: The lower end :math:`a`.
        upper: The upper end :math:`b`.

    Raises:
        ValueError: If `lower` isn't below `upper`.

    Example:
        >>> from fnopt.residuals import interval, parametrised
        >>> parametrised(jnp.float32(0.5), interval(0.0, 1.0)).free
        (Array(0., dtype=float32),)
    """

    lower: float | jax.Array = hyper(infinite=True)
    upper: float | jax.Array = hyper(infinite=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if first_bad(np.less, self.lower, self.upper) is not None:
            raise ValueError(
                f"interval: lower = {self.lower} and upper = {self.upper}, expected lower < upper."
            )

    def to_free(self, value: jax.Array) -> jax.Array:
        """The logit of the position in the interval."""
        a, b = (jnp.asarray(end, value.dtype) for end in (self.lower, self.upper))
        eps = jnp.asarray(jnp.finfo(value.dtype).eps, value.dtype)
        # An initial value on an end, up to rounding, would have an infinite logit and never move.
        place = jnp.clip((value - a) / (b - a), eps, 1 - eps)
        return jnp.log(place) - jnp.log1p(-place)

    def from_free(self, u: jax.Array) -> jax.Array:
        """The value at a logit."""
        a, b = (jnp.asarray(end, u.dtype) for end in (self.lower, self.upper))
        return a + (b - a) * jax.nn.sigmoid(u)

    def allows(self, value: Any) -> Any:
        """Whether all entries are strictly inside the interval."""
        return (value > self.lower) & (value < self.upper)


def parametrised(params: Any, constraints: Any = None) -> Parametrisation:
    """Separate the free variables from fixed and tied params.

    Args:
        params: The initial guess, a pytree of real floating arrays; fixed params may have any
            dtype.
        constraints: A constraint for all params, or a tree of constraints. A dict may be nested
            like the params. Its keys may also be paths of leaves, patterns of paths (`'*/bias'`),
            or branches; the constraint of a branch applies to all its leaves. The first matching
            key applies.

    Returns:
        The free variables, and the function from the free variables to the params.

    Raises:
        TypeError: If a constraint isn't one of the four.
        ValueError: If a constraint matches no leaf, no param is free, or an initial value is
            outside the range of its constraint.

    Example:
        >>> from fnopt.residuals import fixed, parametrised
        >>> made = parametrised({"a": 1.0, "b": 2.0}, {"b": fixed()})
        >>> made.free, made.assemble((5.0,))
        ((1.0,), {'a': 5.0, 'b': Array(2., dtype=float32)})
    """
    manifolds = manifolds_of(params)
    if constraints is None and not any(manifolds):
        return Parametrisation(params, lambda free: free, ())
    pairs, treedef = leaves_with_names(params)
    rows = zip(_kinds(constraints, [path for path, _ in pairs]), manifolds, pairs, strict=True)
    kinds = tuple(
        kind if on is None or isinstance(kind, fixed) else on_its_manifold(kind, on, *pair)
        for kind, on, pair in rows
    )
    rows = zip(kinds, pairs, strict=True)
    fitted = [None if isinstance(kind, fixed) else leaf for kind, (_, leaf) in rows]
    ravel(jax.tree.unflatten(treedef, fitted), "params")  # raises for leaves that aren't floating
    free = tuple(
        _start(kind, leaf, path)
        for kind, (path, leaf) in zip(kinds, pairs, strict=True)
        if not isinstance(kind, (fixed, tied))
    )
    if not free:
        raise ValueError(f"{where()}all params are fixed or tied, expected at least one to fit.")
    ties = _tie_order(kinds, pairs, treedef)

    def assemble(free: Any) -> Any:
        rest = iter(free)
        leaves = [_value(kind, leaf, rest) for kind, (_, leaf) in zip(kinds, pairs, strict=True)]
        for i in ties:
            leaves[i] = _expression(kinds[i], jax.tree.unflatten(treedef, leaves), *pairs[i])
        return jax.tree.unflatten(treedef, leaves)

    return Parametrisation(free, assemble, kinds)


def _tie_order(kinds: tuple[Any, ...], pairs: list[tuple[str, Any]], treedef: Any) -> list[int]:
    """Tied leaves in the order in which their functions depend on each other."""
    ties = [i for i, kind in enumerate(kinds) if isinstance(kind, tied)]
    if not ties:
        return ties
    moving = [i for i, kind in enumerate(kinds) if not isinstance(kind, fixed)]
    start = [_as_array(leaf) for _, leaf in pairs]

    def expressions(values: list[jax.Array]) -> list[jax.Array]:
        leaves = dict(enumerate(start)) | dict(zip(moving, values, strict=True))
        tree = jax.tree.unflatten(treedef, list(leaves.values()))
        return [_expression(kinds[i], tree, *pairs[i]) for i in ties]

    def union(eqn: Any, inputs: list[Any]) -> list[Any]:
        return [set().union(*(x for x in inputs if isinstance(x, set)))] * len(eqn.outvars)

    closed = jax.make_jaxpr(expressions)([start[i] for i in moving])
    used = jaxprs.interpret(closed.jaxpr, closed.consts, [{i} & {*ties} for i in moving], union)
    needs = {i: x if isinstance(x, set) else set() for i, x in zip(ties, used, strict=True)}
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        circle = " needs ".join(repr(pairs[i][0]) for i in reversed(error.args[1]))
        raise ValueError(
            f"{where()}tied params form a cycle: {circle}. Leave one of them free."
        ) from None


def _expression(kind: Any, params: Any, path: str, start: Any) -> jax.Array:
    with explain_jax_errors("tied", "the function", is_another=True):
        value = jnp.asarray(kind.fn(params))
    if value.shape != jnp.shape(start):
        raise ValueError(
            f"{where()}{leaf_text(path)} is tied to an expression of shape {value.shape}, "
            f"expected {jnp.shape(start)}."
        )
    return value.astype(jnp.result_type(start))


def _kinds(constraints: Any, paths: list[str]) -> tuple[Constraint | None, ...]:
    """Constraint of every leaf, keyed by path."""
    named, _ = leaves_with_names(constraints, is_leaf=lambda node: isinstance(node, Constraint))
    for pattern, kind in named:
        if not isinstance(kind, Constraint):
            raise TypeError(
                f"{where()}the constraint of {pattern!r} is {kind!r}, expected fnopt.fixed(), "
                "fnopt.tied(fn), fnopt.positive() or fnopt.interval(lower, upper)."
            )
        if not any(matches(path, pattern) for path in paths):
            of = "the params, which are one array without a name" if paths == [""] else ""
            raise ValueError(
                f"{where()}constraints: {pattern!r} matches no leaf of {of or names_text(paths)}."
            )
    return tuple(
        next((kind for pattern, kind in named if matches(path, pattern)), None) for path in paths
    )


def _start(kind: Value | None, leaf: Any, path: str) -> Any:
    if not isinstance(kind, (positive, interval)):
        return kind.start(jnp.asarray(leaf)) if isinstance(kind, curved) else leaf
    if first_bad(lambda leaf, *_: kind.allows(leaf), leaf, *jax.tree.leaves(kind)) is not None:
        raise ValueError(
            f"{where()}{leaf_text(path)} starts at {np.asarray(leaf)}, outside the range "
            f"of {kind!r}. Pass an initial guess inside it."
        )
    return kind.to_free(jnp.asarray(leaf))


def _value(kind: Constraint | curved | None, leaf: Any, rest: Any) -> Any:
    """Value of a leaf; a tied leaf has its initial value until its function is evaluated."""
    if isinstance(kind, (fixed, tied)):
        return _as_array(leaf)
    value = next(rest)
    if isinstance(kind, curved):
        return kind.point(jnp.asarray(leaf), value)
    return kind.from_free(value) if isinstance(kind, (positive, interval)) else value


def _as_array(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf, jnp.result_type(leaf))


def floating_start(params: Any, constraints: Any = None) -> Any:
    """Convert an initial guess: lists of numbers to vectors, free integers to floats.

    Users pass `x0=[1, 1]` for a function of an array. With constraints, the numbers of a list stay
    separate leaves, because constraints refer to leaves. Fixed params keep their dtype. Booleans
    and unsigned integers, such as keys of random generators, stay unchanged, for later checks.

    Args:
        params: The params, a pytree.
        constraints: As in :func:`parametrised`.

    Returns:
        The same tree, with floats in place of Python integers and signed integer arrays; an
        array of shape `[n]` for a list or tuple of numbers.

    Raises:
        TypeError: If a constraint isn't one of the four.
        ValueError: If a constraint matches no leaf.

    Example:
        >>> from fnopt.residuals import fixed, floating_start
        >>> floating_start({"a": 1, "order": 2}, {"order": fixed()})
        {'a': Array(1., dtype=float32), 'order': 2}
        >>> floating_start([1, 2.5])
        Array([1. , 2.5], dtype=float32)
    """
    params = params if constraints else as_vector(params)
    if not any(map(_is_whole, jax.tree.leaves(params))):
        return params
    pairs, treedef = leaves_with_names(params)
    kinds = _kinds(constraints, [path for path, _ in pairs])
    leaves = [
        jnp.asarray(leaf, default_float())
        if _is_whole(leaf) and not isinstance(kind, fixed)
        else leaf
        for kind, (_, leaf) in zip(kinds, pairs, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)


def as_vector(tree: Any) -> Any:
    """Convert a list or tuple of numbers to an array; return other trees unchanged."""
    if not are_in_a_row(tree):
        return tree
    with jax.numpy_dtype_promotion("standard"):  # users mix integers and floats in a list
        return jnp.asarray(tree)


def are_in_a_row(tree: Any) -> bool:
    """Whether a tree is a list or tuple of numbers."""
    return type(tree) in (list, tuple) and len(tree) > 0 and all(map(_is_number, tree))


def _is_number(leaf: Any) -> bool:
    return (is_inexact(leaf) or _is_whole(leaf)) and jnp.ndim(leaf) == 0


def _is_whole(leaf: Any) -> bool:
    if isinstance(leaf, int):
        return not isinstance(leaf, bool)
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.signedinteger)
