"""Report of the rule that `method='ghost'` uses for each param."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.errors import count_text, leaves_with_names, show_report, table_lines
from fnopt.gradients._loss import ExampleLoss
from fnopt.gradients.ghost._trace import trace_ghost


class ParamRule(NamedTuple):
    """Rule by which the per-example gradient norms of one parameter are computed.

    Attributes:
        name: The path of the param.
        shape: The shape of the param.
        rule: `'gram'` computes the norm from inner products of activations and of cotangents,
            without forming the gradient. `'matrix'` and `'params'` form the gradient from
            activations and cotangents, because this is cheap. `'vmap'` forms the gradient by
            `jax.vmap(jax.grad)`, because no rule applies. `'none'` means that the loss doesn't use
            the param.
        enters: The operations that use the param, such as `('gather', 'dot_general')`.
        why: The reason for the rule.
    """

    name: str
    shape: tuple[int, ...]
    rule: str
    enters: tuple[str, ...]
    why: str


class GhostReport(NamedTuple):
    """Rules of `method='ghost'` for the parameters of a loss; `print` shows a table.

    Attributes:
        params: The rule of every param.
        coverage: Fraction of the params' entries with a rule other than `'vmap'`.
        bytes_per_example: Bytes stored for one example until its gradient is summed.
        gradient_bytes: Size of one example's gradient in bytes.
    """

    params: tuple[ParamRule, ...]
    coverage: float
    bytes_per_example: int
    gradient_bytes: int

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        head = ("param", "shape", "rule", "enters by", "why")
        table = [(p.name, str(p.shape), p.rule, ", ".join(p.enters), p.why) for p in self.params]
        last = (
            f"{100 * self.coverage:.1f} % of the params without vmap; stored per example: "
            f"{count_text(self.bytes_per_example, 'byte')} (a gradient: "
            f"{count_text(self.gradient_bytes, 'byte')})"
        )
        return "\n".join([*table_lines([head, *table]), last])


def ghost_report(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
) -> Callable[..., GhostReport]:
    """Report how `method='ghost'` computes the gradient norms of each parameter, and why.

    The function traces the loss for one example and executes nothing.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            after the last of `argnums`.

    Returns:
        A function `(params, batch, ..., key=None)` -> a `GhostReport`.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty.

    Example:
        >>> from fnopt.gradients import ghost_report
        >>> params = {"table": jnp.ones((50, 8)), "w": jnp.ones((8, 8)), "b": jnp.ones(8)}
        >>> def loss(params, tokens):
        ...     return jnp.sum(jnp.tanh(params["table"][tokens] @ params["w"] + params["b"]))
        >>> report = ghost_report(loss)(params, jnp.zeros((4, 6), jnp.int32))
        >>> [(p.name, p.rule, p.enters) for p in report.params]
        [('b', 'params', ('add',)), ('table', 'gram', ('gather',)),
         ('w', 'matrix', ('dot_general',))]
        >>> report.coverage
        1.0
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "ghost_report")

    def report_fn(*args: Any, key: Any = None, **kwargs: Any) -> GhostReport:
        bound = spec.bind(args, kwargs, key)
        plan = trace_ghost(bound).plan
        rules = []
        for i, (name, leaf) in enumerate(leaves_with_names(spec.like_argnums(bound.params))[0]):
            (group,) = (g for g in plan.groups if i in g.leaves)
            enters = tuple(s.eqn.primitive.name for s in group.sites if i in s.weight.leaves)
            rules.append(ParamRule(name, jnp.shape(leaf), group.form, enters, group.why))
        sizes = [p.size for p in plan.params]
        covered = sum(n for n, rule in zip(sizes, rules, strict=True) if rule.rule != "vmap")
        coverage = covered / sum(sizes) if sum(sizes) else 1.0
        # Gradients are summed in float32 at least.
        gradient_bytes = sum(p.size * max(4, p.dtype.itemsize) for p in plan.params)
        return GhostReport(tuple(rules), coverage, plan.bytes, gradient_bytes)

    return report_fn
