"""Scripts written for optax run with `optax_api` in its place, to the same end."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.interop import optax_api
from fnopt.interop.optax_api import _bridge, _names
from tests.interop.parity_reasons import DEVIATIONS, NOT_YET

optax = pytest.importorskip("optax")
# In float64, where both are right: in float32 optax rounds 1 - b2^t to three digits.
PARAMS = {"w": np.asarray([1.0, -2.0]), "b": np.asarray(0.5)}
X = np.asarray([[1.0, 2.0], [0.5, -1.0], [2.0, 0.1]])
Y = np.asarray([1.0, 0.0, -1.0])


def loss(params: Any, lib: Any = optax_api) -> Any:
    return jnp.mean(lib.losses.squared_error(X @ params["w"] + params["b"], Y))


def train(lib: Any, solver: Any, steps: int = 5, **extras: Any) -> Any:
    params, state = PARAMS, solver.init(PARAMS)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        grads = jax.grad(loss)(params, lib)
        updates, state = solver.update(grads, state, params, **extras)
        return lib.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


def adam_with_a_schedule(lib: Any) -> Any:
    schedule = lib.exponential_decay(0.1, transition_steps=2, decay_rate=0.9)
    tx = lib.chain(lib.clip_by_global_norm(1.0), lib.scale_by_adam())
    return train(lib, lib.chain(tx, lib.scale_by_schedule(schedule), lib.scale(-1.0)))


def function_as_rate(lib: Any) -> Any:
    return train(lib, lib.adam(learning_rate=lambda step: 0.1 / (step + 1)))


def mask_by_a_function(lib: Any) -> Any:
    def mask(params: Any) -> Any:
        return jax.tree.map(lambda p: p.ndim > 0, params)

    return train(lib, lib.adamw(0.1, weight_decay=0.1, mask=mask))


def labels_by_a_function(lib: Any) -> Any:
    def labels(params: Any) -> Any:
        return {name: 0 if name == "w" else 1 for name in params}

    return train(lib, lib.multi_transform({0: lib.adam(0.1), 1: lib.sgd(0.05)}, labels))


def frozen(lib: Any) -> Any:
    return train(lib, lib.chain(lib.sgd(0.1), lib.freeze({"w": True, "b": False})))


def selective(lib: Any) -> Any:
    freeze_mask = {"w": False, "b": True}
    return train(lib, lib.selective_transform(lib.adam(0.1), freeze_mask=freeze_mask))


def masked_part(lib: Any) -> Any:
    decay = lib.masked(lib.add_decayed_weights(0.1), lambda p: {"w": True, "b": False})
    return train(lib, lib.chain(decay, lib.sgd(0.1)))


def accumulated(lib: Any) -> Any:
    tx = lib.MultiSteps(lib.adam(0.1), every_k_schedule=2)
    params, state = PARAMS, tx.init(PARAMS)
    made = []
    for _ in range(4):
        updates, state = tx.update(jax.grad(loss)(params, lib), state, params)
        params = lib.apply_updates(params, updates)
        made.append(bool(tx.has_updated(state)))
    assert made == [False, True, False, True]
    return params


def changed_in_mid_run(lib: Any) -> Any:
    tx = lib.inject_hyperparams(lib.adamw)(learning_rate=0.1, weight_decay=lambda step: 0.1 * step)
    params, state = PARAMS, tx.init(PARAMS)
    for i in range(3):
        state.hyperparams["learning_rate"] = jnp.asarray(0.1 / (i + 1))
        updates, state = tx.update(jax.grad(loss)(params, lib), state, params)
        params = lib.apply_updates(params, updates)
    assert int(state.count) == 3
    assert float(state.hyperparams["weight_decay"]) == pytest.approx(0.2)
    return params


def injected_into_a_function(lib: Any) -> Any:
    @lib.inject_hyperparams
    def make(learning_rate: Any, max_norm: Any = 0.5) -> Any:
        return lib.chain(lib.clip_by_global_norm(max_norm), lib.sgd(learning_rate))

    return train(lib, make(learning_rate=0.1))


def of_ones_own(lib: Any) -> Any:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -0.1 * jnp.sign(g), updates), state

    tx = lib.GradientTransformation(lambda params: lib.EmptyState(), update)
    assert isinstance(tx, lib.GradientTransformation)
    init, update_fn = tx
    assert callable(init)
    assert callable(update_fn)
    return train(lib, lib.chain(tx, lib.identity()))


def named(lib: Any) -> Any:
    tx = lib.named_chain(("clip", lib.clip(0.5)), ("adam", lib.adam(0.1)))
    state = tx.init(PARAMS)
    assert set(state) == {"clip", "adam"}
    return train(lib, tx)


def lbfgs(lib: Any) -> Any:
    solver = lib.lbfgs()
    value_and_grad = lib.value_and_grad_from_state(lambda p: loss(p, lib))
    params, state = PARAMS, solver.init(PARAMS)
    for _ in range(6):
        value, grad = value_and_grad(params, state=state)
        updates, state = solver.update(
            grad, state, params, value=value, grad=grad, value_fn=lambda p: loss(p, lib)
        )
        params = lib.apply_updates(params, updates)
    return params


def state_by_name(lib: Any) -> Any:
    tx = lib.adam(0.1)
    state = tx.init(PARAMS)
    _, state = tx.update(PARAMS, state, PARAMS)
    mu = lib.tree.get(state, "mu")
    state = lib.tree.set(state, nu=lib.tree_utils.tree_zeros_like(mu))
    return {"norm": lib.tree.norm(mu), "nu": lib.tree.get(state, "nu")}


def losses(lib: Any) -> Any:
    logits, labels = jnp.asarray([[1.0, 2.0, -1.0]]), jnp.asarray([1])
    return [
        lib.softmax_cross_entropy_with_integer_labels(logits, labels),
        lib.losses.huber_loss(logits),
        lib.l2_loss(logits),
        lib.projections.projection_simplex(logits[0]),
    ]


def schedules(lib: Any) -> Any:
    joined = lib.join_schedules([lib.linear_schedule(0.0, 1.0, 4), lambda step: 0.5], [4])
    warm = lib.schedules.warmup_cosine_decay_schedule(0.0, 1.0, 2, 10)
    return [(joined(i), warm(i)) for i in (0, 3, 5, 9)]


def by_hand(lib: Any) -> Any:
    return train(lib, lib.chain(lib.stateless_with_tree_map(lambda g, p: 2 * g), lib.sgd(0.01)))


def contributed(lib: Any) -> Any:
    tx = lib.contrib.schedule_free(lib.sgd(0.1), learning_rate=0.1, b1=0.9)
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(3):
        updates, state = tx.update(jax.grad(loss)(params, lib), state, params)
        params = lib.apply_updates(params, updates)
    return lib.contrib.schedule_free_eval_params(state, params)


def watched(lib: Any) -> Any:
    measures = {
        "norm": lib.tree.norm,
        "often": lib.measure_with_ema(lambda u: lib.tree.norm(u) > 1.0, decay=0.9),
    }
    solver = lib.chain(lib.sgd(0.4), lib.monitor(measures), lib.clip_by_global_norm(1.0))
    params, state = PARAMS, solver.init(PARAMS)
    for _ in range(3):
        updates, state = solver.update(jax.grad(loss)(params, lib), state)
        params = lib.apply_updates(params, updates)
    return [params, lib.tree.get(state, "norm"), lib.tree.get(state, "often")]


def reversed_gradient(lib: Any) -> Any:
    return jax.grad(lambda p: jnp.sum(lib.scale_gradient(p, -0.5)["w"] ** 3))(PARAMS)


def pair_of_params(lib: Any) -> Any:
    tx = lib.lookahead(lib.adam(0.1), sync_period=2, slow_step_size=0.5, reset_state=True)
    params = lib.LookaheadParams.init_synced(PARAMS)
    state = tx.init(params)
    for _ in range(5):
        updates, state = tx.update(jax.grad(loss)(params.fast, lib), state, params)
        params = lib.apply_updates(params, updates)
    return [params.fast, params.slow, state.steps_since_sync]


def left_out(lib: Any) -> Any:
    def too_large(updates: Any, step: Any, params: Any) -> Any:
        return lib.skip_large_updates(updates, step, params, max_squared_norm=1e6)

    found = []
    for rule, bad in ((lib.skip_not_finite, np.nan), (too_large, 1e4)):
        tx = lib.MultiSteps(lib.sgd(0.1), every_k_schedule=2, should_skip_update_fn=rule)
        params, state = PARAMS, tx.init(PARAMS)
        for factor in (1.0, bad, 2.0, 1.0):
            grads = jax.tree.map(lambda g, f=factor: f * g, jax.grad(loss)(params, lib))
            updates, state = tx.update(grads, state, params)
            params = lib.apply_updates(params, updates)
            found.append([tx.has_updated(state), lib.tree.get(state, "mini_step")])
        found.append([params, lib.tree.get(state, "skip_state")["should_skip"]])
    return found


def averaged_gradients(lib: Any) -> Any:
    return train(lib, lib.chain(lib.ema(0.9, debias=False), lib.ema(decay=0.8), lib.sgd(0.1)))


def norms_at_zero(lib: Any) -> Any:
    x = np.asarray([[0.0, 0.0], [3.0, 4.0]])
    norms = [
        lambda x: jnp.sum(lib.safe_norm(x, 1e-3, axis=1)),
        lambda x: lib.safe_norm(x, 1e-3),
        lambda x: jnp.sum(lib.safe_norm(x, 1e-3, ord=1, axis=0, keepdims=True)),
        lambda x: lib.safe_root_mean_squares(x[0], 1e-3),
        lambda x: lib.safe_root_mean_squares(x, 1e-3),
    ]
    return [jax.value_and_grad(norm)(x) for norm in norms]


def clipped_by_example(lib: Any) -> Any:
    grads = {"w": X, "b": Y[:, None]}
    whole = lib.per_example_global_norm_clip(jax.tree.leaves(grads), 1.0)
    layers = [
        lib.per_example_layer_norm_clip(jax.tree.leaves(grads), 1.0, uniform=uniform)
        for uniform in (True, False)
    ]
    return [*whole, *layers]


def private_without_noise(lib: Any) -> Any:
    def of_one(params: Any, x: Any, y: Any) -> Any:
        return jnp.square(x @ params["w"] + params["b"] - y)

    tx = lib.contrib.dpsgd(0.1, l2_norm_clip=0.5, noise_multiplier=0.0, seed=0, momentum=0.9)
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(3):
        grads = jax.vmap(jax.grad(of_one), (None, 0, 0))(params, X, Y)
        updates, state = tx.update(grads, state, params)
        params = lib.apply_updates(params, updates)
    return params


def named_arguments(lib: Any) -> Any:
    chained = lib.chain(
        lib.stateless(f=lambda u, p: jax.tree.map(lambda x: 2 * x, u)),
        lib.masked(lib.sgd(0.01), {"w": True, "b": False}, mask_compatible_extra_args=False),
    )
    found = [train(lib, chained)]
    tx = lib.contrib.schedule_free(base_optimizer=lib.sgd(0.1), learning_rate=0.1)
    return [*found, train(lib, tx)]


def states_by_class(lib: Any) -> Any:
    makes = {
        "ScaleByAdamState": lib.scale_by_adam(),
        "TraceState": lib.trace(0.9),
        "ScaleByRmsState": lib.scale_by_rms(),
        "ScaleByBeliefState": lib.scale_by_belief(),
        "EmaState": lib.ema(0.9),
        "MaskedState": lib.masked(lib.adam(0.1), {"w": True, "b": False}),
        "ApplyIfFiniteState": lib.apply_if_finite(lib.adam(0.1), 3),
    }
    return [isinstance(tx.init(PARAMS), getattr(lib, name)) for name, tx in makes.items()]


def reached_through_wrappers(lib: Any) -> Any:
    """What is inside is reached by optax's names of fields."""
    parts = {"a": lib.adam(0.1), "b": lib.inject_hyperparams(lib.sgd)(learning_rate=0.1)}
    tx = lib.multi_transform(parts, {"w": "a", "b": "b"})
    params, state = PARAMS, tx.init(PARAMS)
    state.inner_states["b"].inner_state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    for _ in range(2):
        updates, state = tx.update(jax.grad(loss)(params, lib), state, params)
        params = lib.apply_updates(params, updates)
    assert isinstance(state, lib.MultiTransformState)
    assert isinstance(state.inner_states["a"], lib.MaskedState)
    inner = state.inner_states["b"].inner_state
    assert isinstance(inner, lib.schedules.InjectStatefulHyperparamsState)
    return [params, state.inner_states["a"].inner_state[0].mu["w"], inner.hyperparams]


