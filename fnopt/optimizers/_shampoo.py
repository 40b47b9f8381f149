"""Shampoo: gradients preconditioned by inverse roots of their averaged outer products."""

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
    r"""State of `scale_by_shampoo`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: Adam's moving average of the squared gradient; None unless Adam's length is grafted.
        factors: :math:`L_t` and :math:`R_t` of every block; the shorter side first.
        roots: :math:`\hat L_t^{-e}` and :math:`\hat R_t^{-e}`, the inverse roots of the factors.
    """

    count: jax.Array
    mu: Slot
    nu: Slot
    factors: CustomSlot
    roots: CustomSlot


class scale_by_shampoo(Matrixwise):
    r"""Multiply averaged gradients by inverse roots of their averaged outer products.

    .. math::
        L_t &= \beta_2 L_{t-1} + (1-\beta_2)\, G_t G_t^\top, \qquad
        R_t = \beta_2 R_{t-1} + (1-\beta_2)\, G_t^\top G_t \\
        u_t &= \frac{\lVert d_t \rVert}{\lVert v_t \rVert}\, v_t, \qquad
        v_t = \hat L_t^{-e}\, \hat\mu_t\, \hat R_t^{-e}

    where :math:`d_t` is the step of another method, which determines the step length (grafting),
    and :math:`\hat\mu_t`, :math:`\hat L_t` and :math:`\hat R_t` are bias-corrected. The roots are
    computed every `precondition_frequency` steps by eigendecompositions, batched over matrices of
    one shape. Sides longer than `block_size` are split into parts of nearly equal size.

    For a matrix `[m, n]`, the state has `m n` numbers (`2 m n` with Adam's length), and `2 (m^2 +
    n^2)` numbers for factors and roots, fewer with blocks. A non-finite gradient changes neither
    factors nor roots.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of the factors. With 1, factors are sums, as in the first
            paper.
        eps: A constant added to eigenvalues, relative to the largest eigenvalue.
        exponent: :math:`e`: 1/4 in the first paper; the theory of 2024 implies 1/2.
        precondition_frequency: The number of steps between two updates of the roots.
        block_size: The longest side of a block; None doesn't split matrices.
        grafting: The method that determines the step length: `'adam'`, `'sgd'` (the averaged
            gradient) or `'none'`.
        graft_b2: Adam's decay rate of the averaged squared gradient, for grafting.
        graft_eps: Adam's constant added outside the square root, for grafting.
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
        """Return the layouts of the matrices, split into blocks."""
        return [layout.in_blocks(self.block_size) for layout in super().layouts(tree)]

    def unused(self) -> frozenset[str]:
        """Return the names of unused slots: `nu`, unless the step length is grafted from Adam."""
        return frozenset() if self.grafting == "adam" else frozenset({"nu"})

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> Pair:
        """Return zero factors, and identity matrices as roots."""
        return sides(identities if slot == "roots" else zeros, shape, dtype)

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        t = count + 1
        # An infinite square of a finite gradient would stay infinite in the averages.
        g = clip_squarable(g, max(g.shape))
        new = {"mu": ema(slots.mu, g, h.b1)}
        mean = new["mu"] / bias_correction(h.b1, t)
        # With b2 = 1, factors are sums, with weight 1 and without bias correction.
        is_average, one = h.b2 < 1, jnp.ones_like(h.b2)
        gain = jnp.where(is_average, 1 - h.b2, one)
        factors = new["factors"] = update_factors(slots.factors, g, h.b2, gain)
        correction = jnp.where(is_average, bias_correction(h.b2, t), one)

        def compute_root(factor: Any, old: Any) -> Any:
            # A root that is NaN would make all updates NaN until the next refresh.
            return only_finite(inverse_root(factor / correction, h.eps, h.exponent), old)

        is_due = count % self.precondition_frequency == 0
        # `select` instead of `cond` would compute the eigendecompositions in every step.
        roots = new["roots"] = jax.lax.cond(
            is_due,
            lambda *x: map_sides(sequential(compute_root), *x),
            lambda _, old: old,
            factors,
            slots.roots,
        )
        # The gradient is scaled to entries of at most 1, because its product with large roots could
        # overflow.
        scale = largest_entry(mean)
        u = matmul(matmul(roots[0], mean / scale), roots[1])
        if self.grafting == "none":
            return u * scale, new
        grafted = mean
        if self.grafting == "adam":
            new["nu"] = ema(slots.nu, jnp.square(g), h.graft_b2)
            nu_correction = bias_correction(h.graft_b2, t)
            grafted = mean / (positive_root(new["nu"] / nu_correction) + h.graft_eps)
        return u * (frobenius_norm(grafted) / nonzero(frobenius_norm(u))), new


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

    with the step :math:`d_t` of Adam. `scale_by_shampoo` defines the other symbols and describes
    the size of the state. Since steps have Adam's length, learning rates for Adam are suitable.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of the factors; with 1, factors are sums.
        eps: A constant added to eigenvalues, relative to the largest eigenvalue.
        weight_decay: :math:`\lambda` of the matrices, a number, a `Schedule` or a transform.
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
