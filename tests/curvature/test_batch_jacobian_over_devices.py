"""The Jacobian of a batch that is divided between devices, against that of one."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt.curvature import batch_jacobian
from tests.distributed import messages

RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.standard_normal((3, 20)), "b": np.zeros(20), "v": RNG.standard_normal((20, 2))}
BATCHES = (RNG.standard_normal((6, 3)), RNG.standard_normal((4, 3)))


def net(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def edge(params, x):
    return {"value": net(params, x)[0] - 1, "rest": net(params, x)}


def products(params, batches, **axis):
    several = batch_jacobian((net, edge), method="ghost", **axis)(params, batches)
    assert several.sizes == ((6, 2), (4, 3))
    assert several.shape == (24, 120)
    chunks = batch_jacobian(net, method="formed", chunk_size=2, **axis)(params, batches[0])
    J = several
    back = J.rmv(J.vector), J.rmv(J.residuals)
    there = J.vector_at(params), J.flatten(J.parts(J.mv(params)))
    among_params = J.normal((1.0, 0.5)), chunks.normal()
    return J.gram(), back, there, chunks.gram(), among_params


def cross_entropy(logits, x):
    return jax.nn.logsumexp(logits) - jnp.where(x[0] > 0, logits[0], logits[1])


def log_psi(params, x):
    return jax.lax.complex(*net(params, x))


def optimizers(axis_name):
    options = {"momentum": 0.5, "axis_name": axis_name}
    yield fnopt.gauss_newton_descent(damping=0.1, halvings=0, **options)
    yield fnopt.natural_gradient(net, cross_entropy, **options)
    # Conjugate gradients and the products of their preconditioner, over the named axis.
    yield fnopt.natural_gradient(net, cross_entropy, solver="cg", rank=4, halvings=0, **options)
    yield fnopt.stochastic_reconfiguration(log_psi, **options)


def steps(params, batch, axis_name=None):
    return [_steps(tx, params, batch) for tx in optimizers(axis_name)]


def _steps(tx, params, batch):
    extra = {
        "residual_fn": net,
        "local_energies": jax.lax.complex(batch[:, 0], batch[:, 1]),
        "weights": batch[:, 2] ** 2,
    }

    def body(carry, _):
        params, state = carry
        updates, state = tx.update(None, state, params, batch=batch, **extra)
        return (fnopt.apply_updates(params, updates), state), (state.count, updates)

    return jax.lax.scan(body, (params, tx.init(params)), length=3)


def everything(params, batches, **axis):
    return products(params, batches, **axis), steps(params, batches[0], **axis)


def over_devices(fn, check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": (P(), P("data")), "out_specs": P()}
    return jax.jit(jax.shard_map(fn, mesh=mesh, check_vma=check_vma, **specs))


def shared(check_vma):
    return over_devices(functools.partial(everything, axis_name="data"), check_vma)


@pytest.mark.usefixtures("x64")
def test_equals_one_device():
    params = jax.tree.map(jnp.asarray, PARAMS)
    found = shared(False)(params, BATCHES)
    expected = jax.jit(everything)(params, BATCHES)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)


def test_where_types_say_what_differs():
    args = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (PARAMS, BATCHES))
    jax.eval_shape(over_devices(functools.partial(products, axis_name="data"), True), *args)
    jax.eval_shape(
        over_devices(functools.partial(steps, axis_name="data"), True), args[0], args[1][0]
    )


def test_rows_are_not_gathered():
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), PARAMS)
    batch = BATCHES[0].astype("f")

    def gram(params, batch):
        return batch_jacobian(net, method="ghost", axis_name="data")(params, batch).gram()

    found = messages.results(over_devices(gram, False).lower(params, batch).compile().as_text())
    gathered = [size for kind, _, size in found if kind == "all-gather"]
    assert gathered == [4 * 12 * 12]  # the Gram matrix
    sent = sum(size for kind, _, size in found if kind == "collective-permute")
    assert 0 < sent < 4 * 6 * 120  # less than half of the rows of J