def accumulated_so_far(lib: Any) -> Any:
    found = []
    for mean in (True, False):
        tx = lib.MultiSteps(lib.adam(0.1), 3, use_grad_mean=mean, accumulator_dtype=jnp.float64)
        state = tx.init(PARAMS)
        for i in range(4):
            grads = jax.tree.map(lambda p, i=i: p * (i + 1.0), PARAMS)
            _, state = tx.update(grads, state, PARAMS)
            found.append([state.mini_step, state.gradient_step, state.acc_grads])
        assert isinstance(state, lib.MultiStepsState)
        found.append(state.inner_opt_state[0].mu)
    return found


def states_of_wrappers(lib: Any) -> Any:
    contrib = lib.contrib
    free = contrib.schedule_free(lib.sgd(0.1), learning_rate=0.1)
    pair = contrib.sam(lib.sgd(0.1), lib.sgd(0.01))
    chained = lib.chain(free, lib.clip(1.0))
    state, other = chained.init(PARAMS), pair.init(PARAMS)
    for _ in range(3):
        _, state = chained.update(PARAMS, state, PARAMS)
        _, other = pair.update(PARAMS, other, PARAMS)
    assert isinstance(state[0], contrib.ScheduleFreeState)
    assert isinstance(other, contrib.SAMState)
    assert isinstance(contrib.mechanize(lib.sgd(0.1)).init(PARAMS), contrib.MechanicState)
    jax.tree.leaves([state[0].base_optimizer_state, other.opt_state, other.adv_state])
    evaluated = contrib.schedule_free_eval_params(state[0], PARAMS)
    return [state[0].z, state[0].weight_sum, state[0].b1, evaluated, other.cache]


