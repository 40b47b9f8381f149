"""Everything public on meshes, automatic and explicit, and what comes out agrees with one device.

`jax.grad` of these losses works on explicit meshes (of one whose params are spread in a way that
makes JAX ask how its own products should lie, it doesn't, and nothing here can). Most faults are
of types, so that every case is traced in every way, and compiled in few.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import curvature

RNG = np.random.RandomState(0)
T = np.linspace(0, 3, 8, dtype=np.float32)
DATA = {
    "params": {"w": RNG.randn(4, 2).astype("f"), "b": np.zeros(2, "f")},
    "batch": (RNG.randn(8, 4).astype("f"), RNG.randn(8, 2).astype("f")),
    "weights": np.linspace(0, 1, 8, dtype=np.float32),
    "decay": {"a": np.ones(2, "f"), "k": np.ones(2, "f")},
    "t": T,
    "curves": (2 * np.exp(-1.3 * T[:, None]) * np.ones(2) + 0.01 * RNG.randn(8, 2)).astype("f"),
    "fits": (RNG.uniform(1, 2, (4, 1)) * np.exp(-T)).astype("f"),
    "starts": np.ones((4, 2), "f"),
    "shared_t": T,
}
WHOLE = dict.fromkeys(DATA, P())
PLACES = {
    "replicated": WHOLE,
    "batch": {
        **WHOLE,
        **dict.fromkeys(["batch", "weights", "t", "curves", "fits", "starts"], P("d")),
    },
    "params": {**WHOLE, "params": {"w": P(None, "d"), "b": P("d")}, "decay": P("d")},
}


def loss(p: Any, example: Any) -> jax.Array:
    x, y = example
    return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2)


def outputs(p: Any, example: Any) -> jax.Array:
    return jnp.tanh(example[0] @ p["w"] + p["b"])


def residuals(p: Any, t: Any, y: Any) -> jax.Array:
    return p["a"] * jnp.exp(-p["k"] * t[:, None]) - y


def decay(t: Any, a: Any, k: Any) -> jax.Array:
    return a * jnp.exp(-k * t)


def squares(p: Any, t: Any, y: Any) -> jax.Array:
    return jnp.sum(residuals(p, t, y) ** 2)


def moments(p: Any, t: Any, y: Any) -> Any:
    return jax.grad(squares)(p, t, y)


def on_batch(make: Any, **options: Any) -> Any:
    return lambda d: make(loss, **options)(d["params"], d["batch"])


def on_direction(make: Any, fn: Any = loss, **options: Any) -> Any:
    return lambda d: make(fn, **options)(d["params"], d["params"], d["batch"])


def squared_error(out: Any, example: Any) -> jax.Array:
    return jnp.sum((out - example[1]) ** 2)


def grads(d: Any) -> Any:
    return fnopt.per_example_grads(loss)(d["params"], d["batch"])


def lm_step(kind: str) -> Any:
    def run(d: Any) -> Any:
        tx = fnopt.levenberg_marquardt(linear_solver=kind)
        p = d["decay"]
        residual_fn = functools.partial(residuals, t=d["t"], y=d["curves"])
        return tx.update(None, tx.init(p), p, residual_fn=residual_fn)[0]

    return run


def fit(**options: Any) -> Any:
    def run(d: Any) -> Any:
        args = d["t"], d["curves"]
        return fnopt.least_squares(residuals, d["decay"], args=args, max_steps=8, **options).params

    return run


def minimum(**options: Any) -> Any:
    def run(d: Any) -> Any:
        args = d["t"], d["curves"]
        return fnopt.minimize(squares, d["decay"], args=args, max_steps=9, **options).params

    return run


def adam_step(d: Any) -> Any:
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adamw(1e-2))
    return tx.update(d["params"], tx.init(d["params"]), d["params"])


def by_batch(make: Any) -> Any:
    """A step of an optimizer that differentiates its batch by itself."""

    def run(d: Any) -> Any:
        tx, p = make(), d["params"]
        return tx.update(None, tx.init(p), p, batch=d["batch"], residual_fn=errors)[0]

    return run


def errors(p: Any, example: Any) -> jax.Array:
    return outputs(p, example) - example[1]


def by_example(fn: Any, **options: Any) -> Any:
    return lambda d: (
        fnopt.least_squares(fn, d["params"], batch=d["batch"], max_steps=3, **options).params
    )


def first_error(p: Any, example: Any) -> jax.Array:
    return jnp.sum(errors(p, example))


def log_psi(p: Any, example: Any) -> jax.Array:
    return jax.lax.complex(loss(p, example), jnp.sum(outputs(p, example)))


def imaginary_time(d: Any) -> Any:
    tx, p = fnopt.stochastic_reconfiguration(log_psi, momentum=0.9), d["params"]
    known = {"local_energies": d["weights"], "weights": d["weights"] ** 2}
    return tx.update(None, tx.init(p), p, batch=d["batch"], **known)[0]


LM = fnopt.levenberg_marquardt
CASES: dict[str, Any] = {
    "per_example_grads": grads,
    "clipped_grad-vmap": on_batch(fnopt.clipped_grad, clip_norm=0.1, method="vmap"),
    "clipped_grad-ghost": on_batch(fnopt.clipped_grad, clip_norm=0.1, method="ghost"),
    "clipped_grad-chunks": on_batch(fnopt.clipped_grad, clip_norm=0.1, chunk_size=4),
    "per_example_norms-vmap": on_batch(fnopt.per_example_norms, method="vmap"),
    "per_example_norms-ghost": on_batch(fnopt.per_example_norms, method="ghost"),
    "per_example_norms-chunks": on_batch(fnopt.per_example_norms, chunk_size=2),
    "per_example_norms-uneven": on_batch(fnopt.per_example_norms, chunk_size=3),
    "gradient_similarity-vmap": on_batch(fnopt.gradient_similarity, method="vmap"),
    "gradient_similarity-ghost": on_batch(fnopt.gradient_similarity, method="ghost"),
    "gradient_statistics": on_batch(fnopt.gradient_statistics),
    "hardest_examples": on_batch(fnopt.hardest_examples, k=3),
    "weighted_grad": lambda d: fnopt.weighted_grad(loss)(d["params"], d["batch"], d["weights"]),
    "microbatch": lambda d: fnopt.microbatch(
        jax.grad(lambda p, b: jnp.sum(jax.vmap(loss, (None, 0))(p, b))), 1, microbatch_size=4
    )(d["params"], d["batch"]),
    "median_of_means": lambda d: fnopt.median_of_means(grads(d), 4),
    "trimmed_mean": lambda d: fnopt.trimmed_mean(grads(d), 0.2),
    "jacobian": lambda d: fnopt.jacobian(residuals)(d["decay"], d["t"], d["curves"]),
    "jacobian-matrix": lambda d: fnopt.jacobian(residuals, form="matrix")(
        d["decay"], d["t"], d["curves"]
    ),
    "per_example_jacobian": lambda d: fnopt.per_example_jacobian(outputs)(d["params"], d["batch"]),
    "lm-qr": lm_step("qr"),
    "lm-cholesky": lm_step("cholesky"),
    "lm-cg": lm_step("cg"),
    "least_squares": fit(),
    "least_squares-example": by_example(errors, weights=4.0),
    "least_squares-rows": by_example(
        first_error, solver=LM(linear_solver="cholesky"), loss="soft_l1"
    ),
    "least_squares-cg": fit(solver=LM(linear_solver="cg")),
    "least_squares-soft": fit(loss="soft_l1"),
    "least_squares-bounds": fit(bounds=(0.0, 9.0)),
    "minimize": minimum(),
    "minimize-bounds": minimum(method=fnopt.lbfgsb(), bounds=(0.0, 9.0)),
    "root": lambda d: (
        fnopt.root(moments, d["decay"], args=(d["t"], d["curves"]), max_steps=8).params
    ),
    "curve_fit": lambda d: fnopt.curve_fit(decay, d["t"], d["curves"][:, 0], p0=jnp.ones(2))[0],
    "curve_fit_batch": lambda d: (
        fnopt.curve_fit_batch(decay, d["shared_t"], d["fits"], p0=d["starts"]).params
    ),
    "hvp": on_direction(curvature.hvp),
    "hvp-chunks": on_direction(curvature.hvp, chunk_size=4),
    "ggn_vp": on_direction(functools.partial(curvature.ggn_vp, outputs), squared_error),
    "fisher_vp": on_direction(curvature.fisher_vp),
    "ggn_diagonal": lambda d: curvature.ggn_diagonal(outputs, squared_error)(
        d["params"], d["batch"]
    ),
    "kfac": by_batch(lambda: fnopt.kfac(outputs, squared_error, DATA["batch"])),
    "natural_gradient": by_batch(lambda: fnopt.natural_gradient(outputs, squared_error)),
    "gauss_newton_descent": by_batch(fnopt.gauss_newton_descent),
    "stochastic_reconfiguration": imaginary_time,
    "gauss_newton_descent-ghost": by_batch(lambda: fnopt.gauss_newton_descent(method="ghost")),
    "batch_jacobian": lambda d: curvature.batch_jacobian(outputs)(d["params"], d["batch"]).gram(),
    "curve_fit_batch-bounds": lambda d: (
        fnopt.curve_fit_batch(
            decay, d["shared_t"], d["fits"], p0=d["starts"], bounds=(0.0, 9.0)
        ).params
    ),
    "health": lambda d: fnopt.monitor.health(d["params"]),
    "global_norm": lambda d: fnopt.global_norm(d["params"]),
    "adamw": adam_step,
}
# Compiled and compared with one device, the rest of the types are only traced.
COMPILED = [
    *("clipped_grad-ghost", "per_example_norms-chunks", "gradient_statistics"),
    *("gradient_similarity-ghost", "lm-qr", "lm-cg", "curve_fit_batch"),
]


@functools.cache
def placed(kind: str, place: str) -> Any:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(getattr(AxisType, kind),))

    def put(spec: Any, tree: Any) -> Any:
        if isinstance(spec, dict):
            return {name: put(spec[name], part) for name, part in tree.items()}
        return jax.device_put(tree, NamedSharding(mesh, spec))

    return {name: put(PLACES[place][name], part) for name, part in DATA.items()}


@pytest.mark.parametrize("place", ["batch", "params"])
@pytest.mark.parametrize("name", CASES)
def test_types_agree_on_explicit_meshes(name, place):
    data = placed("Explicit", place)
    with jax.set_mesh(data["t"].sharding.mesh):
        jax.eval_shape(CASES[name], data)


@pytest.mark.parametrize("name", COMPILED)
def test_without_a_mesh_in_the_context(name):
    jax.eval_shape(CASES[name], placed("Explicit", "batch"))


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="the caller has to set the mesh then")
def test_an_eager_step_of_two_params_on_two_devices():
    # The Jacobian of two residuals by two params, each on a device of its own, is factorised whole.
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


def test_chunks_are_divided_by_devices():
    data = placed("Auto", "batch")
    args = data["params"], data["batch"]
    program = jax.jit(fnopt.per_example_norms(loss, chunk_size=4)).lower(*args).compile()
    assert "all-gather" not in program.as_text()
    assert program(*args).sharding.spec[0] == "d"
