from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.gradients import ExampleInfo, clipped_grad


def clipped_by_hand(grads, clip_norm, size=7):
    """In float64 NumPy: the sum of the clipped gradients, and the norms."""
    leaves = [np.asarray(g, np.float64) for g in jax.tree.leaves(grads)]
    norms = np.sqrt(sum((g.reshape(size, -1) ** 2).sum(1) for g in leaves))
    factors = np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))
    sums = [np.tensordot(factors, g, 1) for g in leaves]
    return jax.tree.unflatten(jax.tree.structure(grads), sums), norms


def like(expected, actual):
    return jax.tree.map(lambda e, a: jnp.asarray(e, a.dtype), expected, actual)


def test_equals_a_loop_on_every_model(problem, naive, assert_close):
    losses, grads = naive(problem)
    clip_norm = float(np.median(clipped_by_hand(grads, 1.0)[1]))  # clips half of the examples
    expected, norms = clipped_by_hand(grads, clip_norm)
    for options in ({"chunk_size": 3, "method": "chunked"}, {"method": "ghost"}):
        actual, info = jax.jit(clipped_grad(problem.loss, clip_norm, **options))(*problem[1:])
        assert_close(actual, like(expected, actual))
        assert_close(info, ExampleInfo(losses, jnp.asarray(norms, jnp.float32)))


@pytest.mark.parametrize(
    "options",
    [
        {"chunk_size": 1, "method": "chunked"},
        {"chunk_size": 3, "method": "ghost"},
        {"method": "vmap"},
        {"chunk_size": 7, "method": "chunked"},
        {"chunk_size": 100},
        {"method": "chunked"},
        {},
    ],
    ids=str,
)
def test_mean_by_every_method(dense, naive, assert_close, options):
    expected, _ = clipped_by_hand(naive(dense)[1], 0.7)
    run = clipped_grad(dense.loss, 0.7, reduction="mean", **options)
    actual, _ = jax.jit(run)(*dense[1:])
    assert_close(actual, like(jax.tree.map(lambda g: g / 7, expected), actual))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dense, naive, in_dtype, assert_close, x64, dtype):
    cast = dense._replace(params=in_dtype(dense.params, dtype), batch=in_dtype(dense.batch, dtype))
    expected, norms = clipped_by_hand(naive(cast)[1], 0.7)
    actual, info = jax.jit(clipped_grad(cast.loss, 0.7, chunk_size=3))(*cast[1:])
    assert {leaf.dtype for leaf in jax.tree.leaves(actual)} == {jnp.dtype(dtype)}
    assert_close(actual, like(expected, actual))
    assert info.norm.dtype == (jnp.float64 if dtype == "float64" else jnp.float32)
    np.testing.assert_allclose(info.norm, norms, rtol=1e-12 if dtype == "float64" else 2e-2)


def test_norms_of_float16_do_not_overflow():
    # 300 squared is beyond float16; 4 examples of norm 600 each.
    x = jnp.full((4, 4), 300.0, jnp.float16)
    grad, info = clipped_grad(lambda w, x: jnp.sum(w * x), 2.0)(jnp.zeros(4, jnp.float16), x)
    np.testing.assert_array_equal(info.norm, [600.0] * 4)
    np.testing.assert_array_equal(grad, [4.0] * 4)


