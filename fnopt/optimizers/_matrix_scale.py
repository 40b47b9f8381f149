"""Scaling of orthogonal updates, per matrix or per neuron."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, Transformation, hyper, static
from fnopt.numerics import (
    ema,
    nonzero,
    positive_root,
    real_dtype,
    safe_sqrt,
    squared_modulus,
    widen,
)
from fnopt.optimizers._matrix_layout import MatrixLayout
from fnopt.optimizers._matrix_parts import to_leaf, to_matrices
from fnopt.optimizers._matrix_rule import as_rule, layouts_of
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.sharding import is_on_mesh, unsharded_leaves


class scale_by_matrix_shape(Transformation):
    r"""Scale updates by a factor that depends on the shapes of the matrices.

    .. math:: u = s\, g, \qquad s = \begin{cases}
              \sqrt{\max(1,\ \text{outputs} / \text{inputs})} & \text{without } \rho \\
              \rho \sqrt{\max(\text{inputs}, \text{outputs})} & \text{with } \rho \end{cases}

    With the first rule, a learning rate transfers to other widths of a network. With the second
    rule, an orthogonal update of any shape has the root mean square :math:`\rho`. Adam's updates
    have a root mean square of about 0.2.

    Args:
        consistent_rms: :math:`\rho`, the root mean square of orthogonal updates; None uses the
            first rule.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_matrix_shape(), jnp.ones((1, 4))
        >>> tx.update(g, tx.init(g))[0]
        Array([[2., 2., 2., 2.]], dtype=float32)

    Reference:
        Liu et al., 2025, arXiv:2502.16982.
    """

    consistent_rms: Scalar | None = hyper(default=None, gt=0)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return the scaled updates."""
        leaves, treedef = jax.tree.flatten(updates)
        layouts = layouts_of(self.weight_dimension_numbers, updates)
        scaled = [self._scale_matrices(*pair) for pair in zip(leaves, layouts, strict=True)]
        return treedef.unflatten(scaled), state

    def _scale_matrices(self, x: jax.Array, layout: MatrixLayout) -> jax.Array:
        x = jnp.asarray(x)
        x = widen(x)
        factors = [self._factor(rows, columns) for _, rows, columns in layout.shapes]
        factors = [f if isinstance(f, float) else f.astype(x.dtype) for f in factors]
        if not factors or all(isinstance(f, float) and f == 1.0 for f in factors):
            return x
        if len(factors) == 1:
            return factors[0] * x
        pairs = zip(factors, to_matrices(layout, x), strict=True)
        return to_leaf(layout, [jax.tree.map(lambda x, f=f: f * x, part) for f, part in pairs], x)

    def _factor(self, rows: int, columns: int) -> Any:
        """Compute the factor of a matrix, a Python number if it doesn't depend on a field."""
        if self.consistent_rms is None:
            return math.sqrt(max(1.0, columns / rows))
        return math.sqrt(max(rows, columns)) * jnp.asarray(self.consistent_rms, float)


class NormalizeNeuronsState(NamedTuple):
    r"""State of `normalize_neurons`.

    Attributes:
        nu: :math:`\nu_j`, the averaged mean square of every neuron of a matrix.
    """

    nu: CustomSlot


class normalize_neurons(Matrixwise):
    r"""Divide the update of each neuron by a running root mean square.

    .. math:: \nu_j \leftarrow \beta_2\, \nu_j + (1-\beta_2)\, \mathrm{mean}_i\, |g_{ij}|^2, \qquad
              u_{ij} = \frac{\lVert g \rVert}{\lVert v \rVert}\, v_{ij}, \qquad
              v_{ij} = \frac{g_{ij}}{\sqrt{\nu_j} + \epsilon}

    After `orthogonalize`, the method is NorMuon. Without the division, orthogonal updates of some
    neurons are much larger than the updates of other neurons. The norm of each matrix's update is
    preserved. The state has one number per neuron.

    Args:
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the mean squares.
        eps: :math:`\epsilon`, added outside the square root.
        side: The neurons :math:`j`. `'output'` means the outputs of a matrix. `'longer'` means the
            longer side of a matrix: the inputs if there are more inputs than outputs.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.normalize_neurons(), jnp.asarray([[3.0, 4.0]])
        >>> print(f"{tx.update(g, tx.init(g))[0][0, 0]:.3f}")  # 5 / sqrt(2): the norm remains 5
        3.536

    Reference:
        Li et al., 2025, arXiv:2510.05491.
    """

    State = NormalizeNeuronsState
    wide = False
    takes_complex = True
    factorizes = False
    gathers = False

    b2: Scalar = hyper(default=0.95, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-10, ge=0)
    side: str = static(default="output", choices=("output", "longer"))
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def _axis(self, shape: tuple[int, ...]) -> int:
        """The axis over which mean squares are computed."""
        return 1 if self.side == "output" or shape[2] >= shape[1] else 2

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> jax.Array:
        """Return one zero per neuron."""
        return jnp.zeros((shape[0], shape[3 - self._axis(shape)]), real_dtype(dtype))

    def init(self, params: Any) -> NormalizeNeuronsState:
        """Return one zero per neuron, sharded like the neurons of the parameters."""
        state, (leaves, treedef) = super().init(params), jax.tree.flatten(params)
        if unsharded_leaves() is not None or not any(map(is_on_mesh, leaves)):
            return state
        # Sums over the params are sharded like the neurons. The barrier keeps the compiler from
        # removing the sums, whose values are never selected.
        false = jax.lax.optimization_barrier(jnp.zeros((), bool))

        def zeros(p: Any, layout: MatrixLayout, nu: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            parts = to_matrices(layout, p, wide=False, gathers=False)
            sums = [jnp.sum(jnp.abs(x), axis=self._axis(x.shape)) for x in parts]
            sums = [x.astype(old.dtype) for x, old in zip(sums, nu, strict=True)]
            return tuple(jnp.where(false, x, jnp.zeros_like(x)) for x in sums)

        rows = leaves, self.layouts(params), treedef.flatten_up_to(state.nu)
        return NormalizeNeuronsState(treedef.unflatten(map(zeros, *rows)))

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        squares, axis = squared_modulus(g), self._axis(g.shape)
        nu = ema(slots.nu, jnp.mean(squares, axis=axis), h.b2)
        v = g / jnp.expand_dims(positive_root(nu) + h.eps, axis).astype(g.dtype)
        norm = safe_sqrt(jnp.sum(squared_modulus(v), axis=(1, 2), keepdims=True))
        factor = safe_sqrt(jnp.sum(squares, axis=(1, 2), keepdims=True)) / nonzero(norm)
        return v * factor.astype(g.dtype), {"nu": nu}
