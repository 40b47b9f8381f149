"""All losses with valid arguments, which optax's functions accept too."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    """A loss as `call(module, x, aux)`, which is differentiated with respect to `x`."""

    call: Any
    x: np.ndarray
    aux: Any = None


RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5))
Y = RNG.normal(size=(3, 5))
POSITIVE = RNG.uniform(0.1, 1.0, size=(3, 5))
DISTRIBUTION = POSITIVE / POSITIVE.sum(-1, keepdims=True)
LOG_Q = np.log(np.roll(DISTRIBUTION, 1, axis=1))
ONE_HOT = np.eye(5)[[1, 4, 0]]
LABELS = np.asarray([1, 4, 0])
SIGNS = np.where(Y > 0, 1.0, -1.0)
BITS = (Y > 0).astype(np.float64)
MASK = np.asarray([[1, 1, 0, 1, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)
CUBE = RNG.normal(size=(2, 3, 4))
CUBE_LABELS = np.eye(12)[[3, 7]].reshape(2, 3, 4)
IMAGES = RNG.normal(size=(2, 4, 3, 3))
REGIONS = np.eye(3)[RNG.integers(0, 3, size=(2, 4, 3))]
BINARY = RNG.normal(size=(2, 4, 3))
REGION = (RNG.normal(size=(2, 4, 3)) > 0).astype(np.float64)
CTC = RNG.normal(size=(3, 7, 4))
CTC_LABELS = np.asarray([[1, 1, 3], [2, 3, 0], [3, 1, 2]])
CTC_PAD = np.asarray([[0, 0, 0], [0, 0, 1], [0, 0, 0]], np.float64)
FRAME_PAD = np.zeros((3, 7))
FRAME_PAD[1, 5:] = 1
VIEWS = np.asarray([0, 1, 0])
IN_MASK = np.asarray([0, 4, 0])


def ctc(module: Any, x: Any, aux: Any) -> Any:
    frame_pad, label_pad = aux
    return module.ctc_loss(x, frame_pad, jnp.asarray(CTC_LABELS), label_pad)


def ctc_probs(module: Any, x: Any, aux: Any) -> Any:
    frame_pad, label_pad = aux
    loss, blank, emit = module.ctc_loss_with_forward_probs(
        x, frame_pad, jnp.asarray(CTC_LABELS), label_pad, blank_id=0
    )
    # Impossible prefixes have values of about -1e5, whose digits have no meaning.
    return jnp.concatenate([loss, jnp.exp(blank).ravel(), jnp.exp(emit).ravel()])


def fenchel_young(module: Any, x: Any, aux: Any) -> Any:
    return module.make_fenchel_young_loss(jax.nn.logsumexp)(x, aux)


CASES: dict[str, Case] = {
    "squared_error": Case(lambda m, x, y: m.squared_error(x, y), X, Y),
    "squared_error_alone": Case(lambda m, x, y: m.squared_error(x), X),
    "l2_loss": Case(lambda m, x, y: m.l2_loss(x, y), X, Y),
    "huber_loss": Case(lambda m, x, y: m.huber_loss(x, y, delta=0.7), X, Y),
    "log_cosh": Case(lambda m, x, y: m.log_cosh(x, y), X, Y),
    "cosine_similarity": Case(lambda m, x, y: m.cosine_similarity(x, y), X, Y),
    "cosine_similarity_mask": Case(
        lambda m, x, y: m.cosine_similarity(x, y, where=jnp.asarray(MASK)), X, Y
    ),
    "cosine_similarity_epsilon": Case(
        lambda m, x, y: m.cosine_similarity(x, y, epsilon=4.0, axis=None), X, Y
    ),
    "cosine_distance": Case(lambda m, x, y: m.cosine_distance(x, y, axis=0), X, Y),
    "cosine_distance_epsilon": Case(
        lambda m, x, y: m.cosine_distance(x, y, epsilon=4.0, axis=(0, 1)), X, Y
    ),
    "sigmoid_binary_cross_entropy": Case(
        lambda m, x, y: m.sigmoid_binary_cross_entropy(x, y), X, POSITIVE
    ),
    "sigmoid_focal_loss": Case(lambda m, x, y: m.sigmoid_focal_loss(x, y), X, BITS),
    "sigmoid_focal_loss_alpha": Case(
        lambda m, x, y: m.sigmoid_focal_loss(x, y, alpha=0.3, gamma=0.5), X, POSITIVE
    ),
    "softmax_cross_entropy": Case(lambda m, x, y: m.softmax_cross_entropy(x, y), X, DISTRIBUTION),
    "softmax_cross_entropy_axis": Case(
        lambda m, x, y: m.softmax_cross_entropy(x, y, axis=(0, 2)), CUBE, CUBE_LABELS
    ),
    "softmax_cross_entropy_mask": Case(
        lambda m, x, y: m.softmax_cross_entropy(x, y, where=jnp.asarray(MASK)), X, DISTRIBUTION
    ),
    "softmax_cross_entropy_all": Case(
        lambda m, x, y: m.softmax_cross_entropy(x, y, axis=None), X, DISTRIBUTION
    ),
    "softmax_cross_entropy_with_integer_labels": Case(
        lambda m, x, y: m.softmax_cross_entropy_with_integer_labels(x, jnp.asarray(LABELS)), X
    ),
    "softmax_cross_entropy_with_integer_labels_axis": Case(
        lambda m, x, y: m.softmax_cross_entropy_with_integer_labels(
            x, jnp.asarray(LABELS), axis=(0, 2)
        ),
        CUBE,
    ),
    "softmax_cross_entropy_with_integer_labels_mask": Case(
        lambda m, x, y: m.softmax_cross_entropy_with_integer_labels(
            x, jnp.asarray(IN_MASK), where=jnp.asarray(MASK)
        ),
        X,
    ),
    "poly_loss_cross_entropy": Case(
        lambda m, x, y: m.poly_loss_cross_entropy(x, y, epsilon=-0.5), X, ONE_HOT
    ),
    "poly_loss_cross_entropy_mask": Case(
        lambda m, x, y: m.poly_loss_cross_entropy(x, y, axis=0, where=jnp.asarray(MASK)),
        X,
        DISTRIBUTION,
    ),
    "kl_divergence": Case(lambda m, x, y: m.kl_divergence(x, y), LOG_Q, DISTRIBUTION),
    "kl_divergence_mask": Case(
        lambda m, x, y: m.kl_divergence(x, y, axis=(0, 1), where=jnp.asarray(MASK)),
        LOG_Q,
        ONE_HOT,
    ),
    "kl_divergence_with_log_targets": Case(
        lambda m, x, y: m.kl_divergence_with_log_targets(x, y, axis=0),
        LOG_Q,
        np.log(DISTRIBUTION),
    ),
    "generalized_kl_divergence": Case(
        lambda m, x, y: m.generalized_kl_divergence(x, y, where=jnp.asarray(MASK)), LOG_Q, POSITIVE
    ),
    "generalized_kl_divergence_zeros": Case(
        lambda m, x, y: m.generalized_kl_divergence(x, y), LOG_Q, ONE_HOT
    ),
    "hinge_loss": Case(lambda m, x, y: m.hinge_loss(x, y), X, SIGNS),
    "perceptron_loss": Case(lambda m, x, y: m.perceptron_loss(x, y), X, SIGNS),
    "multiclass_hinge_loss": Case(
        lambda m, x, y: m.multiclass_hinge_loss(x, jnp.asarray(LABELS)), X
    ),
    "multiclass_perceptron_loss": Case(
        lambda m, x, y: m.multiclass_perceptron_loss(x, jnp.asarray(LABELS)), X
    ),
    "sparsemax_loss": Case(lambda m, x, y: m.sparsemax_loss(x, y), X, BITS),
    "multiclass_sparsemax_loss": Case(
        lambda m, x, y: m.multiclass_sparsemax_loss(x, jnp.asarray(LABELS)), X
    ),
    "ctc_loss": Case(ctc, CTC, (FRAME_PAD, CTC_PAD)),
    "ctc_loss_with_forward_probs": Case(ctc_probs, CTC, (FRAME_PAD, CTC_PAD)),
    "dice_loss": Case(lambda m, x, y: m.dice_loss(x, y), IMAGES, REGIONS),
    "dice_loss_tversky": Case(
        lambda m, x, y: m.dice_loss(
            x,
            y,
            class_weights=jnp.asarray([1.0, 2.0, 3.0], x.dtype),
            smooth=0.1,
            alpha=0.3,
            beta=0.7,
            reduction="sum",
            ignore_background=True,
            axis=(1,),
        ),
        IMAGES,
        REGIONS,
    ),
    "dice_loss_none": Case(lambda m, x, y: m.dice_loss(x, y, reduction="none"), IMAGES, REGIONS),
    "multiclass_generalized_dice_loss": Case(
        lambda m, x, y: m.multiclass_generalized_dice_loss(x, y, ignore_background=True),
        IMAGES,
        REGIONS,
    ),
    "binary_dice_loss": Case(lambda m, x, y: m.binary_dice_loss(x, y), BINARY, REGION),
    "ranking_softmax_loss": Case(lambda m, x, y: m.ranking_softmax_loss(x, y), X, POSITIVE),
    "ranking_softmax_loss_mask": Case(
        lambda m, x, y: m.ranking_softmax_loss(
            x, y, where=jnp.asarray(MASK), weights=2 * y, reduce_fn=None
        ),
        X,
        POSITIVE,
    ),
    "ntxent": Case(lambda m, x, y: m.ntxent(x, jnp.asarray(VIEWS), temperature=0.5), X),
    "triplet_margin_loss": Case(lambda m, x, y: m.triplet_margin_loss(x, *y), X, (Y, POSITIVE)),
    "make_fenchel_young_loss": Case(fenchel_young, X, ONE_HOT),
    "smooth_labels": Case(lambda m, x, y: m.smooth_labels(x, 0.1), DISTRIBUTION),
    "smooth_labels_mask": Case(
        lambda m, x, y: m.smooth_labels(x, 0.1, axis=0, where=jnp.asarray(MASK)), DISTRIBUTION
    ),
}