def test_zero_gradients_give_no_nan():
    def total(clip_norm, scale):
        grad, info = clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm)(jnp.ones(2), scale * x)
        return jnp.sum(grad), (grad, info)

    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    slopes, (grad, info) = jax.grad(total, argnums=(0, 1), has_aux=True)(
        jnp.float32(1.0), jnp.float32(1.0)
    )
    np.testing.assert_allclose(grad, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(info.norm, [0.0, 5.0])
    np.testing.assert_allclose(slopes[0], 1.4, rtol=1e-6)  # d sum / d C; a scaled x stays clipped
    np.testing.assert_allclose(slopes[1], 0.0, atol=1e-6)


def test_clip_norm_may_be_traced_and_infinite(dense, naive, assert_close):
    @jax.jit
    def run(clip_norm):
        return clipped_grad(dense.loss, clip_norm, chunk_size=3)(*dense[1:])[0]

    total = jax.tree.map(lambda g: jnp.sum(g, 0), naive(dense)[1])
    assert_close(run(jnp.inf), total)
    expected, _ = clipped_by_hand(naive(dense)[1], 0.5)
    assert_close(run(0.5), like(expected, total))


def test_no_example_moves_the_sum_by_more_than_the_clip_norm(dense):
    grad = clipped_grad(dense.loss, 0.1, chunk_size=2)
    total, _ = grad(*dense[1:])
    without, _ = grad(dense.params, jax.tree.map(lambda x: x[1:], dense.batch))
    moved = jax.tree.map(lambda a, b: np.sum((np.asarray(a) - np.asarray(b)) ** 2), total, without)
    assert np.sqrt(sum(jax.tree.leaves(moved))) <= 0.1 * (1 + 1e-5)


def test_the_info_says_which_example_is_not_finite():
    x = jnp.array([1.0, jnp.nan, jnp.inf])
    grad, info = clipped_grad(lambda w, x: w * x, 1.0)(jnp.float32(1.0), x)
    assert not jnp.isfinite(grad)
    np.testing.assert_array_equal(jnp.isfinite(info.norm), [True, False, False])


def test_aux_argnums_and_key(assert_close):
    def loss(a, b, x, *, key):
        noise = jax.random.normal(key)
        return a * x + b * noise, noise

    args = jnp.float32(1.0), jnp.float32(2.0), jnp.array([3.0, 4.0, 5.0])
    options = {"argnums": (0, 1), "has_aux": True}
    (grad_a, grad_b), info = clipped_grad(loss, 1.0, **options)(*args, key=jax.random.key(0))
    norms = jnp.sqrt(args[2] ** 2 + info.aux**2)
    np.testing.assert_allclose(info.norm, norms, rtol=1e-6)
    np.testing.assert_allclose(grad_a, jnp.sum(args[2] / norms), rtol=1e-6)
    np.testing.assert_allclose(grad_b, jnp.sum(info.aux / norms), atol=1e-6)
    chunked = clipped_grad(loss, 1.0, **options, chunk_size=2)(*args, key=jax.random.key(0))
    assert_close(chunked, ((grad_a, grad_b), info))


def test_vmap_over_params(dense, assert_close):
    grad = clipped_grad(dense.loss, 0.7, chunk_size=3)
    stacked = jax.tree.map(lambda p: jnp.stack([2.0 * p, p]), dense.params)
    swept = jax.jit(jax.vmap(grad, (0, None)))(stacked, dense.batch)
    assert_close(jax.tree.map(lambda g: g[1], swept), grad(*dense[1:]))


def test_matches_the_aggregator_of_optax(dense, naive, assert_close):
    optax = pytest.importorskip("optax")
    _, grads = naive(dense)
    leaves, treedef = jax.tree.flatten(grads)
    peer, _ = optax.per_example_global_norm_clip(leaves, 0.7)
    ours, _ = clipped_grad(dense.loss, 0.7, chunk_size=2)(*dense[1:])
    assert_close(ours, jax.tree.unflatten(treedef, peer))


METHODS = ("vmap", "ghost")


@pytest.mark.parametrize("method", METHODS)
def test_automatic_clipping(dense, naive, assert_close, method):
    _, grads = naive(dense)
    _, norms = clipped_by_hand(grads, 1.0)
    expected = jax.tree.map(lambda g: np.tensordot(0.7 / (norms + 0.01), g, 1), grads)
    actual, _ = clipped_grad(dense.loss, 0.7, rule="automatic", method=method)(*dense[1:])
    assert_close(actual, like(expected, actual))


@pytest.mark.parametrize("method", METHODS)
def test_part_by_part(dense, naive, assert_close, method):
    _, grads = naive(dense)
    limits = {"hidden": 0.2, "out": 0.5}
    parts = {k: clipped_by_hand(grads[k], limits[k]) for k in limits}
    run = clipped_grad(
        dense.loss, limits, method=method, chunk_size=3 if method == "ghost" else None
    )
    actual, info = jax.jit(run)(*dense[1:])
    assert_close(actual, like({k: sums for k, (sums, _) in parts.items()}, actual))
    assert_close(info.parts, {k: jnp.asarray(n, jnp.float32) for k, (_, n) in parts.items()})
    assert_close(info.norm, jnp.sqrt(sum(n**2 for n in info.parts.values())))


def test_parts_that_enter_the_model_together(assert_close):
    # One matrix for the model, two for clipping: their gradients are formed, to be told apart.
    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ jnp.concatenate([params["a"], params["b"]], axis=1)) ** 2)

    w = jax.random.normal(jax.random.key(0), (4, 10))
    params, x = {"a": w[:, :3], "b": w[:, 3:]}, jax.random.normal(jax.random.key(1), (7, 4))
    grads = jax.vmap(jax.grad(loss), (None, 0))(params, x)
    expected = {k: clipped_by_hand(grads[k], c)[0] for k, c in {"a": 0.3, "b": 0.9}.items()}
    actual, _ = clipped_grad(loss, {"a": 0.3, "b": 0.9}, method="ghost")(params, x)
    assert_close(actual, like(expected, actual))
    whole, _ = clipped_grad(loss, 0.5, method="ghost")(params, x)
    assert_close(whole, like(clipped_by_hand(grads, 0.5)[0], whole))


