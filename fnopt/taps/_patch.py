"""Changing what flows through a node, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from fnopt.core import described
from fnopt.programs import IN_RULE, Node
from fnopt.taps._listen import with_cotangent_rule
from fnopt.taps._program import (
    Program,
    checked_names,
    has_scopes,
    lacks_cotangent,
    lacks_value,
    trace,
)

Rule = Callable[[Any], Any]


def patch(
    fn: Callable[..., Any],
    *,
    values: Mapping[str, Any] | None = None,
    cotangents: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    r"""The same function with other values, or other cotangents, at some of its nodes.

    .. math:: h \leftarrow r(h) \qquad\text{or}\qquad \bar h \leftarrow r(\bar h)

    For experiments: clip the gradient inside a recurrent cell, stop it at a node, ablate a unit,
    put another run's activation in place of this one's.

    Args:
        fn: Any JAX function.
        values: By name of a node (or glob, as in `capture`), what stands instead of its value: a
            function of the value, through which is differentiated (`jax.lax.stop_gradient` is one),
            or an array that broadcasts to it.
        cotangents: By name, what stands instead of the node's cotangent on the way back: a function
            of the cotangent, such as `lambda g: jnp.clip(g, -1, 1)` or `jnp.zeros_like`, or an
            array. The value stays. Reverse mode only.

    Returns:
        A function like `fn`, for `jax.grad`, `jax.jit`, `capture` and all others. A node inside a
        scan is patched in every iteration, with what one iteration has. Several names that match
        one node act in their order; the cotangent is that of the patched value. Looking at a tap of
        the patched function shows what the rest of it sees: the patched value, and the loss's
        derivative with respect to that, before the rule for the cotangent.

    Raises:
        ValueError: If a name matches no node, or a node that can't be patched; or if a rule changes
            shape or dtype.

    Example:
        >>> from fnopt.taps import patch, tap
        >>> def loss(w):
        ...     return jnp.sum(tap("square", w * w))
        >>> w = jnp.array([1.0, 2.0])
        >>> jax.grad(patch(loss, cotangents={"square": lambda g: 0.5 * g}))(w).tolist()
        [1.0, 2.0]
        >>> float(patch(loss, values={"square": lambda s: s.at[1].set(0.0)})(w))
        1.0
    """
    value_rules = _as_rules(values)
    cotangent_rules = _as_rules(cotangents)
    names = (*value_rules, *cotangent_rules)
    checked_names("patch", names)

    def patched(*args: Any, **kwargs: Any) -> Any:
        program = trace("patch", fn, args, kwargs, scopes=has_scopes(names))
        on_value = _by_node(program, value_rules, _lacks_freedom)
        on_cotangent = _by_node(program, cotangent_rules, lacks_cotangent)

        def visit(node: int, value: Any, _: Any) -> tuple[Any, None]:
            name = program.nodes[node].name
            for rule in on_value.get(node, ()):
                value = _like(value, rule(value), f"the value of {name!r}")
            # The last rule is the first one that the cotangent meets on its way back.
            for rule in reversed(on_cotangent.get(node, [])):
                value = with_cotangent_rule(_checked(rule, name), value)
            return value, None

        return program.only({*on_value, *on_cotangent}).run(visit, {})[0]

    return patched


def _lacks_freedom(node: Node) -> str:
    fixed = f"a value that can't be changed: it is {node.note}"
    return lacks_value(node) or (fixed if node.note == IN_RULE else "")


def _as_rules(rules: Mapping[str, Any] | None) -> dict[str, Rule]:
    return {
        name: rule if callable(rule) else _instead(rule) for name, rule in (rules or {}).items()
    }


def _instead(value: Any) -> Rule:
    return lambda x: jnp.broadcast_to(jnp.asarray(value).astype(x.dtype), x.shape)


def _by_node(
    program: Program, rules: dict[str, Rule], ask: Callable[[Node], str]
) -> dict[int, list[Rule]]:
    found: dict[int, list[Rule]] = {}
    for name, rule in rules.items():
        for node in program.select((name,), ask):
            found.setdefault(node, []).append(rule)
    return found


def _checked(rule: Rule, name: str) -> Rule:
    return lambda cotangent: _like(cotangent, rule(cotangent), f"the cotangent of {name!r}")


def _like(before: Any, after: Any, what: str) -> Any:
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        raise ValueError(
            f"patch: the rule made {described(after)} of {what}, which is {described(before)}; "
            "expected the same shape and dtype."
        )
    return after
