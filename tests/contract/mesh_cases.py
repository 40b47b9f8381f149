"""Public functions as cases: functions of params, batch and curves that are sharded on a mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import curvature

T = np.linspace(0, 3, 8, dtype=np.float32)


def data_of(width: int) -> dict[str, Any]:
    """Return data of a network with `width` outputs, and `width` curves."""
    rng = np.random.RandomState(0)
    params = {"w": rng.randn(4, width).astype("f"), "b": np.zeros(width, "f")}
    batch = rng.randn(8, 4).astype("f"), rng.randn(8, width).astype("f")
    curves = 2 * np.exp(-1.3 * T[:, None]) * np.ones(width) + 0.01 * rng.randn(8, width)
    return {
        "params": params,
        "batch": batch,
        "weights": np.linspace(0, 1, 8, dtype=np.float32),
        "decay": {"a": np.ones(width, "f"), "k": np.ones(width, "f")},
        "t": T,
        "curves": curves.astype("f"),
        "fits": (rng.uniform(1, 2, (8, 1)) * np.exp(-T)).astype("f"),
        "starts": np.ones((8, 2), "f"),
        "shared_t": T,
    }


DATA = data_of(2)
WHOLE = dict.fromkeys(DATA, P())
BY_BATCH = dict.fromkeys(["batch", "weights", "t", "curves", "fits", "starts"], P("d"))


def _params_over(axis: str) -> dict[str, Any]:
    return {"params": {"w": P(None, axis), "b": P(axis)}, "decay": P(axis)}


PLACES = {
    "replicated": WHOLE,
    "batch": {**WHOLE, **BY_BATCH},
    "params": {**WHOLE, **_params_over("d")},
    "both": {**WHOLE, **BY_BATCH, **_params_over("m")},  # on a mesh of two axes
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
    """Return a step of an optimizer that differentiates its batch."""

    def run(d: Any) -> Any:
        tx, p = make(d), d["params"]
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
    energies = {"local_energies": d["weights"], "weights": d["weights"] ** 2}
    return tx.update(None, tx.init(p), p, batch=d["batch"], **energies)[0]


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
    "kfac": by_batch(lambda d: fnopt.kfac(outputs, squared_error, d["batch"])),
    "natural_gradient": by_batch(lambda _: fnopt.natural_gradient(outputs, squared_error)),
    "gauss_newton_descent": by_batch(lambda _: fnopt.gauss_newton_descent()),
    "stochastic_reconfiguration": imaginary_time,
    "gauss_newton_descent-rank": by_batch(
        lambda _: fnopt.gauss_newton_descent(solver="cg", rank=2)
    ),
    "gauss_newton_descent-ghost": by_batch(lambda _: fnopt.gauss_newton_descent(method="ghost")),
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


def tapped(p: Any, batch: Any) -> jax.Array:
    hidden = fnopt.tap("hidden", jnp.tanh(batch[0] @ p["w"] + p["b"]))
    return jnp.mean(fnopt.tap("errors", hidden - batch[1]) ** 2)


def on_taps(make: Any, *names: str, **options: Any) -> Any:
    return lambda d: make(tapped, *names, **options)(d["params"], d["batch"])


def halved(d: Any) -> Any:
    other = fnopt.patch(tapped, cotangents={"hidden": lambda g: g / 2})
    return jax.grad(other)(d["params"], d["batch"])


def certainty(d: Any) -> Any:
    args = d["t"], d["curves"]
    s = fnopt.least_squares(residuals, d["decay"], args=args, max_steps=8)
    band = fnopt.predict_band(lambda p: residuals(p, *args), s)
    return fnopt.covariance(s), fnopt.standard_errors(s), fnopt.confidence_intervals(s), band


def derivative(d: Any) -> Any:
    return jax.grad(lambda t: jnp.sum(jnp.exp(fit()({**d, "t": t})["k"])))(d["t"])


def rows(d: Any) -> Any:
    def of_table(p: Any, ids: Any) -> jax.Array:
        return jnp.sum(p["w"][ids] ** 2)

    return fnopt.sparse_value_and_grad(of_table, "w")(d["params"], jnp.asarray([0, 2, 0]))[0]


def with_key(make: Any) -> Any:
    return lambda d: make(d, jax.random.key(0))


def product(d: Any) -> Any:
    return lambda v: curvature.hvp(loss)(d["params"], v, d["batch"])


CASES |= {
    "value_and_per_example_grads": on_batch(fnopt.value_and_per_example_grads),
    "value_and_weighted_grad": lambda d: fnopt.value_and_weighted_grad(loss)(
        d["params"], d["batch"], d["weights"]
    ),
    "micro_vmap": lambda d: fnopt.micro_vmap(loss, (None, 0), microbatch_size=4)(
        d["params"], d["batch"]
    ),
    "noise_scale": lambda d: fnopt.noise_scale(on_batch(fnopt.per_example_norms)(d), 0.1, 1, 8),
    "add_noise": with_key(lambda d, key: fnopt.add_noise(d["params"], key, 1.0, 1.0)[0]),
    "sign_agreement": lambda d: fnopt.gradients.sign_agreement(grads(d)),
    "sparse_value_and_grad": rows,
    "sparse_jacobian": lambda d: fnopt.sparse_jacobian(residuals)(d["decay"], d["t"], d["curves"]),
    "sparse_hessian": lambda d: fnopt.sparse_hessian(squares)(d["decay"], d["t"], d["curves"]),
    "ravel": lambda d: fnopt.jacobians.ravel(d["params"])[0],
    "capture": on_taps(fnopt.capture, "hidden", cotangents=True, argnums=0),
    "grad_between": on_taps(fnopt.grad_between, "hidden"),
    "jacobian_between": on_taps(fnopt.jacobian_between, "hidden", "errors"),
    "patch": halved,
    "certainty": certainty,
    "least_squares-derivative": derivative,
    "least_squares-constraints": fit(
        constraints={"a": fnopt.positive(), "k": fnopt.tied(lambda p: p["a"] / 2)}
    ),
    "gauss_newton": fit(solver=fnopt.gauss_newton()),
    "dogleg": fit(solver=fnopt.dogleg(linear_solver="cholesky")),
    "bfgs": minimum(method=fnopt.bfgs()),
    "newton_cg": minimum(method=fnopt.newton_cg()),
    "nonlinear_cg": minimum(method=fnopt.nonlinear_cg()),
    "projected_gradient": minimum(method=fnopt.projected_gradient(), bounds=(0.0, 9.0)),
    "hessian_diagonal": with_key(
        lambda d, key: curvature.hessian_diagonal(loss, samples=2)(d["params"], key, d["batch"])
    ),
    "trace_estimate": with_key(
        lambda d, key: curvature.trace_estimate(product(d), d["params"], key, samples=2)
    ),
    "top_eigenvalues": with_key(
        lambda d, key: curvature.top_eigenvalues(product(d), d["params"], key, iterations=4).values
    ),
    "incremental_update": lambda d: fnopt.incremental_update(d["params"], d["params"], 0.1),
    "periodic_update": lambda d: fnopt.periodic_update(
        d["params"], d["params"], jnp.zeros((), jnp.int32), 2
    ),
}
