"""Large, tiny, infinite and missing numbers, against float64 and closed forms."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import losses


def finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


@functools.lru_cache(maxsize=8)
def program(fn):
    return jax.jit(jax.value_and_grad(lambda x, *args: jnp.sum(fn(x, *args))))


def both(fn, x, *args):
    """Value and gradient of a sum, in one program, which other numbers share."""
    return program(fn)(x, *args)


@pytest.mark.parametrize("error", [0.0, 1e-24, 1e-4, 0.999, 1.0, 30.0, 1e20, -1e-4, -30.0])
def test_log_cosh_is_accurate_from_tiny_to_huge(error):
    value, slope = both(losses.log_cosh, jnp.float32(error))
    e = abs(float(np.float32(error)))
    # log(cosh(e)) = log1p(2 sinh(e/2)^2), and e - log 2 where the rest is far below rounding
    exact = np.log1p(2 * np.sinh(e / 2) ** 2) if e < 40 else e - np.log(2.0)
    np.testing.assert_allclose(value, exact, rtol=1e-6, atol=1e-38)
    np.testing.assert_allclose(slope, np.tanh(error), rtol=1e-6)


@pytest.mark.parametrize("logit", [-1e4, -30.0, 0.0, 30.0, 1e4])
@pytest.mark.parametrize("label", [0, 1])
def test_binary_cross_entropy_of_sure_answers(logit, label):
    x = np.float64(logit if label == 0 else -logit)
    z, y = np.float32(logit), np.int32(label)
    value, slope = both(losses.sigmoid_binary_cross_entropy, z, y)
    np.testing.assert_allclose(value, np.logaddexp(0, x), rtol=1e-6, atol=1e-38)
    expected = (1 - 2 * label) * np.exp(-np.logaddexp(0, -x))
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-38)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_has_finite_gradients_at_large_logits(gamma):
    x = jnp.asarray([-1e4, -200.0, 0.0, 200.0, 1e4])
    for label in (0, 1):
        value, slope = both(
            lambda z, y=label: losses.sigmoid_focal_loss(z, jnp.asarray(y), gamma=gamma), x
        )
        assert finite((value, slope))


def test_softmax_cross_entropy_keeps_small_losses():
    logits = jnp.asarray([[30.0, 0.0, -1e4], [1e30, 1e30, 0.0], [0.0, -jnp.inf, 0.0]])
    expected = [np.log1p(np.exp(-30.0)), np.log(2.0), np.log(2.0)]
    labels = jnp.asarray([0, 1, 2])
    one_hot = jax.nn.one_hot(labels, 3, dtype=jnp.int32)
    ours = losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    value, slope = both(lambda x: losses.softmax_cross_entropy(x, one_hot), logits)
    np.testing.assert_allclose(value, np.sum(expected), rtol=1e-6)
    np.testing.assert_allclose(slope[1:], [[0.5, -0.5, 0], [0.5, 0, -0.5]], rtol=1e-6)
    assert finite(slope)


def test_an_impossible_class_costs_infinity_and_a_missing_one_is_nan():
    logits = jnp.asarray([[0.0, -jnp.inf], [0.0, 1.0], [0.0, 1.0]])
    loss = losses.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray([1, 2, -1]))
    assert loss[0] == jnp.inf
    assert bool(jnp.isnan(loss[1:]).all())


def test_rows_without_a_label_can_be_left_out():
    labels = jnp.asarray([1, -1])

    def fn(x):
        loss = losses.softmax_cross_entropy_with_integer_labels(x, labels)
        return jnp.where(labels >= 0, loss, 0)

    value, slope = both(fn, jnp.zeros((2, 2)))
    np.testing.assert_allclose(value, np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(slope, [[0.5, -0.5], [0.0, 0.0]])


MASKED = {
    "softmax": lambda x, w: losses.softmax_cross_entropy(x, jnp.ones_like(x) / 3, where=w),
    "integer": lambda x, w: losses.softmax_cross_entropy_with_integer_labels(
        x, jnp.zeros(2, jnp.int32), where=w
    ),
    "poly": lambda x, w: losses.poly_loss_cross_entropy(x, jnp.ones_like(x) / 3, where=w),
    "kl": lambda x, w: losses.kl_divergence(x, jnp.ones_like(x) / 3, where=w),
    "log_kl": lambda x, w: losses.kl_divergence_with_log_targets(x, jnp.zeros_like(x), where=w),
    "generalized_kl": lambda x, w: losses.generalized_kl_divergence(x, jnp.ones_like(x), where=w),
    "cosine": lambda x, w: losses.cosine_similarity(x, jnp.ones_like(x), where=w),
    "ranking": lambda x, w: losses.ranking_softmax_loss(x, jnp.ones_like(x), where=w),
}


@pytest.mark.parametrize("name", MASKED)
def test_what_is_masked_may_be_anything_and_empty_masks_are_zero(name):
    """The second row has nothing in it; what stands under the mask is not seen."""
    where = jnp.asarray([[True, True, False], [False, False, False]])
    dirty = jnp.asarray([[0.1, 0.2, jnp.nan], [jnp.nan, jnp.inf, -jnp.inf]])
    value, slope = both(MASKED[name], dirty, where)
    clean, _ = both(MASKED[name], jnp.where(where, dirty, 5.0), where)
    np.testing.assert_allclose(value, clean, rtol=1e-6)
    assert finite((value, slope))
    np.testing.assert_array_equal(slope[~np.asarray(where)], 0)
    if name != "ranking":  # the mean over lists with an item
        assert float(MASKED[name](dirty, where)[1]) == 0


def test_divergences_at_zero_probabilities():
    p = jnp.asarray([0.5, 0.5, 0.0])
    for q, expected in [(p, 0.0), (jnp.asarray([0.0, 1.0, 0.0]), jnp.inf)]:
        assert float(losses.kl_divergence(jnp.log(q), p)) == expected
        assert float(losses.kl_divergence_with_log_targets(jnp.log(q), jnp.log(p))) == expected
        assert float(losses.generalized_kl_divergence(jnp.log(q), p)) == expected
    slopes = jax.grad(losses.kl_divergence, argnums=(0, 1))(jnp.log(p), p)
    np.testing.assert_allclose(slopes[0], [-0.5, -0.5, 0.0])
    assert finite(slopes)
    assert finite(jax.grad(losses.kl_divergence_with_log_targets, (0, 1))(jnp.log(p), jnp.log(p)))


def test_generalized_kl_keeps_small_differences():
    q = np.float32([1.0001, 2.0])
    value = losses.generalized_kl_divergence(jnp.log(jnp.asarray(q)), jnp.asarray([1.0, 2.0]))
    d = np.float64(np.log(q)[0])
    np.testing.assert_allclose(value, np.expm1(d) - d, rtol=5e-3)


@pytest.mark.parametrize("size", [1e-30, 1e-24, 1.0, 1e20, 1e30])
def test_cosines_of_any_length(size):
    a, b = size * jnp.asarray([3.0, 4.0]), jnp.asarray([4.0, 3.0])
    np.testing.assert_allclose(losses.cosine_similarity(a, b), 0.96, rtol=1e-6)
    np.testing.assert_allclose(losses.cosine_distance(a, b), 0.04, rtol=1e-6)


def test_cosines_of_nothing_and_of_almost_the_same():
    value, slope = both(lambda a: losses.cosine_similarity(a, jnp.ones(3)), jnp.zeros(3))
    assert float(value) == 0
    np.testing.assert_array_equal(slope, 0)
    assert float(losses.cosine_distance(jnp.zeros(3), jnp.ones(3))) == 1
    near = losses.cosine_distance(jnp.asarray([1.0, 1e-4]), jnp.asarray([1.0, 0.0]))
    np.testing.assert_allclose(near, 5e-9, rtol=1e-5)


def test_margins_beside_large_scores():
    scores = jnp.asarray([[1e8, 1e8, 0.0]])
    assert float(losses.multiclass_hinge_loss(scores, jnp.asarray([0]))[0]) == 1
    assert bool(jnp.isnan(losses.multiclass_hinge_loss(scores, jnp.asarray([-1]))).all())


def paths_of(target, length, classes):
    """All alignments that spell the target: repeats merged, zeros removed."""
    for path in itertools.product(range(classes), repeat=length):
        merged = [k for i, k in enumerate(path) if i == 0 or path[i - 1] != k]
        if [k for k in merged if k != 0] == list(target):
            yield path


@pytest.mark.parametrize("target", [(), (1,), (1, 1), (2, 1), (1, 2, 1)])
def test_ctc_is_the_sum_over_all_alignments(target):
    logits = np.random.default_rng(1).normal(size=(5, 3))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    total = sum(np.prod(p[np.arange(5), path]) for path in paths_of(target, 5, 3))
    labels = np.zeros((1, 3), np.int32)
    labels[0, : len(target)] = target
    padding = (np.arange(3) >= len(target))[None].astype(np.float32)
    # Two frames of padding with anything in them.
    padded = np.concatenate([logits, [[np.nan] * 3, [np.inf] * 3]])[None].astype(np.float32)
    frames = np.asarray([[0, 0, 0, 0, 0, 1, 1]], np.float32)
    value, slope = both(losses.ctc_loss, padded, frames, labels, padding)
    np.testing.assert_allclose(value, -np.log(total), rtol=1e-5)
    assert finite(slope)
    np.testing.assert_array_equal(slope[0, 5:], 0)


def test_ctc_of_too_many_labels_and_of_half_precision():
    labels, none = jnp.asarray([[1, 2, 1]]), jnp.zeros((1, 3))
    loss, slope = both(
        lambda x: losses.ctc_loss(x, jnp.zeros((1, 2)), labels, none),
        jnp.zeros((1, 2, 3), "bfloat16"),
    )
    assert 9e4 < float(loss) < 1.1e5
    assert finite(slope)


def test_dice_of_empty_regions_is_perfect():
    empty = jnp.zeros((1, 4, 1))
    loss, slope = both(
        lambda p: losses.binary_dice_loss(p, empty, smooth=0.0, apply_sigmoid=False), empty
    )
    assert float(loss) == 0
    assert finite(slope)


def test_dice_of_a_large_image_in_float16():
    region = jnp.ones((1, 300, 300), jnp.float16)  # 90,000 pixels: more than float16 counts
    np.testing.assert_allclose(losses.binary_dice_loss(20 * region, region), [0.0], atol=1e-6)


def test_contrastive_without_pairs_or_negatives():
    z = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])
    for labels in ([0, 1], [0, 0]):  # no two alike; all alike
        value, slope = both(lambda z, c=labels: losses.ntxent(z, jnp.asarray(c)), z)
        assert float(value) == 0
        assert finite(slope)
    assert finite(both(lambda z: losses.ntxent(z, jnp.asarray([0, 0, 1]), 0.01), jnp.zeros((3, 2))))


@pytest.mark.parametrize("degree", [1, 2, 3, 1.5])
def test_triplet_distances_of_any_degree_and_size(degree):
    a, p, n = jnp.zeros(2), jnp.asarray([-3e20, 4e20]), jnp.asarray([0.0, 1e20])
    value = losses.triplet_margin_loss(a, p, n, norm_degree=degree)
    expected = 1e20 * ((3**degree + 4**degree) ** (1 / degree) - 1)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    value, slope = both(lambda x: losses.triplet_margin_loss(x, a, a, norm_degree=degree), a)
    assert float(value) == 1
    assert finite(slope)


def test_sparsemax_with_impossible_classes_and_huge_scores():
    scores = jnp.asarray([[0.0, -jnp.inf, 0.5], [1e30, 0.0, 0.0]])
    value, slope = both(lambda x: losses.multiclass_sparsemax_loss(x, jnp.asarray([0, 0])), scores)
    np.testing.assert_allclose(value, 0.5625, rtol=1e-6)
    np.testing.assert_allclose(slope, [[-0.75, 0, 0.75], [0, 0, 0]], atol=1e-6)
    assert finite(
        both(lambda x: losses.sparsemax_loss(x, jnp.asarray(1)), jnp.asarray([1e30, -1e30]))
    )


def test_a_column_against_a_row_is_refused():
    with pytest.raises(
        ValueError, match=r"`predictions` has shape \(4, 1\), `targets` has shape \(4,\)"
    ):
        losses.squared_error(np.ones((4, 1), np.float32), np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"labels are int32\[2\], expected shape \(3,\)"):
        losses.multiclass_hinge_loss(np.ones((3, 4), np.float32), np.zeros(2, np.int64))
    with pytest.raises(TypeError, match="labels are float32"):
        losses.softmax_cross_entropy_with_integer_labels(
            np.ones((3, 4), np.float32), np.zeros(3, np.float32)
        )
    # As many rows as classes: class numbers would broadcast.
    with pytest.raises(ValueError, match=r"labels are int32\[3\].*with_integer_labels"):
        losses.softmax_cross_entropy(np.ones((3, 3), np.float32), np.arange(3))
    with pytest.raises(ValueError, match="expected one of 'mean', 'sum', 'none'"):
        losses.dice_loss(np.ones((2, 3, 2)), np.ones((2, 3, 2)), reduction="max")


@pytest.mark.parametrize("loss", [losses.cosine_similarity, losses.cosine_distance])
def test_vectors_of_two_lengths_have_no_angle(loss):
    x = jnp.ones((4, 3))
    assert loss(x, x[:1]).shape == (4,)  # other axes broadcast
    for a, b, axis in ((x[:, :1], x, -1), (x, x[:1], None), (x, x[:1], (0, 1))):
        with pytest.raises(ValueError, match="expected equal lengths along axis"):
            loss(a, b, axis=axis)
