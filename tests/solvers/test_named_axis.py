"""Least squares whose residuals are divided over devices: sums and triangles are sent, no rows."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt.solvers import dogleg, gauss_newton
from fnopt.solvers.result._covariance import covariance_factor

RNG = np.random.RandomState(0)
M = 64
X = np.linspace(0, 3, M, dtype=np.float32)
CLEAN = (2 * np.exp(-1.3 * X) + 0.3 + 0.05 * RNG.randn(M)).astype("f")
Y = (CLEAN + 2 * (np.arange(M) % 16 == 0)).astype("f")  # with outliers
SIGMA = RNG.uniform(0.5, 2, M).astype("f")
START = np.ones(3, "f")
LM = fnopt.levenberg_marquardt
COUNT = 2


def mesh_of(count: int = COUNT, kind: str = "Auto") -> Any:
    return jax.make_mesh((count,), ("d",), axis_types=(getattr(AxisType, kind),))


def model(x: Any, a: Any, k: Any, c: Any) -> Any:
    return a * jnp.exp(-k * x) + c


def residuals(p: Any, x: Any, y: Any) -> Any:
    return model(x, *p) - y


def jacobian(p: Any, x: Any, y: Any) -> Any:
    del y
    e = jnp.exp(-p[1] * x)
    return jnp.stack([e, -p[0] * x * e, jnp.ones_like(x)], axis=1)


def divided(fn: Any, arrays: int, kept: int = 0, **options: Any) -> Any:
    """On all devices: params whole, then so many arrays in parts; the last outputs in parts too."""
    specs = (P(), *[P("d")] * arrays)
    outs = (P(), *[P("d")] * kept) if kept else P()
    return jax.shard_map(fn, mesh=mesh_of(), in_specs=specs, out_specs=outs, **options)


def fit(p: Any, x: Any, y: Any, **options: Any) -> Any:
    s = fnopt.least_squares(residuals, p, args=(x, y), axis_name="d", max_steps=40, **options)
    known = {"cov": fnopt.covariance(s)} if s.jacobian is not None else {}
    return {"params": s.params, "cost": s.cost, "dof": s.dof, "rank": s.rank, **known}, s.residuals


def test_curve_fit_is_scipys_of_all_data():
    def run(p, x, y, sigma):
        return fnopt.curve_fit(model, x, y, p, sigma, axis_name="d")

    found = jax.jit(divided(run, 3))(START, X, CLEAN, SIGMA)

    def numpy_model(x, a, k, c):
        return a * np.exp(-k * x) + c

    data = [v.astype("d") for v in (X, CLEAN, START, SIGMA)]
    expected = scipy.optimize.curve_fit(numpy_model, *data[:3], sigma=data[3])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_a_robust_loss_weights_and_bounds_count_all_rows():
    weights = (RNG.uniform(0.5, 2, M) * (np.arange(M) % 8 != 3)).astype("f")

    def run(p, x, y, w):
        loss = fnopt.residuals.soft_l1(scale=0.1)
        options = {"weights": w, "bounds": (0.0, 1.2), "solver": LM(linear_solver="cholesky")}
        return fit(p, x, y, loss=loss, **options)

    found, r = jax.jit(divided(run, 3, 1))(START, X, Y, weights)

    def scaled(p):
        return np.sqrt(weights) * (p[0] * np.exp(-p[1] * X.astype("d")) + p[2] - Y)

    expected = scipy.optimize.least_squares(
        scaled, START.astype("d"), loss="soft_l1", f_scale=0.1, bounds=(0, 1.2), xtol=1e-12
    )
    np.testing.assert_allclose(found["params"], expected.x, rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(found["cost"], expected.cost, rtol=1e-4)
    np.testing.assert_allclose(r, scaled(np.asarray(found["params"])), atol=1e-4)
    assert int(found["dof"]) == M - M // 8 - 3


def test_a_hole_in_the_data_of_one_device_is_known_to_all():
    hole = np.where(np.arange(M) == 3, np.nan, Y).astype("f")
    tx = LM(axis_name="d")

    def run(p, x, y):
        state = tx.init(p)
        return tx.update(None, state, p, residual_fn=lambda p: residuals(p, x, y))[1].status

    status = jax.jit(divided(run, 2))(START, X, hole)
    assert fnopt.Status(int(status)) is fnopt.Status.NONFINITE_START


KINDS: dict[str, Any] = {
    "qr": LM(),
    "cholesky": LM(linear_solver="cholesky"),
    "cg": LM(linear_solver="cg"),
    "reverse": LM(jacobian="reverse", linear_solver="cholesky", chunk_size=3),
    "gauss_newton": gauss_newton(),
    "dogleg": dogleg(linear_solver="cholesky"),
}


def sent(jaxpr: Any) -> list[tuple[str, int]]:
    """The name and the size of what every collective of a program makes."""
    found = []
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name.startswith(("psum", "all_gather", "pmax", "ppermute", "all_to_all", "reduce_sc")):
            found += [(name, v.aval.size) for v in eqn.outvars]
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            found += sent(inner) if hasattr(inner, "eqns") else []
    return found


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("jac", [None, jacobian], ids=["differentiated", "jac"])
def test_nothing_is_sent_that_grows_with_the_rows(name, jac):
    check_vma = jac is None

    def run(p, x, y):
        return fit(p, x, y, solver=KINDS[name], jac=jac)

    traced = jax.make_jaxpr(divided(run, 2, 1, check_vma=check_vma))(START, X, Y)
    sizes = [size for _, size in sent(traced.jaxpr)]
    assert sizes
    assert max(sizes) <= COUNT * (START.size + 1) ** 2 < M


@pytest.mark.parametrize(("rows", "kind"), [(12, "auto"), (4, "qr"), (4, "cholesky")])
def test_fewer_rows_than_params(rows, kind):
    A = RNG.randn(rows, 8).astype("f")  # on each device; and in all, too
    tx = LM(linear_solver=kind, axis_name="d", radius=100.0)

    def run(p, A):
        state = tx.init(p)
        return tx.update(None, state, p, residual_fn=lambda p: A @ p - 1)[1].cost

    cost = jax.jit(divided(run, 1))(jnp.zeros(8), A)
    p = np.linalg.lstsq(A, np.ones(rows))[0]
    np.testing.assert_allclose(cost, 0.5 * np.sum((A @ p - 1) ** 2), rtol=1e-3, atol=5e-3)


def step(tx: Any, p: Any, x: Any, y: Any) -> Any:
    state, one = tx.init(p), lambda p, e: model(e[0], *p) - e[1]
    return tx.update(None, state, p, residual_fn=one, batch=(x, y))[0]


@pytest.mark.parametrize("check_vma", [True, False])
def test_an_update_by_examples_over_devices(check_vma):
    tx = LM(axis_name="d")

    found = jax.jit(divided(functools.partial(step, tx), 2, check_vma=check_vma))(START, X, Y)
    np.testing.assert_allclose(found, _step_of_one_device(), rtol=1e-4)


@functools.cache
def _step_of_one_device() -> np.ndarray:
    return np.asarray(jax.jit(functools.partial(step, LM()))(START, X, Y))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_the_compiler_gathers_no_rows(kind):
    # In a program of the user's, with no mesh set: types say which devices there are.
    mesh = mesh_of(kind=kind)
    x, y = (jax.device_put(v, NamedSharding(mesh, P("d"))) for v in (X, Y))
    p, tx = jax.device_put(START, NamedSharding(mesh, P())), LM()

    def step(p, x, y):
        new = tx.update(None, tx.init(p), p, residual_fn=lambda p: residuals(p, x, y))[0]
        J = jacobian(p, x, y)
        factor = covariance_factor(
            J, jnp.float32(1), None, jnp.int32(M), None, absolute_sigma=False
        )
        return new, factor.covariance()

    program = jax.jit(step).lower(p, x, y).compile()
    shapes = re.findall(r"f32\[([\d,]*)\][^=]* all-gather", program.as_text() or "")
    sizes = [np.prod([int(d) for d in s.split(",")]) for s in shapes]
    assert sizes
    assert max(sizes) <= COUNT * 16 < M * 4
    expected = jax.jit(step)(*map(np.asarray, (p, x, y)))
    for a, b in zip(program(p, x, y), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_what_a_call_says_of_a_wrong_axis():
    with pytest.raises(ValueError, match=r"axis_name = 'no', but no axis 'no' is in scope.*shard_"):
        fnopt.least_squares(residuals, START, args=(X, Y), axis_name="no")


@pytest.mark.parametrize("way", ["least_squares", "update"])
def test_params_that_differ_between_devices_are_told(way):
    def run(p, x, y):
        p = jax.lax.all_gather(p, "d", tiled=True)
        if way == "least_squares":
            return fit(p, x, y)[0]["params"]
        tx = LM(axis_name="d")
        return tx.update(None, tx.init(p), p, residual_fn=lambda p: residuals(p, x, y))[0]

    run = jax.shard_map(run, mesh=mesh_of(), in_specs=(P("d"),) * 3, out_specs=P())
    with pytest.raises(ValueError, match=r"the only leaf of the params has a type.*'d'.*pmean"):
        jax.eval_shape(run, np.ones(4, "f"), X, Y)


def seen_of_a_fit(axis_name: Any, scale: Any, x: Any, y: Any) -> Any:
    """A number that depends on params, cost, residuals and covariance of all data."""
    s = fnopt.least_squares(
        residuals,
        START.astype("d"),
        args=(x, scale * y),
        axis_name=axis_name,
        loss=fnopt.residuals.soft_l1(scale=0.1),
        weights=2.0,
        bounds=(0.0, 1.2),  # which holds the amplitude
        solver=LM(linear_solver="cholesky"),
    )
    rest = jnp.sum(s.residuals * x)
    rest = rest if axis_name is None else jax.lax.psum(rest, axis_name)
    spread = jnp.sum(jnp.sqrt(jnp.diagonal(fnopt.covariance(s))))
    return jnp.sum(s.params * jnp.arange(1.0, 4.0)) + s.cost + rest + 10 * spread


@pytest.mark.usefixtures("x64")
def test_derivatives_are_those_of_all_data():
    def divided_one(check_vma):
        fn = functools.partial(seen_of_a_fit, "d")
        specs = {"in_specs": (P(), P("d"), P("d")), "out_specs": P()}
        return jax.shard_map(fn, mesh=mesh_of(), check_vma=check_vma, **specs)

    def run(scale, x, y):
        fns = divided_one(True), divided_one(False)
        return [jax.value_and_grad(fn, (0, 2))(scale, x, y) for fn in fns]

    one = jax.jit(jax.value_and_grad(functools.partial(seen_of_a_fit, None), (0, 2)))
    data = jnp.ones(()), X.astype("d"), Y.astype("d")
    value, (by_scale, by_y) = one(*data)
    # Where a fit ends is known to the root of the rounding unit.
    for mine, (of_scale, of_y) in jax.jit(run)(*data):
        np.testing.assert_allclose(mine, value, rtol=1e-6)
        np.testing.assert_allclose(of_scale, by_scale, rtol=1e-5)
        np.testing.assert_allclose(of_y, by_y, rtol=1e-5, atol=1e-5 * np.abs(by_y).max())


OWN = {
    "lm": lambda y: fnopt.least_squares(residuals, START, args=(X, y), max_steps=3),
    "cg": lambda y: fnopt.least_squares(
        residuals, START, args=(X, y), solver=LM(linear_solver="cg"), max_steps=3
    ),
    "closure": lambda y: fnopt.least_squares(lambda p: residuals(p, X, y), START, max_steps=3),
    "batch": lambda y: fnopt.least_squares(
        lambda p, e: residuals(p, *e), START, batch=(X, y), solver=dogleg(), max_steps=3
    ),
    "bounds": lambda y: fnopt.least_squares(
        residuals, START, args=(X, y), bounds=(0.0, 9.0), loss="huber", max_steps=3
    ),
    "minimize": lambda y: fnopt.minimize(
        lambda p: jnp.sum(residuals(p, X, y) ** 2), START, method=fnopt.lbfgsb(), max_steps=3
    ),
    "newton_cg": lambda y: fnopt.minimize(
        lambda p: jnp.sum(residuals(p, X, y) ** 2), START, method=fnopt.newton_cg(), max_steps=3
    ),
    "root": lambda y: fnopt.root(lambda p: p**3 - y[:3], START, max_steps=3),
    "curve_fit_batch": lambda y: fnopt.curve_fit_batch(model, X, y[None], p0=START, max_steps=3),
}


@pytest.mark.parametrize("name", OWN)
def test_each_device_has_a_fit_of_its_own(name):
    """With tracked types too: where all start from one point, and where ends have derivatives."""

    def ends(y):
        return OWN[name](y[0]).params

    def worth(y):
        return sum(map(jnp.sum, jax.tree.leaves(ends(y))))

    fns = (lambda y: jnp.ravel(ends(y))[None], jax.grad(worth))
    for fn in fns:
        step = jax.shard_map(fn, mesh=mesh_of(), in_specs=P("d"), out_specs=P("d"))
        jax.eval_shape(step, jnp.stack([Y, CLEAN]))


def test_a_device_stops_by_itself():
    def fit(y):
        s = OWN["lm"](y[0])
        return s.params[None], s.steps[None]

    step = jax.shard_map(fit, mesh=mesh_of(), in_specs=P("d"), out_specs=P("d"))
    both = jnp.stack([Y, residuals(START, X, jnp.zeros(M))])  # the second is where it should be
    params, steps = jax.jit(step)(both)
    assert steps[0] == 3
    assert steps[1] <= 1
    np.testing.assert_allclose(params[0], OWN["lm"](Y).params, rtol=1e-5)


def test_a_sparse_jacobian_takes_the_same_steps_on_all_devices():
    n = 300  # from 256 params on the sparse algebra is taken
    rows = RNG.normal(size=(2, COUNT * n)).astype("f")

    def chain(x: Any, y: Any, c: Any) -> Any:
        return jnp.sinh(x) * (1 + c * c) + 0.3 * jnp.roll(x, 1) ** 2 - 3 * y

    def sparse_fit(y: Any, c: Any) -> Any:
        part = functools.partial(chain, y=y, c=c)
        jac = fnopt.sparse_jacobian(part)
        s = fnopt.least_squares(part, jnp.full(n, 2.0), jac=jac, axis_name="d", max_steps=60)
        return s.params[None], s.cost[None]

    specs = {"in_specs": (P("d"), P("d")), "out_specs": P("d")}
    on_devices = jax.shard_map(sparse_fit, mesh=mesh_of(), check_vma=False, **specs)
    params, costs = jax.jit(on_devices)(*rows)
    np.testing.assert_array_equal(params[0], params[1])

    def whole(x: Any) -> Any:
        return np.concatenate([np.asarray(chain(x, *part)) for part in np.split(rows, COUNT, 1)])

    expected = scipy.optimize.least_squares(
        lambda x: whole(jnp.asarray(x)), np.full(n, 2.0), "2-point"
    )
    np.testing.assert_allclose(costs, expected.cost, rtol=1e-4)
