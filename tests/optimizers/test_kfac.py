"""K-FAC: one step of linear regression, the exact quadratic model, and steps that are refused."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.curvature import KroneckerModel, KroneckerSpec, ggn_vp
from fnopt.distributed import sharded
from fnopt.jacobians import ravel
from fnopt.optimizers._kfac_objective import Objective
from fnopt.programs import jaxprs

N = 12


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def net(params, example):
    h = jnp.tanh(example[0] @ params["w"] + params["b"])
    return (h * params["scale"]) @ params["v"]


def cross_entropy(outputs, example):
    return jax.nn.logsumexp(outputs) - outputs[example[1]]


def problem(dtype=np.float64):
    shapes = {"w": (4, 5), "b": (5,), "scale": (5,), "v": (5, 3)}
    params = {name: draw(i, *shape) / 2 for i, (name, shape) in enumerate(shapes.items())}
    params = jax.tree.map(lambda x: jnp.asarray(x, dtype), params)
    return params, (jnp.asarray(draw(7, N, 4), dtype), jnp.arange(N) % 3)


@pytest.mark.usefixtures("x64")
def test_linear_regression_takes_one_step():
    x, y = draw(0, N, 4), draw(1, N, 3)

    def model(params, example):
        return params["w"] @ example[0] + params["b"]

    def loss(outputs, example):
        return jnp.sum((outputs - example[1]) ** 2)

    params = {"w": jnp.zeros((3, 4)), "b": jnp.zeros(3)}
    tx = fnopt.kfac(model, loss, (x, y), damping=1e-22, curvature="exact")
    updates, state = jax.jit(tx.update)(None, tx.init(params), params, batch=(x, y))
    wanted = np.linalg.lstsq(np.c_[x, np.ones(N)], y, rcond=None)[0]
    np.testing.assert_allclose(updates["w"].T, wanted[:4], atol=1e-8)
    np.testing.assert_allclose(updates["b"], wanted[4], atol=1e-8)
    assert int(state.status) == Status.RUNNING
    np.testing.assert_allclose(state.weights, [1, 0], rtol=1e-7)


def divided(grad, factors, damping):
    """The direction as in the paper, from the factors of `problem`."""
    (scale,), (Av, Gv), (Aw, Gw) = factors

    def kron(A, G, M):
        A, G = A[0, 0], G[0, 0]
        pi = jnp.sqrt(jnp.trace(A) / len(A) / (jnp.trace(G) / len(G)))
        left = A + pi * jnp.sqrt(damping) * jnp.eye(len(A))
        right = G + jnp.sqrt(damping) / pi * jnp.eye(len(G))
        return -jnp.linalg.solve(left, jnp.linalg.solve(right, M.T).T)

    w = kron(Aw, Gw, jnp.concatenate([grad["w"], grad["b"][None]]))
    dense = scale[0, 0] + damping * jnp.eye(5)
    return {
        "w": w[:-1],
        "b": w[-1],
        "v": kron(Av, Gv, grad["v"]),
        "scale": -jnp.linalg.solve(dense, grad["scale"]),
    }


LAM, ETA, DECAY = 0.3, 0.01, 0.6


def written_out(params, batch, average, last, damping, t):
    """A step by dense algebra: the update, the averages and the gain ratio."""

    def objective(params):
        losses = jax.vmap(lambda e: cross_entropy(net(params, e), e))(batch)
        return jnp.mean(losses) + ETA / 2 * sum(jnp.sum(p**2) for p in params.values())

    model = KroneckerModel(KroneckerSpec(net, cross_entropy, None), params, batch)
    new = model.factors(model.outputs(params), jax.random.key(0))
    b = min(1 - 1 / (t + 1), DECAY)
    average = new if t == 0 else jax.tree.map(lambda o, n: b * o + (1 - b) * n, average, new)
    grad = jax.grad(objective)(params)
    span = [divided(grad, average, damping + ETA), last][: t + 1]
    product = lambda u: ravel(ggn_vp(net, cross_entropy)(params, u, batch))[0]  # noqa: E731
    D = jnp.stack([ravel(u)[0] for u in span])
    curved = jnp.stack([product(u) for u in span]) + ETA * D
    g = ravel(grad)[0]
    c = -jnp.linalg.solve(D @ (curved + damping * D).T, D @ g)
    u = ravel(params)[1](c @ D)
    change = objective(fnopt.apply_updates(params, u)) - objective(params)
    return u, average, change / (g @ (c @ D) + c @ D @ (c @ curved) / 2)


@pytest.mark.usefixtures("x64")
def test_steps_are_those_of_the_formula():
    params, batch = problem()
    options = {"damping": LAM, "l2": ETA, "decay": DECAY, "curvature": "exact"}
    tx = fnopt.kfac(net, cross_entropy, batch, inverse_every=1, damping_every=5, **options)

    def steps(params):
        def step(carry, _):
            params, state = carry
            updates, state = tx.update(None, state, params, batch=batch)
            return (fnopt.apply_updates(params, updates), state), (updates, state.damping)

        return jax.lax.scan(step, (params, tx.init(params)), length=2)[1]

    @jax.jit
    def run(params):
        updates, dampings = steps(params)
        first, average, gain = written_out(params, batch, None, None, LAM, 0)
        # It is looked at in the first step, and again in the sixth.
        factor = jnp.where(gain > 0.75, 0.9**5, jnp.where(gain < 0.25, 0.9**-5, 1.0))
        there = fnopt.apply_updates(params, first)
        second, *_ = written_out(there, batch, average, first, LAM * factor, 1)
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)
        return (updates, dampings), (both, jnp.full(2, LAM * factor))

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-9), *run(params))


def test_trains_in_a_scan_and_refuses_what_is_not_finite():
    params, batch = problem(jnp.bfloat16)  # whose averages and inverses are float32
    batch = (*batch, jax.random.split(jax.random.key(0), N))  # as for stochastic layers
    options = {"model_every": 2, "damping_every": 2, "inverse_every": 3}
    tx = fnopt.kfac(net, cross_entropy, batch, **options)

    def step(carry, factor):
        params, state = carry
        x, *rest = batch
        updates, state = tx.update(None, state, params, batch=(x * factor, *rest))
        params = fnopt.apply_updates(params, updates)
        return (params, state), (params, state)

    @jax.jit
    def run(params, factors):
        return jax.lax.scan(step, (params, tx.init(params)), factors)

    factors = jnp.ones(16, jnp.bfloat16).at[jnp.asarray([0, 7])].set(jnp.nan)
    _, (path, states) = run(params, factors)
    first = tx.init(params)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(states), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape[1:])
        assert not x.weak_type
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((path, states.damping)))
    at = lambda tree, i: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
    same = lambda a, b: all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))  # noqa: E731
    assert same(at(path, 0), params)
    assert same(at(path, 7), at(path, 6))
    for name in ("averaged", "damping", "weights", "factors", "inverses", "momentum"):
        assert same(getattr(at(states, 7), name), getattr(at(states, 6), name))
        assert same(getattr(at(states, 0), name), getattr(first, name))
    refused = np.flatnonzero(np.asarray(states.status) != Status.RUNNING)
    assert refused.tolist() == [0, 7]
    assert int(states.status[7]) == Status.NONFINITE_START
    assert int(states.count[-1]) == 16
    assert float(states.value[-1]) < 0.5 * float(states.value[1])


def test_a_step_that_raises_the_loss_is_refused():
    # A loss that isn't convex, with so little damping that the quadratic model is far off.
    params, batch = problem(np.float32)

    def saturating(outputs, example):
        return jnp.sum(jnp.log1p(30 * (outputs - example[0][:3]) ** 2))

    tx = fnopt.kfac(net, saturating, batch, damping=1e-6, damping_every=1)

    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            updates, state = tx.update(None, state, params, batch=batch)
            there = fnopt.apply_updates(params, updates)
            return (there, state), (state.value, state.status, state.damping)

        return jax.lax.scan(step, (params, tx.init(params)), length=40)[1]

    values, status, damping = map(np.asarray, run(params))
    refused = status != Status.RUNNING
    assert refused[0]
    assert not refused.all()
    assert np.all(status[refused] == Status.STALLED)
    assert np.all(np.diff(damping)[refused[1:]] > 0)
    assert np.all(np.diff(values) <= 1e-5 * values[:-1])
    np.testing.assert_array_equal(values[1:][refused[:-1]], values[:-1][refused[:-1]])
    assert values[-1] < 0.8 * values[0]


def test_without_a_penalty_the_squares_of_the_params_do_not_matter():
    w, x = {"w": jnp.full((3, 1), 1e24, jnp.float32)}, jnp.full((2, 3), 1e-24, jnp.float32)
    spec = KroneckerSpec(lambda p, x: x @ p["w"], lambda f, x: jnp.sum(f**2))
    objective = Objective(KroneckerModel(spec, w, x), w, jnp.zeros((), jnp.float32))
    value, gradient, _ = objective.value_and_gradient()
    np.testing.assert_allclose([value, objective.value_at(w)], 9.0, rtol=1e-5)
    np.testing.assert_allclose(gradient["w"], 6e-24, rtol=1e-5)


@pytest.mark.parametrize("eigenbasis", [False, True])
def test_what_is_damaged_in_a_state_is_made_anew(eigenbasis):
    # A restored checkpoint, say: one number each, of the third of three layers where it can be.
    params = tuple(
        jnp.asarray(draw(i, 3, *s) / 2, jnp.float32) for i, s in ((0, (4, 4)), (1, (4,)))
    )
    params, batch = [[*x] for x in params], jnp.asarray(draw(2, N, 4), jnp.float32)
    tx = fnopt.kfac(layers, distance, batch, eigenbasis=eigenbasis, model_every=2, damping_every=2)
    update = jax.jit(lambda state, batch: tx.update(None, state, params, batch=batch))
    state = update(update(tx.init(params), batch)[1], batch)[1]
    _, usual = update(state, batch)

    def damaged(field):
        leaves, tree = jax.tree.flatten(getattr(state, field))
        first = leaves[0]
        place = (len(first) - 1, *[0] * (first.ndim - 1)) if first.ndim else ()
        leaves[0] = first.at[place].set(jnp.nan)
        return state._replace(**{field: jax.tree.unflatten(tree, leaves)})

    fields = ["factors", "inverses", "momentum", "weights", "damping"]
    for field in [*fields, "moments"] if eigenbasis else fields:
        _, kept = update(damaged(field), batch * jnp.inf)  # refused: nothing is made of such
        assert int(kept.status) == Status.NONFINITE_START
        updates, new = update(damaged(field), batch)
        assert int(new.status) == Status.NONFINITE_STATE, field
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, new)))
        for x, y in zip(jax.tree.leaves(new.factors), jax.tree.leaves(usual.factors), strict=True):
            np.testing.assert_array_equal(x[:-1], y[:-1])
        assert int(update(new, batch)[1].status) == Status.RUNNING


def test_kept_weights_do_not_make_the_loss_explode():
    params, batch = problem(np.float32)

    def quartic(params, example):
        return net(params, example) * (example[0][:3] @ params["v"].T @ params["v"])

    def loss(outputs, example):
        return jnp.sum((outputs - example[0][:3]) ** 2)

    tx = fnopt.kfac(quartic, loss, batch, model_every=5)

    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            updates, state = tx.update(None, state, params, batch=batch)
            return (fnopt.apply_updates(params, updates), state), state.value

        return jax.lax.scan(step, (params, tx.init(params)), length=30)[1]

    values = run(params)
    assert float(values[-1]) < 0.2 * float(values[0])


def layers(params, example):
    h = example
    for w, b in zip(*params, strict=True):
        h = jnp.tanh(h @ w + b)
    return h


def distance(outputs, example):
    return jnp.sum((outputs - example[::-1]) ** 2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("eigenbasis", [False, True])
def test_layers_of_one_shape_step_like_those_of_a_scan(eigenbasis):
    # One param with all layers is a single block; separate ones are stacked to the same.
    def scanned(params, example):
        return jax.lax.scan(lambda h, p: (jnp.tanh(h @ p[0] + p[1]), None), example, params)[0]

    stacked, batch = (draw(0, 3, 4, 4) / 2, draw(1, 3, 4) / 2), draw(2, N, 4)

    @jax.jit
    def run(params, apart):
        found = []
        for model, first in ((scanned, params), (layers, apart)):
            tx = fnopt.kfac(model, distance, batch, eigenbasis=eigenbasis, l2=ETA)

            def step(carry, _, tx=tx):
                params, state = carry
                updates, state = tx.update(None, state, params, batch=batch)
                return (fnopt.apply_updates(params, updates), state), state.value

            found.append(jax.lax.scan(step, (first, tx.init(first)), length=3))
        return found

    ((wanted, state), values), ((found, other), same) = run(stacked, [[*x] for x in stacked])
    np.testing.assert_allclose(same, values, rtol=1e-12)
    for x, y in zip(wanted, found, strict=True):
        np.testing.assert_allclose(jnp.stack(y), x, rtol=1e-10, atol=1e-12)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-12),
        *((s.factors, s.moments) for s in (state, other)),
    )


def test_the_program_of_a_further_layer_is_short():
    def equations(count):
        params = [[jnp.ones((4, 4))] * count, [jnp.ones(4)] * count]
        tx, batch = fnopt.kfac(layers, distance, jnp.ones((2, 4))), jnp.ones((2, 4))
        step = lambda s, p: tx.update(None, s, p, batch=batch)  # noqa: E731
        closed = jax.make_jaxpr(step)(jax.eval_shape(tx.init, params), params)
        return jaxprs.program_size(closed.jaxpr)

    assert equations(6) - equations(4) <= 2 * 116


def test_samples_can_be_labels_that_are_drawn():
    params, batch = problem(np.float32)

    def drawn(key, outputs, example):
        return example[0], jax.random.categorical(key, outputs)

    tx = fnopt.kfac(net, cross_entropy, batch, sample_fn=drawn, samples=3, sharing="reduce")

    @jax.jit
    def mean(params):
        model = lambda spec: KroneckerModel(spec, params, batch)  # noqa: E731
        exact, sampled = model(KroneckerSpec(net, cross_entropy, None)), model(tx._spec)
        outputs = exact.outputs(params)
        keys = jax.random.split(jax.random.key(0), 300)
        many = jax.vmap(lambda key: sampled.factors(outputs, key))(keys)
        return jax.tree.map(lambda x: x.mean(0), many), exact.factors(outputs, keys[0])

    for x, y in zip(*map(jax.tree.leaves, mean(params)), strict=True):
        np.testing.assert_allclose(x, y, atol=0.06 * np.abs(y).max())


@pytest.mark.usefixtures("two_devices")
def test_traces_on_a_mesh_with_explicit_axes():
    # Batches are spread over devices, params and all of the state are whole on each.
    params, batch = problem(np.float32)
    tx = fnopt.kfac(net, cross_entropy, batch, model_every=5)
    draw = lambda key, f, e: (e[0], jax.random.categorical(key, f))  # noqa: E731
    drawn = fnopt.kfac(net, cross_entropy, batch, sample_fn=draw)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))

    def put(tree, *axes):
        sharding = jax.NamedSharding(mesh, jax.P(*axes))
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
        )

    def step(params, batch):
        return [t.update(None, t.init(params), params, batch=batch) for t in (tx, drawn)]

    found = jax.eval_shape(step, put(params), put(batch, "data"))
    assert not any(any(x.sharding.spec) for x in jax.tree.leaves(found) if x.sharding is not None)


@pytest.mark.usefixtures("two_devices")
def test_convolutions_and_params_that_are_spread_trace_on_such_a_mesh():
    def model(params, image):
        options = {"lhs_dilation": (1, 2), "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        h = jax.lax.conv_general_dilated(image[None], params["k"], (1, 1), [(1, 1)] * 2, **options)
        return (h + params["b"]).reshape(-1) @ params["w"]

    def loss(outputs, image):
        return jnp.sum((outputs - image[0, 0]) ** 2)

    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))

    def put(*shape):
        sharding = jax.NamedSharding(mesh, jax.P("data"))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    params, batch = {"k": put(2, 3, 2, 4), "b": put(4), "w": put(36, 2)}, put(4, 2, 2, 2)
    tx = fnopt.kfac(model, loss, batch)

    def step(params, batch):
        return tx.update(None, tx.init(params), params, batch=batch)[0]

    found = jax.eval_shape(step, params, batch)
    assert all(found[k].sharding.spec[0] == "data" for k in params)


def test_parts_of_params_are_no_params_of_a_model():
    params, batch = problem(np.float32)
    tx = sharded(fnopt.kfac(net, cross_entropy, batch, axis_name="data"), "data")
    init = jax.vmap(lambda _: tx.init(params), axis_name="data")
    with pytest.raises(ValueError, match="kfac without sharded, and pass axis_name"):
        jax.eval_shape(init, jnp.arange(2))


def test_refuses_what_makes_no_sense():
    params, batch = problem(np.float32)
    tx = fnopt.kfac(net, cross_entropy, batch)
    assert tx == fnopt.kfac(net, cross_entropy, jax.tree.map(lambda x: x[:2], batch))
    assert hash(tx) == hash(fnopt.kfac(net, cross_entropy, batch))
    with pytest.raises(TypeError, match="int32"):
        tx.init({**params, "w": jnp.ones((4, 5), jnp.int32)})
    with pytest.raises(TypeError, match="complex64"):
        tx.init({**params, "w": jnp.ones((4, 5), jnp.complex64)})
    with pytest.raises(TypeError, match="batch"):
        tx.update(None, tx.init(params), params)
    absolute = fnopt.kfac(net, lambda f, e: jnp.sum(jnp.abs(f - e[0][:3])), batch)
    with pytest.raises(ValueError, match=r"Hessian of the loss .* is zero"):
        jax.eval_shape(lambda s: absolute.update(None, s, params, batch=batch), tx.init(params))
    with pytest.raises(TypeError, match="real scalar"):
        fnopt.kfac(net, lambda f, e: f, batch).init(params)
    with pytest.raises(ValueError, match="multiple of model_every"):
        fnopt.kfac(net, cross_entropy, batch, model_every=2)
    with pytest.raises(ValueError, match="curvature"):
        fnopt.kfac(net, cross_entropy, batch, curvature="empirical")
    with pytest.raises(ValueError, match="different lengths"):
        fnopt.kfac(net, cross_entropy, (batch[0], batch[1][:3]))
    with pytest.raises(ValueError, match="sample_fn"):
        fnopt.kfac(net, cross_entropy, batch, sample_fn=net, curvature="exact")
    many = jax.ShapeDtypeStruct((64, 50_000), jnp.float32)
    wide = fnopt.kfac(lambda p, x: x * p, lambda f, x: jnp.sum(f**2), many, curvature="exact")
    with pytest.raises(ValueError, match=r"backpropagates 50000 cotangents .* A batch of 1 needs"):
        wide.init(jnp.ones(50_000))
    with pytest.raises(ValueError, match="Split the key"):
        fnopt.kfac(net, cross_entropy, (*batch, jax.random.key(0)))
    # Without the axis name that vmap would give it, and so without the batch.
    normal = fnopt.kfac(
        lambda p, e: net(p, e) - jax.lax.pmean(net(p, e), "b"), cross_entropy, batch
    )
    with pytest.raises(ValueError, match=r"ONE example\. Normalize with running averages"):
        normal.init(params)


def squared_error(outputs, example):
    return jnp.sum((outputs - example[0][:3]) ** 2)


def drawn_label(key, outputs, example):
    return example[0], jax.random.categorical(key, outputs)


# A key for every example, random signs for all of them; and second moments in eigenbases.
OVER_DEVICES = {
    "labels": (cross_entropy, {"sample_fn": drawn_label, "model_every": 2, "damping_every": 2}),
    "signs": (squared_error, {"eigenbasis": True, "damping_every": 1, "l2": ETA}),
}


def steps_of_all(params, batch, axis_name=None):
    def steps(loss, options):
        tx = fnopt.kfac(net, loss, batch, damping=LAM, axis_name=axis_name, **options)

        def body(carry, _):
            params, state = carry
            updates, state = tx.update(None, state, params, batch=batch)
            return (fnopt.apply_updates(params, updates), state), state.value

        return jax.lax.scan(body, (params, tx.init(params)), length=2)

    return {name: steps(*given) for name, given in OVER_DEVICES.items()}


def over_two_devices(check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"in_specs": (jax.P(), jax.P("data")), "out_specs": jax.P()}
    fn = functools.partial(steps_of_all, axis_name="data")
    return jax.shard_map(fn, mesh=mesh, check_vma=check_vma, **specs)


@pytest.mark.usefixtures("x64", "two_devices")
def test_a_batch_over_devices_makes_the_steps_of_one():
    params, batch = problem()
    found = jax.jit(over_two_devices(True))(params, batch)
    expected = jax.jit(steps_of_all)(params, batch)
    for name in OVER_DEVICES:
        for x, y in zip(*map(jax.tree.leaves, (found[name], expected[name])), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9, err_msg=name)
    jax.eval_shape(over_two_devices(False), params, batch)
