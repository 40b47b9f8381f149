"""Plan for the gradients of all params, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

from fnopt.gradients.ghost import _conv, _dot, _gather
from fnopt.gradients.ghost._factors import FactorLayout, OneHot, pair_shapes, rows
from fnopt.gradients.ghost._sites import Found, Site, find_sites
from fnopt.programs import JaxprNodes

RULES: dict[str, Any] = {"dot": _dot, "conv": _conv, "gather": _gather}

# Maximum ratio of the size of a formed gradient, D x K, to the size of its factors, R (D + K).
# Below it, forming costs less than the inner products of all R positions, and little more memory.
# Either choice adds less than a tenth to the matrix products of a training step.
_FORM_FACTOR = 4


class Group(NamedTuple):
    """Params whose gradients are reduced together, because they share sites.

    Attributes:
        leaves: Indices of the params.
        sites: Their sites.
        form: `'gram'` doesn't form the gradient, `'matrix'` forms a matrix, `'params'` forms arrays
            like the params, `'vmap'` uses `jax.vmap(jax.grad)`, `'none'` marks a zero gradient.
        layout: The layout of the weight as matrices, for `'gram'` and `'matrix'`.
        why: The reason for the form.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    form: str
    layout: FactorLayout | None
    why: str


class Plan(NamedTuple):
    """Plan for a loss: the sites and the form of the gradient of every param.

    Attributes:
        level: The loss of one example with its taps and records.
        groups: All params.
        taps: By index of the node: shape and dtype of the output, and the enclosing scans.
        lengths: Number of iterations of the scans, by index.
        params: Shapes and dtypes of the params.
        bytes: Bytes stored for one example until its gradient is summed.
    """

    level: JaxprNodes
    groups: tuple[Group, ...]
    taps: dict[int, tuple[Any, tuple[int, ...]]]
    lengths: dict[int, int]
    params: tuple[Any, ...]
    bytes: int

    def tap_bytes(self, number: int) -> int:
        """Size in bytes of the cotangent of this node, for one example."""
        return _bytes(*self.taps[number], self.lengths)


def make_plan(closed: jex.ClosedJaxpr, n_params: int) -> Plan:
    """Make the plan for the traced loss of one example; its first inputs are the params."""
    found = find_sites(closed, n_params)
    params = tuple(v.aval for v in closed.jaxpr.invars[:n_params])
    groups = tuple(_group(found, leaves, sites) for leaves, sites in _components(found, n_params))
    kept = [site for group in groups for site in group.sites]
    taps = {site.tap: found.nodes[site.tap] for site in kept}
    records = {o for site in kept for o in site.others if isinstance(o, int)}
    nodes = {*taps, *records}
    # Recorded inputs and cotangents stay in memory until all examples of a chunk are measured.
    stored = sum(_bytes(*found.nodes[i], found.lengths) for i in nodes)
    formed = [i for g in groups if g.form not in {"gram", "none"} for i in g.leaves]
    stored += sum(params[i].size * max(4, params[i].dtype.itemsize) for i in formed)
    return Plan(found.level.restrict(nodes), groups, taps, found.lengths, params, stored)


def _components(found: Found, n_params: int) -> Iterable[tuple[tuple[int, ...], list[Site]]]:
    """Connected components of params that share sites, with their sites."""
    # Params that meet in one equation share a gradient, so they can only be measured together.
    component = {i: frozenset({i}) for i in range(n_params)}
    for site in found.sites:
        together = frozenset().union(*(component[i] for i in site.weight.leaves))
        component |= dict.fromkeys(together, together)
    for leaves in dict.fromkeys(component.values()):
        yield tuple(sorted(leaves)), [s for s in found.sites if s.weight.leaves <= leaves]


def _group(found: Found, leaves: tuple[int, ...], sites: Sequence[Site]) -> Group:
    lost = [found.lost[i] for i in leaves if i in found.lost]
    if lost:
        return Group(leaves, (), "vmap", None, lost[0])
    if not sites:
        return Group(leaves, (), "none", None, "the loss does not use it")
    form, layout, why = _form(found, sites)
    return Group(leaves, tuple(sites), form, layout, why)


def _form(found: Found, sites: Sequence[Site]) -> tuple[str, FactorLayout | None, str]:
    if any(site.kind == "direct" for site in sites):
        return "params", None, "its gradient is hardly larger than its factors"
    if any(max(site.eqn.params.get("lhs_dilation", ()), default=1) > 1 for site in sites):
        return "params", None, "its window covers mostly zeros between entries"
    layouts = [stacked_layout(site, found.lengths) for site in sites]
    if len({layout.key for layout in layouts}) > 1:
        return "params", None, "used in several shapes"
    if not layouts[0].weight.keeps_length:
        return "params", None, "computed from the params before it is combined with the example"
    pairs = [pair_shapes(RULES[s.kind], s, found.nodes, found.lengths) for s in sites]
    _, d, k = layouts[0].sizes
    dense = sum(rows(p.right) for p in pairs if not isinstance(p.left, OneHot))
    if dense > 1 and d * k <= _FORM_FACTOR * dense * (d + k):
        return "matrix", layouts[0], f"{d} x {k} is small compared with {dense} positions"
    used = sum(rows(p.right) for p in pairs)
    return "gram", layouts[0], f"{d} x {k} is large compared with {used} position{'s' * (used > 1)}"


def stacked_layout(site: Site, lengths: dict[int, int]) -> FactorLayout:
    """Layout of a site's weight, with an axis of `T` for every scan that slices the weight."""
    layout = RULES[site.kind].layout(site)
    sizes = tuple(lengths[number] for number in layout.weight.axes)
    n = len(sizes)
    t, d, k = layout.counts
    return FactorLayout(
        layout.weight,
        (*sizes, *layout.split),
        (n + t, d, k),
        (*range(n), *(n + i for i in layout.perm)),
        (*sizes, *layout.shape),
    )


def _bytes(aval: Any, axes: tuple[int, ...], lengths: dict[int, int]) -> int:
    size = aval.size * getattr(aval.dtype, "itemsize", 4)
    for number in axes:
        size *= lengths[number]
    return size


def tap_zeros(plan: Plan) -> dict[int, jax.Array]:
    """Zeros for every tap, with an axis for every enclosing scan."""
    return {
        i: jax.numpy.zeros((*(plan.lengths[n] for n in axes), *aval.shape), aval.dtype)
        for i, (aval, axes) in plan.taps.items()
    }
