"""Muon with optax's arguments, composed of fnopt's transforms."""

from __future__ import annotations

from typing import Any

from fnopt import optimizers, transforms
from fnopt.interop.optax_api._bridge import bridge

STANDARD = optimizers.orthogonalize().ns_coeffs


@bridge
def scale_by_muon(
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: Any = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    weight_dimension_numbers: Any = None,
) -> Any:
    """Orthogonalize the momentum of every matrix: replace its singular values by about 1."""
    rule = weight_dimension_numbers
    return transforms.chain(
        transforms.ema(beta, accumulator_dtype=mu_dtype, nesterov=nesterov),
        optimizers.orthogonalize(
            ns_coeffs, ns_steps, eps, preconditioning, adaptive, weight_dimension_numbers=rule
        ),
    )


@bridge
def muon(
    learning_rate: Any,
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    weight_decay_mask: Any = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    adam_b1: Any = 0.9,
    adam_b2: Any = 0.999,
    adam_eps_root: Any = 0.0,
    adam_weight_decay: Any = 0.0,
    adam_learning_rate: Any = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
) -> Any:
    """Optimize matrices by Muon and all other leaves by AdamW."""
    options = {"nesterov": nesterov, "adaptive": adaptive, "preconditioning": preconditioning}
    matrices = transforms.chain(
        scale_by_muon(ns_coeffs, ns_steps, beta, eps, mu_dtype, **options),
        optimizers.scale_by_matrix_shape(consistent_rms),
        transforms.add_decayed_weights(weight_decay, weight_decay_mask),
        transforms.scale_by_learning_rate(learning_rate),
    )
    rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    others = optimizers.adamw(
        *(rate, adam_b1, adam_b2, eps, adam_eps_root, mu_dtype),
        weight_decay=adam_weight_decay,
        nesterov=nesterov,
    )
    numbers = muon_weight_dimension_numbers
    # True selects all leaves with two axes, as in optax; fnopt's default also considers names.
    rule = True if numbers is None else numbers
    return optimizers.partition_matrices(matrices, others, rule, label="muon")
