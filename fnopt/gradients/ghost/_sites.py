"""Sites, the equations that combine params with the example, by abstract interpretation.

The loss is traced for a single example, so there is no batch axis. A *weight* is a value that
depends on the params but not on the example, for example a cast, transposed or sliced param. A
*site* is an equation that combines a weight with a value of the example. The gradient with respect
to the weight follows from the equation's other inputs and from the cotangent of the output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend import core as jex
from jax.lax import GatherScatterMode

from fnopt.gradients.ghost._weights import ConstantWeight, Leaf, Slice, Weight, step
from fnopt.numerics import is_inexact
from fnopt.programs import JaxprNodes, NodeVar, Scan, control_view, jaxprs

# Primitives whose derivative with respect to an operand is hardly larger than their output.
_DIRECT = {
    "add",
    "add_any",
    "atan2",
    "clamp",
    "concatenate",
    "div",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "max",
    "min",
    "mul",
    "pad",
    "polynomial",
    "pow",
    "select_n",
    "stack",
    "sub",
}
# Largest window of a convolution that is unrolled over its offsets: 8 x 8 or 4 x 4 x 4. The compile
# time grows with the number of offsets, so larger windows use the direct rule.
_MAX_OFFSETS = 64


class Site(NamedTuple):
    """Equation that combines a weight with values of the example.

    Attributes:
        kind: `'dot'`, `'conv'`, `'gather'` or `'direct'`.
        eqn: The equation.
        position: Index of the weight among the operands.
        weight: The weight.
        others: The other operands: weights, or the nodes of recorded values.
        tap: Index of the node that records the cotangent of the output.
        axes: Indices of the enclosing scans, outermost first.
    """

    kind: str
    eqn: Any
    position: int
    weight: Weight
    others: tuple[Weight | int, ...]
    tap: int
    axes: tuple[int, ...]


class LossSites(NamedTuple):
    """Sites of a loss, and the params without a rule.

    Attributes:
        level: The jaxpr of the loss, with taps and records as nodes.
        sites: The sites of the params.
        unsupported: The reason why a param has no rule, keyed by the param's index.
        nodes: For each tap or record, the shape and dtype in one iteration, and the scans.
        lengths: Numbers of iterations of the scans, keyed by the scan's index.
    """

    level: JaxprNodes
    sites: list[Site]
    unsupported: dict[int, str]
    nodes: dict[int, tuple[Any, tuple[int, ...]]]
    lengths: dict[int, int]


def find_sites(closed: jex.ClosedJaxpr, n_params: int) -> LossSites:
    """Find the sites of a loss of one example, whose first `n_params` inputs are the params."""
    finder = _SiteFinder()
    invars = closed.jaxpr.invars
    params = [Leaf(v.aval, frozenset({i})) for i, v in enumerate(invars[:n_params])]
    for i, v in enumerate(invars[:n_params]):
        if not is_inexact(v.aval) or v.aval.dtype.kind == "c":
            finder.unsupported[i] = f"{v.aval.dtype} params"
    sub = jaxprs.SubJaxpr("jaxpr", closed.jaxpr, tuple(closed.consts))
    level, outs = finder.interpret(sub, [*params, *[None] * (len(invars) - n_params)], ())
    # A term such as weight decay has no site, so the rules would miss its gradient.
    finder.mark_unsupported(outs[:1], "the loss has a term that does not depend on the example")
    return LossSites(level, finder.sites, finder.unsupported, finder.nodes, finder.lengths)


Values = Sequence[Weight | None]
"""Weights, and `None` for values that depend on the example."""


class _SiteFinder:
    """Sites, nodes and scans of all jaxprs of a loss."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.unsupported: dict[int, str] = {}
        self.nodes: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self.lengths: dict[int, int] = {}

    def mark_unsupported(self, values: Values, why: str) -> None:
        """Record that the params of these weights have no rule."""
        for w in values:
            if w is not None and w.differentiable:
                for i in w.leaves:
                    self.unsupported.setdefault(i, why)

    def add_node(self, aval: Any, axes: tuple[int, ...]) -> int:
        number = len(self.nodes)
        self.nodes[number] = (aval, axes)
        return number

    def interpret(
        self, sub: jaxprs.SubJaxpr, values: Values, axes: tuple[int, ...]
    ) -> tuple[JaxprNodes, list[Weight | None]]:
        """Find the sites of a jaxpr; return its nodes and the weights among its outputs."""
        walk = _Walk(self, sub, values, axes)
        for i, eqn in enumerate(sub.jaxpr.eqns):
            walk.equation(i, eqn)
        return walk.nodes, walk.read(sub.jaxpr.outvars)


