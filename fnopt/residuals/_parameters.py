"""Constraints that fix, tie or transform the params of a fit."""

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
from fnopt.programs import jaxprs
from fnopt.residuals._curved import Parametrization, curved, manifolds_of, on_its_manifold
from fnopt.residuals._prefix import first_bad


class Constraint(Value):
    """Constraint of a parameter: fixed, tied, positive or interval."""


class fixed(Constraint):
    """Fix a parameter at its initial value.

    The parameter may have any dtype, such as an integer.

    Example:
        >>> from fnopt.residuals import fixed, parametrize
        >>> parametrization = parametrize({"a": 1.0, "b": 2.0}, {"b": fixed()})
        >>> parametrization.assemble((5.0,))
        {'a': 5.0, 'b': Array(2., dtype=float32)}
    """


class tied(Constraint):
    """Compute a parameter from other parameters.

    Args:
        fn: `fn(params)` returns the value of the parameter; `params` is the whole tree. `fn` may
            use all other params, but tied params must not depend on each other in a cycle.

    Example:
        >>> from fnopt.residuals import parametrize, tied
        >>> parametrization = parametrize({"a": 1.0, "b": 0.0}, {"b": tied(lambda p: 3 * p["a"])})
        >>> parametrization.assemble((5.0,))
        {'a': 5.0, 'b': Array(15., dtype=float32)}
    """

    fn: Callable[[Any], Any] = static()


class positive(Constraint):
    r"""Fit the logarithm `u` of a positive parameter :math:`\theta = e^u`.

    Example:
        >>> from fnopt.residuals import parametrize, positive
        >>> parametrize({"rate": jnp.float32(1.0)}, {"rate": positive()}).free
        (Array(0., dtype=float32),)
    """

    def to_free(self, value: jax.Array) -> jax.Array:
        """The logarithm of a value."""
        # A traced initial value can't be checked, and the logarithm of 0 would be infinite.
        return jnp.log(jnp.maximum(value, jnp.asarray(jnp.finfo(value.dtype).tiny, value.dtype)))

    def from_free(self, u: jax.Array) -> jax.Array:
        """The exponential of a logarithm."""
        return jnp.exp(u)

    def allows(self, value: Any) -> Any:
        """Whether all entries are positive."""
        return value > 0