def schedules_that_remember(lib: Any) -> Any:
    class Falling(lib.schedules.StatefulSchedule):
        def init(self) -> Any:
            return jnp.asarray(1.0)

        def update(self, state: Any, **extra_args: Any) -> Any:
            return 0.5 * state + extra_args["more"]

        def __call__(self, state: Any, **extra_args: Any) -> Any:
            return state

    tx = lib.inject_hyperparams(lib.scale)(step_size=Falling())
    state, found = tx.init(PARAMS), []
    for i in range(3):
        updates, state = tx.update(PARAMS, state, PARAMS, more=0.1 * i)
        found.append([updates, state.hyperparams, state.hyperparams_states])
    wrapped = lib.schedules.WrappedSchedule(lib.linear_schedule(0.0, 1.0, 4))
    return [*found, wrapped(wrapped.update(wrapped.init(), more=1))]


def numbers_of_a_loop(lib: Any) -> Any:
    """A Python number in the state is no other program, and no other dtype."""
    tx = lib.inject_hyperparams(lib.sgd, static_args="nesterov")(learning_rate=0.1, momentum=0.9)
    state = tx.init(PARAMS)
    state.hyperparams["learning_rate"] = 0.3
    step = jax.jit(tx.update)
    updates, state = step(PARAMS, state, PARAMS)
    dtypes = {name: str(x.dtype) for name, x in state.hyperparams.items()}
    assert set(dtypes.values()) == {"float64"}
    assert not any(x.weak_type for x in state.hyperparams.values())
    return updates


