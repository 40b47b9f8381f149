"""Steps from sparse normal equations, by SciPy's sparse factorization on the host."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback

from fnopt.errors import count_text
from fnopt.linear._eliminated_system import BlockLayout, Blocks
from fnopt.linear._gram_system import SparseGramSystem
from fnopt.linear._norms import norm
from fnopt.linear._secular import Damped
from fnopt.numerics import matmul


class HostLayout(BlockLayout):
    """The layout of :math:`J^T J` in dense blocks and, for the host, by columns.

    Args:
        plan: The plan of a sparse factorization.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import SparseJacobian, Sparsity, elimination
        >>> from fnopt.linear import HostLayout
        >>> i = np.arange(3)
        >>> A = SparseJacobian(jnp.full((3, 1), 2.0), Sparsity(i, i, (3, 3)))
        >>> layout = HostLayout(elimination(A.sparsity))
        >>> layout.columns(layout.gram(A), jnp.ones(()))
        Array([5., 5., 5.], dtype=float32)
    """

    def __str__(self) -> str:
        unknowns = count_text(self.plan.order.size, "unknown")
        return f"sparse Cholesky factorization of {unknowns} on the host"

    def columns(self, G: Blocks, lam: jax.Array) -> jax.Array:
        r"""The entries of :math:`G + \lambda I` in both triangles, by columns."""
        of, _, _, diagonal = self._entries
        return jnp.concatenate([part.ravel() for part in G.values()])[of].at[diagonal].add(lam)

    def solve(self, data: jax.Array, rows: jax.Array, root: bool) -> tuple[jax.Array, jax.Array]:
        r"""Solve with :math:`K = L L^T`; the result is NaN if the factorization fails.

        Args:
            data: The entries of `K` from `columns`.
            rows: Right-hand sides `b`, `[q, n]`.
            root: Which vectors besides `x` are needed.

        Returns:
            :math:`x = K^{-1} b`, and :math:`L^{-1} b` in another order if `root` is set, or else
            :math:`K^{-1} x`, `[q, n]` each.
        """
        _, indices, starts, _ = self._entries

        def solved(data: Any, rows: Any) -> tuple[np.ndarray, np.ndarray]:
            return _solved(np.asarray(data), indices, starts, np.asarray(rows), root)

        def in_place(context: Any, out: Any, *buffers: Any) -> None:
            del context
            for part, solution in zip(out, solved(*buffers), strict=True):
                np.asarray(part)[...] = solution

        like = (jax.ShapeDtypeStruct(rows.shape, rows.dtype),) * 2
        # On a CPU, `pure_callback` waits for copies by XLA's threads. If all threads wait in
        # callbacks, this is a deadlock (JAX 0.10, one core).
        in_buffers = buffer_callback(in_place, like, vmap_method="sequential")
        return lax.platform_dependent(
            data, rows, cpu=in_buffers, default=functools.partial(_by_copies, solved)
        )

    @functools.cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """By columns: indices of entries in the blocks, rows, starts of columns; the diagonal."""
        parts, first = [], 0
        for (t, u), (row, col) in self.plan.blocks.items():
            of = first + np.arange(row.size * t * u).reshape(-1, t, u)
            rows = np.broadcast_to(row[:, None, None] + np.arange(t)[:, None], of.shape)
            cols = np.broadcast_to(col[:, None, None] + np.arange(u), of.shape)
            below = row != col
            parts.append(np.stack([of, rows, cols]).reshape(3, -1))
            parts.append(np.stack([of[below], cols[below], rows[below]]).reshape(3, -1))
            first += of.size
        of, rows, cols = np.concatenate(parts, axis=1).astype(np.int32)
        order = np.lexsort((rows, cols))
        of, rows, cols = of[order], rows[order], cols[order]
        starts = np.searchsorted(cols, np.arange(self.plan.order.size + 1)).astype(np.int32)
        return of, rows, starts, np.flatnonzero(rows == cols)


def _by_copies(fn: Callable[..., Any], data: jax.Array, rows: jax.Array) -> tuple[Any, Any]:
    """Call a function on the host by `pure_callback`, as bits: its thread ignores `enable_x64`."""
    dtype = rows.dtype

    def bits_of(array: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(array, jnp.int32)

    def call(*arrays: Any) -> tuple[np.ndarray, ...]:
        shapes = data.shape, rows.shape
        given = [np.asarray(a).view(dtype).reshape(s) for a, s in zip(arrays, shapes, strict=True)]
        return tuple(np.ascontiguousarray(x).view(np.int32).reshape(like.shape) for x in fn(*given))

    like = jax.eval_shape(bits_of, rows)
    first, second = jax.pure_callback(
        call, (like, like), bits_of(data), bits_of(rows), vmap_method="sequential"
    )
    return lax.bitcast_convert_type(first, dtype), lax.bitcast_convert_type(second, dtype)


def _solved(
    data: np.ndarray, indices: np.ndarray, starts: np.ndarray, rows: np.ndarray, root: bool
) -> tuple[np.ndarray, np.ndarray]:
    # The factor doesn't outlive the call: SciPy can't free it in another thread.
    from scipy.sparse import csc_matrix  # a requirement of JAX, slow to import
    from scipy.sparse.linalg import splu

    nothing = np.full_like(rows, np.nan)
    if not np.all(np.isfinite(data)):
        return nothing, nothing
    K = csc_matrix((data, indices, starts), (starts.size - 1,) * 2)
    options = {"SymmetricMode": True}  # without interchanges of rows: K = L D L^T
    try:
        lu = splu(K, permc_spec="NATURAL", diag_pivot_thresh=0.0, options=options)
    except RuntimeError:  # exactly singular
        return nothing, nothing
    x = lu.solve(rows.T)
    if not root:
        again = lu.solve(x)
        return (x.T, again.T) if np.all(np.sum(x * again, axis=0) >= 0) else (nothing, nothing)
    U, pivots = lu.U, lu.U.diagonal()  # D L^T, D
    if not (np.all(pivots > 0) and np.array_equal(lu.perm_c, lu.perm_r)):
        return nothing, nothing
    return x.T, (U @ x[np.argsort(lu.perm_c)] / np.sqrt(pivots)[:, None]).T  # sqrt(D) L^T x


@dataclasses.dataclass(frozen=True)
class HostGramSystem(SparseGramSystem):
    r"""A linear model whose sparse normal equations are factorized on the host.

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
        >>> from fnopt.linear import HostGramSystem, HostLayout
        >>> i = np.arange(3)
        >>> A = SparseJacobian(jnp.full((3, 1), 2.0), Sparsity(i, i, (3, 3)))
        >>> layout = HostLayout(elimination(A.sparsity))
        >>> g, zero = A.rmv(jnp.ones(3)), jnp.float32(0)
        >>> system = HostGramSystem(layout.gram(A), g, zero, A.rmv, A.mv, layout)
        >>> print(system.gauss_newton().p.round(4))
        [-0.5 -0.5 -0.5]

    Reference:
        Demmel et al. (1999), A supernodal approach to sparse partial pivoting.
    """

    def pull_back(self, step: Any) -> None:
        """None, because the solution would cost as much as the step itself."""
        del step

    def rounding_solutions(self, rows: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the damping that rounding errors require, and solutions with this damping."""
        least = self._least
        x, y = self._solved(least, rows, root=True)
        return least, y, x[:, self.layout.plan.position]

    def filtered_twice(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        r"""Return the damping :math:`\delta`, and :math:`\delta^2 (A^T A + \delta I)^{-2} b`."""
        least = self._least
        _, again = self._solved(least, rows, root=False)
        return least, jnp.square(least) * again[:, self.layout.plan.position]

    def _solved(self, lam: jax.Array, rows: jax.Array, root: bool) -> tuple[jax.Array, jax.Array]:
        layout = self.layout
        return layout.solve(layout.columns(self.G, lam), rows[:, layout.plan.order], root)

    def _solve(self, lam: jax.Array) -> Damped:
        x, again = (part[0] for part in self._solved(lam, -self.g[None], root=False))
        return Damped(x[self.layout.plan.position], lam, norm(x), matmul(x, again), None)
