"""Tape of a batch's forward and backward pass, and norms and sums computed from the tape."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import formed_norms, formed_squared_norms, scaled_rows, weighted_total
from fnopt.gradients.ghost import _direct
from fnopt.gradients.ghost._factors import (
    Pair,
    outer,
    scaled_norm,
    site_pair,
    squared_norm,
    sum_of,
    widen_float16,
)
from fnopt.gradients.ghost._plan import RULES, Group, Plan, tap_zeros
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import Weight, evaluate, pull_back
from fnopt.numerics import widen
from fnopt.programs import intercept_nodes
from fnopt.sharding import pvary_like


class Tape(NamedTuple):
    """Inputs and cotangents of the sites, with a leading example axis.

    Attributes:
        outputs: The loss, and the leaves of aux.
        records: Operands of the sites, keyed by node.
        cotangents: Cotangents of the sites' outputs, keyed by node.
        grads: Gradients of params without a rule, keyed by the index of the param.
    """

    outputs: list[jax.Array]
    records: dict[int, jax.Array]
    cotangents: dict[int, jax.Array]
    grads: dict[int, jax.Array]


def record(plan: Plan, params: Sequence[Any], batch: Sequence[Any]) -> Tape:
    """Record the tape of all examples by one forward and one backward pass.

    The loss is differentiated with respect to zeros that are added to the outputs of the sites.
    Params with the form `'vmap'` are differentiated directly.
    """
    formed = {i: params[i] for group in plan.groups if group.form == "vmap" for i in group.leaves}

    def loss(taps: Any, formed: dict[int, Any], example: Sequence[Any]) -> Any:
        inputs = [formed.get(i, p) for i, p in enumerate(params)]
        outputs, records = intercept_nodes(plan.level, [*inputs, *example], visit, taps)
        return outputs[0], (outputs, records)

    # The zeros are shared by all examples, which saves memory; their gradients are per example.
    run = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), (None, None, 0))
    taps = pvary_like(tap_zeros(plan), (params, batch))
    (_, (outputs, records)), (cotangents, grads) = run(taps, formed, batch)
    return Tape(outputs, records, cotangents, grads)


def visit(node: int, value: jax.Array, tap: jax.Array | None) -> tuple[Any, Any]:
    """Record the value of a node without a tap; add the tap, an array of zeros, otherwise."""
    return (value, value) if tap is None else (value + tap, None)


Formed = jax.Array | dict[int, jax.Array] | None
"""The gradients of a group: matrices, arrays keyed by param, or None; with an example axis."""


def form(group: Group, tape: Tape, params: Mapping[int, Any]) -> Formed:
    """Formed gradients of all examples; `None` if the plan doesn't form gradients of the group."""
    if group.form == "vmap":
        return {i: tape.grads[i] for i in group.leaves}
    if group.form == "matrix":
        return sum_of(_matrices(group, s, tape) for s in group.sites)
    if group.form == "params":
        return _gradients_by_param(group, tape, params)
    return None


def by_param(group: Group, tape: Tape, params: Mapping[int, Any]) -> dict[int, jax.Array]:
    """Gradients of all examples, keyed by param; formed even if the plan doesn't form them."""
    if group.form == "vmap":
        return {i: tape.grads[i] for i in group.leaves}
    return {} if group.form == "none" else _gradients_by_param(group, tape, params)


def squared_norms(group: Group, formed: Formed, tape: Tape) -> dict[int, jax.Array]:
    """Squared norms of the examples' gradients, `[n]`, over all params of a group.

    If gradients are formed per param, the result has an entry per param. Otherwise the only entry
    is the norm over the group, keyed by the first param.
    """
    return _reduce_norms(group, formed, tape, formed_squared_norms, squared_norm)


def norms(group: Group, formed: Formed, tape: Tape) -> dict[int, jax.Array]:
    """Norms of the gradients, accurate even if their squares overflow or underflow."""
    return _reduce_norms(group, formed, tape, formed_norms, scaled_norm)


def _reduce_norms(
    group: Group, formed: Formed, tape: Tape, formed_norm: Any, pairs_norm: Any
) -> dict[int, jax.Array]:
    if isinstance(formed, dict):
        return {i: formed_norm(x) for i, x in formed.items()}
    if formed is not None:
        return {group.leaves[0]: formed_norm(formed)}
    if group.form == "none":
        return {}

    norms_of_examples = jax.vmap(lambda data: pairs_norm(pairs_of(group, data)))
    return {group.leaves[0]: norms_of_examples([data_of(s, tape) for s in group.sites])}


