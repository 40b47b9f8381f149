from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.programs import jaxprs


@jax.custom_vjp
def doubled(x):
    return 2.0 * x


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (7.0 * g,))


def everything(x):
    """Calls, loops, branches and rules, under scopes."""
    with jax.named_scope("outer"):
        x = jnp.sin(x)
        with jax.named_scope("inner"):
            x = jax.jit(lambda v: jnp.cos(v) * 2.0)(x)
        x, _ = jax.lax.scan(lambda c, u: (jnp.tanh(c) + u, None), x, jnp.ones(3))
        x = jax.nn.relu(jax.checkpoint(jnp.exp)(x))
    x = jax.lax.cond(x > 0.0, lambda v: v * 2.0, lambda v: v, x)
    x = jax.lax.while_loop(lambda v: v < 0.0, lambda v: v + 1.0, x)
    return doubled(x)


def replay(x):
    closed = jax.make_jaxpr(everything)(x)
    env = jaxprs.Environment(closed.jaxpr, closed.consts, [x])
    for eqn in closed.jaxpr.eqns:
        env.write(eqn.outvars, jaxprs.bind(eqn, env.read(eqn.invars)))
    return env.read(closed.jaxpr.outvars)[0]


def test_running_every_equation_again_gives_the_same_program():
    def described(fn):
        jaxpr = jax.make_jaxpr(fn)(1.0).jaxpr
        return [(eqn.primitive.name, jaxprs.name_scopes(eqn)) for eqn in jaxprs.equations(jaxpr)]

    assert described(replay) == described(everything)
    np.testing.assert_array_equal(replay(1.0), everything(1.0))


def test_derivative_rules_survive():
    x = jnp.float32(1.0)
    closed = jax.make_jaxpr(doubled)(x)
    assert jax.grad(lambda v: jaxprs.bind(closed.jaxpr.eqns[0], [v])[0])(x) == 7.0


def _only(fn, *args):
    (eqn,) = jax.make_jaxpr(fn)(*args).jaxpr.eqns
    return eqn


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (jax.jit(jnp.sin), jaxprs.is_call),
        (jax.checkpoint(jnp.sin), jaxprs.is_remat),
        (doubled, jaxprs.is_custom_rule),
    ],
)
def test_what_is_called(fn, kind):
    eqn = _only(fn, 1.0)
    assert [test(eqn) for test in (jaxprs.is_call, jaxprs.is_remat, jaxprs.is_custom_rule)].count(
        True
    ) == 1
    assert kind(eqn)
    sub = jaxprs.called_jaxpr(eqn)
    assert sub is not None
    assert len(sub.jaxpr.invars) == len(eqn.invars)
    assert len(sub.jaxpr.eqns) == 1


def test_loops_and_branches_are_no_calls_but_have_jaxprs():
    scan = _only(lambda xs: jax.lax.map(jnp.sin, xs), jnp.ones(3))
    assert jaxprs.called_jaxpr(scan) is None
    assert [s.param for s in jaxprs.sub_jaxprs(scan)] == ["jaxpr"]
    *_, cond = jax.make_jaxpr(lambda b, x: jax.lax.cond(b, jnp.sin, jnp.cos, x))(True, 1.0).eqns
    assert [s.param for s in jaxprs.sub_jaxprs(cond)] == ["branches", "branches"]
    *_, loop = jax.make_jaxpr(everything)(1.0).eqns[:-1]
    assert {s.param for s in jaxprs.sub_jaxprs(loop)} == {"cond_jaxpr", "body_jaxpr"}


def test_constants_come_with_their_jaxpr():
    table = np.arange(3.0, dtype=np.float32)
    closed = jax.make_jaxpr(jax.jit(lambda x: x + table))(jnp.ones(3))
    env = jaxprs.Environment(closed.jaxpr, closed.consts, [jnp.ones(3)])
    (eqn,) = closed.jaxpr.eqns
    np.testing.assert_array_equal(jaxprs.bind(eqn, env.read(eqn.invars))[0], table + 1)


def test_a_mapped_scope_keeps_its_name():
    def fn(x):
        with jax.named_scope("layer"):
            return jnp.sin(x)

    jaxpr = jax.make_jaxpr(jax.vmap(jax.vmap(fn)))(jnp.ones((2, 2))).jaxpr
    assert [jaxprs.name_scopes(eqn) for eqn in jaxpr.eqns] == [("layer",)]
    jaxpr = jax.make_jaxpr(jax.grad(fn))(1.0).jaxpr
    assert ("jvp(layer)",) in {jaxprs.name_scopes(eqn) for eqn in jaxpr.eqns}
