"""Interventions on values or cotangents at a node, for experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.programs import HIDDEN_BY_RULE, Node
from fnopt.taps._program import (
    Reason,
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
    """Intervention at a node: a function of the value, or an array that replaces the value."""

    function: Rule | None
    array: Any

    def __call__(self, value: Any, entry: Any) -> Any:
        """Compute the new value; `entry` is the array's entry for this iteration."""
        if self.function is not None:
            return self.function(value)
        return jnp.broadcast_to(entry.astype(value.dtype), value.shape)

    def stack_iterations(self, node: Node) -> Any:
        """Broadcast the array to the axes of the scans around the node, as in `capture`."""
        if self.function is not None:
            return None
        array, inner = jnp.asarray(self.array), node.shape[len(node.axes) :]
        array = array.astype(node.dtype)
        # An array of the rank of one iteration's value applies to all iterations.
        try:
            if node.axes and array.ndim > len(inner):
                return jnp.broadcast_to(array, node.shape)
            return jnp.broadcast_to(array, (*node.axes, *jnp.broadcast_to(array, inner).shape))
        except ValueError:
            count = " x ".join(map(str, node.axes))
            repeats = f", in each of {count} iterations" if count else ""
            raise ValueError(
                f"patch: the replacement of {node.name!r} has shape {list(array.shape)}, expected "
                f"a shape that broadcasts to {node.dtype}{list(inner)}{repeats}."
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
        values: A dict from names (or globs, as in `capture`) to replacements of a node's value. A
            replacement is a differentiable function of the value, such as `jax.lax.stop_gradient`,
            or an array that broadcasts to the value. Inside a scan of `T` iterations, the array may
            also have a leading axis of iterations, `[T, ...]`, like a result of `capture`.
        cotangents: A dict from names to replacements of a node's cotangent in the backward pass. A
            replacement is an array or a function of the cotangent, such as
            `lambda g: jnp.clip(g, -1, 1)`. The value doesn't change. With cotangent rules,
            forward-mode derivatives raise an error.

    Returns:
        A function with the arguments of `fn`, for example for `jax.grad`, `jax.jit` or `capture`. A
        node inside a scan is patched in every iteration. If several names match one node, their
        rules apply in the order of the dict. Cotangent rules receive the cotangent of the patched
        value. `capture` of the patched function returns the patched value and its cotangent before
        the cotangent rule.

    Raises:
        ValueError: If a name matches no node or a node that can't be patched, or if a rule changes
            the shape or dtype.

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

    def run_patched(*args: Any, **kwargs: Any) -> Any:
        program = trace_program("patch", fn, args, kwargs, scopes=has_scopes(names))
        on_value = _rules_by_node(program, value_rules, _lacks_editable_value)
        on_cotangent = _rules_by_node(program, cotangent_rules, lacks_cotangent)

        def visit(node: int, value: Any, entries: Any) -> tuple[Any, None]:
            name, (value_entries, cotangent_entries) = program.nodes[node].name, entries
            for rule, entry in zip(on_value.get(node, []), value_entries, strict=True):
                value = _check_like(value, rule(value, entry), f"the value of {name!r}")
            # The backward pass applies the last rule first.
            pairs = list(zip(on_cotangent.get(node, []), cotangent_entries, strict=True))
            for rule, entry in reversed(pairs):
                # The default argument binds this iteration's rule.
                def apply(cotangent: Any, entry: Any, rule: _Rule = rule) -> Any:
                    what = f"the cotangent of {name!r}"
                    return _check_like(cotangent, rule(cotangent, entry), what)

                value = with_cotangent_rule(apply, value, entry)
            return value, None

        patched_nodes = {*on_value, *on_cotangent}
        arrays = {
            i: tuple(
                [rule.stack_iterations(program.nodes[i]) for rule in rules.get(i, [])]
                for rules in (on_value, on_cotangent)
            )
            for i in patched_nodes
        }
        return program.restrict(patched_nodes).run(visit, arrays)[0]

    return run_patched


def _lacks_editable_value(node: Node) -> str:
    """Reason why a node's value can't be replaced, or `''`."""
    fixed = f"a value that can't be changed: it is {node.note}"
    return lacks_value(node) or (fixed if node.note == HIDDEN_BY_RULE else "")


def _as_rules(rules: Mapping[str, Any] | None) -> dict[str, _Rule]:
    return {
        name: _Rule(rule, None) if callable(rule) else _Rule(None, rule)
        for name, rule in (rules or {}).items()
    }


def _rules_by_node(
    program: TracedCall, rules: dict[str, _Rule], reason: Reason
) -> dict[int, list[_Rule]]:
    node_rules: dict[int, list[_Rule]] = {}
    for name, rule in rules.items():
        for node in program.select((name,), reason):
            node_rules.setdefault(node, []).append(rule)
    return node_rules


def _check_like(before: Any, after: Any, what: str) -> Any:
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        raise ValueError(
            f"patch: the rule for {what} returned {type_text(after)}, expected {type_text(before)}."
        )
    return after