def pairs_of(group: Group, data: Sequence[tuple[Any, jax.Array]]) -> list[Pair]:
    """Factors of one example's gradient, one pair per site."""
    return [site_pair(RULES[s.kind], s, x, g) for s, (x, g) in zip(group.sites, data, strict=True)]


def weighted_sum(
    group: Group,
    formed: Formed,
    tape: Tape,
    weights: Sequence[jax.Array],
    params: Mapping[int, Any],
) -> dict[int, jax.Array]:
    """Sum of the gradients over the examples, with weights `[n]` per param, keyed by param."""
    if isinstance(formed, dict):
        return {i: weighted_total(weights[i], x) for i, x in formed.items()}
    if group.layout is None:
        return {}
    shared = weights[group.leaves[0]]
    if formed is not None:
        total = weighted_total(shared, formed)
    else:
        total = sum_of(_contract(group, s, tape, shared) for s in group.sites)
    return pull_back(group.layout.weight, group.layout.array(total), params)


def data_of(site: Site, tape: Tape) -> tuple[Any, jax.Array]:
    """Recorded inputs of a site, and the cotangent of its output."""
    (other,) = site.others
    assert isinstance(other, int)
    return tape.records[other], tape.cotangents[site.tap]


def _matrices(group: Group, site: Site, tape: Tape) -> jax.Array:
    assert group.layout is not None
    _, d, k = group.layout.sizes

    pairs = _site_pairs(site, tape)
    return jax.vmap(lambda pair: outer(pair, (d, k), _precision(site)))(pairs)


def _site_pairs(site: Site, tape: Tape) -> Pair:
    """Factors of all examples at a site, with a leading example axis."""
    return jax.vmap(functools.partial(site_pair, RULES[site.kind], site))(*data_of(site, tape))


def _precision(site: Site) -> Any:
    """Precision of the model's matrix product; `None` for dot algorithms, which fix the dtypes."""
    precision = site.eqn.params.get("precision")
    parts = precision if isinstance(precision, tuple) else (precision,)
    return precision if all(isinstance(p, jax.lax.Precision) for p in parts) else None


def _contract(group: Group, site: Site, tape: Tape, weights: jax.Array) -> jax.Array:
    """Weighted sum of a site's gradients over the examples, `[T, D, K]`."""
    assert group.layout is not None
    _, d, k = group.layout.sizes
    pairs = _site_pairs(site, tape)

    def scale_examples(x: jax.Array) -> jax.Array:
        x = widen_float16(x)
        # Weights multiply in float32; the product is rounded to the dtype of the model's matmul.
        return scaled_rows(weights, x).astype(x.dtype)

    scaled = Pair(pairs.left, jax.tree.map(scale_examples, pairs.right))
    # One matrix product sums over examples and positions.
    return outer(jax.tree.map(examples_as_positions, scaled), (d, k), _precision(site))


def examples_as_positions(x: jax.Array) -> jax.Array:
    """Reshape `[n, T, R, ...]` to `[T, n R, ...]`."""
    n, t, r, *rest = x.shape
    return jnp.moveaxis(x, 0, 1).reshape(t, n * r, *rest)


def _gradients_by_param(
    group: Group, tape: Tape, params: Mapping[int, Any]
) -> dict[int, jax.Array]:
    """Gradients of all examples, keyed by param: sums of the gradients at the sites."""
    # Weights that several sites share are computed once.
    memo: dict[int, Any] = {}

    def value(weight: Weight) -> Any:
        if id(weight) not in memo:
            memo[id(weight)] = evaluate(weight, params)
        return memo[id(weight)]

    def differentiate_example(
        records: dict[int, Any], cotangents: dict[int, Any]
    ) -> dict[int, jax.Array]:
        total: dict[int, jax.Array] = {}
        for site in group.sites:
            others = [records[o] if isinstance(o, int) else value(o) for o in site.others]
            g = _direct.gradient(site, value(site.weight), others, cotangents[site.tap])
            # If the weight only moves elements, the sum over sites can be in the wide dtype.
            g = widen(g) if site.weight.moves_only else g
            for i, x in pull_back(site.weight, g, params).items():
                total[i] = total[i] + x if i in total else x
        return total

    return jax.vmap(differentiate_example)(tape.records, tape.cotangents)
