"""Everything public on meshes, automatic and explicit, and what comes out agrees with one device.

`jax.grad` of these losses works on explicit meshes (of one whose params are spread in a way that
makes JAX ask how its own products should lie, it doesn't, and nothing here can). Most faults are
of types, so that every case is traced in every way, and compiled in few; in numbers they are all
compared on 1 to 8 devices by `python -m tests.contract.meshes_run`, which takes minutes.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt.sharding import is_sharded, replicate
from tests.contract.mesh_cases import CASES, DATA, PLACES, data_of, loss, tapped

# Compiled and compared with one device, the rest of the types are only traced.
COMPILED = [
    *("clipped_grad-ghost", "per_example_norms-chunks", "gradient_statistics"),
    *("gradient_similarity-ghost", "lm-qr", "lm-cg", "curve_fit_batch"),
]


@functools.cache
def placed(kind: str, place: str, count: int = 2) -> Any:
    shape, axes = ((count,), ("d",)) if place != "both" else ((count // 2, 2), ("d", "m"))
    axis_types, devices = (getattr(AxisType, kind),) * len(axes), jax.devices()[:count]
    mesh = jax.make_mesh(shape, axes, devices=devices, axis_types=axis_types)

    def put(spec: Any, tree: Any) -> Any:
        if isinstance(spec, dict):
            return {name: put(spec[name], part) for name, part in tree.items()}
        return jax.device_put(tree, NamedSharding(mesh, spec))

    return {name: put(PLACES[place][name], part) for name, part in data_for(place, count).items()}


def data_for(place: str, count: int) -> Any:
    """As many outputs as devices that they are divided over."""
    return data_of(count) if place == "params" and count > 2 else DATA


def distance(found: Any, expected: Any, rtol: float = 2e-4, atol: float = 2e-5) -> float:
    """How far results are apart, in units of the tolerance; infinite if one isn't a number."""
    apart = [0.0]
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        a, b = np.asarray(a, complex), np.asarray(b, complex)
        if a.shape != b.shape:
            return np.inf
        unequal = np.where(a == b, 0.0, np.abs(a - b) / (atol + rtol * np.abs(b)))
        apart.append(float(np.max(np.nan_to_num(unequal, nan=np.inf), initial=0)))
    return max(apart)


# Dear to trace, and like others that are traced in both ways.
IN_ONE_WAY = {
    *("gauss_newton", "dogleg", "bfgs", "newton_cg", "nonlinear_cg", "projected_gradient"),
    *("least_squares-constraints", "least_squares-derivative"),
}
TRACED = [
    (name, place)
    for name in CASES
    for place in ("batch", "params")
    if place == "params" or name not in IN_ONE_WAY
]


@pytest.mark.parametrize(("name", "place"), TRACED)
def test_types_agree_on_explicit_meshes(name, place):
    data = placed("Explicit", place)
    with jax.set_mesh(data["t"].sharding.mesh):
        jax.eval_shape(CASES[name], data)


# Outputs by example and by param: residuals that are spread by row and within rows.
OVER_BOTH = ["least_squares-example", "lm-cholesky", "jacobian-matrix", "gauss_newton_descent"]


@pytest.mark.parametrize("name", OVER_BOTH)
def test_types_agree_where_batch_and_params_are_divided_over_two_axes(name):
    data = placed("Explicit", "both")
    with jax.set_mesh(data["t"].sharding.mesh):
        jax.eval_shape(CASES[name], data)


# Params that are divided over the axis of the batch, as in FSDP: whole for the examples.
OVER_THE_BATCH = [
    *("per_example_grads", "value_and_per_example_grads", "per_example_norms-vmap"),
    *("per_example_norms-ghost", "per_example_norms-uneven", "clipped_grad-vmap"),
    *("clipped_grad-ghost", "clipped_grad-chunks", "gradient_similarity-vmap"),
    *("gradient_similarity-ghost", "gradient_statistics", "hardest_examples", "weighted_grad"),
    *("micro_vmap", "per_example_jacobian", "least_squares-example", "least_squares-rows"),
    *("hvp", "hvp-chunks", "ggn_vp", "fisher_vp", "ggn_diagonal", "hessian_diagonal", "kfac"),
    *("natural_gradient", "gauss_newton_descent", "gauss_newton_descent-rank"),
    *("stochastic_reconfiguration", "batch_jacobian"),
]


def fully_divided() -> Any:
    data = placed("Explicit", "batch")
    over = NamedSharding(data["t"].sharding.mesh, P("d"))
    return {**data, "params": jax.tree.map(lambda p: jax.device_put(p, over), data["params"])}


