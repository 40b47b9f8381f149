"""Shampoo: gradients preconditioned by inverse roots of their mean outer products."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import (
    as_dtype,
    bias_correction,
    clip_squarable,
    ema,
    matmul,
    nonzero,
    positive_root,
)
from fnopt.optimizers._matrix_factors import (
    Pair,
    frobenius_norm,
    identities,
    largest_entry,
    map_sides,
    only_finite,
    sides,
    update_factors,
    zeros,
)
from fnopt.optimizers._matrix_functions import inverse_root
from fnopt.optimizers._matrix_layout import MatrixLayout
from fnopt.optimizers._matrix_rule import as_rule
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._partition_matrices import matrix_recipe
from fnopt.optimizers._recipe import recipe
from fnopt.sharding import sequential
from fnopt.transforms import partition


class ScaleByShampooState(NamedTuple):
    """Step count, averages, and for every matrix or block two factors and their inverse roots.

    Attributes:
        count: Number of steps.
        mu: The mean gradient.
        nu: The mean square, for grafting Adam's length; None for other grafting.
        factors: The means (or sums) of `G G^T` and `G^T G`; the shorter side first.
        roots: The inverse roots of the factors.
    """

    count: jax.Array
    mu: Slot
    nu: Slot
    factors: CustomSlot
    roots: CustomSlot


class scale_by_shampoo(Matrixwise):
    r"""Multiply mean gradients by inverse roots of their mean outer products on both sides.

    .. math::
        L_t &= \beta_2 L_{t-1} + (1-\beta_2)\, G_t G_t^\top, \qquad
        R_t = \beta_2 R_{t-1} + (1-\beta_2)\, G_t^\top G_t \\
        u_t &= \frac{\lVert d_t \rVert}{\lVert v_t \rVert}\, v_t, \qquad
        v_t = \hat L_t^{-e}\, \hat\mu_t\, \hat R_t^{-e}

    where :math:`d_t` is the step of another method, which determines the step length (grafting).
    The roots are computed every `precondition_frequency` steps by eigendecompositions, batched over
    matrices of one shape. Sides longer than a block are split into parts of nearly equal size.

    For a matrix `[m, n]`, the state has `m n` numbers (`2 m n` with Adam's length) and
    `2 (m^2 + n^2)` for factors and roots, fewer with blocks. A non-finite gradient changes
    neither the factors nor the roots.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay of the factors; 1 gives the sums of the first paper.
        eps: A constant added to eigenvalues, relative to the largest eigenvalue.
        exponent: :math:`e`; 1/4 in the first paper, 1/2 follows from the theory of 2024.
        precondition_frequency: The number of steps between two updates of the roots.
        block_size: The longest side of a block; None uses whole matrices.
        grafting: The method whose step length is used: `'adam'`, `'sgd'` (the mean gradient) or
            `'none'`.
        graft_b2: Adam's decay of the mean square.
        graft_eps: Added to Adam's root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a leaf isn't a matrix.
        TypeError: From `init`, for complex params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_shampoo(grafting="none")
        >>> g = jnp.asarray([[4.0, 0.0], [0.0, 0.5]])
        >>> print(jnp.diag(tx.update(g, tx.init(g))[0]).round(2))
        [1. 1.]

    Reference:
        Gupta, Koren and Singer, 2018, arXiv:1802.09568; Anil et al., 2020, arXiv:2002.09018
        (grafting, blocks); Morwani et al., 2024, arXiv:2406.17748 (the exponent).
    """

    State = ScaleByShampooState

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.99, gt=0, le=1)
    eps: Scalar = hyper(default=1e-6, gt=0)
    exponent: Scalar = hyper(default=0.25, gt=0)
    precondition_frequency: int = static(default=10, least=1)
    block_size: int | None = static(default=1024, least=1)
    grafting: str = static(default="adam", choices=("adam", "sgd", "none"))
    graft_b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    graft_eps: Scalar = hyper(default=1e-8, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def layouts(self, tree: Any) -> list[MatrixLayout]:
        """The layouts of the matrices, split into blocks."""
        return [layout.in_blocks(self.block_size) for layout in super().layouts(tree)]

    def unused(self) -> frozenset[str]:
        """The mean squares, unless Adam's length is grafted."""
        return frozenset() if self.grafting == "adam" else frozenset({"nu"})

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> Pair:
        """Return zeros for the factors, identities for the roots."""
        return sides(identities if slot == "roots" else zeros, shape, dtype)

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        t = count + 1
        # An infinite square of a finite gradient would stay infinite in the averages.
        g = clip_squarable(g, max(g.shape))
        new = {"mu": ema(slots.mu, g, h.b1)}
        mean = new["mu"] / bias_correction(h.b1, t)
        is_mean, one = h.b2 < 1, jnp.ones_like(h.b2)
        gain = jnp.where(is_mean, 1 - h.b2, one)
        factors = new["factors"] = update_factors(slots.factors, g, h.b2, gain)
        seen = jnp.where(is_mean, bias_correction(h.b2, t), one)

        def new_root(factor: Any, old: Any) -> Any:
            # A NaN in a root would stay in the state until the next refresh.
            return only_finite(inverse_root(factor / seen, h.eps, h.exponent), old)

        due = count % self.precondition_frequency == 0
        # A select instead of `cond` would compute the eigendecompositions in every step.
        roots = new["roots"] = jax.lax.cond(
            due,
            lambda *x: map_sides(sequential(new_root), *x),
            lambda _, old: old,
            factors,
            slots.roots,
        )
        # Roots and gradients may both be large, and their product too large.
        unit = largest_entry(mean)
        u = matmul(matmul(roots[0], mean / unit), roots[1])
        if self.grafting == "none":
            return u * unit, new
        whose = mean
        if self.grafting == "adam":
            new["nu"] = ema(slots.nu, jnp.square(g), h.graft_b2)
            seen_by_adam = bias_correction(h.graft_b2, t)
            whose = mean / (positive_root(new["nu"] / seen_by_adam) + h.graft_eps)
        return u * (frobenius_norm(whose) / nonzero(frobenius_norm(u))), new


@recipe
def shampoo(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-6,
    weight_decay: Any = 0.0,
    precondition_frequency: int = 10,
    *,
    weight_dimension_numbers: Any = None,
    others: Any = None,
) -> partition:
    r"""Shampoo for matrices, Adam for all other leaves.

    .. math:: u_t = -\eta_t \left(\frac{\lVert d_t \rVert}{\lVert v_t \rVert}\, v_t + \lambda_t\,
              \theta_t\right), \qquad v_t = \hat L_t^{-e}\, \hat\mu_t\, \hat R_t^{-e}

    See `scale_by_shampoo`, also for the size of its state. With Adam's step length, learning rates
    of Adam are suitable.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: Decay of the factors; 1 gives sums.
        eps: A constant added to eigenvalues, relative to the largest eigenvalue.
        weight_decay: :math:`\lambda` of the matrices: a number, a `Schedule` or a transform.
        precondition_frequency: The number of steps between two updates of the roots.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.
        others: The optimizer of the other leaves; None uses `adam` with the same learning rate.

    Returns:
        A partition with the labels `'shampoo'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.shampoo(0.1), {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(f"{updates['w'][0, 0]:.3f} {updates['b'][0]:.3f}")
        -0.100 -0.100

    Reference:
        Gupta, Koren and Singer, 2018, arXiv:1802.09568.
    """
    direction = scale_by_shampoo(b1, b2, eps, precondition_frequency=precondition_frequency)
    adam = {"b1": b1, "b2": direction.graft_b2, "eps": direction.graft_eps}
    rule = weight_dimension_numbers
    return matrix_recipe("shampoo", [direction], learning_rate, weight_decay, rule, others, **adam)
