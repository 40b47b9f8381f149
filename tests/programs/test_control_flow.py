from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.costs import cost
from fnopt.jacobians import sparsity_pattern
from fnopt.programs import (
    Cond,
    Scan,
    ShardMap,
    While,
    _control_flow,
    call_view,
    control_view,
    jaxprs,
)


def equation(fn, *args, name):
    found = jaxprs.equations(jax.make_jaxpr(fn)(*args).jaxpr)
    return next(eqn for eqn in found if eqn.primitive.name == name)


def looped(w, x):
    """A carry of two, constants, slices, rows; one of the rows is a slice handed through."""

    def body(carry, row):
        h, n = carry
        return (jnp.tanh(h * w + row.sum()), n + 1), (h, row)

    return jax.lax.scan(body, (x[0, 0], 0), x, reverse=True)


def test_a_scan_is_told_apart_into_its_parts():
    eqn = equation(looped, 2.0, jnp.ones((3, 2)), name="scan")
    loop = control_view(eqn)
    assert isinstance(loop, Scan)
    assert (loop.length, loop.reverse) == (3, True)
    consts, carry, xs = loop.parts([v.aval.shape for v in eqn.invars])
    assert (consts, carry, xs) == ([()], [(), ()], [(3, 2)])
    assert loop.parts([v.aval.shape for v in loop.body.jaxpr.invars])[2] == [(2,)]
    carry, rows = loop.results([v.aval.shape for v in loop.body.jaxpr.outvars])
    assert carry == [(), ()]
    assert all(shape in [(), (2,)] for shape in rows)


@pytest.mark.parametrize("wrap", [jax.grad, lambda f: jax.vmap(f, (0, None))], ids=["grad", "vmap"])
def test_scans_that_transformations_made_are_read_too(wrap):
    def fn(w, x):
        return looped(w, x)[0][0]

    w = jnp.float32(2.0) if wrap is jax.grad else jnp.ones(4)
    program = jax.make_jaxpr(wrap(fn))(w, jnp.ones((3, 2))).jaxpr
    scans = [eqn for eqn in jaxprs.equations(program) if eqn.primitive.name == "scan"]
    assert scans
    for eqn in scans:
        loop = control_view(eqn)
        assert isinstance(loop, Scan)
        _, carry, xs = loop.parts(eqn.invars)
        assert [v.aval for v in carry] == [v.aval for v in loop.results(eqn.outvars)[0]]
        assert all(v.aval.shape[0] == 3 for v in xs)


def test_a_scan_is_run_again_by_its_view():
    args = (jnp.float32(0.5), jnp.arange(6.0, dtype=jnp.float32).reshape(3, 2))
    closed = jax.make_jaxpr(looped)(*args)

    def evaluate(eqn, inputs):
        loop = control_view(eqn)
        if not isinstance(loop, Scan):
            return jaxprs.bind(eqn, inputs)
        consts, init, xs = loop.parts(inputs)

        def body(carry, x):
            outs = jaxprs.interpret(
                loop.body.jaxpr, loop.body.consts, [*consts, *carry, *x], evaluate
            )
            return loop.results(outs)

        carry, rows = jax.lax.scan(
            body, init, xs, length=loop.length, reverse=loop.reverse, **loop.options
        )
        return [*carry, *rows]

    again = jaxprs.interpret(closed.jaxpr, closed.consts, args, evaluate)
    for ours, theirs in zip(again, jax.tree.leaves(looped(*args)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_while_loop_is_told_apart_into_its_parts():
    def fn(limit, step):
        return jax.lax.while_loop(
            lambda c: c[0] < limit, lambda c: (c[0] + step, c[1] + 1), (0.0, 1)
        )

    eqn = equation(fn, 3.0, 1.0, name="while")
    loop = control_view(eqn)
    assert isinstance(loop, While)
    test_consts, body_consts, carry = loop.parts(eqn.invars)
    assert (len(test_consts), len(body_consts), len(carry)) == (1, 1, 2)
    assert loop.test.closed.out_avals[0].dtype == bool
    assert [v.aval for v in carry] == [v.aval for v in eqn.outvars]


def test_the_branches_of_a_choice():
    def fn(i, x):
        return jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x)

    choice = control_view(equation(fn, 1, 2.0, name="cond"))
    assert isinstance(choice, Cond)
    assert [b.jaxpr.eqns[0].primitive.name for b in choice.branches] == ["sin", "cos", "tan"]


def test_a_map_over_devices():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    fn = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    view = control_view(equation(fn, jnp.ones(3), name="shard_map"))
    assert isinstance(view, ShardMap)
    assert view.devices == 1


def test_a_linear_solve_calls_its_solve_alone():
    scale = jnp.asarray([2.0, 4.0])

    def fn(b):
        def solve(_, b):
            return b / scale

        return jax.lax.custom_linear_solve(lambda x: scale * x, b, solve, symmetric=True)

    eqn = equation(fn, jnp.ones(2), name="custom_linear_solve")
    sub, inputs = call_view(eqn, [scale] * (len(eqn.invars) - 1) + [jnp.ones(2)])
    assert [e.primitive.name for e in sub.jaxpr.eqns] == ["div"]
    (out,) = jaxprs.interpret(sub.jaxpr, sub.consts, inputs, jaxprs.bind)
    np.testing.assert_array_equal(out, [0.5, 0.25])


def test_calls_and_plain_operations_are_no_control_flow():
    assert control_view(equation(jax.jit(jnp.sin), 1.0, name="sin")) is None
    assert call_view(equation(jnp.sin, 1.0, name="sin"), ["x"]) is None


# What a release after the ones that are known may do: rename a parameter, give it another meaning.


def _renamed(eqn):
    return eqn.replace(params={f"new_{name}": value for name, value in eqn.params.items()})


def _other_body(eqn):
    params = {n: jax.make_jaxpr(jnp.sin)(1.0) if "jaxpr" in n else v for n, v in eqn.params.items()}
    if "branches" in params:
        params["branches"] = (jax.make_jaxpr(lambda x, y, z: x)(1.0, 1.0, 1.0),) * 2
    return eqn.replace(params=params)


EXAMPLES = {
    "scan": (looped, 2.0, np.ones((3, 2), np.float32)),
    "while": (lambda x: jax.lax.while_loop(lambda v: v < x, lambda v: v * x, x), 2.0),
    "cond": (lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x), 2.0),
}


