"""Sites that combine params with the example, found by abstract interpretation of the loss.

The loss is traced for a single example, so there is no batch axis. A value that depends on the
params but not on the example is a *weight*, also after casts, transposes, jit, remat and slicing by
scans. An equation that combines a weight with any other value is a *site*. The gradient with
respect to the weight follows from the equation's other inputs and from the cotangent of its output.
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

# Equations whose derivative with respect to an operand is hardly larger than their output.
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
# A convolution is unrolled over the offsets of its window, up to 8 x 8 or 4 x 4 x 4. The compile
# time grows with the offsets, so larger windows use the direct rule.
_MOST_OFFSETS = 64


class Site(NamedTuple):
    """Equation that combines a weight with values of the example.

    Attributes:
        kind: `'dot'`, `'conv'`, `'gather'` or `'direct'`.
        eqn: The equation.
        position: Index of the weight among the operands.
        weight: The weight.
        others: The other operands: weights, or indices of records.
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


class Found(NamedTuple):
    """Sites of a loss, and the params without a rule.

    Attributes:
        level: The loss, with taps and records as its nodes.
        sites: The sites of the params.
        lost: Params with unknown sites, and the reason.
        nodes: By index: shape and dtype of a tap or record in one iteration, and the scans.
        lengths: Number of iterations of the scans, by index.
    """

    level: JaxprNodes
    sites: list[Site]
    lost: dict[int, str]
    nodes: dict[int, tuple[Any, tuple[int, ...]]]
    lengths: dict[int, int]


def find_sites(closed: jex.ClosedJaxpr, n_params: int) -> Found:
    """Find the sites in the loss of one example; its first `n_params` inputs are the params."""
    finder = _SiteFinder()
    invars = closed.jaxpr.invars
    params = [Leaf(v.aval, frozenset({i})) for i, v in enumerate(invars[:n_params])]
    for i, v in enumerate(invars[:n_params]):
        if not is_inexact(v.aval) or v.aval.dtype.kind == "c":
            finder.lost[i] = f"{v.aval.dtype} params"
    sub = jaxprs.SubJaxpr("jaxpr", closed.jaxpr, tuple(closed.consts))
    level, outs = finder.level(sub, [*params, *[None] * (len(invars) - n_params)], ())
    finder.lose(outs[:1], "the loss has a part that the example does not change")
    return Found(level, finder.sites, finder.lost, finder.nodes, finder.lengths)


Values = Sequence[Weight | None]
"""Weights; `None` for values that depend on the example."""


class _SiteFinder:
    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.lost: dict[int, str] = {}
        self.nodes: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self.lengths: dict[int, int] = {}

    def lose(self, values: Values, why: str) -> None:
        for w in values:
            if w is not None and w.differentiable:
                for i in w.leaves:
                    self.lost.setdefault(i, why)

    def node(self, aval: Any, axes: tuple[int, ...]) -> int:
        number = len(self.nodes)
        self.nodes[number] = (aval, axes)
        return number

    def level(
        self, sub: jaxprs.SubJaxpr, values: Values, axes: tuple[int, ...]
    ) -> tuple[JaxprNodes, list[Weight | None]]:
        walk = _Walk(self, sub, values, axes)
        for i, eqn in enumerate(sub.jaxpr.eqns):
            walk.equation(i, eqn)
        return walk.found, walk.read(sub.jaxpr.outvars)


