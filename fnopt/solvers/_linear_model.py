"""The linear model at a point, in the algebra that suits its shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear import (
    Band,
    BandedGramSystem,
    KrylovSystem,
    LiftedSystem,
    System,
    TallGramSystem,
    Triangle,
    TriangleSystem,
    WideGramSystem,
    band_of,
    gram,
    guarded,
    linear_solver,
    numerical_rank,
    scaled_gram,
    triangle,
)
from fnopt.residuals import (
    FlatResidual,
    linearise,
    linearise_gram,
    linearise_products,
    probed_columns,
)
from fnopt.solvers._point import Normal, Point, factorised_point, half_square, point_at

_SPARSE = 256  # from that many unknowns on a sparse Jacobian isn't made a full matrix
_WIDEST = 128  # unknowns in a block of a band; beyond, conjugate gradients may be faster
_SHORTEST = 4  # blocks; a shorter band is a full matrix

Pull = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """How residuals are linearised and what is kept of the Jacobian: choices made when tracing.

    Args:
        flat: The residual function of a vector.
        solver: `'auto'`, `'qr'`, `'cholesky'` or `'cg'`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: How many derivatives are taken at once, or None.
    """

    flat: FlatResidual
    solver: str
    mode: str
    chunk_size: int | None

    @property
    def kind(self) -> str:
        """`'qr'`, or `'rows'` for that of the transpose; `'tall'`, `'wide'`, `'band'`, `'cg'`."""
        m, n = self.flat.m, self.flat.n
        name = linear_solver(self.solver, m, n)
        given = self.flat.derivative
        if self.solver == "auto" and given is not None and given.sparse and min(m, n) > _SPARSE:
            return "cg" if self._band is None else "band"
        if name == "qr":
            return "qr" if m >= n else "rows"
        if name == "cholesky":
            return "tall" if m >= n else "wide"
        return name

    @property
    def comes_factorised(self) -> bool:
        """Whether a point has the triangle that steps go by, so that hardly anything is left."""
        return self.kind == "qr"

    @property
    def _band(self) -> Band | None:
        """Where the normal equations of a sparse Jacobian have their entries, if that is narrow."""
        given, n = self.flat.derivative, self.flat.n
        if given is None or given.compressed is None or self.flat.m < n:
            return None
        _, sparsity, by_rows = given.compressed
        return band_of(sparsity, by_rows, min(_WIDEST, n // _SHORTEST))

    @property
    def _in_chunks(self) -> bool:
        """Whether normal equations are added up without the Jacobian."""
        given = self.flat.derivative
        return self.chunk_size is not None if given is None else given.gram is not None

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Point:
        """What is known at a point: a dense Jacobian is kept, or its Gram matrix, or neither.

        A dense one goes with the residual that is given, if any.
        """
        flat = self.flat
        if self.kind == "tall":
            r, G, g = linearise_gram(flat, x, self.mode, self.chunk_size)
            columns = jnp.sqrt(jnp.diagonal(G))
            return Point(x, r, Normal(G), half_square(r), g, columns)
        if self.kind == "band":
            return self._banded(x)
        if self.kind == "cg":
            r, J, pull = self._pullable(x)
            return Point(x, r, J, half_square(r), pull(r), probed_columns(pull, r))
        gathered = factorised_point if self.kind == "qr" else point_at
        r, J = linearise(flat, x, self.mode, self.chunk_size)
        return gathered(x, r if residual is None else residual, J)

    def factorise(self, point: Point, scale: jax.Array, rows: jax.Array) -> Any:
        """What only depends on the point and the scaling, for any number of steps from there.

        Only one by the triangle of a tall Jacobian takes `rows` below it.
        """
        if self.kind == "qr":
            assert point.triangle is not None
            L, c = point.triangle
            return guarded(Triangle(L / scale[:, None], c), rows / scale)
        if self.kind == "rows":
            Q, R = jnp.linalg.qr((point.J / scale).T)
            return guarded(triangle(R.T, point.r)), Q
        if self.kind == "tall":
            return scaled_gram(point.J.matrix, scale)
        if self.kind == "wide":
            return gram((point.J / scale).T)
        if self.kind == "band":
            return self._known_band.scaled(point.J[1], scale)  # of (J, J^T J)
        return ()

    def system(self, point: Point, factors: Any, scale: jax.Array, lam: jax.Array) -> System:
        """The linear model in scaled variables, ready for steps; `lam` is a guess of a damping."""
        if self.kind == "cg":
            push, back = self.products(point)
            free = _free(point)  # whose columns a bounded step has taken out are zero
            return KrylovSystem(
                lambda v: push(free * v / scale), lambda w: free * back(w) / scale, point.r
            )
        if self.kind == "band":
            return self._band_system(point, factors, scale, lam)
        if self.kind == "tall":
            return TallGramSystem(factors, point.gradient / scale, lam, self._pull(point, scale))

        def pull(w: jax.Array) -> jax.Array:
            return matmul(w, point.J) / scale

        if self.kind == "wide":
            return WideGramSystem(factors, point.r, lam, lambda v: matmul(point.J, v / scale), pull)
        size = max(self.flat.m, self.flat.n)
        if self.kind == "qr":
            return TriangleSystem(factors, size, lam, pull)
        rows, Q = factors
        return LiftedSystem(TriangleSystem(rows, size, lam, lambda w: matmul(pull(w), Q)), Q)

    @property
    def _known_band(self) -> Band:
        band = self._band
        assert band is not None
        return band

    def _banded(self, x: jax.Array) -> Point:
        """A point that keeps both the Jacobian, for its products, and its Gram matrix."""
        given, band = self.flat.derivative, self._known_band
        assert given is not None
        assert given.compressed is not None
        r, J, pull = self._pullable(x)
        G = band.gram(given.compressed.of(J))
        columns = jnp.sqrt(band.diagonal(G))
        return Point(x, r, (J, G), half_square(r), pull(r), columns)

    def _band_system(
        self, point: Point, G: jax.Array, scale: jax.Array, lam: jax.Array
    ) -> BandedGramSystem:
        push, pull = self.products(point._replace(J=point.J[0]))
        return BandedGramSystem(
            G,
            point.gradient / scale,
            lam,
            lambda w: pull(w) / scale,
            lambda v: push(v / scale),
            self._known_band,
        )

    def _pull(self, point: Point, scale: jax.Array) -> Pull | None:
        if self.mode == "forward":  # asked for by somebody whose function may have nothing else
            return None
        # Only called where the residual function is differentiated anyway.
        free = _free(point)
        return lambda w: free * linearise_products(self.flat.r, point.x)[2](w) / scale

    def _pullable(self, x: jax.Array) -> tuple[jax.Array, Any, Pull]:
        """The residual, what is kept of the Jacobian for its products, and that of its transpose.

        Nothing is kept of one that comes from the residual function.
        """
        given = self.flat.derivative
        if given is None:
            r, _, pull = linearise_products(self.flat.r, x)
            return r, (), pull
        J = given.at(x)
        return self.flat.r(x), J, lambda w: given.pull(J, w)

    def products(self, point: Point) -> tuple[Pull, Pull]:
        """The products with the Jacobian at a point, and with its transpose."""
        given = self.flat.derivative
        if given is None:
            return linearise_products(self.flat.r, point.x)[1:]
        return lambda v: given.push(point.J, v), lambda w: given.pull(point.J, w)

    def jacobian(self, point: Point) -> Any:
        """The Jacobian at a point; None where it is too large to have."""
        if self.kind in {"cg", "band"} or (self.kind == "tall" and self._in_chunks):
            return None
        if self.kind == "tall":
            return linearise(self.flat, point.x, self.mode)[1]
        return point.J

    def rank(self, factors: Any) -> tuple[jax.Array, jax.Array | None]:
        """How many directions the data determine, and those, in scaled variables, that they don't.

        The rank is -1 where nothing tells. The directions are orthonormal rows, zero for the
        others; None for factors that don't show them.
        """
        if self.kind in {"cg", "band"}:
            return jnp.asarray(-1, jnp.int32), None
        size = max(self.flat.m, self.flat.n)
        if self.kind == "qr":
            _, s, Vt = jnp.linalg.svd(factors.triangle.L.T)
            rank = numerical_rank(s, size)
            unseen = jnp.arange(s.size, dtype=rank.dtype) >= rank
            return rank, jnp.where(unseen[:, None], Vt, jnp.zeros_like(Vt))
        if self.kind == "rows":
            s = jnp.linalg.svd(factors[0].triangle.L, compute_uv=False)
            return numerical_rank(s, size), None
        return gram_rank(factors), None


def _free(point: Point) -> jax.Array:
    """1 for params that move the residuals, 0 for the others."""
    return (point.columns > 0).astype(point.columns.dtype)


def gram_rank(K: jax.Array) -> jax.Array:
    r"""The rank that a Gram matrix shows: eigenvalues above :math:`2 k \epsilon` of the largest."""
    squares = jnp.linalg.eigvalsh(jnp.where(jnp.isfinite(K), K, jnp.zeros_like(K)))
    noise = jnp.asarray(2 * K.shape[0] * jnp.finfo(K.dtype).eps, K.dtype)
    return jnp.sum(squares > noise * jnp.max(squares, initial=0), dtype=jnp.int32)
