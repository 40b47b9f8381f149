"""GaLore: an optimizer whose state is a low-rank projection of every matrix."""

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
from fnopt.optimizers._matrix_parts import cut, load_slot, map_by_shape, new_slot, store_slot, whole
from fnopt.optimizers._matrix_rule import as_rule, layouts_of
from fnopt.optimizers._recipe import recipe
from fnopt.sharding import sequential
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate

_NAME = "scale_by_galore"


class ScaleByGaloreState(NamedTuple):
    """Step count, the directions of every matrix, and the state of the inner optimizer.

    Attributes:
        count: Number of steps.
        projector: For every matrix orthonormal columns along its longer side.
        base_optimizer_state: The state of the inner optimizer, for the projected gradients.
    """

    count: jax.Array
    projector: CustomSlot
    base_optimizer_state: Any


class scale_by_galore(Transformation):
    r"""Apply an inner optimizer to gradients in a low-rank projection.

    Derivatives through the updates are correct if the gradient has simple singular values. If
    singular values are equal or zero, the method has no derivative, and the basis of the singular
    vectors is treated as a constant.

    .. math:: u_t = \alpha\, P\, \mathrm{inner}(P^\top G_t), \qquad
              G_\tau = U S V^\top, \quad P = U_{:, 1..r}

    `P` is taken from the gradient of every `update_proj_gap`-th step, along the longer side. The
    inner state has the shape `[r, n]` in place of `[m, n]` (`m >= n`), and `P` has `m r` numbers.
    The inner optimizer also updates leaves that aren't matrices, without projection.

    Args:
        rank: :math:`r`, at most the shorter side.
        update_proj_gap: The number of steps between two updates of the projection.
        scale: :math:`\alpha`.
        base_optimizer: The inner optimizer, which must not read the params; None for
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
                "params, expected a direction of the projected gradients alone, such as "
                "fnopt.scale_by_adam(). For weight decay, pass weight_decay to galore."
            )
        self._set("base_optimizer", inner)
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner optimizer."""
        inner = None if state is None else state.base_optimizer_state
        return (Member("base_optimizer", self.base_optimizer, inner),)

    def init(self, params: Any) -> ScaleByGaloreState:
        """Return zero directions, and the initial inner state."""
        leaves, treedef = jax.tree.flatten(map_leaves(lambda p: p, params))
        projectors, inner = [], []
        for p, layout in zip(
            leaves, layouts_of(self.weight_dimension_numbers, params, required=False), strict=True
        ):
            if layout is None:
                projectors.append(())
                inner.append((p,))
                continue
            starts = [new_slot(self._start(shape, p.dtype)) for shape in layout.shapes]
            projectors.append(tuple(P for _, P in starts))
            inner.append(tuple(low for low, _ in starts))
        inner_state = self.base_optimizer.init(treedef.unflatten(inner))
        return ScaleByGaloreState(zero_count(), treedef.unflatten(projectors), inner_state)

    def update(
        self, updates: Any, state: ScaleByGaloreState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByGaloreState]:
        """Return the inner updates of the projected gradients in the parameters' space."""
        leaves, treedef = jax.tree.flatten(map_leaves(lambda g: g, updates))
        layouts = layouts_of(self.weight_dimension_numbers, updates, required=False)
        due = state.count % self.update_proj_gap == 0
        known = treedef.flatten_up_to(state.projector)
        rows = [
            [] if layout is None else _pairs(cut(layout, g, False), self._slots(layout, own, 1))
            for g, layout, own in zip(leaves, layouts, known, strict=True)
        ]
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        projected = sequential(_project)
        found = map_by_shape(lambda part: projected(*part, self.rank, due), rows)
        low = [
            (g,) if layout is None else tuple(store_slot(x) for x, _ in row)
            for g, layout, row in zip(leaves, layouts, found, strict=True)
        ]
        projectors = [[P for _, P in row] for row in found]
        # The params aren't passed, because projected gradients have other shapes.
        new, inner_state = self.base_optimizer.update(
            treedef.unflatten(low), state.base_optimizer_state, None, **extra_args
        )
        new = treedef.flatten_up_to(new)
        rows = [
            [] if layout is None else _group_by_side(layout, self._slots(layout, row, 0), own)
            for row, layout, own in zip(new, layouts, projectors, strict=True)
        ]
        back = map_by_shape(self._whole, rows)
        out = [
            row[0] if layout is None else whole(layout, full, g, False)
            for row, layout, full, g in zip(new, layouts, back, leaves, strict=True)
        ]
        own = treedef.unflatten([store_slot(tuple(row)) for row in projectors])
        state = ScaleByGaloreState(safe_increment(state.count), own, inner_state)
        return treedef.unflatten(out), state

    def _start(self, shape: tuple[int, int, int], dtype: Any = jnp.float32) -> Any:
        """Zeros for the projected gradients of a stack, and for the directions."""
        k, m, n = shape
        r = min(self.rank, m, n)
        low = (k, r, n) if m >= n else (k, m, r)
        return jnp.zeros(low, dtype), jnp.zeros((k, max(m, n), r), dtype)

    def _slots(self, layout: MatrixLayout, row: Any, which: int) -> list[Any]:
        """Load projected gradients (0) or directions (1) from their stored form."""
        pairs = zip(row, layout.shapes, strict=True)
        return [load_slot(x, lambda s=s: self._start(s)[which]) for x, s in pairs]

    def _whole(self, part: dict[str, tuple[jax.Array, jax.Array]]) -> jax.Array:
        """Map inner updates of a shape back to the axes of the params."""
        ((side, (u, P)),) = part.items()
        dtype = compute_dtype(u.dtype, P.dtype)
        u, P = u.astype(dtype), P.astype(dtype)
        full = matmul(P, u) if side == "left" else matmul(u, adjoint(P))
        return jnp.asarray(self.scale).astype(dtype) * full