def measured(lib: Any) -> Any:
    tx = lib.chain(lib.snapshot("length", lib.tree.norm), lib.monitor({"n": lib.tree.norm}))
    _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert isinstance(state[0], lib.SnapshotState)
    assert isinstance(state[1], lib.MonitorState)
    return [state[0].measurement["length"], state[1].measurements["n"], lib.tree.get(state, "n")]


def rest(lib: Any) -> Any:
    """Names that are none of fnopt's."""
    matrix, target = X @ np.diag([1.0, 3.0]), Y + 2.0
    normal = lib.multi_normal(jnp.asarray([1.0, 2.0]), jnp.asarray([0.1, -0.2]))
    adam = train(lib, lib.nadamw(0.1, nesterov=False))
    norms = [getattr(lib.tree_utils, f"tree_{n}_norm")(PARAMS) for n in ("l1", "l2", "linf")]
    solved = [lib.nnls(matrix, b, 3000) for b in (target, np.stack([target, -target], 1))]
    return [adam, norms, solved, normal.log_prob(jnp.asarray([0.5, 1.0])), normal.params]


def second_order(lib: Any) -> Any:
    def fit(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ params["w"] - y) ** 2) + params["w"][0] ** 4 * params["b"]

    args = (PARAMS, X, Y)
    lib = lib.second_order
    v = jnp.asarray([0.5, 1.0, -1.0])
    return [lib.hvp(fit, v, *args), lib.hessian_diag(fit, *args), lib.fisher_diag(fit, *args)]