@pytest.mark.parametrize("change", [_renamed, _other_body])
@pytest.mark.parametrize("name", EXAMPLES)
def test_foreign_parameters_are_unknown_and_no_error(name, change):
    fn, *args = EXAMPLES[name]
    eqn = equation(fn, *args, name=name)
    assert control_view(eqn) is not None
    assert control_view(change(eqn)) is None


def test_a_call_of_another_form_is_unknown():
    eqn = equation(jax.jit(jnp.sin), 1.0, name="jit")
    assert jaxprs.called_jaxpr(eqn) is not None
    assert jaxprs.called_jaxpr(_renamed(eqn)) is None
    solve = equation(lambda b: jnp.linalg.solve(jnp.eye(2), b), np.ones(2), name="jit")
    inner = list(jaxprs.equations(solve.params["jaxpr"].jaxpr))
    linear = next(e for e in inner if e.primitive.name == "custom_linear_solve")
    assert call_view(_renamed(linear), linear.invars) is None


@pytest.fixture
def foreign(monkeypatch):
    """All loops and choices have parameters that nobody here knows."""
    for name in list(_control_flow._READERS):
        monkeypatch.setitem(_control_flow._READERS, name, lambda eqn: eqn.params["unheard of"])


def recurrent(w, x):
    h, _ = jax.lax.scan(lambda h, row: (jnp.tanh(w @ h + row), None), jnp.zeros(2), x)
    return fnopt.tap("out", (h**2).sum())


def test_clipped_gradients_of_a_foreign_scan_are_right(foreign):
    w, x = jnp.eye(2) * 0.5, jnp.linspace(0.0, 1.0, 24).reshape(4, 3, 2)
    found, _ = fnopt.clipped_grad(recurrent, clip_norm=0.1)(w, x)
    each = jax.vmap(jax.grad(recurrent), (None, 0))(w, x)
    norms = jnp.sqrt((each**2).sum((1, 2), keepdims=True))
    expected = (each * jnp.minimum(1.0, 0.1 / norms)).sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_taps_beside_a_foreign_scan_are_seen_and_those_inside_are_named_as_hidden(foreign):
    def fn(w, x):
        def body(h, row):
            return fnopt.tap("inside", jnp.tanh(w @ h + row)), None

        return fnopt.tap("end", jax.lax.scan(body, jnp.zeros(2), x)[0]).sum()

    args = jnp.eye(2), jnp.ones((3, 2))
    nodes = {node.name: node for node in fnopt.taps.nodes(fn)(*args)}
    assert nodes["end"].visible
    assert not nodes["inside"].visible
    assert "values can't be captured" in nodes["inside"].note
    out, captured = fnopt.taps.capture(fn, "end")(*args)
    np.testing.assert_allclose(captured.values["end"].sum(), out, rtol=1e-6)


def test_the_cost_of_foreign_control_flow_is_unknown(foreign):
    found = cost(recurrent)(jnp.eye(2), jnp.ones((3, 2)))
    assert not found.exact
    assert {u.name for u in found.unknown} == {"scan"}


def test_a_pattern_through_foreign_control_flow_lacks_no_entry(foreign):
    def fn(x):
        _, y = jax.lax.scan(lambda c, row: (c, row**2), 0.0, x)
        y = jax.lax.cond(x[0] > 0, lambda v: v * 2, lambda v: v, y)
        return jax.lax.while_loop(lambda v: v[0] < -1, lambda v: v + 1, y)

    rows, columns = sparsity_pattern(fn)(jnp.arange(1.0, 4.0))
    assert {(i, i) for i in range(3)} <= set(zip(rows.tolist(), columns.tolist(), strict=True))


def test_a_rule_whose_parameter_has_another_name_is_unknown():
    from fnopt.costs import _count, _graph

    graph = _graph.trace_graph(lambda a: a @ a, (jnp.eye(2),), {})
    for op in graph.ops:
        op.params.clear()
    found = _count.count(graph, {})
    assert [u.name for u in found.unknown] == ["dot_general"]
    assert "dimension_numbers" in found.unknown[0].reason