def _group_by_side(layout: MatrixLayout, updates: Any, projectors: Any) -> list[dict[str, Any]]:
    """Group pairs of update and projector by the side of the projector."""
    sides = ["left" if m >= n else "right" for _, m, n in layout.shapes]
    return [{side: pair} for side, pair in zip(sides, _pairs(updates, projectors), strict=True)]


def _pairs(xs: Any, ys: Any) -> list[tuple[jax.Array, jax.Array]]:
    return list(zip(xs, ys, strict=True))


def _project(
    g: jax.Array, old: jax.Array, rank: int, due: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The projected gradients of a shape, and the directions."""
    _, m, n = g.shape
    dtype = compute_dtype(g.dtype, old.dtype)
    g, r = g.astype(dtype), min(rank, m, n)

    def compute(known: tuple[jax.Array, jax.Array]) -> jax.Array:
        g, old = known
        return only_finite(leading_directions(g, r), old)

    # A select instead of `cond` would compute the directions in every step.
    P = jax.lax.cond(due, compute, lambda known: known[1], (g, old.astype(dtype)))
    low = matmul(adjoint(P), g) if m >= n else matmul(g, P)
    return low, P.astype(old.dtype)


def _reader_of_params(tx: Transformation) -> Transformation | None:
    """The first inner transform that needs the params."""
    if tx.needs_params:
        return tx
    readers = (_reader_of_params(member.tx) for member in tx.members())
    return next((found for found in readers if found is not None), None)


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
    r"""GaLore: Adam (or another optimizer) in a low-rank projection of every matrix.

    .. math:: u_t = -\eta_t \left(\alpha\, P\, \mathrm{inner}(P^\top G_t) +
              \lambda_t\, \theta_t\right)

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        rank: The number of directions of the projection.
        update_proj_gap: The number of steps between two updates of the directions.
        scale: :math:`\alpha`.
        base_optimizer: The inner optimizer, which must not read the params; None for
            `scale_by_adam()`.
        weight_decay: :math:`\lambda`, a number or a separate `Schedule`.
        mask: The leaves to decay; see `add_decayed_weights`. None decays all leaves.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.

    Returns:
        A chain of `scale_by_galore`, `add_decayed_weights` and `scale_by_learning_rate`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.galore(0.1, rank=1), {"w": jnp.ones((3, 2))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(f"{updates['w'][0, 0]:.4f}")  # Adam's step in one direction of length 1
        -0.0577

    Reference:
        Zhao et al., 2024, arXiv:2403.03507.
    """
    return chain(
        scale_by_galore(rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
