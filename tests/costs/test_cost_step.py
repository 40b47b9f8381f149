import functools

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.costs import Hardware, cost, grad_cost, step_cost
from tests.costs import cost_models as models
from tests.costs.cost_models import f32


def chain(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x)


WS, X = [f32(32, 32)] * 4, f32(8, 32)
PRODUCT = 2 * 8 * 32 * 32


def test_forward_and_backward_of_a_chain():
    g = grad_cost(chain)(WS, X)
    assert g.forward.matmul_flops == 4 * PRODUCT
    assert g.backward.matmul_flops == 7 * PRODUCT  # the input needs no gradient
    assert g.backward_to_forward == pytest.approx(7 / 4, rel=0.05)
    assert grad_cost(chain, argnums=(0, 1))(WS, X).backward.matmul_flops == 8 * PRODUCT


@pytest.mark.parametrize("scan", [False, True])
def test_backward_costs_twice_the_forward_of_a_transformer(scan):
    loss = functools.partial(models.transformer_loss, scan=scan)
    params, tokens = models.transformer_shapes()
    g = grad_cost(loss)(params, tokens)
    hand = models.transformer_counts().matmul
    assert g.forward.matmul_flops == hand
    assert g.backward.matmul_flops == 2 * hand
    assert g.backward_to_forward == pytest.approx(2, rel=0.02)
    # The two phases together are the gradient as a whole.
    assert cost(jax.value_and_grad(loss))(params, tokens).matmul_flops == g.total.matmul_flops


def test_residuals_of_a_lstm_in_a_scan():
    (w, u, b), x = models.lstm_shapes()
    t, n, h = x.shape[0], x.shape[1], u.shape[0]
    g = grad_cost(lambda p, x: jnp.sum(models.lstm(p, x)))((w, u, b), x)
    assert g.forward.matmul_flops == models.lstm_counts().matmul
    # d/dw: products with x, h; d/dh: with u; x needs none.
    assert g.backward.matmul_flops == t * (2 * n * 32 * 4 * h + 2 * 2 * n * h * 4 * h)
    # At least the states and the activations of every step are kept.
    assert g.residual_bytes > t * n * 4 * 6 * h


def test_what_is_kept_for_the_backward_pass():
    def loss(w, x):
        return jnp.sum(jnp.square(x @ w))

    # d loss = 2 (x w) is kept; x and w are arguments, which are there anyway.
    assert grad_cost(loss)(f32(32, 16), X).residual_bytes == 4 * 8 * 16


def test_rematerialisation_keeps_less_and_computes_more():
    plain = grad_cost(chain)(WS, X)

    def checkpointed(ws, x):
        for w in ws:
            x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w)
        return jnp.mean(x)

    remat = grad_cost(checkpointed)(WS, X)
    assert remat.residual_bytes < plain.residual_bytes
    assert remat.forward.matmul_flops == plain.forward.matmul_flops
    assert remat.backward.matmul_flops == (7 + 4) * PRODUCT


def test_aux_keywords_and_keys():
    def loss(w, x, key, *, scale):
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        y = jnp.where(keep, x, 0.0) @ w
        return scale * jnp.sum(y), {"y": y}

    g = grad_cost(loss, has_aux=True)(f32(32, 4), X, jax.random.key(0), scale=2.0)
    assert g.forward.matmul_flops == g.backward.matmul_flops == 2 * 8 * 32 * 4


def test_the_update_reads_and_writes_params_and_moments():
    s = step_cost(chain, fnopt.adam(1e-3))(WS, X)
    assert s.params_bytes == 4 * 32 * 32 * 4
    # Reads gradients, params and two moments; writes params and two moments.
    assert s.update.bytes == pytest.approx(7 * s.params_bytes, rel=0.01)
    assert s.update.matmul_flops == 0
    assert s.total.matmul_flops == 11 * PRODUCT
    assert set(s.phases) == {"forward", "backward", "update"}
    assert s.exact