class _Walk:
    """Abstract interpretation of one jaxpr, with a weight or `None` as the value of a variable."""

    def __init__(
        self, finder: _SiteFinder, sub: jaxprs.SubJaxpr, values: Values, axes: tuple[int, ...]
    ) -> None:
        self.finder, self.axes = finder, axes
        self.nodes = JaxprNodes(sub.jaxpr, sub.consts, {}, {})
        self.env: dict[Any, Weight | None] = dict(zip(sub.jaxpr.invars, values, strict=True))
        for v, c in zip(sub.jaxpr.constvars, sub.consts, strict=True):
            self.env[v] = ConstantWeight(v.aval, value=c)
        self.uses = Counter(
            v
            for atoms in (*(e.invars for e in sub.jaxpr.eqns), sub.jaxpr.outvars)
            for v in atoms
            if not isinstance(v, jex.Literal)
        )
        self.taps: dict[Any, int] = {}
        self.records: dict[Any, int] = {}

    def read(self, atoms: Sequence[Any]) -> list[Weight | None]:
        """Weights of variables and literals; `None` for values of the example."""
        return [
            ConstantWeight(a.aval, value=a.val) if isinstance(a, jex.Literal) else self.env.get(a)
            for a in atoms
        ]

    def equation(self, i: int, eqn: jex.JaxprEqn) -> None:
        """Interpret one equation."""
        ins = self.read(eqn.invars)
        weights = [w for w in ins if w is not None]
        opens = jaxprs.is_call(eqn) or jaxprs.is_remat(eqn)
        sub = jaxprs.called_jaxpr(eqn) if opens else None
        if any(w.differentiable for w in weights) and sub is not None:
            self.call(i, eqn, sub, ins)
        elif len(weights) == len(ins):
            outs = step(eqn, weights, self.axes)
            self.env.update(zip(eqn.outvars, outs, strict=True))
        elif any(w.differentiable for w in weights):
            self.combine(i, eqn, ins)

    def call(
        self, i: int, eqn: jex.JaxprEqn, sub: jaxprs.SubJaxpr, ins: list[Weight | None]
    ) -> None:
        """Interpret the jaxpr of a call, such as jit or remat."""
        level, outs = self.finder.interpret(sub, ins, self.axes)
        self.nodes.inner[i] = (level,)
        self.env.update(zip(eqn.outvars, outs, strict=True))

    def combine(self, i: int, eqn: jex.JaxprEqn, ins: list[Weight | None]) -> None:
        """Interpret an equation that combines weights with values of the example."""
        name, loop = eqn.primitive.name, control_view(eqn)
        if isinstance(loop, Scan):
            self.scan(i, loop, ins)
        elif not any(is_inexact(v.aval) for v in eqn.outvars):
            return  # a comparison has no gradient
        elif len(eqn.outvars) > 1:
            self.finder.mark_unsupported(ins, f"used by {name}")
        else:
            self.add_sites(i, eqn, ins)

    def add_sites(self, i: int, eqn: jex.JaxprEqn, ins: list[Weight | None]) -> None:
        """Add a site for every weight among the operands; the sites share a tap."""
        positions = [k for k, w in enumerate(ins) if w is not None and w.differentiable]
        kinds = [site_kind(eqn, k) for k in positions]
        if len(positions) > 1:
            kinds = ["direct" if eqn.primitive.name in _DIRECT else ""] * len(positions)
        if not all(kinds):
            self.finder.mark_unsupported(ins, f"used by {eqn.primitive.name}")
            return
        node_vars: list[NodeVar] = []
        operands = [self.operand(eqn, k, w, node_vars) for k, w in enumerate(ins)]
        tap = self.tap(eqn, ins, node_vars)
        self.nodes.node_vars[i] = tuple(node_vars)
        for k, kind in zip(positions, kinds, strict=True):
            others = tuple(operands[:k] + operands[k + 1 :])
            weight = ins[k]
            assert weight is not None
            self.finder.sites.append(Site(kind, eqn, k, weight, others, tap, self.axes))

    def operand(
        self, eqn: jex.JaxprEqn, k: int, weight: Weight | None, node_vars: list[NodeVar]
    ) -> Weight | int:
        """Weight of an operand, or the node that records the operand's value."""
        if weight is not None:
            return weight
        aval: Any = eqn.invars[k].aval
        if _changes_derivative(eqn, k):
            return self.record(eqn.invars[k], node_vars)
        # To save memory, an operand that doesn't affect the derivative isn't recorded.
        return ConstantWeight(aval, value=jnp.zeros(aval.shape, aval.dtype))

    def record(self, var: Any, node_vars: list[NodeVar]) -> int:
        if var not in self.records:
            self.records[var] = self.finder.add_node(var.aval, self.axes)
            node_vars.append(NodeVar(self.records[var], var))
        return self.records[var]

    def tap(self, eqn: jex.JaxprEqn, ins: list[Weight | None], node_vars: list[NodeVar]) -> int:
        """Node that records the cotangent of the output."""
        (out,) = eqn.outvars
        tap = self.product_tap(eqn, ins)
        if tap is None:
            tap = self.finder.add_node(out.aval, self.axes)
            node_vars.append(NodeVar(tap, out))
        self.taps[out] = tap
        return tap

    def product_tap(self, eqn: jex.JaxprEqn, ins: list[Weight | None]) -> int | None:
        """Tap of the product to which this equation adds a bias; `None` for other equations.

        The output of the product and the sum have the same cotangent, which is stored once.
        """
        name = eqn.primitive.name
        if not (name in {"add", "add_any"} or (name == "sub" and ins[0] is None)):
            return None
        data: list[Any] = [v for v, w in zip(eqn.invars, ins, strict=True) if w is None]
        out: Any = eqn.outvars[0].aval
        # If the product had other uses, its cotangent would be a sum over the uses.
        is_only_use = len(data) == 1 and self.uses[data[0]] == 1
        # A broadcast of the product's output would also change the cotangent.
        shares_cotangent = is_only_use and data[0].aval.shape == out.shape
        return self.taps.get(data[0]) if shares_cotangent else None

    def scan(self, i: int, loop: Scan, ins: list[Weight | None]) -> None:
        """Interpret the body of a scan; every iteration reads a slice of the weights in `xs`."""
        number = len(self.finder.lengths)
        self.finder.lengths[number] = loop.length
        consts, carry, xs = loop.parts(ins)
        self.finder.mark_unsupported(carry, "the first carry of a scan")
        *_, rows = loop.parts(loop.body.jaxpr.invars)
        slices = [
            None if w is None else Slice(v.aval, w.leaves, (*w.axes, number), (w,))
            for w, v in zip(xs, rows, strict=True)
        ]
        inner = [*consts, *[None] * len(carry), *slices]
        level, outs = self.finder.interpret(loop.body, inner, (*self.axes, number))
        self.finder.mark_unsupported(outs, "a scan output that does not use the example")
        self.nodes.inner[i] = (level,)