@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_finite_can_be_skipped(dense, assert_close, method):
    x = dense.batch["x"].at[2].set(jnp.nan).at[5, 0].set(jnp.inf)
    broken = dense.batch | {"x": x}
    run = clipped_grad(dense.loss, 0.7, method=method, skip_nonfinite=True)
    actual, info = jax.jit(run)(dense.params, broken)
    good = np.array([0, 1, 3, 4, 6])
    assert np.flatnonzero(~np.isfinite(info.norm + info.loss)).tolist() == [2, 5]
    kept = jax.tree.map(lambda a: a[good], dense.batch)
    assert_close(actual, clipped_grad(dense.loss, 0.7, method="vmap")(dense.params, kept)[0])
    poisoned, _ = clipped_grad(dense.loss, 0.7, method=method)(dense.params, broken)
    assert not all(jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(poisoned))


@pytest.mark.parametrize("method", METHODS)
def test_padding_is_left_out_whatever_it_is(dense, assert_close, method):
    where = jnp.array([True, True, False, True, False, True, True])
    padded = dense.batch | {"x": jnp.where(where[:, None], dense.batch["x"], jnp.nan)}
    run = clipped_grad(dense.loss, 0.7, method=method)
    actual, _ = jax.jit(run)(dense.params, padded, where=where)
    expected, _ = clipped_grad(dense.loss, 0.7, method="vmap")(
        dense.params, jax.tree.map(lambda a: a[np.asarray(where)], dense.batch)
    )
    assert_close(actual, expected)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers have other temporaries")
class TestMemory:
    """No gradient of the whole batch in a chunked program."""

    BATCH, WIDTH, CHUNK = 64, 96, 4

    def program(self, **options):
        def loss(params, x):
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.sum(x)

        params = [jnp.ones((self.WIDTH, self.WIDTH))] * 2
        grad = clipped_grad(loss, 1.0, **options)
        return jax.jit(grad).lower(params, jnp.ones((self.BATCH, self.WIDTH))).compile()

    def largest(self, program):
        shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", program.as_text())
        return max(np.prod([int(n) for n in shape.split(",")]) for shape in shapes)

    @pytest.mark.parametrize("chunk_size", [4, 5])
    def test_chunked(self, chunk_size):
        leaf = self.WIDTH**2
        program = self.program(chunk_size=chunk_size)
        assert self.largest(program) <= chunk_size * leaf
        batch_times_params = 4 * self.BATCH * 2 * leaf
        assert program.memory_analysis().temp_size_in_bytes < batch_times_params / 4

    def test_what_it_is_measured_against(self):
        program = self.program(method="vmap")
        assert self.largest(program) == self.BATCH * self.WIDTH**2

    def test_the_budget_bounds_what_is_large(self, monkeypatch):
        monkeypatch.setattr("fnopt.gradients._strategy._CPU_CHUNK_BYTES", 6 * 8 * self.WIDTH**2)
        # 6 would fit, 4 divides the batch.
        assert self.largest(self.program(method="chunked")) == 4 * self.WIDTH**2

    def test_auto_forms_no_gradient_of_an_example(self):
        assert self.largest(self.program()) == self.WIDTH**2


def test_virtual_steps_have_the_sum_of_the_large_batch():
    x = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    grad, w = clipped_grad(lambda w, x: (w @ x) ** 2, 0.7), jnp.ones(3)
    tx = fnopt.accumulate(fnopt.sgd(1.0), 3, use_grad_mean=False)
    state = tx.init(w)
    for i in (0, 2, 4):
        updates, state = tx.update(grad(w, x[i : i + 2])[0], state, w)
    np.testing.assert_allclose(updates, -grad(w, x)[0], rtol=1e-5)