@pytest.mark.parametrize("name", OVER_THE_BATCH)
def test_params_over_the_axis_of_the_batch_without_a_mesh_in_the_context(name):
    data = fully_divided()
    assert all(map(is_sharded, jax.tree.leaves(data["params"])))
    jax.eval_shape(CASES[name], data)


def test_a_gradient_lies_as_params_over_the_axis_of_the_batch():
    data = fully_divided()
    names = ("clipped_grad-ghost", "weighted_grad")
    found = jax.jit(lambda d: [CASES[name](d) for name in names])(data)
    expected = [CASES[name](DATA) for name in names]
    assert distance(found, expected) <= 1
    for grad in (found[0][0], found[1]):
        for g, p in zip(*map(jax.tree.leaves, (grad, data["params"])), strict=True):
            assert g.sharding.is_equivalent_to(p.sharding, p.ndim)


@pytest.mark.parametrize("method", ["ghost", "chunked"])
def test_layers_in_a_row_that_are_divided_alike(method):
    # The products of their factors would lie otherwise than the params, to which they are added.
    mesh = jax.make_mesh((1, 2), ("d", "m"), axis_types=(AxisType.Explicit,) * 2)

    def put(x: Any, *axes: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, P(*axes)))

    w = [put(np.full((4, 4), 0.1, "f"), "d", "m") for _ in range(3)]

    def loss(w: Any, x: Any) -> jax.Array:
        for matrix in w:
            x = jnp.tanh(x @ matrix)
        return jnp.sum(x)

    def run(w: Any, x: Any) -> Any:
        clipped = fnopt.clipped_grad(loss, 0.1, method=method, chunk_size=2)(w, x)[0]
        return clipped, fnopt.gradient_statistics(loss, method=method)(w, x).mean

    for made in jax.eval_shape(run, w, put(np.ones((4, 4), "f"), "d")):
        assert [g.sharding.spec for g in made] == [p.sharding.spec for p in w]


@pytest.mark.parametrize("method", ["ghost", "chunked"])
def test_examples_by_hand_and_params_by_their_type(method):
    # The batch is divided by shard_map, what every device has of the params by the compiler.
    mesh = jax.make_mesh((1, 2), ("d", "m"), axis_types=(AxisType.Explicit,) * 2)

    def put(x: Any, *axes: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, P(*axes)))

    params = {"w": put(DATA["params"]["w"], None, "m"), "b": put(DATA["params"]["b"], "m")}
    batch = tuple(put(x, "d") for x in DATA["batch"])

    def run(p: Any, batch: Any) -> Any:
        sums = fnopt.clipped_grad(loss, 0.1, method=method, axis_name="d")(p, batch)[0]
        # Weights that differ between no devices, beside examples that do.
        return sums, fnopt.weighted_grad(loss, axis_name="d")(p, batch, jnp.ones(8))

    with jax.set_mesh(mesh):
        spread = jax.shard_map(
            run, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), axis_names={"d"}
        )
        found = jax.eval_shape(spread, params, batch)
    for sums in found:
        assert [g.sharding.spec for g in jax.tree.leaves(sums)] == [P("m"), P(None, "m")]


def test_taps_where_params_are_gathered_by_the_function():
    data = fully_divided()

    def gathering(p: Any, batch: Any) -> jax.Array:
        return tapped(jax.tree.map(replicate, p), batch)

    look = fnopt.capture(gathering, "hidden", cotangents=True, argnums=0)
    _, seen = jax.jit(look)(data["params"], data["batch"])
    _, expected = fnopt.capture(tapped, "hidden", cotangents=True, argnums=0)(
        DATA["params"], DATA["batch"]
    )
    assert distance(seen, expected) <= 1
    assert seen.cotangents["hidden"].sharding.spec[0] == "d"
    assert seen.grads["w"].sharding.spec[0] == "d"


def test_weights_that_are_whole_beside_a_batch_that_is_divided():
    data = {**placed("Explicit", "batch"), "weights": DATA["weights"]}
    jax.eval_shape(CASES["weighted_grad"], data)


@pytest.mark.parametrize("name", COMPILED)
def test_without_a_mesh_in_the_context(name):
    jax.eval_shape(CASES[name], placed("Explicit", "batch"))


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="the caller has to set the mesh then")
def test_an_eager_step_of_two_params_on_two_devices():
    # The Jacobian of two residuals by two params, each on a device of its own, is factorized whole.
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    start = jnp.asarray([1.0, 1.5])
    spread = jax.device_put(start, NamedSharding(mesh, P("d")))
    tx = fnopt.levenberg_marquardt()
    steps = [
        tx.update(None, tx.init(p), p, residual_fn=lambda p: p**2 - 2)[0] for p in (start, spread)
    ]
    np.testing.assert_allclose(*map(np.asarray, steps), rtol=1e-6)
    assert jax.typeof(steps[1]).sharding.spec == P("d")


