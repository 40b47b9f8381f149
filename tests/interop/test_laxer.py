"""What optax takes and fnopt refuses: through `optax_api` it works, with a warning."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.interop import optax_api as ours

theirs = pytest.importorskip("optax")
BOTH = pytest.mark.parametrize("optax", [theirs, ours], ids=["optax", "optax_api"])
PARAMS = {"w": jnp.arange(6.0).reshape(3, 2) / 7, "b": jnp.ones(2)}
GRADS = jax.tree.map(jnp.cos, PARAMS)


@pytest.fixture(autouse=True)
def _as_users_run_it():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        yield


def steps(tx: Any, params: Any, grads: Any, n: int = 3) -> Any:
    state = tx.init(params)
    for _ in range(n):
        updates, state = tx.update(grads, state, params)
    return updates, state


# Losses: shapes that broadcast.

ELEMENTWISE = ["hinge_loss", "huber_loss", "log_cosh", "sigmoid_binary_cross_entropy"]
ELEMENTWISE += ["sigmoid_focal_loss", "sparsemax_loss"]
DIVERGENCES = ["kl_divergence", "kl_divergence_with_log_targets", "generalized_kl_divergence"]
CROSS = ["softmax_cross_entropy", "poly_loss_cross_entropy", "safe_softmax_cross_entropy"]
RNG = np.random.RandomState(0)


def column(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.uniform(0.1, 1, shape), jnp.float32)


@pytest.mark.parametrize("name", ELEMENTWISE + DIVERGENCES)
def test_losses_of_a_column_and_a_row_are_those_of_all_pairs(name):
    args = column(4, 1, 1, 1), column(4)
    with pytest.warns(UserWarning, match=rf"{name}: .*shape \(4, 1, 1, 1\).*to \(4, 1, 1, 4\)"):
        found = getattr(ours.losses, name)(*args)
    expected = getattr(theirs.losses, name)(*args)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*CROSS, "ranking_softmax_loss", "kl_divergence"])
def test_losses_of_rows_broadcast_over_the_others(name):
    args = column(4, 1, 3), column(2, 3)
    with pytest.warns(UserWarning, match="broadcast to"):
        found = getattr(ours.losses, name)(*args)
    np.testing.assert_allclose(found, getattr(theirs.losses, name)(*args), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["multiclass_hinge_loss", "softmax_cross_entropy_with_integer_labels"]
)
def test_class_numbers_broadcast_over_the_rows(name):
    args = column(4, 1, 3), jnp.asarray([[0, 2, 1]] * 4)
    with pytest.warns(UserWarning, match="broadcast to"):
        found = getattr(ours.losses, name)(*args)
    np.testing.assert_allclose(found, getattr(theirs.losses, name)(*args), rtol=1e-5, atol=1e-6)


@BOTH
@pytest.mark.parametrize("name", ["squared_error", "l2_loss", "perceptron_loss", "dice_loss"])
def test_losses_of_one_shape_refuse_others(name, optax):
    with pytest.raises(ValueError, match=r"shape|\(4, 3, 1\)"):
        getattr(optax.losses, name)(column(4, 3, 1), column(4, 1, 3))


@pytest.mark.parametrize("name", [*CROSS, "cosine_distance", "cosine_similarity"])
def test_vectors_of_two_lengths_are_refused(name):
    # One number is no distribution over four classes: the softmax of one is 1.
    with pytest.raises(ValueError, match=r"shape \(4, 1\).*shape \(4,\), expected"):
        getattr(ours.losses, name)(column(4, 1), column(4))


@pytest.mark.parametrize("name", [*ELEMENTWISE, *DIVERGENCES, "cosine_distance"])
def test_the_native_losses_stay_strict(name):
    with pytest.raises(ValueError, match="expected"):
        getattr(fnopt.losses, name)(column(4, 1), column(4))


# Leaves that are no floating arrays.

FILTERED = {**PARAMS, "count": jnp.arange(3), "mask": jnp.asarray([True, False])}
FILTERED_GRADS = {**GRADS, "count": None, "mask": None}
MAKERS: dict[str, Any] = {
    "sgd": lambda optax: optax.sgd(0.1, momentum=0.9),
    "rmsprop": lambda optax: optax.rmsprop(0.1),
    "rmsprop_centered": lambda optax: optax.rmsprop(0.1, centered=True, momentum=0.9),
    "trace": lambda optax: optax.trace(0.9),
}


@pytest.mark.parametrize("name", MAKERS)
def test_leaves_without_a_gradient_stay_as_they_are(name):
    expected, _ = steps(MAKERS[name](theirs), FILTERED, FILTERED_GRADS)
    with pytest.warns(
        UserWarning, match=r"leaves \['count', 'mask'\] of the params aren't floating"
    ):
        found, _ = steps(MAKERS[name](ours), FILTERED, FILTERED_GRADS)
    assert found["count"] is expected["count"] is None
    for leaf in PARAMS:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=1e-5)
    new = ours.apply_updates(FILTERED, found)
    assert new["count"] is FILTERED["count"]


LENIENT: dict[str, Any] = {
    "adam": lambda: ours.adam(0.1),
    "chain": lambda: ours.chain(ours.clip_by_global_norm(1.0), ours.adam(0.1)),
    "inject": lambda: ours.inject_hyperparams(ours.adam)(0.1),
    "masked": lambda: ours.masked(ours.adam(0.1), {**dict.fromkeys(FILTERED, True)}),
    "ema": lambda: ours.ema(0.9),
    "steps": lambda: ours.MultiSteps(ours.adam(0.1), 2),
    "muon": lambda: ours.contrib.muon(0.1),
    "sam": lambda: ours.contrib.sam(ours.adam(0.1), ours.sgd(0.1)),
}


@pytest.mark.parametrize("name", LENIENT)
def test_every_optimizer_of_the_stand_in_leaves_them(name):
    tx = LENIENT[name]()
    with pytest.warns(UserWarning, match="aren't floating arrays"):
        updates, _ = steps(tx, FILTERED, FILTERED_GRADS)
    plain = {**PARAMS, "count": None, "mask": None}
    expected, _ = steps(tx, plain, FILTERED_GRADS)
    for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_native_optimizers_stay_strict():
    with pytest.raises(TypeError, match="leaf 'count' is int32"):
        fnopt.sgd(0.1, momentum=0.9).init(FILTERED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.adam(0.1).init(PARAMS)


def test_an_equinox_model_with_counters():
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):
        w: Any
        count: Any

        def __call__(self, x: Any) -> Any:
            return jnp.sum(self.w * x)

    model = Model(jnp.ones(3), jnp.zeros((), jnp.int32))
    grads = eqx.filter_grad(lambda m: m(jnp.arange(3.0)))(model)
    for make in (MAKERS["sgd"], MAKERS["rmsprop"]):
        news = []
        for optax in (theirs, ours):
            tx = make(optax)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                state = tx.init(eqx.filter(model, eqx.is_array))
            updates, _ = tx.update(grads, state, eqx.filter(model, eqx.is_array))
            news.append(eqx.apply_updates(model, updates))
        assert news[1].count is model.count
        np.testing.assert_allclose(news[0].w, news[1].w, rtol=1e-6)


# Arguments and states.


@BOTH
def test_whole_numbers_of_an_injected_optimizer(optax):
    for make, whole in ((optax.noisy_sgd, {"key": 0}), (optax.contrib.sophia, {})):
        whole = whole or {"update_interval": 10}
        tx = optax.inject_hyperparams(make)(learning_rate=0.1, **whole)
        state = tx.init(PARAMS)
        assert state.hyperparams["learning_rate"] == np.float32(0.1)
    noisy = optax.inject_hyperparams(optax.noisy_sgd)(learning_rate=0.1, key=0)
    updates, _ = jax.jit(noisy.update)(GRADS, noisy.init(PARAMS), PARAMS)
    plain, _ = steps(optax.noisy_sgd(0.1, key=0), PARAMS, GRADS, 1)
    for leaf in PARAMS:
        np.testing.assert_allclose(updates[leaf], plain[leaf], rtol=1e-5)


def test_numbers_of_an_injected_optimizer_may_be_written_whole():
    tx = ours.inject_hyperparams(ours.sgd)(learning_rate=1)
    state = tx.init(PARAMS)
    state.hyperparams["learning_rate"] = 0.5
    updates, _ = tx.update(GRADS, state)
    np.testing.assert_allclose(updates["b"], -0.5 * GRADS["b"])


def test_a_whole_number_put_into_the_state_is_refused():
    tx = ours.inject_hyperparams(ours.noisy_sgd)(learning_rate=0.1, key=0)
    state = tx.init(PARAMS)
    state.hyperparams["key"] = 1
    with pytest.raises(ValueError, match=r"hyperparams have the unknown names \['key'\], expected"):
        tx.update(GRADS, state, PARAMS)


def test_dimension_numbers_that_are_a_function_of_the_params():
    def one(optax: Any, **more: Any) -> Any:
        def dims(params: Any) -> Any:
            numbers = optax.contrib.MuonDimensionNumbers((0,), (1,))
            return jax.tree.map(lambda p: numbers if p.ndim == 2 else None, params)

        return optax.contrib.muon(0.1, muon_weight_dimension_numbers=dims, **more)

    expected, _ = steps(one(theirs), PARAMS, GRADS)
    found, state = steps(one(ours), PARAMS, GRADS)
    plain, other = steps(ours.contrib.muon(0.1), PARAMS, GRADS)
    for leaf in PARAMS:
        np.testing.assert_allclose(found[leaf], expected[leaf], rtol=2e-3, atol=1e-6)
        np.testing.assert_array_equal(found[leaf], plain[leaf])
    assert jax.tree.structure(state) == jax.tree.structure(other)
    both = one(ours, weight_decay_mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p))
    steps(both, PARAMS, GRADS)


@BOTH
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_sums_norms_and_counts(optax):
    total = optax.tree.sum(PARAMS, associative_reduction=True)
    np.testing.assert_allclose(total, sum(float(x.sum()) for x in PARAMS.values()), rtol=1e-6)
    np.testing.assert_allclose(optax.tree.sum(PARAMS), total, rtol=1e-6)
    norm = np.sqrt(sum(float((x**2).sum()) for x in PARAMS.values()))
    np.testing.assert_allclose(optax.global_norm(updates=PARAMS), norm, rtol=1e-6)
    assert optax.safe_increment(jnp.asarray(3.0)) == 4
    assert optax.safe_increment(jnp.asarray(3.0)).dtype == jnp.float32
    most = jnp.finfo(jnp.float32).max
    assert optax.safe_increment(jnp.asarray(most)) == most
    assert optax.safe_increment(jnp.asarray(127, jnp.int8)) == 127


@BOTH
def test_functions_by_name(optax):
    tx = optax.stateless(f=lambda updates, params: jax.tree.map(jnp.sign, updates))
    assert (tx.update(GRADS, tx.init(PARAMS), PARAMS)[0]["b"] == 1).all()


@BOTH
@pytest.mark.filterwarnings("ignore:lookahead")
def test_a_state_of_lookahead_is_mapped(optax):
    tx = optax.lookahead(optax.adam(0.1), 2, 0.5)
    state = tx.init(optax.LookaheadParams.init_synced(PARAMS))
    fives = optax.tree.map_params(tx, lambda x: jnp.full_like(x, 5), state)
    assert sum(int((x == 5).all()) for x in jax.tree.leaves(fives)) == 4  # two slots, two leaves


def test_lookahead_begins_with_fast_params():
    tx = ours.lookahead(ours.adam(0.1), 2, 0.5)
    with pytest.warns(
        UserWarning, match="expected LookaheadParams. The given params are used as the fast params"
    ):
        state = tx.init(PARAMS)
    pair = tx.init(ours.LookaheadParams.init_synced(PARAMS))
    assert jax.tree.structure(state) == jax.tree.structure(pair)


@BOTH
def test_an_update_without_params(optax):
    tx = optax.GradientTransformation(lambda p: (), lambda u, s: (jax.tree.map(jnp.sign, u), s))
    assert (tx.update(GRADS, tx.init(PARAMS))[0]["b"] == 1).all()


STATELESS: dict[str, Any] = {
    "centralize": lambda optax: optax.centralize(),
    "clip": lambda optax: optax.clip(1.0),
    "clip_by_global_norm": lambda optax: optax.clip_by_global_norm(1.0),
    "clip_by_block_rms": lambda optax: optax.clip_by_block_rms(1.0),
    "adaptive_grad_clip": lambda optax: optax.adaptive_grad_clip(0.1),
    "scale": lambda optax: optax.scale(2.0),
    "identity": lambda optax: optax.identity(),
    "set_to_zero": lambda optax: optax.set_to_zero(),
    "scale_by_sign": lambda optax: optax.scale_by_sign(),
}


@BOTH
@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize("state", [None, ()])
def test_nothing_is_a_state_of_what_has_none(optax, name, state):
    tx = STATELESS[name](optax)
    found, _ = tx.update(GRADS, state, PARAMS)
    expected, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    for leaf in PARAMS:
        np.testing.assert_array_equal(found[leaf], expected[leaf])


@BOTH
def test_an_update_of_nothing_is_nothing(optax):
    for tx in (optax.sgd(0.1), optax.scale(0.1), optax.chain(optax.clip(1.0), optax.identity())):
        assert tx.update(None, tx.init(PARAMS))[0] is None


def test_numpyro_takes_what_to_optax_gives():
    numpyro = pytest.importorskip("numpyro.optim")
    for made in (
        numpyro.optax_to_numpyro(ours.adam(0.1)),
        numpyro.optax_to_numpyro(fnopt.interop.to_optax(ours.adam(0.1))),
    ):
        state = made.update(GRADS, made.init(PARAMS), value=jnp.ones(()))
        np.testing.assert_allclose(made.get_params(state)["b"], PARAMS["b"] - 0.1, rtol=1e-5)


# Classes of what a call gives, and when a wrong argument is refused.


def test_what_averages_no_examples_is_no_aggregator():
    from optax.experimental import aggregating as peer

    for lib, optax in ((ours.aggregating, ours), (peer, theirs)):
        for axis in (0, None):
            mean = lib.average_incrementally_updates(axis, 2)
            whole = lib.process(optax.identity(), mean, optax.sgd(0.1))
            assert isinstance(whole, lib.Aggregator) == (axis is not None)


@BOTH
def test_a_normal_distribution_of_means_that_fit_no_scales_is_refused(optax):
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        optax.multi_normal(jnp.ones(2), jnp.ones(3))


def test_injected_numbers_have_the_defaults_of_optax():
    # A loss is never below 0 there, so a step at the loss 0 is none.
    for lib in (theirs, ours):
        tx = lib.inject_hyperparams(lib.polyak_sgd)(max_learning_rate=1.0)
        updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=jnp.zeros(()))
        assert not any(jnp.any(u) for u in jax.tree.leaves(updates))


@BOTH
@pytest.mark.parametrize("name", ["mechanize", "schedule_free"])
def test_injected_arguments_have_the_names_of_optax(name, optax):
    make = optax.inject_hyperparams(getattr(optax.contrib, name), static_args="base_optimizer")
    rates = {"learning_rate": 0.1} if name == "schedule_free" else {}
    tx = make(base_optimizer=optax.sgd(0.1), **rates)
    assert tx.init(PARAMS).hyperparams.keys() >= rates.keys()


@pytest.mark.parametrize("name", ["optimistic_adam", "losses.convex_kl_divergence"])
@BOTH
def test_names_that_optax_deprecates_warn(name, optax):
    args = {"optimistic_adam": (0.1,)}.get(name, (jnp.zeros(2), jnp.ones(2)))
    with pytest.warns(DeprecationWarning, match="use .?(optimistic_adam_v2|generalized_kl)"):
        operator.attrgetter(name)(optax)(*args)
