"""Plan of the form of every param's per-example gradient, from shapes only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

from fnopt.errors import count_text
from fnopt.gradients.ghost import _conv, _dot, _gather
from fnopt.gradients.ghost._factors import FactorLayout, OneHot, num_positions, pair_shapes
from fnopt.gradients.ghost._sites import LossSites, Site, find_sites
from fnopt.programs import JaxprNodes

RULES: dict[str, Any] = {"dot": _dot, "conv": _conv, "gather": _gather}

# Maximum ratio of the size of a formed gradient, D K, to the size of its factors, R (D + K). At
# larger ratios, the inner products of all R positions cost less. Clipped gradients of two layers by
# forming take 0.5, 0.7, 1.2 and 2.2 times as long for ratios of 0.5, 2, 4 and 8 (CPU time).
_FORM_FACTOR = 3


class Group(NamedTuple):
    """Params whose gradients are reduced together, because they share sites.

    Attributes:
        leaves: Indices of the params.
        sites: The sites that use the params.
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
    """The sites of a loss, and the form of the gradient of every param.

    Attributes:
        level: The jaxpr of the loss of one example, with its taps and records as nodes.
        groups: Groups that contain every param once.
        taps: For each node with a tap, the shape and dtype of the output, and the enclosing scans.
        lengths: Numbers of iterations of the scans, keyed by the scan's index.
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
        """Bytes of the cotangent of a node, for one example."""
        return _bytes(*self.taps[number], self.lengths)


def make_plan(closed: jex.ClosedJaxpr, n_params: int) -> Plan:
    """Plan the gradients of a traced loss of one example; its first inputs are the params."""
    loss = find_sites(closed, n_params)
    params = tuple(v.aval for v in closed.jaxpr.invars[:n_params])
    groups = tuple(_group(loss, leaves, sites) for leaves, sites in _components(loss, n_params))
    sites = [site for group in groups for site in group.sites]
    taps = {site.tap: loss.nodes[site.tap] for site in sites}
    records = {o for site in sites for o in site.others if isinstance(o, int)}
    nodes = {*taps, *records}
    # Recorded inputs and cotangents stay in memory until all examples of a chunk are measured.
    stored = sum(_bytes(*loss.nodes[i], loss.lengths) for i in nodes)
    formed = [i for g in groups if g.form not in {"gram", "none"} for i in g.leaves]
    stored += sum(params[i].size * max(4, params[i].dtype.itemsize) for i in formed)
    return Plan(loss.level.restrict(nodes), groups, taps, loss.lengths, params, stored)


def _components(loss: LossSites, n_params: int) -> Iterable[tuple[tuple[int, ...], list[Site]]]:
    """Connected components of params that share sites, with their sites."""
    # The site's gradient belongs to all params of its weight, so its norm can't be split by param.
    component = {i: frozenset({i}) for i in range(n_params)}
    for site in loss.sites:
        union = frozenset().union(*(component[i] for i in site.weight.leaves))
        component |= dict.fromkeys(union, union)
    for leaves in dict.fromkeys(component.values()):
        yield tuple(sorted(leaves)), [s for s in loss.sites if s.weight.leaves <= leaves]


def _group(loss: LossSites, leaves: tuple[int, ...], sites: Sequence[Site]) -> Group:
    reasons = [loss.unsupported[i] for i in leaves if i in loss.unsupported]
    if reasons:
        return Group(leaves, (), "vmap", None, reasons[0])
    if not sites:
        return Group(leaves, (), "none", None, "the loss does not use the param")
    form, layout, why = _form(loss, sites)
    return Group(leaves, tuple(sites), form, layout, why)


def _form(loss: LossSites, sites: Sequence[Site]) -> tuple[str, FactorLayout | None, str]:
    """Form of the gradient of a group, the layout of its weight, and the reason."""
    if any(site.kind == "direct" for site in sites):
        return "params", None, "the gradient is hardly larger than its factors"
    if any(max(site.eqn.params.get("lhs_dilation", ()), default=1) > 1 for site in sites):
        return "params", None, "its convolution has a dilated input, which is mostly zeros"
    layouts = [stacked_layout(site, loss.lengths) for site in sites]
    if len({layout.key for layout in layouts}) > 1:
        return "params", None, "used in several shapes"
    if not layouts[0].weight.preserves_norm:
        return "params", None, "computed from the params before it is combined with the example"
    pairs = [pair_shapes(RULES[s.kind], s, loss.nodes, loss.lengths) for s in sites]
    _, d, k = layouts[0].sizes
    # Positions of lookups aren't included, because inner products of one-hot vectors are cheap.
    dense = sum(num_positions(p.right) for p in pairs if not isinstance(p.left, OneHot))
    if dense > 1 and d * k <= _FORM_FACTOR * dense * (d + k):
        return "matrix", layouts[0], f"{d} x {k} is small compared with {dense} positions"
    r = sum(num_positions(p.right) for p in pairs)
    return "gram", layouts[0], f"{d} x {k} is large compared with {count_text(r, 'position')}"


def stacked_layout(site: Site, lengths: dict[int, int]) -> FactorLayout:
    """Layout of a site's weight; every scan that slices the weight adds an axis to `T`."""
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
