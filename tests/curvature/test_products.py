"""Products, diagonals, traces and eigenvalues against dense matrices in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.curvature import (
    fisher_vp,
    ggn_diagonal,
    ggn_vp,
    hessian_diagonal,
    hvp,
    top_eigenvalues,
    trace_estimate,
)
from fnopt.jacobians import ravel

SIZE = 4


def model(params, example):
    return jnp.tanh(example[0] @ params["w"]) @ params["o"] + params["b"]


def loss_of(outputs, example):
    return jax.nn.logsumexp(outputs) - outputs[example[1]]


def loss(params, example):
    return loss_of(model(params, example), example)


def problem():
    rng = np.random.default_rng(0)
    params = {
        "w": rng.standard_normal((3, 4)),
        "o": rng.standard_normal((4, 3)),
        "b": rng.standard_normal(3),
    }
    return params, (rng.standard_normal((SIZE, 3)), np.arange(SIZE) % 3)


def close(found, wanted, tolerance=1e-12):
    scale = float(jnp.max(jnp.abs(wanted)))
    np.testing.assert_allclose(ravel(found)[0], wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.usefixtures("x64")
def test_products_and_the_diagonal_equal_dense_matrices():
    def run(params, batch):
        x, unravel = ravel(params)
        v = jnp.sin(jnp.linspace(1.0, 7.0, x.size))
        tree = unravel(v)

        def by_vector(x):
            params = unravel(x)
            outputs = jax.vmap(model, (None, 0))(params, batch)
            return jax.vmap(loss_of)(outputs, batch), outputs

        g, J = jax.jacobian(by_vector)(x)
        H = jax.hessian(lambda x: jnp.mean(by_vector(x)[0]))(x)
        inner = jax.vmap(jax.hessian(loss_of))(by_vector(x)[1], batch)
        G = jnp.einsum("icp,icd,idq->pq", J, inner, J) / SIZE
        found = [
            hvp(loss, chunk_size=2)(params, tree, batch),
            ggn_vp(model, loss_of, chunk_size=2)(params, tree, batch),
            fisher_vp(loss, chunk_size=2, reduction="sum")(params, tree, batch),
            ggn_diagonal(model, loss_of, chunk_size=2)(params, batch),
        ]
        return found, (H @ v, G @ v, g.T @ (g @ v), jnp.diag(G))

    found, wanted = jax.jit(run)(*problem())
    for ours, dense in zip(found, wanted, strict=True):
        close(ours, dense)


@pytest.mark.usefixtures("x64")
def test_estimates_and_eigenvalues_of_a_known_matrix():
    H = np.random.default_rng(0).standard_normal((12, 12))
    H = H + H.T
    like = {"a": np.zeros((2, 3)), "b": np.zeros(6)}

    def run(H, like):
        _, unravel = ravel(like)
        product = lambda v: unravel(H @ ravel(v)[0])  # noqa: E731
        quadratic = lambda p: ravel(p)[0] @ H @ ravel(p)[0] / 2  # noqa: E731
        key = jax.random.key(0)
        return (
            hessian_diagonal(quadratic, samples=400)(like, key),
            trace_estimate(product, like, key, samples=400),
            [top_eigenvalues(product, like, key, k=3, which=w) for w in ("largest", "magnitude")],
            top_eigenvalues(product, like, key, k=3, which="smallest", iterations=11),
        )

    diagonal, trace, ends, low = jax.jit(run)(H, like)
    # The variance that is claimed is the exact one: the squares beside the diagonal, by probes.
    off = H - np.diag(np.diag(H))
    expected = (off**2).sum(1) / 400
    value, variance = ravel(diagonal.value)[0], ravel(diagonal.variance)[0]
    assert np.all(np.abs(value - np.diag(H)) < 5 * np.sqrt(expected))
    assert np.all((variance > expected / 2) & (variance < 2 * expected))
    exact = 2 * (off**2).sum() / 400
    assert abs(trace.value - np.trace(H)) < 5 * exact**0.5
    assert exact / 2 < trace.variance < 2 * exact
    values, vectors = np.linalg.eigh(H)
    by_size = values[np.argsort(-np.abs(values))]
    for pairs, wanted in zip(ends, (values[::-1][:3], by_size[:3]), strict=True):
        np.testing.assert_allclose(pairs.values, wanted, rtol=0, atol=1e-12)
        assert float(jnp.max(pairs.errors)) < 1e-12
    # With fewer products than params: within the error that is claimed, which isn't zero.
    assert np.all(np.abs(low.values - values[:3]) <= np.array(low.errors) + 1e-12)
    first = np.concatenate([low.vectors["a"][0].reshape(-1), low.vectors["b"][0]])
    assert abs(first @ vectors[:, 0]) > 0.99


def test_an_invariant_space_is_left_for_another_direction():
    # The first vector spans with its products only two dimensions of six.
    d = jnp.asarray([4.0, 4.0, 4.0, 0.0, 0.0, 0.0])
    found = top_eigenvalues(lambda v: d * v, d, jax.random.key(1), k=6, iterations=6)
    np.testing.assert_allclose(found.values, d, atol=1e-5)
    identity = top_eigenvalues(lambda v: v, jnp.zeros(3, jnp.bfloat16), jax.random.key(1), k=3)
    np.testing.assert_allclose(identity.values, 1.0, atol=1e-2)


def test_eigenvalues_of_matrices_of_any_size():
    # The squares of what is left of a vector are out of float32's range.
    d = jnp.concatenate([jnp.linspace(-1.0, 1.0, 97), jnp.asarray([5.0, 4.0, 3.0])])

    @jax.jit
    def ends(size):
        return top_eigenvalues(lambda v: size * d * v, d, jax.random.key(1), k=3, iterations=25)

    for size in (1e-30, 1e30):
        found = ends(size)
        np.testing.assert_allclose(found.values / size, [5.0, 4.0, 3.0], rtol=1e-5)
        assert np.all((found.errors > 0) & (found.errors < 1e-4 * size))


def test_sixteen_bits_keep_their_dtype():
    params, batch = jax.eval_shape(problem)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), (params, batch[0]))
    half, (x, labels) = shapes[0], (shapes[1], jax.ShapeDtypeStruct((SIZE,), jnp.int32))
    for product in (hvp(loss, chunk_size=2), ggn_vp(model, loss_of), fisher_vp(loss)):
        found = jax.eval_shape(product, half, half, (x, labels))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(
            lambda x: (x.shape, x.dtype), half
        )


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="v have shape"):
        hvp(lambda x: jnp.sum(x))(jnp.ones(2), jnp.ones(3))
    with pytest.raises(ValueError, match="k is 4"):
        top_eigenvalues(lambda v: v, jnp.ones(3), jax.random.key(0), k=4)
    with pytest.raises(ValueError, match="reduction"):
        ggn_vp(model, loss_of, reduction="none")
    with pytest.raises(TypeError, match="PRNG key"):
        trace_estimate(lambda v: v, jnp.ones(3), 0)
    with pytest.raises(TypeError, match="complex64"):
        top_eigenvalues(lambda v: v, jnp.ones(3, jnp.complex64), jax.random.key(0))
    with pytest.raises(TypeError, match="int32"):
        trace_estimate(lambda v: v, jnp.ones(3, jnp.int32), jax.random.key(0))
    for estimate in (top_eigenvalues, trace_estimate):
        with pytest.raises(ValueError, match=r"products have shape \(2,\)"):
            estimate(lambda v: v[:2], jnp.ones(3), jax.random.key(0))


def batch_norm(params, example):
    return example[0] @ params["w"] - jax.lax.pmean(example[0] @ params["w"], "batch")


def products(model_fn, loss_fn):
    """Every product by example, as `fn(params, batch)`."""

    def loss(params, example):
        return loss_fn(model_fn(params, example), example)

    return {
        "hvp": lambda p, b: hvp(loss)(p, p, b),
        "fisher_vp": lambda p, b: fisher_vp(loss)(p, p, b),
        "ggn_vp": lambda p, b: ggn_vp(model_fn, loss_fn)(p, p, b),
        "ggn_diagonal": ggn_diagonal(model_fn, loss_fn),
    }


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("model_fn", "loss_fn", "kind", "text"),
    [
        (
            model,
            lambda f, e: f,
            TypeError,
            r"of ONE example returned float64\[3\], expected a scalar",
        ),
        (
            model,
            lambda f, e: jnp.argmax(f),
            TypeError,
            "the loss returned int64.., expected a real",
        ),
        (
            model,
            lambda f, e: (loss_of(f, e), f),
            TypeError,
            r"returned tuple, expected one .*If it returns \(value, aux\), pass",
        ),
        (
            batch_norm,
            loss_of,
            ValueError,
            "expected a function of ONE example",
        ),
    ],
)
def test_a_loss_is_a_real_scalar_of_one_example(model_fn, loss_fn, kind, text):
    params, batch = problem()
    for name, product in products(model_fn, loss_fn).items():
        with pytest.raises(kind, match=f"{name}: .*{text}"):
            jax.eval_shape(product, params, batch)


@pytest.mark.usefixtures("x64")
def test_an_error_of_a_function_of_a_whole_batch_says_with_what_it_was_called():
    params, batch = problem()
    for name, product in products(lambda p, b: jnp.mean(model(p, b), axis=1), loss_of).items():
        with pytest.raises(IndexError) as caught:
            jax.eval_shape(product, params, batch)
        assert any(f"{name} calls the function with ONE" in n for n in caught.value.__notes__)
        assert any("leaf '0': float64[3]" in n for n in caught.value.__notes__)


@pytest.mark.usefixtures("x64")
def test_complex_params_are_pairs_of_real_ones():
    with pytest.raises(TypeError, match=r"hvp: .*complex128.*real part and the imaginary part"):
        hvp(lambda z: jnp.sum(jnp.abs(z) ** 2))(jnp.ones(2, complex), jnp.ones(2, complex))


def test_errors_about_vectors_have_no_advice_about_gradients():
    key = jax.random.key(0)
    for call in (
        lambda: top_eigenvalues(lambda v: v[:2], jnp.ones(3), key),
        lambda: hvp(lambda x: jnp.sum(x**2))(jnp.ones(3), jnp.ones(2)),
        lambda: hvp(lambda x: jnp.sum(x**2))(jnp.ones(3), {"a": jnp.ones(3)}),
    ):
        with pytest.raises(ValueError, match="expected equal") as caught:
            call()
        assert "gradient" not in str(caught.value)
