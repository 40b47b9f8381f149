"""Sparse Gram matrices in small dense blocks, laid out by a plan of elimination."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.jacobians import Elimination, EliminationLevel, SparseJacobian

Blocks = dict[tuple[int, int], jax.Array]
"""The blocks of a symmetric matrix on and below the diagonal, `[blocks, *shape]`, by shape."""


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

    @property
    def widest(self) -> int:
        """The largest number of entries in a row of the factor."""
        return self.plan.widest

    def gram(self, J: SparseJacobian) -> Blocks:
        """The blocks of :math:`J^T J`."""
        plan, values = self.plan, J.entries[2]
        values = jnp.append(values, jnp.zeros(1, values.dtype))
        rows = {s: values[at] for s, at in plan.gram.rows.items()}
        G = {key: jnp.zeros((at[0].size, *key), values.dtype) for key, at in plan.blocks.items()}
        for (t, u), (a, b, target) in plan.gram.products.items():
            terms = rows[t][a][:, :, None] * rows[u][b][:, None, :]
            G[t, u] = G[t, u].at[target].add(terms, indices_are_sorted=True)
        return G

    def scaled(self, G: Blocks, scale: jax.Array) -> Blocks:
        r"""The blocks of :math:`D^{-1} G D^{-1}`, with the diagonal of `D` by column."""
        d = scale[self.plan.order]

        def scales(start: np.ndarray, size: int) -> jax.Array:
            return d[start[:, None] + np.arange(size)]

        return {
            (t, u): G[t, u] / scales(row, t)[:, :, None] / scales(col, u)[:, None, :]
            for (t, u), (row, col) in self.plan.blocks.items()
        }

    def diagonal(self, G: Blocks) -> jax.Array:
        """The diagonal, by column, `[n]`."""
        found = jnp.zeros(self.plan.order.size, next(iter(G.values())).dtype)
        for (t, u), (row, col) in self.plan.blocks.items():
            if t == u:
                on = int(np.sum(row == col))
                at = self.plan.order[row[:on, None] + np.arange(t)]
                found = found.at[at].set(jnp.diagonal(G[t, u][:on], axis1=1, axis2=2))
        return found

    def rest(self, G: Blocks) -> jax.Array:
        """The lower triangle of what is left after the last level, a matrix."""
        left, done = self.plan.left, self.plan.eliminated
        matrix = jnp.zeros((left, left), next(iter(G.values())).dtype)
        for (t, u), (row, col) in self.plan.blocks.items():
            here = np.flatnonzero(col >= done)
            at = row[here, None, None] - done + np.arange(t)[:, None]
            matrix = matrix.at[at, col[here, None, None] - done + np.arange(u)].set(G[t, u][here])
        return matrix

    def neighbours(
        self, level: EliminationLevel
    ) -> dict[int, tuple[slice, np.ndarray, np.ndarray]]:
        """By size: the blocks of neighbours, the groups that they belong to, their unknowns."""
        s, found = level.size, {}
        for t, at in level.blocks.items():
            row, col = (part[at] for part in self.plan.blocks[t, s])
            found[t] = at, (col - level.start) // s, row[:, None] + np.arange(t, dtype=np.int32)
        return found
