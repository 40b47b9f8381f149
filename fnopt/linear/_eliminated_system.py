"""Steps from sparse normal equations, by elimination of uncoupled blocks."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.errors import count_text
from fnopt.jacobians import Elimination, SparseJacobian
from fnopt.linear._gram_system import SparseGramSystem
from fnopt.linear._secular import Solvers, backward, cholesky, forward
from fnopt.numerics import matmul

Blocks = dict[tuple[int, int], jax.Array]
"""The blocks of a symmetric matrix's lower triangle: for each shape, `[blocks, *shape]`."""


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    r"""The layout of :math:`J^T J` in dense blocks, in the order of an elimination.

    Args:
        plan: The plan of the elimination.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import SparseJacobian, Sparsity, elimination
        >>> from fnopt.linear import BlockLayout
        >>> i = np.arange(3)
        >>> A = SparseJacobian(jnp.full((3, 1), 2.0), Sparsity(i, i, (3, 3)))
        >>> layout = BlockLayout(elimination(A.sparsity))
        >>> layout.diagonal(layout.gram(A))
        Array([4., 4., 4.], dtype=float32)
    """

    plan: Elimination

    def __str__(self) -> str:
        eliminated = count_text(self.plan.eliminated, "unknown")
        return f"elimination of {eliminated}, Cholesky factorization of {self.plan.left}"

    @property
    def widest(self) -> int:
        """The largest number of entries in a row of the factor."""
        return self.plan.widest

    def gram(self, J: SparseJacobian) -> Blocks:
        """The blocks of :math:`J^T J`."""
        plan, rows = self.plan, {s: J.values(at) for s, at in self.plan.gram.rows.items()}
        dtype = next(iter(rows.values())).dtype
        G = {key: jnp.zeros((at[0].size, *key), dtype) for key, at in plan.blocks.items()}
        for (t, u), (a, b, target) in plan.gram.products.items():
            G[t, u] = _add_products(G[t, u], rows[t][..., None], rows[u][..., None], a, b, target)
        return G

    def scaled(self, G: Blocks, scale: jax.Array) -> Blocks:
        r"""The blocks of :math:`D^{-1} G D^{-1}`; the diagonal of `D` is in the columns' order."""
        d = scale[self.plan.order]

        def scales(start: np.ndarray, size: int) -> jax.Array:
            return d[start[:, None] + np.arange(size, dtype=np.int32)]

        return {
            (t, u): G[t, u] / scales(row, t)[:, :, None] / scales(col, u)[:, None, :]
            for (t, u), (row, col) in self.plan.blocks.items()
        }

    def diagonal(self, G: Blocks) -> jax.Array:
        """The diagonal, in the order of the columns, `[n]`."""
        found = jnp.zeros(self.plan.order.size, next(iter(G.values())).dtype)
        for (t, u), (row, col) in self.plan.blocks.items():
            if t == u:
                on = int(np.sum(row == col))
                at = self.plan.order[row[:on, None] + np.arange(t)]
                found = found.at[at].set(jnp.diagonal(G[t, u][:on], axis1=1, axis2=2))
        return found

    def rest(self, G: Blocks) -> jax.Array:
        """The lower triangle of the dense matrix after the level."""
        left, done = self.plan.left, self.plan.eliminated
        matrix = jnp.zeros((left, left), next(iter(G.values())).dtype)
        for (t, u), (row, col) in self.plan.blocks.items():
            here = np.flatnonzero(col >= done)
            at = row[here, None, None] - done + np.arange(t)[:, None]
            matrix = matrix.at[at, col[here, None, None] - done + np.arange(u)].set(G[t, u][here])
        return matrix

    def factor(self, G: Blocks, lam: jax.Array) -> EliminationFactor:
        r"""Factor :math:`G + \lambda I = L L^T`; NaN if the matrix isn't positive definite.

        .. math:: L_e L_e^T = G_{ee} + \lambda I, \qquad Z_{ne} = G_{ne} L_e^{-T}, \qquad
            G_{nk} \leftarrow G_{nk} - Z_{ne} Z_{ke}^T

        for all groups `e` of the level at once and their neighbors `n` and `k`.
        """
        level = self.plan.level
        if level is None:
            return EliminationFactor((), {}, cholesky(self.rest(G), lam))
        G, s = dict(G), level.size
        L = jax.vmap(cholesky, (0, None))(G[s, s][: level.groups], lam)
        inverse = jax.vmap(_lower_inverse)(L)
        Z = {
            t: _times_transposed(G[t, s][at], inverse[owner]) for t, at, owner, _ in self._neighbors
        }
        for (t, u), (a, b, target) in level.products.items():
            G[t, u] = _add_products(G[t, u], -Z[t], Z[u], a, b, target)
        return EliminationFactor(inverse, Z, cholesky(self.rest(G), lam))

    def forward(self, factor: EliminationFactor, b: jax.Array) -> jax.Array:
        r"""Solve :math:`L y = b`, in the order of elimination."""
        level = self.plan.level
        if level is None:
            return forward(factor.last, b)
        y = jnp.sum(factor.inverse * b[: level.stop].reshape(-1, 1, level.size), 2)
        for t, _, owner, at in self._neighbors:
            b = b.at[at].add(-jnp.sum(factor.Z[t] * y[owner][:, None], 2))
        return jnp.concatenate([y.ravel(), forward(factor.last, b[level.stop :])])

    def backward(self, factor: EliminationFactor, y: jax.Array) -> jax.Array:
        r"""Solve :math:`L^T x = y`, in the order of elimination."""
        level = self.plan.level
        if level is None:
            return backward(factor.last, y)
        x = y.at[level.stop :].set(backward(factor.last, y[level.stop :]))
        here = x[: level.stop].reshape(-1, level.size)
        for t, _, owner, at in self._neighbors:
            here = here.at[owner].add(
                -jnp.sum(factor.Z[t] * x[at][..., None], 1), indices_are_sorted=True
            )
        return x.at[: level.stop].set(jnp.sum(factor.inverse * here[..., None], 1).ravel())

    @functools.cached_property
    def _neighbors(self) -> list[tuple[int, slice, np.ndarray, np.ndarray]]:
        """List by size: the blocks of neighbors, their groups, and their unknowns."""
        level, found = self.plan.level, []
        assert level is not None, "without a level, no group has neighbors"
        for t, at in level.blocks.items():
            row, col = (part[at] for part in self.plan.blocks[t, level.size])
            found.append((t, at, col // level.size, row[:, None] + np.arange(t, dtype=np.int32)))
        return found


# Columns up to which products of blocks are unrolled sums. For 9 x 3 blocks these are 1.6 times as
# fast as a batched product (8 against 13 ms for 20,000 pairs on a CPU core, JAX 0.10). More columns
# make the program long.
_UNROLLED = 16
# Entries of products that are formed at once: 2 MB in float64, the cache of a CPU core. With 2^22,
# the blocks of a bundle adjustment with 100 cameras and 25,000 points take 1.6 times as long (178
# against 109 ms on a CPU core, JAX 0.10) and 2.6 times the memory.
_AT_ONCE = 2**18


class EliminationFactor(NamedTuple):
    """A Cholesky factor: the columns of the level, and the factor of the rest."""

    inverse: Any  # [groups, s, s], the inverses of the diagonal blocks; () without a level
    # The blocks below the diagonal, [blocks, t, s], keyed by the neighbor's size t.
    Z: dict[int, jax.Array]
    last: jax.Array  # [remaining, remaining], Cholesky factor of the Schur complement


def _lower_inverse(L: jax.Array) -> jax.Array:
    eye = jnp.eye(L.shape[-1], dtype=L.dtype)
    return lax.linalg.triangular_solve(L, eye, left_side=True, lower=True)


def _add_products(
    blocks: jax.Array,
    left: jax.Array,
    right: jax.Array,
    a: np.ndarray,
    b: np.ndarray,
    target: np.ndarray,
) -> jax.Array:
    """Add products :math:`A_a B_b^T` of small matrices to blocks, in chunks.

    Args:
        blocks: The blocks, `[blocks, t, u]`.
        left: The matrices `A`, `[count, t, s]`.
        right: The matrices `B`, `[count, u, s]`.
        a: The index of the first factor of each product.
        b: The index of the second factor of each product.
        target: The index of the block of each product, in ascending order.
    """

    def add(blocks: jax.Array, part: tuple[Any, Any, Any]) -> tuple[jax.Array, None]:
        a, b, target = part
        terms = _times_transposed(left[a], right[b])
        return blocks.at[target].add(terms, indices_are_sorted=True, mode="drop"), None

    chunks = -(-a.size * blocks.shape[1] * blocks.shape[2] // _AT_ONCE)
    if chunks <= 1:
        return add(blocks, (a, b, target))[0]

    def pad_to_chunks(part: np.ndarray, fill: int) -> np.ndarray:
        return np.pad(part, (0, -part.size % chunks), constant_values=fill).reshape(chunks, -1)

    # The padding targets an index past the last block, which the scatter drops.
    parts = pad_to_chunks(a, 0), pad_to_chunks(b, 0), pad_to_chunks(target, blocks.shape[0])
    return lax.scan(add, blocks, parts)[0]


def _times_transposed(A: jax.Array, B: jax.Array) -> jax.Array:
    """The products :math:`A B^T` of small matrices, without a library call per product."""
    if A.shape[2] > _UNROLLED:
        return matmul(A, jnp.swapaxes(B, 1, 2))
    return sum(
        (A[:, :, None, k] * B[:, None, :, k] for k in range(A.shape[2])),
        jnp.zeros((), A.dtype),
    )


@dataclasses.dataclass(frozen=True)
class EliminatedGramSystem(SparseGramSystem):
    r"""A linear model whose sparse normal equations are factorized after an elimination.

    The steps equal those of :class:`TallGramSystem`.

    Args:
        G: The blocks of :math:`A^T A`.
        g: :math:`A^T r`, of shape `[n]`.
        start: An initial guess of the damping, a scalar; a good guess saves factorizations.
        pull: :math:`w \mapsto A^T w`.
        push: :math:`v \mapsto A v`.
        layout: The layout of the blocks.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fnopt.jacobians import SparseJacobian, Sparsity, elimination
        >>> from fnopt.linear import BlockLayout, EliminatedGramSystem
        >>> i = np.arange(3)
        >>> A = SparseJacobian(jnp.full((3, 1), 2.0), Sparsity(i, i, (3, 3)))
        >>> layout = BlockLayout(elimination(A.sparsity))
        >>> g, zero = A.rmv(jnp.ones(3)), jnp.float32(0)
        >>> system = EliminatedGramSystem(layout.gram(A), g, zero, A.rmv, A.mv, layout)
        >>> print(system.gauss_newton().p.round(4))
        [-0.5 -0.5 -0.5]
    """

    def _factor(self, lam: jax.Array) -> Any:
        return self.layout.factor(self.G, lam)

    def _solvers(self, factor: Any) -> Solvers:
        layout = self.layout
        order, position = layout.plan.order, layout.plan.position
        return Solvers(
            lambda b: layout.forward(factor, b[order]),
            lambda y: layout.backward(factor, y)[position],
        )