def in_parts(lib: Any) -> Any:
    micro, kind = lib.microbatching, lib.microbatching.AccumulationType
    x = jnp.arange(6.0)
    parts = [micro.reshape_batch_axis(x, 2), micro.reshape_batch_axis({"a": X[:2]}, 1, 1)]
    rules = (kind.SUM, kind.CONCAT)
    both = micro.microbatch(lambda x: (jnp.sum(x**2), 2 * x), 0, 2, rules)(x)
    mapped = micro.micro_vmap(lambda w, x: w * x, (None, 0), microbatch_size=3)(2.0, x)
    total = micro.micro_vmap(lambda x: x**2, microbatch_size=2, accumulator=kind.MEAN)(x)

    def fit(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    grads, aux = micro.micro_grad(
        fit,
        batch_argnums=(1, 2),
        microbatch_size=1,
        accumulator=kind.MEAN,
        transform_fn=lambda g: (g, jax.tree.map(jnp.square, g)),
        metrics_fn=lib.tree.norm,
    )(PARAMS, jnp.asarray(X), jnp.asarray(Y))
    return [parts, both, mapped, total, grads, aux.values, aux.metrics]


def own_rule(lib: Any) -> Any:
    micro = lib.microbatching
    largest = micro.Accumulator(
        lambda like: jnp.full(like.shape, -jnp.inf, like.dtype),
        lambda carry, y, i: jnp.maximum(carry, y) + 0 * i,
        lambda carry: carry,
        lambda ys: jnp.max(ys, axis=0),
    )
    x, kind = jnp.arange(12.0).reshape(6, 2), micro.AccumulationType

    def both(w: Any, x: Any, y: Any) -> Any:
        return jnp.max(w * x), (jnp.mean(x), y + 1), {"n": jnp.sum(y)}

    rules = (largest, (kind.MEAN, kind.CONCAT), kind.SUM)
    parts = micro.microbatch(both, (1,), 2, rules, argnames="y", in_axes=(0, 1))
    mean = micro.microbatch(jnp.mean, 0, 2, kind.RUNNING_MEAN, num_real_microbatches=2)
    mapped = micro.micro_vmap(
        lambda x, y: jnp.sum(x) * y, microbatch_size=2, accumulator=largest, num_real_microbatches=2
    )
    return [parts(2.0, x, y=x.T), jax.jit(mean)(x), mapped(x, y=x[:, 0])]


def by_example(lib: Any) -> Any:
    aggregating = lib.experimental.aggregating
    each = jax.tree.map(lambda p: np.stack([p, 2 * p, -p, 0.5 * p]), PARAMS)
    opts = [
        aggregating.process(
            lib.scale(2.0), aggregating.average_incrementally_updates(0, 2), lib.adam(0.1)
        ),
        aggregating.add_mean_variance_to_opt(lib.adam(0.1), 0.8),
        aggregating.add_mean_variance_to_opt(lib.adam(0.1), 0.8, accumulation_steps=3),
    ]
    found = []
    for opt in opts:
        params, state = PARAMS, opt.init(PARAMS)
        for i in range(4):
            grads = jax.tree.map(lambda g, i=i: g * (1.0 + i), each)
            updates, state = opt.update(grads, state)
            params = lib.apply_updates(params, updates)
        found.append(params)
    return [found, aggregating.get_unbiased_mean_and_variance_ema(state)]


def soft_lion(lib: Any) -> Any:
    modes = [{"mode": "smooth", "smooth_beta": 3.0}, {"mode": "refined"}]
    return [train(lib, lib.chain(lib.scale_by_lion(**m), lib.scale(-0.1))) for m in modes]


def counted(lib: Any) -> Any:
    solver = lib.chain(lib.add_noise(0.0, 0.0, jax.random.key(0)), lib.scale(-0.1))
    noise = lib.tree_utils.tree_get(solver.init(PARAMS), "AddNoiseState")
    return [lib.tree_utils.tree_get(lib.adam(0.1).init(PARAMS), "count"), noise.count]


def centred(lib: Any) -> Any:
    grads = {"w": jnp.arange(6.0).reshape(2, 3) ** 2, "b": jnp.ones(3)}
    return lib.centralize().update(grads, lib.centralize().init(grads), grads)[0]


SCRIPTS = [
    centred,
    *(own_rule, by_example, soft_lion, counted),
    *(adam_with_a_schedule, function_as_rate, mask_by_a_function, labels_by_a_function, frozen),
    *(selective, masked_part, accumulated, changed_in_mid_run, injected_into_a_function),
    *(of_ones_own, named, lbfgs, state_by_name, losses, schedules, by_hand, contributed),
    *(watched, reversed_gradient, pair_of_params, left_out, averaged_gradients, norms_at_zero),
    *(clipped_by_example, private_without_noise, named_arguments, states_by_class),
    *(reached_through_wrappers, accumulated_so_far, states_of_wrappers, schedules_that_remember),
    *(numbers_of_a_loop, measured, rest, second_order, in_parts),
]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # optax's own
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_scripts_run_unchanged(script):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        theirs, ours = script(optax), script(optax_api)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)