def site_kind(eqn: jex.JaxprEqn, position: int) -> str:
    """Kind of a site with the weight at this operand; `''` if no rule applies."""
    name = eqn.primitive.name
    if name == "dot_general":
        # For a real matrix times complex numbers, the gradient is the real part of a complex
        # outer product, which the norm rules don't support.
        operand: Any = eqn.invars[position].aval
        mixed = jnp.iscomplexobj(eqn.outvars[0].aval) != jnp.iscomplexobj(operand)
        return "direct" if mixed else "dot"
    if name == "conv_general_dilated":
        return _conv_kind(eqn) if position == 1 else ""
    if name == "gather" and position == 0 and _is_lookup(eqn):
        return "gather"
    return "direct" if name in _DIRECT else ""


def _changes_derivative(eqn: jex.JaxprEqn, position: int) -> bool:
    """Whether an operand affects the derivative with respect to the other operands."""
    name = eqn.primitive.name
    if name in {"add", "add_any", "sub", "concatenate", "pad", "stack"}:
        return False
    if name == "select_n":
        return position == 0
    return name != "dynamic_update_slice" or position > 1


def _conv_kind(eqn: jex.JaxprEqn) -> str:
    kernel: Any = eqn.invars[1].aval
    window = [kernel.shape[d] for d in eqn.params["dimension_numbers"].rhs_spec[2:]]
    is_ungrouped = eqn.params["batch_group_count"] == 1
    return "conv" if is_ungrouped and math.prod(window) <= _MAX_OFFSETS else "direct"


def _is_lookup(eqn: jex.JaxprEqn) -> bool:
    """Whether a gather looks up whole rows: `table[indices]`, or `vmap` of `table[index]`."""
    table: Any = eqn.invars[0].aval
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    rows = tuple(eqn.params["slice_sizes"]) == (1, *table.shape[1:])
    if not rows or numbers.operand_batching_dims:
        return False
    if numbers.collapsed_slice_dims == () and 0 in numbers.start_index_map:
        # `vmap` of `table[index]`: in other modes, an index along a row could drop the row.
        return mode in {GatherScatterMode.CLIP, GatherScatterMode.PROMISE_IN_BOUNDS}
    modes = {
        GatherScatterMode.CLIP,
        GatherScatterMode.FILL_OR_DROP,
        GatherScatterMode.PROMISE_IN_BOUNDS,
    }
    return (
        numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,) and mode in modes
    )
