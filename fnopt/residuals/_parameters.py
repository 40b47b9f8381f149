"""Params that are held, tied to others, or confined to a range by a change of variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Value, hyper, leaves_with_names, listing, matches, shown, static, where
from fnopt.jacobians import ravel
from fnopt.residuals._ties import with_ties


class Constraint(Value):
    """Prior knowledge of a parameter. The kinds: fixed, tied, positive, interval."""


class fixed(Constraint):
    """Holds a parameter at its start; it may be of any dtype then, an integer for instance.

    Example:
        >>> from fnopt.residuals import fixed, parametrised
        >>> made = parametrised({"a": 1.0, "b": 2.0}, {"b": fixed()})
        >>> made.assemble((5.0,))
        {'a': 5.0, 'b': Array(2., dtype=float32)}
    """


class tied(Constraint):
    """Computes a parameter from the others.

    Args:
        fn: `fn(params)` returns the parameter, from a tree like the params; it may use any of the
            others, tied ones too, as long as they don't lead back to it.

    Example:
        >>> from fnopt.residuals import parametrised, tied
        >>> made = parametrised({"a": 1.0, "b": 0.0}, {"b": tied(lambda p: 3 * p["a"])})
        >>> made.assemble((5.0,))
        {'a': 5.0, 'b': Array(15., dtype=float32)}
    """

    fn: Callable[[Any], Any] = static()


class Transformed(Constraint):
    """A parameter that is fitted in another variable, which is free."""

    def to_free(self, value: jax.Array) -> jax.Array:
        """The free variable at a value."""
        raise NotImplementedError

    def from_free(self, u: jax.Array) -> jax.Array:
        """The value at a free variable."""
        raise NotImplementedError

    def allows(self, value: Any) -> Any:
        """Whether a value can be reached."""
        raise NotImplementedError


class positive(Transformed):
    r"""Fits the logarithm: :math:`\theta = e^u > 0`.

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
        """Whether it is above zero."""
        return value > 0


class interval(Transformed):
    r"""Fits the logit of the place in an interval: :math:`\theta = a + (b - a) / (1 + e^{-u})`.

    The ends are never reached: a fit that runs to one marks it as undetermined. For a parameter
    whose best value may lie on the edge, give `bounds` to the solver instead.

    Args:
        lower: The lower end :math:`a`.
        upper: The upper end :math:`b`.

    Raises:
        ValueError: If the ends are crossed.

    Example:
        >>> from fnopt.residuals import interval, parametrised
        >>> parametrised(jnp.float32(0.5), interval(0.0, 1.0)).free
        (Array(0., dtype=float32),)
    """

    lower: float | jax.Array = hyper(infinite=True)
    upper: float | jax.Array = hyper(infinite=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = not isinstance(self.lower, Tracer) and not isinstance(self.upper, Tracer)
        if known and not np.all(np.asarray(self.lower) < np.asarray(self.upper)):
            raise ValueError(
                f"interval: lower = {self.lower} and upper = {self.upper}, expected lower < upper."
            )

    def to_free(self, value: jax.Array) -> jax.Array:
        """The logit of the place in the interval."""
        a, b = (jnp.asarray(end, value.dtype) for end in (self.lower, self.upper))
        eps = jnp.asarray(jnp.finfo(value.dtype).eps, value.dtype)
        # A start that is on an end but for rounding would have an infinite logit, and stay there.
        place = jnp.clip((value - a) / (b - a), eps, 1 - eps)
        return jnp.log(place) - jnp.log1p(-place)

    def from_free(self, u: jax.Array) -> jax.Array:
        """The place at a logit."""
        a, b = (jnp.asarray(end, u.dtype) for end in (self.lower, self.upper))
        return a + (b - a) * jax.nn.sigmoid(u)

    def allows(self, value: Any) -> Any:
        """Whether it is strictly inside."""
        return (value > self.lower) & (value < self.upper)


class Parametrisation(NamedTuple):
    """Params as a function of what is fitted."""

    free: Any  # a tree of the variables that are fitted
    assemble: Callable[[Any], Any]  # from such a tree to the params
    kinds: tuple[Constraint | None, ...]  # for every leaf of the params


def parametrised(params: Any, constraints: Any = None) -> Parametrisation:
    """Separates what is fitted from what is held or follows.

    Args:
        params: The params to start from, a pytree of real floating arrays; those that are fixed
            may have another dtype.
        constraints: A constraint for all of them, or a tree of constraints; a dict may be nested
            like the params, or name leaves by their paths or patterns of these (`'*/bias'`), or
            branches, whose leaves all get it. The first that matches a leaf decides.

    Returns:
        The free variables, and the function that takes them to params.

    Raises:
        TypeError: If a constraint is none.
        ValueError: If one matches no leaf, nothing is left to fit, or a start isn't in the range
            that its constraint allows.

    Example:
        >>> from fnopt.residuals import fixed, parametrised
        >>> made = parametrised({"a": 1.0, "b": 2.0}, {"b": fixed()})
        >>> made.free, made.assemble((5.0,))
        ((1.0,), {'a': 5.0, 'b': Array(2., dtype=float32)})
    """
    if constraints is None:
        return Parametrisation(params, lambda free: free, ())
    pairs, treedef = leaves_with_names(params)
    kinds = kinds_of(constraints, [path for path, _ in pairs])
    rows = zip(kinds, pairs, strict=True)
    fitted = [None if isinstance(kind, fixed) else leaf for kind, (_, leaf) in rows]
    ravel(jax.tree.unflatten(treedef, fitted), "params")  # refuses what isn't floating
    free = tuple(
        _start(kind, leaf, path)
        for kind, (path, leaf) in zip(kinds, pairs, strict=True)
        if not isinstance(kind, (fixed, tied))
    )
    if not free:
        raise ValueError(f"{where()}all params are fixed or tied, expected at least one to fit.")

    def assemble(free: Any) -> Any:
        rest = iter(free)
        leaves = [_value(kind, leaf, rest) for kind, (_, leaf) in zip(kinds, pairs, strict=True)]
        ties = {i: kind.fn for i, kind in enumerate(kinds) if isinstance(kind, tied)}
        return with_ties(leaves, ties, pairs, treedef)

    return Parametrisation(free, assemble, kinds)


def kinds_of(constraints: Any, paths: list[str]) -> tuple[Constraint | None, ...]:
    """The constraint of every leaf, by the paths of these."""
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
                f"{where()}constraints: {pattern!r} matches no leaf of {of or listing(paths)}."
            )
    return tuple(
        next((kind for pattern, kind in named if matches(path, pattern)), None) for path in paths
    )


def _start(kind: Constraint | None, leaf: Any, path: str) -> Any:
    if not isinstance(kind, Transformed):
        return leaf
    known = not any(isinstance(number, Tracer) for number in jax.tree.leaves((leaf, kind)))
    if known and not np.all(kind.allows(np.asarray(leaf))):
        raise ValueError(
            f"{where()}{shown(path)} starts at {np.asarray(leaf)}, outside of what {kind!r} "
            "allows. Start inside."
        )
    return kind.to_free(jnp.asarray(leaf))


def _value(kind: Constraint | None, leaf: Any, rest: Any) -> Any:
    if isinstance(kind, fixed):
        return jnp.asarray(leaf, jnp.result_type(leaf))
    if isinstance(kind, tied):
        return None
    value = next(rest)
    return kind.from_free(value) if isinstance(kind, Transformed) else value
