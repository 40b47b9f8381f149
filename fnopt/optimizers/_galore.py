"""GaLore: optimization in low-rank projections of the gradients of matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    CustomSlot,
    Member,
    Scalar,
    ScalarOrSchedule,
    Transformation,
    as_transformation,
    hyper,
    map_leaves,
    static,
)
from fnopt.numerics import compute_dtype, matmul, safe_increment, zero_count
from fnopt.optimizers._adam import scale_by_adam
from fnopt.optimizers._matrix_factors import only_finite
from fnopt.optimizers._matrix_functions import adjoint, leading_directions
from fnopt.optimizers._matrix_layout import MatrixLayout
from fnopt.optimizers._matrix_parts import (
    load_slot,
    map_by_shape,
    new_slot,
    store_slot,
    to_leaf,
    to_matrices,
)
from fnopt.optimizers._matrix_rule import as_rule, layouts_of
from fnopt.optimizers._recipe import recipe
from fnopt.sharding import sequential
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate

_NAME = "scale_by_galore"


class ScaleByGaloreState(NamedTuple):
    """State of `scale_by_galore`.

    Attributes:
        count: :math:`t`, the number of steps.
        projector: :math:`P` of every matrix, with orthonormal columns along the longer side.
        base_optimizer_state: The state of the inner optimizer, for the projected gradients.
    """

    count: jax.Array
    projector: CustomSlot
    base_optimizer_state: Any


class scale_by_galore(Transformation):
    r"""Apply an inner optimizer to low-rank projections of the gradients.

    .. math:: u_t = \alpha\, P\, \mathrm{inner}(P^\top G_t), \qquad
              G_\tau = U S V^\top, \quad P = U_{:, 1..r}

    `P` is computed from the gradient :math:`G_\tau` of every `update_proj_gap`-th step, and
    projects the longer side. For a matrix `[m, n]` with `m >= n`, the slots of the inner optimizer
    have the shape `[r, n]`, and `P` has `m r` numbers. The inner optimizer also updates leaves that
    aren't matrices, without projection.

    Derivatives through the updates are correct if the gradient has simple singular values. If
    singular values are equal or zero, the method has no derivative, and the basis of the singular
    vectors is treated as a constant.

    Args:
        rank: :math:`r`, the rank of the projection, limited to the shorter side of a matrix.
        update_proj_gap: The number of steps between two updates of :math:`P`.
        scale: :math:`\alpha`, the factor of projected updates.
        base_optimizer: The inner optimizer, which must not read the params; None uses
            `scale_by_adam()`.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.

    Raises:
        ValueError: If the inner optimizer reads the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_galore(rank=2), {"w": jnp.ones((8, 5))}
        >>> [x.shape for x in fnopt.slots(tx.init(params))["mu"]["w"]]
        [(1, 2, 5)]

    Reference:
        Zhao et al., 2024, arXiv:2403.03507.
    """

    rank: int = static(default=128, least=1)
    update_proj_gap: int = static(default=200, least=1)
    scale: Scalar = hyper(default=1.0, ge=0)
    base_optimizer: Any = None
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def __post_init__(self) -> None:
        inner = scale_by_adam() if self.base_optimizer is None else self.base_optimizer
        inner = as_transformation(inner, f"{_NAME}: base_optimizer")
        reader = _reader_of_params(inner)
        if reader is not None:
            raise ValueError(
                f"{_NAME}: base_optimizer contains {reader._place}, which reads the "
                "params, expected an optimizer that reads only the projected gradients, such as "
                "fnopt.scale_by_adam(). For weight decay, pass weight_decay to galore."
            )
        self._set("base_optimizer", inner)
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner optimizer."""
        inner = None if state is None else state.base_optimizer_state
        return (Member("base_optimizer", self.base_optimizer, inner),)

    def init(self, params: Any) -> ScaleByGaloreState:
        """Return zero projectors, and the initial inner state."""
        leaves, treedef = jax.tree.flatten(map_leaves(lambda p: p, params))
        projectors, inner = [], []
        for p, layout in zip(
            leaves, layouts_of(self.weight_dimension_numbers, params, required=False), strict=True
        ):
            if layout is None:
                projectors.append(())
                inner.append((p,))
                continue
            pairs = [new_slot(self._start(shape, p.dtype)) for shape in layout.shapes]
            projectors.append(tuple(P for _, P in pairs))
            inner.append(tuple(low_rank for low_rank, _ in pairs))
        inner_state = self.base_optimizer.init(treedef.unflatten(inner))
        return ScaleByGaloreState(zero_count(), treedef.unflatten(projectors), inner_state)

    def update(
        self, updates: Any, state: ScaleByGaloreState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByGaloreState]:
        """Project the gradients, update the inner optimizer, and map its updates back."""
        # Each leaf is a row with one entry per matrix shape (none for a leaf that isn't a matrix):
        # matrices `[k, m, n]` and projectors `[k, m, r]` -> projected gradients `[k, r, n]` ->
        # inner updates `[k, r, n]` -> updates `[k, m, n]`. `map_by_shape` stacks equal shapes.
        leaves, treedef = jax.tree.flatten(map_leaves(lambda g: g, updates))
        layouts = layouts_of(self.weight_dimension_numbers, updates, required=False)
        is_due = state.count % self.update_proj_gap == 0
        old_projectors = treedef.flatten_up_to(state.projector)
        rows = [
            []
            if layout is None
            else _pairs(to_matrices(layout, g, False), self._slots(layout, P, 1))
            for g, layout, P in zip(leaves, layouts, old_projectors, strict=True)
        ]
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        project = sequential(_project)
        results = map_by_shape(lambda part: project(*part, self.rank, is_due), rows)
        low_rank = [
            (g,) if layout is None else tuple(store_slot(x) for x, _ in row)
            for g, layout, row in zip(leaves, layouts, results, strict=True)
        ]
        projectors = [[P for _, P in row] for row in results]
        # The params aren't passed, because projected gradients have other shapes.
        inner_updates, inner_state = self.base_optimizer.update(
            treedef.unflatten(low_rank), state.base_optimizer_state, None, **extra_args
        )
        inner_updates = treedef.flatten_up_to(inner_updates)
        rows = [
            [] if layout is None else _group_by_side(layout, self._slots(layout, row, 0), P)
            for row, layout, P in zip(inner_updates, layouts, projectors, strict=True)
        ]
        matrices = map_by_shape(self._map_back, rows)
        new = [
            row[0] if layout is None else to_leaf(layout, parts, g, False)
            for row, layout, parts, g in zip(inner_updates, layouts, matrices, leaves, strict=True)
        ]
        slot = treedef.unflatten([store_slot(tuple(row)) for row in projectors])
        state = ScaleByGaloreState(safe_increment(state.count), slot, inner_state)
        return treedef.unflatten(new), state

    def _start(self, shape: tuple[int, int, int], dtype: Any = jnp.float32) -> Any:
        """Return zero projected gradients and zero projectors of a stack."""
        k, m, n = shape
        r = min(self.rank, m, n)
        low_rank = (k, r, n) if m >= n else (k, m, r)
        return jnp.zeros(low_rank, dtype), jnp.zeros((k, max(m, n), r), dtype)

    def _slots(self, layout: MatrixLayout, row: Any, index: int) -> list[Any]:
        """Load projected gradients (index 0) or projectors (index 1) from their stored form."""
        pairs = zip(row, layout.shapes, strict=True)
        return [load_slot(x, lambda s=s: self._start(s)[index]) for x, s in pairs]

    def _map_back(self, part: dict[str, tuple[jax.Array, jax.Array]]) -> jax.Array:
        """Map the inner updates of a stack back to the shape of the matrices."""
        ((side, (u, P)),) = part.items()
        dtype = compute_dtype(u.dtype, P.dtype)
        u, P = u.astype(dtype), P.astype(dtype)
        product = matmul(P, u) if side == "left" else matmul(u, adjoint(P))
        return jnp.asarray(self.scale).astype(dtype) * product


