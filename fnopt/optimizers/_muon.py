"""Muon and NorMuon: orthogonalized momentum of matrices."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule, Transformation
from fnopt.optimizers._matrix_scale import normalize_neurons, scale_by_matrix_shape
from fnopt.optimizers._orthogonalize import orthogonalize
from fnopt.optimizers._partition_matrices import matrix_recipe
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import ema, partition


@recipe
def muon(
    learning_rate: ScalarOrSchedule,
    beta: Scalar = 0.95,
    weight_decay: Any = 0.0,
    *,
    nesterov: bool = True,
    consistent_rms: Scalar | None = None,
    orthogonalizer: Transformation | None = None,
    weight_dimension_numbers: Any = None,
    others: Any = None,
) -> partition:
    r"""Muon for matrices, Adam for all other leaves.

    .. math:: u_t = -\eta_t \left(s\, U V^\top + \lambda_t\, \theta_t\right), \qquad
              \hat\mu_t = U S V^\top, \qquad
              s = \sqrt{\max(1,\ \text{outputs} / \text{inputs})}

    with the bias-corrected moving average :math:`\hat\mu_t` of a matrix's gradient, whose singular
    value decomposition is :math:`U S V^\top`.

    By default, fnopt finds kernels of flax, haiku and Equinox by their names and shapes. These
    include stacked layers, fused queries, keys and values, attention kernels with three axes,
    convolutions and experts. Adam trains embeddings, output layers (`head`, `logits`,
    `classifier`), and leaves with ambiguous axes. `print(matrix_report(tx, params))` lists the
    optimizer of each leaf. For other models, pass
    `weight_dimension_numbers=fnopt.matrix_axes(loss_fn)(params, batch)`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        beta: The decay rate of :math:`\mu`, the moving average of the gradient.
        weight_decay: :math:`\lambda` of the matrices, a number, a `Schedule`, or a transform such
            as `add_decayed_weights(decay, mask)` or `cautious_weight_decay(decay)`.
        nesterov: Whether to use Nesterov momentum, also for Adam.
        consistent_rms: The root mean square of scaled updates, instead of the factor :math:`s`.
            With 0.2, learning rates of AdamW are suitable.
        orthogonalizer: The transform that computes :math:`U V^\top` from :math:`\hat\mu`; None uses
            `orthogonalize()`.
        weight_dimension_numbers: The leaves that are matrices, and their axes. Pass the result of
            `matrix_axes`, or another tree of `MatrixDimensionNumbers` with None for the other
            leaves. One `MatrixDimensionNumbers` applies to all leaves with two axes or more. The
            values of a pattern, `by_pattern` or `by_path` are dimension numbers, True (a matrix if
            the leaf has two axes) or False. None selects the kernels described above, and leaves
            with two axes and other names, except biases, scales and tables.
        others: The optimizer of the other leaves; None uses `adam` with the same learning rate.

    Returns:
        A partition with the labels `'muon'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.muon(0.1), {"w": 3 * jnp.eye(2), "b": jnp.ones(2)}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(updates["w"].round(2) + 0.0)
        [[-0.11  0.  ]
         [ 0.   -0.11]]

    Reference:
        Jordan et al., 2024, Muon; Liu et al., 2025, arXiv:2502.16982.
    """
    direction = [
        ema(beta, nesterov=nesterov),
        orthogonalize() if orthogonalizer is None else orthogonalizer,
        scale_by_matrix_shape(consistent_rms),
    ]
    rule = weight_dimension_numbers
    return matrix_recipe(
        "muon", direction, learning_rate, weight_decay, rule, others, nesterov=nesterov
    )


@recipe
def normuon(
    learning_rate: ScalarOrSchedule,
    beta: Scalar = 0.95,
    b2: Scalar = 0.95,
    weight_decay: Any = 0.0,
    *,
    consistent_rms: Scalar | None = 0.2,
    orthogonalizer: Transformation | None = None,
    weight_dimension_numbers: Any = None,
    others: Any = None,
) -> partition:
    r"""NorMuon: Muon with updates normalized per neuron.

    .. math:: u_t = -\eta_t \left(s\, \frac{\lVert O \rVert}{\lVert N \rVert}\, N + \lambda_t\,
              \theta_t\right), \qquad N_{ij} = \frac{O_{ij}}{\sqrt{\nu_j}}

    with the orthogonalized momentum :math:`O` of `muon` and the averaged mean square :math:`\nu_j`
    of output `j` of :math:`O`; see `normalize_neurons`. The state has one more number per output
    than the state of `muon`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        beta: The decay rate of the moving average of the gradient.
        b2: The decay rate of :math:`\nu`, the moving average of the mean squares.
        weight_decay: :math:`\lambda` of the matrices, a number, a `Schedule` or a transform.
        consistent_rms: The root mean square of updates, which determines :math:`s`; the paper uses
            0.2. None uses the factor :math:`s` of `muon`.
        orthogonalizer: The transform that orthogonalizes the momentum; None uses `orthogonalize()`.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.
        others: The optimizer of the other leaves; None uses `adam` with the same learning rate.

    Returns:
        A partition with the labels `'normuon'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.normuon(0.1), {"w": jnp.ones((4, 2))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].shape
        (4, 2)

    Reference:
        Li et al., 2025, arXiv:2510.05491.
    """
    direction = [
        ema(beta, nesterov=True),
        orthogonalize() if orthogonalizer is None else orthogonalizer,
        normalize_neurons(b2),
        scale_by_matrix_shape(consistent_rms),
    ]
    rule = weight_dimension_numbers
    return matrix_recipe(
        "normuon", direction, learning_rate, weight_decay, rule, others, nesterov=True
    )