def test_every_name_is_there_or_has_its_reason():
    missing = []
    paths = ("", "contrib.", "losses.", "microbatching.", "projections.", "schedules.")
    for path in (*paths, "transforms.", "tree.", "tree_utils."):
        theirs = importlib.import_module(f"optax.{path}".rstrip("."))
        ours = getattr(optax_api, path.rstrip(".")) if path else optax_api
        for name in vars(theirs):
            value = getattr(theirs, name)
            if name.startswith("_") or inspect.ismodule(value):
                continue
            said = {*DEVIATIONS, *NOT_YET, *_names.NOT_HERE}
            if not hasattr(ours, name) and {name, path + name}.isdisjoint(said):
                missing.append(path + name)
    assert missing == []


# Arguments of optax's that are called otherwise here, or aren't here; by position they are.
OTHER_ARGUMENTS = {
    "chain": {"args"},
    "global_norm": {"updates"},
    "named_chain": {"args"},
    "sum": {"associative_reduction"},
}


def _lacking(name: str, theirs: Any, ours: Any) -> list[str]:
    signature = inspect.signature(ours)
    known = {*signature.parameters, *_bridge.PRINTING, *OTHER_ARGUMENTS.get(name, ())}
    wanted = inspect.signature(theirs).parameters
    return [a for a in wanted if _bridge.own_name(a, signature) not in known]


def test_arguments_are_those_of_the_same_name():
    unlike = {}
    for path in ("", "contrib.", "losses.", "projections.", "schedules.", "tree."):
        theirs = importlib.import_module(f"optax.{path}".rstrip("."))
        ours = getattr(optax_api, path.rstrip(".")) if path else optax_api
        for name, fn in vars(theirs).items():
            if name.startswith("_") or not inspect.isfunction(fn) or not hasattr(ours, name):
                continue
            lacking = _lacking(name, fn, getattr(ours, name))
            if lacking:
                unlike[path + name] = lacking
    assert unlike == {}


def test_what_is_not_here_says_what_to_use():
    with pytest.raises(AttributeError, match=r"no attribute 'unitwise_norm'\. Use fnopt\.adaptive"):
        optax_api.unitwise_norm  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_gradients_of_examples_may_be_whole_numbers():
    grads = [jnp.asarray([[0, 0, 0], [0, 3, 4], [4, 0, 3], [3, 4, 0]])]
    for clip in (optax_api.per_example_global_norm_clip, optax_api.per_example_layer_norm_clip):
        (summed,), _ = clip(grads, 1.25)
        np.testing.assert_allclose(summed, [1.75, 1.75, 1.75])