class _Walk:
    """Abstract interpretation of one jaxpr."""

    def __init__(
        self, finder: _SiteFinder, sub: jaxprs.SubJaxpr, values: Values, axes: tuple[int, ...]
    ) -> None:
        self.finder, self.axes = finder, axes
        self.found = JaxprNodes(sub.jaxpr, sub.consts, {}, {})
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
        return [
            ConstantWeight(a.aval, value=a.val) if isinstance(a, jex.Literal) else self.env.get(a)
            for a in atoms
        ]

    def equation(self, i: int, eqn: jex.JaxprEqn) -> None:
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
            self.meeting(i, eqn, ins)

    def call(
        self, i: int, eqn: jex.JaxprEqn, sub: jaxprs.SubJaxpr, ins: list[Weight | None]
    ) -> None:
        level, outs = self.finder.level(sub, ins, self.axes)
        self.found.inner[i] = (level,)
        self.env.update(zip(eqn.outvars, outs, strict=True))

    def meeting(self, i: int, eqn: jex.JaxprEqn, ins: list[Weight | None]) -> None:
        name, loop = eqn.primitive.name, control_view(eqn)
        if isinstance(loop, Scan):
            self.scan(i, loop, ins)
        elif not any(is_inexact(v.aval) for v in eqn.outvars):
            return  # a comparison has no gradient
        elif len(eqn.outvars) > 1:
            self.finder.lose(ins, f"used by {name}")
        else:
            self.operands(i, eqn, ins)

    def operands(self, i: int, eqn: jex.JaxprEqn, ins: list[Weight | None]) -> None:
        """Register every weight among the operands as a site with a common tap."""
        positions = [k for k, w in enumerate(ins) if w is not None and w.differentiable]
        kinds = [site_kind(eqn, k) for k in positions]
        if len(positions) > 1:
            kinds = ["direct" if eqn.primitive.name in _DIRECT else ""] * len(positions)
        if not all(kinds):
            self.finder.lose(ins, f"used by {eqn.primitive.name}")
            return
        node_vars: list[NodeVar] = []
        read = [self.operand(eqn, k, w, node_vars) for k, w in enumerate(ins)]
        tap = self.tap(eqn, ins, node_vars)
        self.found.node_vars[i] = tuple(node_vars)
        for k, kind in zip(positions, kinds, strict=True):
            others = tuple(read[:k] + read[k + 1 :])
            weight = ins[k]
            assert weight is not None
            self.finder.sites.append(Site(kind, eqn, k, weight, others, tap, self.axes))

    def operand(
        self, eqn: jex.JaxprEqn, k: int, weight: Weight | None, node_vars: list[NodeVar]
    ) -> Weight | int:
        if weight is not None:
            return weight
        aval: Any = eqn.invars[k].aval
        if _changes_derivative(eqn, k):
            return self.record(eqn.invars[k], node_vars)
        # An operand that the derivative doesn't depend on isn't recorded: that saves its memory.
        return ConstantWeight(aval, value=jnp.zeros(aval.shape, aval.dtype))

    def record(self, var: Any, node_vars: list[NodeVar]) -> int:
        if var not in self.records:
            self.records[var] = self.finder.node(var.aval, self.axes)
            node_vars.append(NodeVar(self.records[var], var))
        return self.records[var]

    def tap(self, eqn: jex.JaxprEqn, ins: list[Weight | None], node_vars: list[NodeVar]) -> int:
        (out,) = eqn.outvars
        before = self.tap_before(eqn, ins)
        if before is None:
            before = self.finder.node(out.aval, self.axes)
            node_vars.append(NodeVar(before, out))
        self.taps[out] = before
        return before

    def tap_before(self, eqn: jex.JaxprEqn, ins: list[Weight | None]) -> int | None:
        """Find the tap of the product whose bias this equation adds."""
        name = eqn.primitive.name
        if not (name in {"add", "add_any"} or (name == "sub" and ins[0] is None)):
            return None
        data: list[Any] = [v for v, w in zip(eqn.invars, ins, strict=True) if w is None]
        out: Any = eqn.outvars[0].aval
        # A node with other uses has a different cotangent.
        same = len(data) == 1 and self.uses[data[0]] == 1 and data[0].aval.shape == out.shape
        return self.taps.get(data[0]) if same else None

    def scan(self, i: int, loop: Scan, ins: list[Weight | None]) -> None:
        number = len(self.finder.lengths)
        self.finder.lengths[number] = loop.length
        consts, carry, xs = loop.parts(ins)
        self.finder.lose(carry, "the first carry of a scan")
        *_, rows = loop.parts(loop.body.jaxpr.invars)
        slices = [
            None if w is None else Slice(v.aval, w.leaves, (*w.axes, number), (w,))
            for w, v in zip(xs, rows, strict=True)
        ]
        inner = [*consts, *[None] * len(carry), *slices]
        level, outs = self.finder.level(loop.body, inner, (*self.axes, number))
        self.finder.lose(outs, "leaves a scan unchanged by the example")
        self.found.inner[i] = (level,)


def site_kind(eqn: jex.JaxprEqn, position: int) -> str:
    """Rule for a weight at this operand; `''` if no rule applies."""
    name = eqn.primitive.name
    if name == "dot_general":
        # A real matrix times complex numbers: the gradient is the real part of the complex
        # gradient.
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
    plain = eqn.params["batch_group_count"] == 1
    return "conv" if plain and math.prod(window) <= _MOST_OFFSETS else "direct"


def _is_lookup(eqn: jex.JaxprEqn) -> bool:
    """Whether a gather looks up whole rows: `table[indices]`, or `vmap` of `table[index]`."""
    table: Any = eqn.invars[0].aval
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    rows = tuple(eqn.params["slice_sizes"]) == (1, *table.shape[1:])
    if not rows or numbers.operand_batching_dims:
        return False
    if numbers.collapsed_slice_dims == () and 0 in numbers.start_index_map:
        # A slice of the full width is clamped to start at 0.
        return mode in {GatherScatterMode.CLIP, GatherScatterMode.PROMISE_IN_BOUNDS}
    modes = {
        GatherScatterMode.CLIP,
        GatherScatterMode.FILL_OR_DROP,
        GatherScatterMode.PROMISE_IN_BOUNDS,
    }
    return (
        numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,) and mode in modes
    )
