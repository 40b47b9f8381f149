"""Interventions on values or cotangents at a node, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.programs import HIDDEN_BY_RULE, Node
from fnopt.taps._program import (
    TracedCall,
    checked_names,
    has_scopes,
    lacks_cotangent,
    lacks_value,
    trace_program,
)
from fnopt.taps._tap import with_cotangent_rule

Rule = Callable[[Any], Any]
"""A function from the value (or cotangent) of a node to its replacement."""


class _Rule(NamedTuple):
    """Intervention at a node: a function of the value, or an array that replaces it."""

    function: Rule | None
    array: Any

    def __call__(self, value: Any, entry: Any) -> Any:
        """Return the new value; `entry` is the array's entry for this iteration."""
        if self.function is not None:
            return self.function(value)
        return jnp.broadcast_to(entry.astype(value.dtype), value.shape)

    def by_iteration(self, node: Node) -> Any:
        """Broadcast an array to the axes of the enclosing scans, like a result of `capture`."""
        if self.function is not None:
            return None
        array, inner = jnp.asarray(self.array), node.shape[len(node.axes) :]
        array = array.astype(node.dtype)
        try:
            if node.axes and array.ndim > len(inner):
                return jnp.broadcast_to(array, node.shape)
            return jnp.broadcast_to(array, (*node.axes, *jnp.broadcast_to(array, inner).shape))
        except ValueError:
            count = " x ".join(map(str, node.axes))
            often = f", in each of {count} iterations" if count else ""
            raise ValueError(
                f"patch: {node.name!r} is {node.dtype}{list(inner)}{often}; its "
                f"replacement has shape {list(array.shape)}, which does not broadcast to "
                "it."
            ) from None


def patch(
    fn: Callable[..., Any],
    *,
    values: Mapping[str, Any] | None = None,
    cotangents: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    r"""Replace values or cotangents at nodes inside a function.

    .. math:: h \leftarrow r(h) \qquad\text{or}\qquad \bar h \leftarrow r(\bar h)

    Use `patch` for experiments: clip or stop the gradient at a node, ablate a unit, or insert an
    activation of another run.

    Args:
        fn: Any JAX function.
        values: A dict from names (or globs, as in `capture`) to replacements of a node's value: a
            differentiable function of the value (such as `jax.lax.stop_gradient`), or an array that
            broadcasts to the value. Inside a scan of `T` iterations an array may also have one
            entry per iteration, `[T, ...]`, like the result of `capture`.
        cotangents: A dict from names to replacements of a node's cotangent in the backward pass: a
            function of the cotangent, such as `lambda g: jnp.clip(g, -1, 1)` or `jnp.zeros_like`,
            or an array. The value doesn't change. Only for reverse mode.

    Returns:
        A function like `fn`, for `jax.grad`, `jax.jit`, `capture` and others. A node inside a scan
        is patched in every iteration. If several names match one node, their rules apply in order;
        cotangent rules receive the cotangent of the patched value. `capture` of the patched
        function returns the patched value, and the derivative of the loss with respect to the
        patched value, before the cotangent rule.

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
    value_rules, cotangent_rules = _as_rules(values), _as_rules(cotangents)
    names = (*value_rules, *cotangent_rules)
    checked_names("patch", names)

    def patched(*args: Any, **kwargs: Any) -> Any:
        program = trace_program("patch", fn, args, kwargs, scopes=has_scopes(names))
        on_value = _by_node(program, value_rules, _lacks_freedom)
        on_cotangent = _by_node(program, cotangent_rules, lacks_cotangent)

        def visit(node: int, value: Any, given: Any) -> tuple[Any, None]:
            name, (own, back) = program.nodes[node].name, given
            for rule, entry in zip(on_value.get(node, []), own, strict=True):
                value = _check_like(value, rule(value, entry), f"the value of {name!r}")
            # The backward pass applies the last rule first.
            pairs = list(zip(on_cotangent.get(node, []), back, strict=True))
            for rule, entry in reversed(pairs):

                def apply(cotangent: Any, entry: Any, rule: _Rule = rule) -> Any:
                    what = f"the cotangent of {name!r}"
                    return _check_like(cotangent, rule(cotangent, entry), what)

                value = with_cotangent_rule(apply, value, entry)
            return value, None

        chosen = {*on_value, *on_cotangent}
        arrays = {
            i: tuple(
                [rule.by_iteration(program.nodes[i]) for rule in rules.get(i, [])]
                for rules in (on_value, on_cotangent)
            )
            for i in chosen
        }
        return program.only(chosen).run(visit, arrays)[0]

    return patched


def _lacks_freedom(node: Node) -> str:
    fixed = f"a value that can't be changed: it is {node.note}"
    return lacks_value(node) or (fixed if node.note == HIDDEN_BY_RULE else "")


def _as_rules(rules: Mapping[str, Any] | None) -> dict[str, _Rule]:
    return {
        name: _Rule(rule, None) if callable(rule) else _Rule(None, rule)
        for name, rule in (rules or {}).items()
    }


def _by_node(
    program: TracedCall, rules: dict[str, _Rule], ask: Callable[[Node], str]
) -> dict[int, list[_Rule]]:
    found: dict[int, list[_Rule]] = {}
    for name, rule in rules.items():
        for node in program.select((name,), ask):
            found.setdefault(node, []).append(rule)
    return found


def _check_like(before: Any, after: Any, what: str) -> Any:
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        raise ValueError(
            f"patch: the rule for {what} returned {type_text(after)}, expected {type_text(before)}."
        )
    return after