def _group_by_side(layout: MatrixLayout, updates: Any, projectors: Any) -> list[dict[str, Any]]:
    """Pair updates with projectors, keyed by the side that the projector multiplies.

    The key is part of the tree structure, so `map_by_shape` doesn't stack different sides.
    """
    sides = ["left" if m >= n else "right" for _, m, n in layout.shapes]
    return [{side: pair} for side, pair in zip(sides, _pairs(updates, projectors), strict=True)]


def _pairs(xs: Any, ys: Any) -> list[tuple[jax.Array, jax.Array]]:
    return list(zip(xs, ys, strict=True))


def _project(
    g: jax.Array, old: jax.Array, rank: int, is_due: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the projected gradients of a stack, and the projectors, updated if due."""
    _, m, n = g.shape
    dtype = compute_dtype(g.dtype, old.dtype)
    g, r = g.astype(dtype), min(rank, m, n)

    def compute(operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        g, old = operands
        return only_finite(leading_directions(g, r), old)

    # `select` instead of `cond` would compute the singular vectors in every step.
    P = jax.lax.cond(is_due, compute, lambda operands: operands[1], (g, old.astype(dtype)))
    low_rank = matmul(adjoint(P), g) if m >= n else matmul(g, P)
    return low_rank, P.astype(old.dtype)


def _reader_of_params(tx: Transformation) -> Transformation | None:
    """Return the first transform in `tx` that needs the params; None if there is none."""
    if tx.needs_params:
        return tx
    readers = (_reader_of_params(member.tx) for member in tx.members())
    return next((reader for reader in readers if reader is not None), None)


@recipe
def galore(
    learning_rate: ScalarOrSchedule,
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: Scalar = 1.0,
    base_optimizer: Any = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
    weight_dimension_numbers: Any = None,
) -> Chain:
    r"""GaLore: Adam, or another optimizer, on low-rank projections of the gradients of matrices.

    .. math:: u_t = -\eta_t \left(\alpha\, P\, \mathrm{inner}(P^\top G_t) +
              \lambda_t\, \theta_t\right)

    where the columns of :math:`P` are leading singular vectors of a gradient; see
    `scale_by_galore`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        rank: :math:`r`, the rank of the projection, limited to the shorter side of a matrix.
        update_proj_gap: The number of steps between two updates of :math:`P`.
        scale: :math:`\alpha`, the factor of projected updates.
        base_optimizer: The inner optimizer, which must not read the params; None uses
            `scale_by_adam()`.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.

    Returns:
        A chain of `scale_by_galore`, `add_decayed_weights` and `scale_by_learning_rate`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.galore(0.1, rank=1), {"w": jnp.ones((3, 2))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(f"{updates['w'][0, 0]:.4f}")  # 0.1 / sqrt(3): the direction has length 1
        -0.0577

    Reference:
        Zhao et al., 2024, arXiv:2403.03507.
    """
    return chain(
        scale_by_galore(rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