def test_lookahead_wants_the_pair():
    tx = optax_api.lookahead(optax_api.sgd(0.1), 2, 0.5)
    with pytest.warns(UserWarning, match="used as the fast params"):
        state = tx.init(PARAMS)
    with pytest.raises(TypeError, match="expected LookaheadParams"):
        tx.update(PARAMS, state, PARAMS)


def test_private_noise_has_its_size():
    tx = optax_api.differentially_private_aggregate(2.0, 1.5, key=0)
    grads = {"w": jnp.zeros((10, 4000))}
    noise = tx.update(grads, tx.init({"w": jnp.zeros(4000)}))[0]["w"]
    np.testing.assert_allclose(np.std(noise), 2.0 * 1.5 / 10, rtol=0.05)


def test_results_are_fnopts():
    assert optax_api.adam(0.1) == fnopt.adam(0.1)


def test_injected_factories_may_take_any_keyword():  # optax's own can't
    def make(learning_rate: Any, **options: Any) -> Any:
        return optax_api.sgd(learning_rate, **options)

    tx = optax_api.inject_hyperparams(make)(learning_rate=0.1, momentum=0.5)
    state = tx.init(jnp.ones(2))
    assert set(state.hyperparams) == {"learning_rate", "momentum"}
    assert tx.update(jnp.ones(2), state)[0].tolist() == pytest.approx([-0.1, -0.1])


def test_modules_are_imported_as_there():
    from fnopt.interop.optax_api.contrib import muon  # pyright: ignore[reportMissingImports]
    from fnopt.interop.optax_api.schedules import (  # pyright: ignore[reportMissingImports]
        cosine_decay_schedule,
    )

    from fnopt.interop.optax_api import tree_utils as otu

    assert importlib.import_module("fnopt.interop.optax_api.contrib") is optax_api.contrib
    assert muon is optax_api.muon
    assert cosine_decay_schedule is optax_api.cosine_decay_schedule
    assert otu.tree_add is fnopt.tree.add


def test_labels_without_a_transform_are_named():
    tx = optax_api.multi_transform({"a": optax_api.sgd(0.1)}, lambda params: {"w": "a", "b": "c"})
    with pytest.raises(ValueError, match="the labels 'c' have no transform"):
        tx.init(PARAMS)


def test_static_arguments_that_are_none_are_named():
    with pytest.raises(ValueError, match=r"static_args has the unknown names \['nope'\]"):
        optax_api.inject_hyperparams(optax_api.sgd, static_args=("nope",))


def test_states_of_others_are_refused():
    tx = optax_api.multi_transform({"a": optax_api.sgd(0.1)}, {"w": "a", "b": "a"})
    with pytest.raises(TypeError, match="expected PartitionState"):
        tx.update(PARAMS, optax_api.sgd(0.1).init(PARAMS), PARAMS)


@pytest.mark.parametrize("name", ["scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"])
def test_a_line_search_prints_where_it_fails(name, capsys):
    x = jnp.asarray([1.0, 2.0])

    def fn(x):
        return jnp.sum(x**2)

    def printed(direction):
        tx = getattr(optax_api, name)(3, verbose=True)
        known = {"value": fn(x), "grad": 2 * x, "value_fn": fn}
        jax.jit(lambda s: tx.update(direction, s, x, **known))(tx.init(x))
        jax.effects_barrier()
        return capsys.readouterr().out

    assert printed(-x) == ""  # a step of 1 ends at the minimum
    assert printed(x).startswith(f"{name}: no step meets the criteria. Step ")


def test_microbatches_that_an_explicit_mesh_shards():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    kind = optax_api.microbatching.AccumulationType

    def double_and_sum(x: Any) -> Any:
        return 2 * x, jnp.sum(x)

    in_parts = optax_api.microbatching.microbatch(double_and_sum, 0, 2, (kind.CONCAT, kind.SUM))
    x = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(mesh, jax.P("d")))
    with jax.sharding.use_mesh(mesh) if hasattr(jax.sharding, "use_mesh") else jax.set_mesh(mesh):
        results, expected = in_parts(x), double_and_sum(x)
    assert jax.tree.map(jax.typeof, results) == jax.tree.map(jax.typeof, expected)
    jax.tree.map(np.testing.assert_array_equal, results, expected)