def test_an_update_with_products_of_its_own():
    class preconditioned(fnopt.Transformation):
        def update(self, updates, state, params=None, **extra_args):
            return jax.tree.map(lambda g: g @ g.T @ g, updates), state

    s = step_cost(chain, preconditioned())(WS, X)
    assert s.update.matmul_flops == 4 * 2 * 2 * 32**3


def test_optax_optimizers_and_extra_arguments():
    optax = pytest.importorskip("optax")
    ours = step_cost(chain, fnopt.sgd(0.1))(WS, X)
    theirs = step_cost(chain, optax.sgd(0.1))(WS, X)
    assert theirs.update.bytes == ours.update.bytes

    class scaled(fnopt.Transformation):
        def update(self, updates, state, params=None, *, factor, **extra_args):
            return jax.tree.map(lambda g: factor * g, updates), state

    s = step_cost(chain, scaled(), update_args={"factor": jnp.float32(-0.1)})(WS, X)
    assert s.update.flops == 2 * 4 * 32 * 32


def test_the_compilers_memory_of_a_step():
    s = step_cost(chain, fnopt.adam(1e-3), compile=True)(WS, X)
    held = s.params_bytes + s.state_bytes
    # Params and state are donated: they are held once, not twice.
    assert held < s.compiled.peak_bytes < 2 * held
    assert s.compiled.flops == pytest.approx(s.total.flops, rel=0.05)
    g = grad_cost(chain, compile=True)(WS, X)
    pointers = 8 * 5  # to each of the results
    assert g.compiled.output_bytes == pytest.approx(s.params_bytes + 4, abs=pointers)


def test_scopes_of_both_passes_are_in_the_table():
    s = step_cost(models.transformer_loss, fnopt.adam(1e-3))(*models.transformer_shapes())
    text = str(s)
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert rows.count("attention") == rows.count("mlp") == rows.count("logits") == 2
    assert "backward / forward: 1.98 x the FLOPs" in text
    assert "saved for the backward pass" in text
    assert "optimizer state: " in text
    assert "  attention" not in s.table(depth=0)


def test_roofline_of_a_step_is_one_phase_after_the_other():
    s = step_cost(chain, fnopt.adam(1e-3))(WS, X)
    machine = Hardware(1e9, 1e9)
    assert s.seconds(machine) == sum(c.seconds(machine) for c in s.phases.values())
    assert "time at least" in s.table(hardware=machine)


def test_loops_of_loss_and_optimizer_get_their_trip_counts():
    class halving(fnopt.Transformation):
        def update(self, updates, state, params=None, **extra_args):
            def halve(g):
                return jax.lax.while_loop(lambda g: jnp.sum(g) > 1, lambda g: g @ g.T @ g, g)

            return jax.tree.map(halve, updates), state

    s = step_cost(chain, halving(), trip_counts=3)(WS[:1], X)
    assert s.update.matmul_flops == 3 * 2 * 2 * 32**3
    assert s.exact
    assert not step_cost(chain, halving())(WS[:1], X).exact
    with pytest.raises(ValueError, match=r"has the unknown key 'nope', .* loops: \['while'\]"):
        step_cost(chain, halving(), trip_counts={"nope": 1})(WS[:1], X)


def test_what_is_wrong_is_said():
    with pytest.raises(
        TypeError, match=r"the loss returns a value of shape \(8, 32\), expected a s"
    ):
        grad_cost(lambda w, x: x @ w)(f32(32, 32), X)
    with pytest.raises(
        TypeError, match=r"the loss returns a tuple, expected a scalar.*has_aux=True"
    ):
        grad_cost(lambda w, x: (jnp.sum(x @ w), x))(f32(32, 32), X)
    with pytest.raises(TypeError, match=r"step_cost: tx is 0.1, expected an optimizer"):
        step_cost(chain, 0.1)
    with pytest.raises(TypeError, match=r"step_cost: leaf 'w' of argument 0 is str"):
        step_cost(chain, fnopt.sgd(0.1))({"w": "text"}, X)
    with pytest.raises(TypeError, match=r"grad_cost: the loss is float, expected a function"):
        grad_cost(1.0)
