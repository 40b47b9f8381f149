"""The Gauss-Newton matrix of a model and a loss in blocks, without registered layers or losses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    axes_of,
    check_choice,
    compute_dtype,
    is_spread,
    laid,
    leaves_with_names,
    show_report,
)
from fnopt.curvature._bound import bind
from fnopt.curvature._kronecker_inverse import Factors, inverse_factors, times_inverse
from fnopt.curvature._output_root import (
    check_loss,
    drawn_rows,
    keys_of,
    output_curvature,
    output_rows,
)
from fnopt.curvature._softmax_loss import is_softmax_loss, softmax_rows
from fnopt.gradients import BoundLoss
from fnopt.gradients.ghost import KroneckerBlock, block_factors, plan_blocks, trace_ghost
from fnopt.jacobians import check_real

SHARING = ("expand", "reduce")


class KroneckerSpec(NamedTuple):
    """The curvature to approximate: model, loss, and options.

    Attributes:
        model_fn: `f(params, example) -> outputs` of ONE example.
        loss_fn: `loss(outputs, example) -> scalar`.
        samples: How many random rows of the root of the output Hessian; `None` for all.
        sample_fn: Draws a label from the model, `(key, outputs, example) -> example`; or `None`.
        sharing: `'expand'` or `'reduce'`.
        max_side: The largest side of a dense factor.
        name: What the user called, for messages.
    """

    model_fn: Callable[[Any, Any], Any]
    loss_fn: Callable[[Any, Any], jax.Array]
    samples: int | None = 1
    sample_fn: Callable[[Any, Any, Any], Any] | None = None
    sharing: str = "expand"
    max_side: int = 512
    name: str = "kfac"


class KroneckerModel:
    """A spec at some params, with a batch; it lives within one trace.

    Args:
        spec: The spec.
        params: The params, arrays.
        batch: The examples; shapes and dtypes do for `blocks`.
    """

    def __init__(self, spec: KroneckerSpec, params: Any, batch: Any) -> None:
        check_choice(spec.sharing, SHARING, "sharing", spec.name)
        self.spec, self.batch = spec, batch
        self.bound, self.laid = bind(spec.model_fn, params, batch, spec.name)
        self.dtype = common_dtype(params)
        check_loss(self.loss, self.laid.size, self.dtype, batch, spec.name)
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
        self.is_softmax = is_softmax_loss(self.loss, self.laid.size, self.dtype, example)
        rows = spec.samples or self.laid.size
        seeds = jax.ShapeDtypeStruct((self.bound.size, rows, self.laid.size), self.dtype)

        def residuals(params: Any, pair: Any) -> tuple[jax.Array, None]:
            example, rows = pair
            return jnp.matmul(rows, self.bound.loss(params, example)[0]), None

        bound = BoundLoss(residuals, params, (batch, seeds), self.bound.size)  # pyright: ignore[reportArgumentType]
        self.ghost = trace_ghost(bound)
        self.blocks = plan_blocks(self.ghost.plan, spec.max_side)

    def outputs(self, params: Any) -> jax.Array:
        """The outputs of all examples as vectors, `[n, C]`."""
        return jax.vmap(lambda e: self.bound.loss(params, e)[0])(self.batch)

    def loss(self, outputs: jax.Array, example: Any) -> jax.Array:
        """The loss of one example from its outputs as a vector."""
        return self.spec.loss_fn(self.laid.unflatten(outputs), example)

    def mean_loss(self, outputs: jax.Array) -> jax.Array:
        """The mean over the examples, from `[n, C]`."""
        return jnp.mean(jax.vmap(self.loss)(outputs, self.batch).astype(self.dtype))

    def bend(self, outputs: jax.Array) -> Callable[[jax.Array], jax.Array]:
        """The product with the Hessian of the mean loss in the outputs, of `[n, C]`."""
        found = None
        if self.spec.sample_fn is None and not self.is_softmax:
            found = output_curvature(self.loss, outputs, self.batch, self.spec.name)
        if found is not None:
            return lambda v: found(v) / outputs.shape[0]
        slope = jax.grad(self.mean_loss)
        return lambda v: jax.jvp(slope, (outputs,), (v,))[1]

    def factors(self, outputs: jax.Array, key: jax.Array) -> tuple[Factors, ...]:
        """The factors of all blocks, from the outputs at the params."""
        rows = jax.lax.stop_gradient(self._rows(outputs, key).astype(self.dtype))
        if is_spread(outputs):  # over devices, by example
            rows = laid(rows, (axes_of(outputs)[0], None, None))
        found = block_factors(self.ghost, self.blocks, (self.batch, rows), self.spec.sharing)
        return jax.tree.map(lambda x: x.astype(self.dtype), found)

    def _rows(self, outputs: jax.Array, key: jax.Array) -> jax.Array:
        spec, draw = self.spec, self.spec.sample_fn
        if draw is None and spec.samples and self.is_softmax:
            rows = functools.partial(softmax_rows, self.loss, samples=spec.samples)
            return jax.vmap(rows)(outputs, self.batch, keys_of(outputs, key))
        if draw is None:
            return output_rows(self.loss, outputs, self.batch, key, spec.samples, spec.name)

        def drawn(key: jax.Array, f: jax.Array, example: Any) -> Any:
            return draw(key, self.laid.unflatten(f), example)

        return drawn_rows(self.loss, drawn, outputs, self.batch, key, spec.samples or 1)

    def inverses(self, factors: tuple[Factors, ...], damping: jax.Array) -> tuple[Factors, ...]:
        """The inverses of all damped factors."""
        return inverse_factors(self.blocks, factors, damping)

    def divided(self, tree: Any, inverses: tuple[Factors, ...], damping: jax.Array) -> Any:
        """The product of the inverse with a tree like the params."""
        leaves, treedef = jax.tree.flatten(tree)
        leaves = [x.astype(self.dtype) for x in leaves]
        found: dict[int, jax.Array] = {}
        for block, inverse in zip(self.blocks, inverses, strict=True):
            found |= times_inverse(block, inverse, damping, leaves)
        return jax.tree.unflatten(treedef, [found[i] for i in range(len(leaves))])


def common_dtype(params: Any) -> Any:
    """In which dtype all is computed."""
    return compute_dtype(*(jnp.result_type(p) for p in jax.tree.leaves(params)))


def planned_blocks(spec: KroneckerSpec, params: Any, batch: Any) -> tuple[KroneckerBlock, ...]:
    """The blocks, from shapes alone; nothing is computed."""
    check_real(params, spec.name)
    found: list[KroneckerBlock] = []

    def plan(params: Any, batch: Any) -> None:
        found.extend(KroneckerModel(spec, params, batch).blocks)

    jax.eval_shape(plan, params, batch)
    return tuple(found)


class KfacRule(NamedTuple):
    """Which block of the Gauss-Newton matrix one param has.

    Attributes:
        name: The path of the param.
        shape: Its shape.
        block: `'kronecker'`, `'dense'`, `'diagonal'`, or `'none'` for a param that the model
            doesn't use.
        factors: The sides of its factors: `'785 x 128'`, or `'bias of w'` for a param that is a
            further row of a weight. `'2 x 512'` is a factor that was cut into blocks.
        why: The reason.
    """

    name: str
    shape: tuple[int, ...]
    block: str
    factors: str
    why: str


class KfacReport(NamedTuple):
    """Which block each param has; `print` it.

    Attributes:
        params: One entry for each param.
        coverage: Which part of the numbers in the params is in no diagonal block.
        numbers: How many numbers the factors have, beside those of the params.
    """

    params: tuple[KfacRule, ...]
    coverage: float
    numbers: int

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        head = ("param", "shape", "block", "factors", "why")
        table = [(p.name, str(p.shape), p.block, p.factors, p.why) for p in self.params]
        widths = [max(map(len, column)) for column in zip(head, *table, strict=True)]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in (head, *table)
        ]
        last = f"{100 * self.coverage:.1f} % of the numbers are in no diagonal block; "
        return "\n".join([*lines, last + f"the factors have {self.numbers} numbers"])


def kfac_report(
    model_fn: Callable[[Any, Any], Any], *, max_side: int = 512
) -> Callable[[Any, Any], KfacReport]:
    """Says for every param which block of the Gauss-Newton matrix `fnopt.kfac` gives it, and why.

    Nothing is computed: the model is traced for one example, and the places are found where params
    meet it.

    Args:
        model_fn: `f(params, example) -> outputs` of ONE example.
        max_side: As in `fnopt.kfac`.

    Returns:
        A function `(params, batch)` -> a `KfacReport`.

    Raises:
        TypeError: If a param isn't a real floating array.
        ValueError: If the example axes disagree or are empty.

    Example:
        >>> from fnopt.curvature import kfac_report
        >>> params = {"b": jnp.ones(8), "scale": jnp.ones(5), "w": jnp.ones((5, 8))}
        >>> def model(params, x):
        ...     return jnp.tanh(x * params["scale"]) @ params["w"] + params["b"]
        >>> report = kfac_report(model)(params, jnp.ones((4, 5)))
        >>> [(p.name, p.block, p.factors) for p in report.params]
        [('b', 'kronecker', 'bias of w'), ('scale', 'dense', '5'), ('w', 'kronecker', '6 x 8')]
        >>> report.coverage
        1.0
    """
    spec = KroneckerSpec(model_fn, lambda f, _: _sum(f), max_side=max_side, name="kfac_report")

    def report(params: Any, batch: Any) -> KfacReport:
        blocks = planned_blocks(spec, params, batch)
        pairs = leaves_with_names(params)[0]
        rules = {i: rule for b in blocks for i, rule in _rules(b, pairs).items()}
        sizes = [math.prod(jnp.shape(leaf)) for _, leaf in pairs]
        known = sum(n for i, n in enumerate(sizes) if rules[i].block != "diagonal")
        numbers = sum(math.prod(side.shape(b.matrices)) for b in blocks for side in b.sides)
        coverage = known / sum(sizes) if sum(sizes) else 1.0
        return KfacReport(tuple(rules[i] for i in sorted(rules)), coverage, numbers)

    return report


def _sum(outputs: Any) -> jax.Array:
    return sum((jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(outputs)), jnp.zeros(()))


def _rules(block: KroneckerBlock, leaves: list[tuple[str, Any]]) -> dict[int, KfacRule]:
    names = [name for name, _ in leaves]
    many = f"{block.matrices} times " if block.matrices > 1 else ""
    factors = many + " x ".join(map(_shown, block.sides))
    first, rules = block.leaves[0], {}
    for i in block.leaves:
        own = factors if i == first else f"bias of {names[first]}"
        rules[i] = KfacRule(names[i], jnp.shape(leaves[i][1]), block.kind, own, block.why)
    return rules


def _shown(side: Any) -> str:
    return str(side) if side.count < 2 else f"({side})"