@pytest.mark.parametrize(
    ("kind", "place"), [("Explicit", "batch"), ("Auto", "batch"), ("Explicit", "params")]
)
def test_equals_one_device(kind, place):
    def run(data: Any) -> Any:
        return {name: CASES[name](data) for name in COMPILED}

    found = jax.jit(run)(placed(kind, place))
    expected = _on_one_device(run)
    for name in COMPILED:
        for a, b in zip(*map(jax.tree.leaves, (found[name], expected[name])), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-4, atol=2e-5, err_msg=name)


# Compared on one mesh only: each is dear to compile, and types are traced in all ways above.
COMPARED = ["kfac", "natural_gradient", "gauss_newton_descent", "batch_jacobian", "hvp-chunks"]


def test_steps_that_differentiate_a_batch_equal_those_of_one_device():
    # K-FAC's samples too: random bits don't depend on how an array lies.
    def run(data: Any) -> Any:
        return {name: CASES[name](data) for name in COMPARED}

    found = jax.jit(run)(placed("Explicit", "batch"))
    expected = jax.jit(run)(jax.tree.map(jnp.asarray, DATA))
    for name in COMPARED:
        for a, b in zip(*map(jax.tree.leaves, (found[name], expected[name])), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=2e-4, atol=2e-5, err_msg=name)


_KNOWN: list[Any] = []


def _on_one_device(run: Any) -> Any:
    if not _KNOWN:
        _KNOWN.append(jax.tree.map(np.asarray, jax.jit(run)(jax.tree.map(jnp.asarray, DATA))))
    return _KNOWN[0]


def test_what_has_a_batch_axis_comes_back_as_it_came():
    data = placed("Explicit", "batch")
    for name in ("per_example_norms-chunks", "per_example_norms-ghost", "curve_fit_batch"):
        out = jax.eval_shape(CASES[name], data)
        assert out.sharding.spec[0] == "d", name


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="the caller has to set the mesh then")
def test_an_eager_batch_of_fits_where_a_mesh_is_set():
    # Its model was recorded with the types of that mesh, and run where devices are by themselves.
    data = placed("Explicit", "batch")
    with jax.set_mesh(data["t"].sharding.mesh):
        params = CASES["curve_fit_batch"](data)
    assert params.sharding.spec[0] == "d"
    assert np.all(np.isfinite(np.asarray(params)))


def test_chunks_are_divided_by_devices():
    data = placed("Auto", "batch")
    args = data["params"], data["batch"]
    program = jax.jit(fnopt.per_example_norms(loss, chunk_size=4)).lower(*args).compile()
    assert "all-gather" not in program.as_text()
    assert program(*args).sharding.spec[0] == "d"


ROOMS = ("curvature", "curves", "gradients", "jacobians", "solvers", "taps")
# Elsewhere: methods of one example or one vector, which the cases call; what takes no array of a
# batch or of params; what is read off results by NumPy, on the host.
NO_ARRAYS = {
    *("nodes", "tap", "poisson_batch", "sensitivity", "sparsity_pattern", "check_sparsity"),
    *("jacobian_mode", "real_vector", "value_and_jacobian", "scale_gradient", "kfac_report"),
    *("ghost_report", "check_examples_independent", "t_quantile", "plot_fit", "hyper", "static"),
    *("profile_intervals", "elimination", "band_of", "reverse_cuthill_mckee"),
    *("fixed", "interval", "positive", "tied", "from_config", "to_config", "leaf_paths", "named"),
    *("hyperparams", "slot_names", "slots", "step_count", "slot_zeros", "map_leaves"),
    *("apply_updates", "correlation", "reduced_chi_square", "Transformation", "LeastSquaresMethod"),
}
WITHIN = {  # by the case that calls them, or what they call
    **dict.fromkeys(("covariance", "standard_errors", "confidence_intervals"), "certainty"),
    "predict_band": "certainty",
    "levenberg_marquardt": "lm",
    "lbfgsb": "minimize",
    "fixed_point": "root",
}


def test_everything_public_has_a_case():
    """Optimizers, transforms and schedules have theirs in the contract of transforms."""
    battery = {
        name
        for room in (fnopt.optimizers, fnopt.transforms, fnopt.schedules)
        for name in room.__all__
    }
    named = {name.partition("-")[0] for name in CASES}
    missing = []
    for room in (fnopt, *(getattr(fnopt, name) for name in ROOMS)):
        for name in room.__all__:
            thing = getattr(room, name)
            is_type = inspect.isclass(thing) and not issubclass(thing, fnopt.core.Transformation)
            known = {*NO_ARRAYS, *battery, *named} | {k for k, v in WITHIN.items() if v in named}
            if callable(thing) and not is_type and name not in known:
                missing.append(name)
    assert not missing