class interval(Constraint):
    r"""Keep a parameter in an open interval: fit the logit of its relative position.

    .. math:: \theta = a + \frac{b - a}{1 + e^{-u}}

    The parameter :math:`\theta` never reaches an end of the interval. If a fit converges to an end,
    the parameter is marked as undetermined. Use `bounds` instead if the optimum may be at an end.

    Args:
        lower: The lower end :math:`a` of the interval.
        upper: The upper end :math:`b` of the interval.

    Raises:
        ValueError: If `lower` isn't below `upper`, or an end is infinite.

    Example:
        >>> from fnopt.residuals import interval, parametrize
        >>> parametrize(jnp.float32(0.5), interval(0.0, 1.0)).free
        (Array(0., dtype=float32),)
    """

    lower: float | jax.Array = hyper(infinite=True)
    upper: float | jax.Array = hyper(infinite=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = self.lower, self.upper
        if first_bad(lambda a, b: (-np.inf < a) & (a < b) & (b < np.inf), *ends) is not None:
            raise ValueError(
                f"interval: lower = {self.lower} and upper = {self.upper}, expected lower < upper, "
                "both finite. For an interval with one end, pass bounds, where None is no bound."
            )

    def to_free(self, value: jax.Array) -> jax.Array:
        """The logit of the relative position in the interval."""
        a, b = (jnp.asarray(end, value.dtype) for end in (self.lower, self.upper))
        eps = jnp.asarray(jnp.finfo(value.dtype).eps, value.dtype)
        # At an end of the interval, the logit would be infinite and its derivative would be zero.
        position = jnp.clip((value - a) / (b - a), eps, 1 - eps)
        return jnp.log(position) - jnp.log1p(-position)

    def from_free(self, u: jax.Array) -> jax.Array:
        """The value with logit `u`."""
        a, b = (jnp.asarray(end, u.dtype) for end in (self.lower, self.upper))
        return a + (b - a) * jax.nn.sigmoid(u)

    def allows(self, value: Any) -> Any:
        """Whether all entries are strictly inside the interval."""
        return (value > self.lower) & (value < self.upper)


def parametrize(params: Any, constraints: Any = None) -> Parametrization:
    """Separate the free variables from fixed and tied params.

    Args:
        params: The initial guess, a pytree of real floating arrays; fixed params may have any
            dtype.
        constraints: A constraint for all params, or a tree of constraints. A dict of constraints
            may be nested like the params. The keys of the dict may also be paths of leaves,
            patterns of paths (`'*/bias'`), or paths of branches. The constraint of a branch applies
            to all leaves of the branch. If several keys match a leaf, the first key applies.

    Returns:
        The free variables, and the function from the free variables to the params.

    Raises:
        TypeError: If a constraint isn't a :class:`Constraint`.
        ValueError: If a constraint matches no leaf, all params are fixed or tied, an initial value
            is outside the range of its constraint, or tied params depend on each other in a cycle.

    Example:
        >>> from fnopt.residuals import fixed, parametrize
        >>> parametrization = parametrize({"a": 1.0, "b": 2.0}, {"b": fixed()})
        >>> parametrization.free, parametrization.assemble((5.0,))
        ((1.0,), {'a': 5.0, 'b': Array(2., dtype=float32)})
    """
    manifolds = manifolds_of(params)
    if constraints is None and not any(manifolds):
        return Parametrization(params, lambda free: free, ())
    pairs, treedef = leaves_with_names(params)
    given = leaf_constraints(constraints, [path for path, _ in pairs])
    kinds = tuple(
        kind
        if manifold is None or isinstance(kind, fixed)
        else on_its_manifold(kind, manifold, *pair)
        for kind, manifold, pair in zip(given, manifolds, pairs, strict=True)
    )
    fitted = [None if isinstance(k, fixed) else x for k, (_, x) in zip(kinds, pairs, strict=True)]
    ravel(jax.tree.unflatten(treedef, fitted), "params")  # raises if a leaf isn't floating
    free = tuple(
        _free_start(kind, leaf, path)
        for kind, (path, leaf) in zip(kinds, pairs, strict=True)
        if not isinstance(kind, (fixed, tied))
    )
    if not free:
        raise ValueError(f"{where()}all params are fixed or tied, expected at least one to fit.")
    ties = _tie_order(kinds, pairs, treedef)

    def assemble(free: Any) -> Any:
        variables = iter(free)
        leaves = [
            _param_value(kind, leaf, variables)
            for kind, (_, leaf) in zip(kinds, pairs, strict=True)
        ]
        for i in ties:
            leaves[i] = _tied_value(kinds[i], jax.tree.unflatten(treedef, leaves), *pairs[i])
        return jax.tree.unflatten(treedef, leaves)

    return Parametrization(free, assemble, kinds)


def _tie_order(kinds: tuple[Any, ...], pairs: list[tuple[str, Any]], treedef: Any) -> list[int]:
    """Sort the tied leaves so that each can be evaluated, or raise an error if there is a cycle.

    The functions of all ties are traced to one jaxpr. Its interpretation computes, for every value,
    the set of the tied leaves that the value depends on.
    """
    ties = [i for i, kind in enumerate(kinds) if isinstance(kind, tied)]
    if not ties:
        return ties
    unfixed = [i for i, kind in enumerate(kinds) if not isinstance(kind, fixed)]
    start = [_as_array(leaf) for _, leaf in pairs]

    def tied_values(values: list[jax.Array]) -> list[jax.Array]:
        leaves = dict(enumerate(start)) | dict(zip(unfixed, values, strict=True))
        tree = jax.tree.unflatten(treedef, list(leaves.values()))
        return [_tied_value(kinds[i], tree, *pairs[i]) for i in ties]

    def union_of_dependencies(eqn: Any, inputs: list[Any]) -> list[Any]:
        return [set().union(*(x for x in inputs if isinstance(x, set)))] * len(eqn.outvars)

    closed = jax.make_jaxpr(tied_values)([start[i] for i in unfixed])
    # A tied leaf depends on itself, every other leaf on no tied leaf.
    inputs = [{i} if i in ties else set() for i in unfixed]
    sets = jaxprs.interpret(closed.jaxpr, closed.consts, inputs, union_of_dependencies)
    # A function that uses no param returns a constant, which has no set.
    needs = {i: x if isinstance(x, set) else set() for i, x in zip(ties, sets, strict=True)}
    try:
        return list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        # graphlib lists each leaf before the leaves that need it.
        cycle = " needs ".join(repr(pairs[i][0]) for i in reversed(error.args[1]))
        raise ValueError(
            f"{where()}tied params form a cycle ({cycle}), expected no cycle. Untie one param."
        ) from None


def _tied_value(kind: Any, params: Any, path: str, start: Any) -> jax.Array:
    try:
        with explain_jax_errors("tied", "the function", is_another=True):
            value = jnp.asarray(kind.fn(params))
    except (AttributeError, LookupError) as error:
        raise ValueError(
            f"{where()}{leaf_text(path)} is tied to a function that raised "
            f"{type(error).__name__}: {error}; expected a function of params with the leaves "
            f"{names_text([name for name, _ in leaves_with_names(params)[0]])}."
        ) from error
    if value.shape != jnp.shape(start):
        raise ValueError(
            f"{where()}{leaf_text(path)} is tied to an expression of shape {value.shape}, "
            f"expected {jnp.shape(start)}, the shape of its initial value."
        )
    return value.astype(jnp.result_type(start))


def leaf_constraints(constraints: Any, paths: list[str]) -> tuple[Constraint | None, ...]:
    """Find the constraint of the leaf at every path, or None for a leaf without a constraint."""
    named, _ = leaves_with_names(constraints, is_leaf=lambda node: isinstance(node, Constraint))
    for pattern, kind in named:
        if not isinstance(kind, Constraint):
            key = f"the constraint of {pattern!r}" if pattern else "constraints"
            raise TypeError(
                f"{where()}{key} is {kind!r:.60}, expected fnopt.fixed(), fnopt.tied(fn), "
                "fnopt.positive() or fnopt.interval(lower, upper). For the equations and "
                "inequalities of SciPy's constraints, tie a param, pass a projection to "
                "fnopt.minimize, or call SciPy's SLSQP."
            )
        if not any(matches(path, pattern) for path in paths):
            unnamed = "the params, which are one array without a name" if paths == [""] else ""
            raise ValueError(
                f"{where()}constraints: the key {pattern!r} matches no leaf of "
                f"{unnamed or names_text(paths)}, expected a path or a pattern of paths."
            )
    return tuple(
        next((kind for pattern, kind in named if matches(path, pattern)), None) for path in paths
    )


def _free_start(kind: Value | None, leaf: Any, path: str) -> Any:
    """Compute the initial value of a free variable, or raise an error if it is out of range."""
    if not isinstance(kind, (positive, interval)):
        return kind.start(jnp.asarray(leaf)) if isinstance(kind, curved) else leaf
    # `first_bad` skips the check if the leaf or a bound is traced.
    if first_bad(lambda leaf, *_: kind.allows(leaf), leaf, *jax.tree.leaves(kind)) is not None:
        raise ValueError(
            f"{where()}{leaf_text(path)} starts at {np.asarray(leaf)}, outside the range of "
            f"{kind!r}; expected an initial guess inside the range."
        )
    return kind.to_free(jnp.asarray(leaf))


def _param_value(kind: Constraint | curved | None, leaf: Any, variables: Any) -> Any:
    """Convert the next free variable to a param, or return the initial value if it isn't free."""
    if isinstance(kind, (fixed, tied)):
        return _as_array(leaf)
    value = next(variables)
    if isinstance(kind, curved):
        return kind.point(jnp.asarray(leaf), value)
    return kind.from_free(value) if isinstance(kind, (positive, interval)) else value


def _as_array(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf, jnp.result_type(leaf))  # with a dtype, a number isn't weakly typed
