"""What an accelerator does otherwise than a CPU, as far as programs show it.

It rounds the factors of a float32 product by default (a GPU to TF32, a TPU to bfloat16), which no
test on a CPU can see in the numbers; so the programs are read, and every product that the library
adds to a program without products states its precision. It also lacks some operations that a CPU
has; so the programs are lowered for it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt import curvature, discrete, gradients, losses, monitor, residuals, solvers, tree
from fnopt.interop import optax_api
from fnopt.programs import jaxprs
from tests.contract.registry import CASES
from tests.contract.trees import make_tree

PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated")

t = jnp.linspace(0.0, 3.0, 12)
y = 2.0 * jnp.exp(-t) + 0.1 * jnp.cos(5 * t)
START = {"a": jnp.float32(1.5), "b": jnp.float32(0.7)}
BATCH = (jnp.linspace(0.1, 1.0, 12).reshape(4, 3), jnp.arange(4.0))


def model(t, a, b):
    return a * jnp.exp(-b * t)


def decay(p):
    return model(t, p["a"], p["b"]) - y


def wide(p):
    """Fewer residuals than params."""
    return jnp.stack([jnp.sum(p), jnp.prod(p)]) - 3.0


def chain(p):
    return jnp.concatenate([p[1:] - jnp.sin(p[:-1]), p - 0.5])


def loss(w, example):
    x, target = example
    gate = jnp.take(w["table"], jnp.int32(target))
    return 0.5 * jnp.square(jnp.sum(jnp.tanh(w["w"] * x + w["b"]) * gate) - target)


W = {"w": jnp.ones(3), "b": jnp.zeros(3), "table": jnp.ones(5)}


def unstated(jaxpr: Any) -> list[str]:
    """The products of a program that leave their precision to the device."""
    found: list[str] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in PRODUCTS and eqn.params["precision"] is None:
                found.append(str(eqn))
            for sub in jaxprs.sub_jaxprs(eqn):
                walk(sub.jaxpr)

    walk(jaxpr)
    return found


def fit(residual_fn=decay, start=None, **options):
    start = START if start is None else start
    return lambda p=start: fnopt.least_squares(residual_fn, p, **options), (start,)


def derivative(residual_fn=decay, **options):
    """A derivative of the solution, in reverse and in forward mode."""

    def cost(shift):
        def moved(p):
            return residual_fn(p) - shift

        end = fnopt.least_squares(moved, START, **options)
        C = fnopt.covariance(end)
        return end.params["b"] + end.cost + jnp.sum(C)

    def both(shift):
        return jax.grad(cost)(shift), jax.jvp(cost, (shift,), (jnp.ones(()),))

    return both, (jnp.float32(0.1),)


lm, gn = fnopt.levenberg_marquardt, solvers.gauss_newton
inside = {"bounds": ({"a": 0.0, "b": 0.0}, {"a": 5.0, "b": 0.9})}
per_point = jnp.full(12, 0.3)
matrix = jnp.eye(12) + 0.1

FITS = {
    "default": fit(),
    "straight": fit(solver=lm(geodesic=False)),
    "reverse": fit(solver=lm(jacobian="reverse")),
    "qr": fit(solver=lm(linear_solver="qr")),
    "cholesky": fit(solver=lm(linear_solver="cholesky")),
    "cg": fit(solver=lm(linear_solver="cg")),
    "marquardt": fit(solver=lm(damping="marquardt")),
    "nielsen": fit(solver=lm(damping="nielsen")),
    "gauss_newton": fit(solver=gn()),
    "gauss_newton cholesky": fit(solver=gn(linear_solver="cholesky")),
    "dogleg": fit(solver=solvers.dogleg()),
    "bounded": fit(**inside),
    "bounded straight": fit(**inside, solver=lm(geodesic=False)),
    "bounded dogleg": fit(**inside, solver=solvers.dogleg()),
    "wide": fit(wide, jnp.ones(5)),
    "wide cholesky": fit(wide, jnp.ones(5), solver=lm(linear_solver="cholesky")),
    "wide gauss_newton": fit(wide, jnp.ones(5), solver=gn()),
    "large": fit(chain, jnp.ones(150), solver=lm(linear_solver="cholesky")),
    "large default": fit(chain, jnp.ones(150)),
    "sparse": fit(chain, jnp.ones(150), jac=fnopt.sparse_jacobian(chain)),
    "sparse cg": fit(
        chain, jnp.ones(150), jac=fnopt.sparse_jacobian(chain), solver=lm(linear_solver="cg")
    ),
    "chunked": fit(solver=lm(linear_solver="cholesky", chunk_size=1)),
    "robust": fit(loss="soft_l1", sigma=per_point),
    "barron": fit(loss=residuals.barron(-2.0, scale=0.1)),
    "weights": fit(weights=per_point),
    "correlated": fit(sigma=matrix),
    "constraints": fit(constraints={"a": residuals.positive(), "b": residuals.interval(0.0, 2.0)}),
    "tied": fit(constraints={"a": residuals.tied(lambda p: 2 * p["b"])}),
    "derivative": derivative(),
    "derivative, bounded": derivative(**inside),
    "derivative, robust": derivative(loss="huber"),
    "derivative, correlated": derivative(sigma=matrix),
    "derivative, cholesky": derivative(solver=lm(linear_solver="cholesky")),
}


def sparse_products(p):
    J = fnopt.sparse_jacobian(chain)(p)
    return J.mv(p), J.rmv(chain(p)), J.matrix()


def hessian_products(p):
    H = fnopt.sparse_hessian(valley)(p)
    return H.mv(p), H.matrix()


def perturbed_maximum(x):
    largest = discrete.make_perturbed_fun(lambda v: jax.nn.one_hot(jnp.argmax(v), 3), num_samples=4)
    return jnp.sum(largest(jax.random.key(0), x) * x)


def after(fn):
    """What is computed from a solution."""
    return lambda p: fn(fnopt.least_squares(decay, p)), (START,)


def batched(**options):
    return lambda ys: fnopt.curve_fit_batch(model, t, ys, (1.5, 0.7), **options), (
        jnp.stack([y, y + 0.1]),
    )


CURVES = {
    "curve_fit": (lambda y: fnopt.curve_fit(model, t, y, (1.5, 0.7), sigma=per_point), (y,)),
    "curve_fit, correlated": (
        lambda y: fnopt.curve_fit(model, t, y, (1.5, 0.7), sigma=matrix),
        (y,),
    ),
    "curve_fit, bounded": (
        lambda y: fnopt.curve_fit(model, t, y, (1.5, 0.7), bounds=([0, 0], [5, 1])),
        (y,),
    ),
    "curve_fit_batch": batched(),
    "covariance": after(fnopt.covariance),
    "standard_errors": after(fnopt.standard_errors),
    "correlation": after(fnopt.curves.correlation),
    "confidence_intervals": after(fnopt.confidence_intervals),
    "reduced_chi_square": after(fnopt.curves.reduced_chi_square),
    "predict_band": after(lambda end: fnopt.predict_band(decay, end, noise=True)),
}

GRADIENTS = {
    "clipped_grad, ghost": gradients.clipped_grad(loss, 1.0, method="ghost"),
    "clipped_grad, vmap": gradients.clipped_grad(loss, 1.0, method="vmap"),
    "clipped_grad, chunks": gradients.clipped_grad(loss, 1.0, chunk_size=2),
    "norms": gradients.per_example_norms(loss),
    "statistics": gradients.gradient_statistics(loss),
    "similarity": gradients.gradient_similarity(loss),
    "similarity, ghost": gradients.gradient_similarity(loss, method="ghost"),
    "hardest": gradients.hardest_examples(loss, 2),
    "per_example": gradients.per_example_grads(loss),
}
MATRICES = {"a": jnp.ones((3, 4)), "b": jnp.ones((9, 2)), "c": jnp.ones(2)}
MATRIX_METHODS = {
    "muon": fnopt.muon(0.1),
    "muon, Gram matrices and rows": fnopt.muon(
        0.1, orthogonalizer=fnopt.orthogonalize("polar_express", 8, preconditioning="aol")
    ),
    "normuon": fnopt.normuon(0.1, orthogonalizer=fnopt.orthogonalize(ns_dtype=jnp.bfloat16)),
    "soap": fnopt.soap(0.1),
    "shampoo": fnopt.partition_matrices(fnopt.scale_by_shampoo(block_size=2), fnopt.adam(0.1)),
    "kl_shampoo": fnopt.kl_shampoo(0.1),
    "galore": fnopt.galore(0.1, rank=2),
    "psgd_kron": fnopt.psgd_kron(0.1),
}


def outputs(w, example):
    """Of a model without products."""
    x, target = example
    return jnp.tanh(w["w"] * x + w["b"]) * jnp.take(w["table"], jnp.int32(target))


def distance(f, example):
    return jnp.sum(jnp.square(f - example[1]))


CG = {"solver": "cg", "rank": 2, "momentum": 0.5}
BATCH_METHODS = {
    "gauss_newton_descent": fnopt.gauss_newton_descent(momentum=0.5),
    "gauss_newton_descent, among params": fnopt.gauss_newton_descent(method="formed"),
    "gauss_newton_descent, cg": fnopt.gauss_newton_descent(**CG),
    "natural_gradient": fnopt.natural_gradient(outputs, distance, momentum=0.5),
    "natural_gradient, cg": fnopt.natural_gradient(outputs, distance, **CG),
    "stochastic_reconfiguration": fnopt.stochastic_reconfiguration(loss, momentum=0.5),
    "kfac": fnopt.kfac(outputs, distance, BATCH),
    "ekfac": fnopt.kfac(outputs, distance, BATCH, eigenbasis=True),
    "stochastic_reconfiguration, cg": fnopt.stochastic_reconfiguration(loss, **CG),
}


def valley(p):
    return jnp.sum((p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)


methods = ("bfgs", "cg", "lbfgs", "lbfgsb", "newton_cg", "projected_gradient")
MINIMISERS = {name: {"method": name} for name in methods}
MINIMISERS["bounded"] = {"bounds": (0.0, 0.5)}


key = jax.random.key(0)
CURVATURE = {
    "hvp": lambda w: curvature.hvp(loss)(w, w, BATCH),
    "ggn_vp": lambda w: curvature.ggn_vp(outputs, distance)(w, w, BATCH),
    "fisher_vp": lambda w: curvature.fisher_vp(loss)(w, w, BATCH),
    "hessian_diagonal": lambda w: curvature.hessian_diagonal(loss)(w, key, BATCH),
    "ggn_diagonal": lambda w: curvature.ggn_diagonal(outputs, distance)(w, BATCH),
    "top_eigenvalues": lambda w: curvature.top_eigenvalues(lambda v: v, w, key, k=2),
    "trace_estimate": lambda w: curvature.trace_estimate(lambda v: v, w, key),
    "gram": lambda w: curvature.batch_jacobian(outputs)(w, BATCH).gram(),
    "mv": lambda w: curvature.batch_jacobian(outputs)(w, BATCH).mv(w),
    "rmv": lambda w: curvature.batch_jacobian(outputs)(w, BATCH).rmv(jnp.ones((4, 3))),
}
EQUATIONS = {
    "root": lambda p: fnopt.root(lambda p: p**3 - 2, p),
    "fixed_point": lambda p: fnopt.fixed_point(jnp.cos, p),
}
OTHERS = {
    "weighted_grad": (lambda w: gradients.weighted_grad(loss)(w, BATCH, jnp.ones(4)), (W,)),
    "trimmed_mean": (
        lambda w: gradients.trimmed_mean(gradients.per_example_grads(loss)(w, BATCH), 0.25),
        (W,),
    ),
    "health": (
        lambda w: monitor.health(
            W, w, stats=("norm", "max", "mean", "rms", "ratio", "zeros", "histogram")
        ),
        (W,),
    ),
    "global_norm": (fnopt.global_norm, (W,)),
    "sparse_jacobian": (
        sparse_products,
        (jnp.ones(9),),
    ),
    "sparse_hessian": (hessian_products, (jnp.ones(9),)),
    "jacobian": (fnopt.jacobian(decay), (START,)),
    "jacobian_between": (
        lambda w: fnopt.jacobian_between(
            lambda x: fnopt.tap("b", jnp.sin(fnopt.tap("a", x) * w)), "a", "b"
        )(w),
        (jnp.ones(3),),
    ),
    "tree.vdot": (lambda w: (tree.vdot(w, w), tree.norm(w)), (W,)),
    "a perturbed maximum": (jax.grad(perturbed_maximum), (jnp.ones(3),)),
    "a Fenchel-Young loss": (
        jax.grad(lambda x: losses.make_fenchel_young_loss(jax.nn.logsumexp)(x, x)),
        (jnp.ones(3),),
    ),
    "optax's per-example clipping": (
        lambda w: optax_api.per_example_global_norm_clip(jnp.ones((4, 3)) * w, 1.0),
        (jnp.ones(3),),
    ),
    "optax's Hessian diagonal": (
        lambda w: optax_api.second_order.hessian_diag(lambda p, x, y: jnp.sum(p**3), w, None, None),
        (jnp.ones(3),),
    ),
}


def lowered(fn, *args):
    """The program of a function, which GPUs and TPUs have the operations for."""
    program = jax.jit(fn).trace(*args)
    program.lower(lowering_platforms=("cuda", "tpu"))
    return program.jaxpr.jaxpr


def check(fn, args):
    found = unstated(lowered(fn, *args))
    assert not found, f"{len(found)} products without a precision, such as {found[0]}"


@pytest.mark.parametrize("name", FITS)
def test_fits(name):
    check(*FITS[name])


@pytest.mark.parametrize("name", CURVES)
def test_curves(name):
    check(*CURVES[name])


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    check(lambda w: GRADIENTS[name](w, BATCH), (W,))


@pytest.mark.parametrize("name", MATRIX_METHODS)
def test_matrix_methods(name):
    tx = MATRIX_METHODS[name]
    check(lambda w: tx.update(w, tx.init(w), w), (MATRICES,))


@pytest.mark.parametrize("name", BATCH_METHODS)
def test_methods_of_a_batch(name):
    tx, extra = BATCH_METHODS[name], {"residual_fn": outputs, "local_energies": jnp.arange(4.0)}
    check(lambda w: tx.update(None, tx.init(w), w, batch=BATCH, **extra), (W,))


# JAX 0.10 can't lower a callback with an order for two platforms at once.
@pytest.mark.parametrize("case", [c for c in CASES if c.name != "emit_health"], ids=repr)
def test_steps(case):
    tx, params = case.make(), make_tree(0)
    extras = case.extras
    check(lambda g, p: tx.update(g, tx.init(p), p, **extras), (make_tree(1), params))


@pytest.mark.parametrize("method", MINIMISERS)
def test_minimisers(method):
    check(lambda p: fnopt.minimize(valley, p, **MINIMISERS[method]), (jnp.zeros(3),))


@pytest.mark.parametrize("name", CURVATURE)
def test_curvature(name):
    check(CURVATURE[name], (W,))


@pytest.mark.parametrize("name", EQUATIONS)
def test_equations(name):
    check(EQUATIONS[name], (jnp.ones(3),))


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    check(*OTHERS[name])


def test_the_walk_sees_a_product_of_the_user_inside_a_fit():
    A = jnp.ones((12, 2))
    program, _ = fit(lambda p: A @ p - y)
    assert unstated(jax.make_jaxpr(program)(jnp.ones(2)).jaxpr)
