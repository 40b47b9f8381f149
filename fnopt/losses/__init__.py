"""Loss functions of predictions and targets."""

from __future__ import annotations

from fnopt.losses._cross_entropy import (
    poly_loss_cross_entropy,
    sigmoid_binary_cross_entropy,
    sigmoid_focal_loss,
    smooth_labels,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
)
from fnopt.losses._ctc import ctc_loss, ctc_loss_with_forward_probs
from fnopt.losses._dice import binary_dice_loss, dice_loss, multiclass_generalized_dice_loss
from fnopt.losses._distances import (
    generalized_kl_divergence,
    huber_loss,
    kl_divergence,
    kl_divergence_with_log_targets,
    l2_loss,
    log_cosh,
    squared_error,
)
from fnopt.losses._embeddings import cosine_distance, cosine_similarity, ntxent, triplet_margin_loss
from fnopt.losses._margin import (
    hinge_loss,
    make_fenchel_young_loss,
    multiclass_hinge_loss,
    multiclass_perceptron_loss,
    multiclass_sparsemax_loss,
    perceptron_loss,
    ranking_softmax_loss,
    sparsemax_loss,
)

__all__ = [
    "binary_dice_loss",
    "cosine_distance",
    "cosine_similarity",
    "ctc_loss",
    "ctc_loss_with_forward_probs",
    "dice_loss",
    "generalized_kl_divergence",
    "hinge_loss",
    "huber_loss",
    "kl_divergence",
    "kl_divergence_with_log_targets",
    "l2_loss",
    "log_cosh",
    "make_fenchel_young_loss",
    "multiclass_generalized_dice_loss",
    "multiclass_hinge_loss",
    "multiclass_perceptron_loss",
    "multiclass_sparsemax_loss",
    "ntxent",
    "perceptron_loss",
    "poly_loss_cross_entropy",
    "ranking_softmax_loss",
    "sigmoid_binary_cross_entropy",
    "sigmoid_focal_loss",
    "smooth_labels",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
    "sparsemax_loss",
    "squared_error",
    "triplet_margin_loss",
]
