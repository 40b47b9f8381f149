r"""Jacobian of the residuals of a batch, stored as a tape of factors.

A row of the Jacobian is the gradient of one residual of one example. The residuals of an example
share the recorded activations, and every residual has separate cotangents. The products

.. math:: K = J J^\top, \qquad J^\top a, \qquad J v

are computed from activations and cotangents. Rows are formed only for params whose rows are small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import weighted_total
from fnopt.gradients.ghost import _direct, _rows_gram, _tape
from fnopt.gradients.ghost._plan import Group, tap_zeros
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._tape import Tape, visit
from fnopt.gradients.ghost._trace import Ghost
from fnopt.gradients.ghost._weights import evaluate
from fnopt.numerics import HIGHEST, compute_dtype
from fnopt.programs import intercept_nodes
from fnopt.sharding import pvary_like


class GhostRows(NamedTuple):
    """Jacobian of the residuals of `n` examples with `k` residuals each, as factors.

    Attributes:
        ghost: The traced residual function of one example, and the plan of every param.
        tape: The factors of the rows; cotangents and gradients are `[n, k, ...]`.
        formed: For each group, the formed rows `[n k, ...]`, or `None`.
    """

    ghost: Ghost
    tape: Tape
    formed: list[_tape.Formed]

    @property
    def residuals(self) -> jax.Array:
        """The residuals, `[n, k]`."""
        return self.tape.outputs[0]

    def gram(self, other: GhostRows) -> jax.Array:
        r"""Inner products of all rows with the rows of another tape, `[n k, m l]`.

        The other tape may belong to other residuals of the same params. If a param has the same
        layout on both tapes, its contribution is computed from the factors, else from formed rows.
        """
        other_parts = other._parts()
        n, m = (rows.residuals.size for rows in (self, other))
        total = jnp.zeros((n, m), self._dtype)
        for group, part in self._parts():
            common = [(g, p) for g, p in other_parts if {*g.leaves} & {*group.leaves}]
            if len(common) == 1 and _rows_gram.have_same_layout(group, common[0][0]):
                products = _rows_gram.inner_matrix((group, part), common[0])
                total = total + products.astype(total.dtype)
            elif common:
                leaves = by_param(group, part, self.ghost.params)
                parts = [by_param(g, p, other.ghost.params) for g, p in common]
                products = _rows_gram.by_leaf(leaves, {i: x for p in parts for i, x in p.items()})
                total = total + products.astype(total.dtype)
        return total

    def pull(self, weights: jax.Array) -> Any:
        r"""Product :math:`J^\top a`, a tree like the params, float32 or wider.

        Args:
            weights: `a`, `[n, k]`.
        """
        numbered = dict(enumerate(self.ghost.params))
        # The weighted sum of an example's cotangents, so that one outer product per site remains.
        tape = Tape(
            [],
            self.tape.records,
            {i: _combine_rows(g, weights) for i, g in self.tape.cotangents.items()},
            {},
        )
        ones = jnp.ones(weights.shape[:1], weights.dtype)
        sums: dict[int, jax.Array] = {}
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            if isinstance(formed, dict):
                sums |= {i: weighted_total(weights.reshape(-1), x) for i, x in formed.items()}
            else:
                weights_of_params = [ones] * len(self.ghost.params)
                sums |= _tape.weighted_sum(group, None, tape, weights_of_params, numbered)
        return self.ghost.like_params(sums)

    def push(self, direction: Any) -> jax.Array:
        """Product `J v`, `[n, k]`, float32 or wider.

        Args:
            direction: `v`, a tree like the params.
        """
        leaves = dict(enumerate(self.ghost.params_tree.flatten_up_to(direction)))
        total = jnp.zeros(self.residuals.shape, self._dtype)
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            if isinstance(formed, dict):
                terms = [multiply_rows(x, leaves[i]) for i, x in formed.items()]
            else:
                terms = [_push_site(s, self.tape, self.ghost.params, leaves) for s in group.sites]
            for x in terms:
                total = total + x.reshape(total.shape).astype(total.dtype)
        return total

    @property
    def _dtype(self) -> Any:
        return jnp.finfo(compute_dtype(*(p.dtype for p in self.ghost.plan.params))).dtype

    def _parts(self) -> list[tuple[Group, _rows_gram.RowsPart]]:
        groups = zip(self.ghost.plan.groups, self.formed, strict=True)
        return [(g, _rows_gram.RowsPart(f, self.tape)) for g, f in groups if g.form != "none"]


def record_rows(ghost: Ghost, batch: Any) -> GhostRows:
    """Record the Jacobian by one forward pass, and one backward pass per residual of an example.

    Args:
        ghost: A traced function of one example that returns a vector of residuals.
        batch: The examples.
    """
    tape = record_tape(ghost, batch)
    numbered = dict(enumerate(ghost.params))
    groups = ghost.plan.groups
    # The flat tape repeats the records `k` times, so it is only made if rows are formed.
    is_formed = any(g.form in {"vmap", "matrix", "params"} for g in groups)
    flat = _rows_gram.flatten_tape(tape) if is_formed else tape
    return GhostRows(ghost, tape, [_tape.form(g, flat, numbered) for g in groups])


def record_tape(ghost: Ghost, batch: Any) -> Tape:
    """Record the sites' inputs and cotangents by a forward pass and a backward pass per residual.

    The inputs have the shape `[n, ...]`. The cotangents, and the gradients of params without a
    rule, have the shape `[n, k, ...]`.
    """
    plan, params = ghost.plan, ghost.params
    formed = {i: params[i] for group in plan.groups if group.form == "vmap" for i in group.leaves}

    def record_example(example: Sequence[Any]) -> Tape:
        def residuals(taps: Any, formed: dict[int, Any]) -> Any:
            inputs = [formed.get(i, p) for i, p in enumerate(params)]
            outputs, records = intercept_nodes(plan.level, [*inputs, *example], visit, taps)
            return outputs[0], (outputs, records)

        taps = pvary_like(tap_zeros(plan), (params, example))
        r, pull, (outputs, records) = jax.vjp(residuals, taps, formed, has_aux=True)
        # One vmapped backward pass over unit vectors covers all residuals of an example.
        cotangents, grads = jax.vmap(pull)(pvary_like(jnp.eye(r.size, dtype=r.dtype), r))
        return Tape(outputs, records, cotangents, grads)

    return jax.vmap(record_example)(jax.tree.leaves(batch))


def by_param(
    group: Group, part: _rows_gram.RowsPart, params: Sequence[Any]
) -> Mapping[int, jax.Array]:
    """Formed rows of a group, keyed by param, `[n k, *param]`."""
    if isinstance(part.formed, dict):
        return part.formed
    return _tape.by_param(group, _rows_gram.flatten_tape(part.tape), dict(enumerate(params)))


def _combine_rows(cotangents: jax.Array, weights: jax.Array) -> jax.Array:
    """Cotangents of a weighted sum of the residuals of every example."""
    dtype = compute_dtype(cotangents.dtype)
    wide, weights = cotangents.astype(dtype), weights.astype(dtype)
    return jax.vmap(lambda w, g: jnp.tensordot(w, g, 1, precision=HIGHEST))(weights, wide)


def multiply_rows(rows: jax.Array, direction: jax.Array) -> jax.Array:
    """Product of rows `[..., *param]` of a Jacobian with a direction like the param."""
    dtype = compute_dtype(rows.dtype, direction.dtype)
    rows, direction = rows.astype(dtype), direction.astype(dtype)
    return jnp.tensordot(rows, direction, direction.ndim, precision=HIGHEST)


def _push_site(
    site: Site, tape: Tape, params: Sequence[Any], direction: Mapping[int, jax.Array]
) -> jax.Array:
    """Contribution of a site to `J v`, `[n, k]`."""
    numbers = sorted(site.weight.leaves)
    numbered = dict(enumerate(params))

    primals = {i: params[i] for i in numbers}
    tangents = {i: direction[i].astype(params[i].dtype) for i in numbers}
    weight, weight_tangent = jax.jvp(
        lambda params: evaluate(site.weight, numbered | params), (primals,), (tangents,)
    )

    def push_example(records: dict[int, Any], g: jax.Array) -> jax.Array:
        others = [records[o] if isinstance(o, int) else evaluate(o, numbered) for o in site.others]
        output_tangent = _direct.tangent(site, weight, weight_tangent, others, g.shape[1:])
        return multiply_rows(g, output_tangent)

    return jax.vmap(push_example)(tape.records, tape.cotangents[site.tap])
