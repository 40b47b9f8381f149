import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

optax = pytest.importorskip("optax")

A = np.random.default_rng(0).standard_normal((8, 3))


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def logistic(x):
    return jnp.sum(jnp.logaddexp(0.0, -jnp.asarray(A, x.dtype) @ x)) + 0.01 * jnp.sum(x**2)


def wild(x):
    return jnp.sum(x**4) + jnp.sum(jnp.cos(3 * x))


FUNCTIONS = [(rosenbrock, [-1.2, 1.0, 0.5]), (logistic, [1.0, 1.0, 1.0]), (wild, [1.0, 2.0, -1.5])]

OPTIMIZERS = {
    "lbfgs": lambda m: m.lbfgs(),
    "lbfgs_few_pairs": lambda m: m.lbfgs(memory_size=2, scale_init_precond=False),
    "lbfgs_backtracking": lambda m: m.lbfgs(
        linesearch=m.scale_by_backtracking_linesearch(40, store_grad=True)
    ),
    "zoom": lambda m: m.chain(m.sgd(1.0), m.scale_by_zoom_linesearch(25)),
    "zoom_limited": lambda m: m.chain(
        m.sgd(1.0), m.scale_by_zoom_linesearch(25, max_learning_rate=0.1, approx_dec_rtol=None)
    ),
    # Always from the longest step; never a longer one than the last; none grows back.
    **{
        f"backtracking_{factor}": lambda m, factor=factor: m.chain(
            m.sgd(1.0), m.scale_by_backtracking_linesearch(60, 1e-3, 0.7, factor, 3.0)
        )
        for factor in (np.inf, 1.0, 0.9)
    },
    "backtracking": lambda m: m.chain(
        m.sgd(1.0), m.scale_by_backtracking_linesearch(60, 1e-3, 0.7, 2.0, 3.0)
    ),
}


def train(tx, f, x, steps=20):
    @jax.jit
    def step(x, state):
        value, grad = jax.value_and_grad(f)(x)
        updates, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=f)
        return optax.apply_updates(x, updates), state

    values, state = [float(f(x))], tx.init(x)
    for _ in range(steps):
        x, state = step(x, state)
        values.append(float(f(x)))
    return x, state, values


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("f", "start"), FUNCTIONS, ids=["rosenbrock", "logistic", "wild"])
def test_agrees_with_optax_over_20_steps(name, f, start, x64):
    if name == "lbfgs_backtracking" and f is rosenbrock:
        pytest.skip("Armijo's rule lets negative curvature in, which optax uses and we leave out")
    x = jnp.asarray(start)
    with jax.numpy_dtype_promotion("standard"):
        ours, _, _ = train(OPTIMIZERS[name](fnopt), f, x)
        theirs, _, _ = train(OPTIMIZERS[name](optax), f, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_never_rise_in_float32(name):
    _, _, values = train(OPTIMIZERS[name](fnopt), rosenbrock, jnp.asarray([-1.2, 1.0]), steps=40)
    # Where c3 |f| is allowed for, the slope decides.
    slack = 2e-6 if "zoom" in name or "lbfgs" in name else 0.0
    assert np.all(np.diff(values) <= slack * np.asarray(values[:-1]))


def searches():
    return [
        fnopt.scale_by_zoom_linesearch(25),
        fnopt.scale_by_backtracking_linesearch(60, store_grad=True),
    ]


def searched(search, f, params, direction=None, **extras):
    value, grad = jax.value_and_grad(f)(params)
    direction = jax.tree.map(jnp.negative, grad) if direction is None else direction
    return search.update(
        direction, search.init(params), params, value=value, grad=grad, value_fn=f, **extras
    )


@pytest.mark.parametrize("search", searches(), ids=lambda s: type(s).__name__)
def test_a_domain_error_shortens_the_step(search):
    def f(x):
        return jnp.sum(x - jnp.log(x))  # NaN below zero

    x = jnp.asarray([0.1, 5.0])
    updates, state = searched(search, f, x, jnp.asarray([-50.0, -50.0]) * (1 - 1 / x))
    assert np.isfinite(f(x + updates))
    assert f(x + updates) < f(x)
    np.testing.assert_allclose(state.value, f(x + updates), rtol=1e-6)
    np.testing.assert_allclose(state.grad, jax.grad(f)(x + updates), rtol=1e-5)


@pytest.mark.parametrize("search", searches(), ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("f", [lambda x: jnp.sum(x**2), lambda x: jnp.log(-jnp.sum(x**2))])
def test_nothing_moves_where_no_step_goes_down(search, f):
    x = jnp.asarray([1.0, 2.0])
    updates, state = search.update(
        x, search.init(x), x, value=jnp.float32(5.0), grad=2 * x, value_fn=f
    )
    np.testing.assert_array_equal(updates, [0, 0])
    assert np.isfinite(state.value)


@pytest.mark.parametrize("search", searches(), ids=lambda s: type(s).__name__)
def test_trees_of_mixed_dtypes_keep_them(search):
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": [jnp.float32(3.0), jnp.complex64(1 + 2j)]}

    def f(p):
        widened = jnp.sum(p["a"].astype(jnp.float32) ** 2)
        return widened + p["b"][0] ** 2 + jnp.real(p["b"][1] * jnp.conj(p["b"][1]))

    value, grad = jax.value_and_grad(f)(params)
    direction = jax.tree.map(lambda g: -jnp.conj(g) / 4, grad)
    state = search.init(params)
    updates, after = search.update(
        direction, state, params, value=value, grad=jax.tree.map(jnp.conj, grad), value_fn=f
    )
    assert f(fnopt.apply_updates(params, updates)) < value

    def signature(tree):
        return jax.tree.map(lambda x: (x.dtype, x.shape, x.weak_type), tree)

    assert signature(after) == signature(state)
    assert signature(updates) == signature(params)


@pytest.mark.parametrize("search", searches(), ids=lambda s: type(s).__name__)
def test_further_arguments_reach_the_function_through_a_chain(search):
    def f(x, scale):
        return scale * jnp.sum(x**2)

    x, scale = jnp.asarray([1.0, 2.0]), jnp.float32(3.0)
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.sgd(1.0), search)
    value, grad = jax.value_and_grad(f)(x, scale)
    updates, _ = tx.update(
        grad, tx.init(x), x, value=value, grad=grad, value_fn=f, scale=scale, unknown=1
    )
    assert f(x + updates, scale) < value


def test_required_arguments_are_asked_for_by_name():
    tx, x = fnopt.lbfgs(), jnp.ones(2)
    with pytest.raises(TypeError, match="needs the extra argument 'value'"):
        tx.update(x, tx.init(x), x)


def test_a_function_of_many_values_is_refused():
    tx, x = fnopt.lbfgs(), jnp.ones(2)
    with pytest.raises(ValueError, match="expected one real number"):
        tx.update(x, tx.init(x), x, value=jnp.float32(1), grad=x, value_fn=lambda x: x)


def test_value_and_gradient_come_from_the_state():
    calls = []

    def f(x):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.sum(x**2)

    tx, x = fnopt.lbfgs(), jnp.asarray([0.3, 0.4])  # the first step, of the gradient, overshoots
    value_and_grad = jax.jit(fnopt.value_and_grad_from_state(f))
    value, grad = value_and_grad(x, state=tx.init(x))
    jax.effects_barrier()
    first = len(calls)
    updates, state = tx.update(grad, tx.init(x), x, value=value, grad=grad, value_fn=f)
    value, grad = value_and_grad(x + updates, state=state)
    jax.effects_barrier()
    assert len(calls) == first + int(state[-1].info.num_linesearch_steps)
    np.testing.assert_allclose(grad, 2 * (x + updates), atol=1e-6)


def test_a_state_without_a_gradient_says_so():
    tx = fnopt.scale_by_backtracking_linesearch(5)
    x = jnp.ones(2)
    with pytest.raises(ValueError, match="0 line searches that store value and gradient"):
        fnopt.value_and_grad_from_state(jnp.sum)(x, state=tx.init(x))


@pytest.mark.parametrize("search", searches(), ids=lambda s: type(s).__name__)
def test_line_searches_are_values(search):
    assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(search)))) == search
    rates = jax.vmap(lambda s: searched(s, rosenbrock, jnp.asarray([-1.2, 1.0]))[1].learning_rate)
    stack = jax.tree.map(lambda h: jnp.stack([jnp.float32(h), jnp.float32(h)]), search)
    assert rates(stack).shape == (2,)


def test_lbfgs_leaves_out_pairs_without_positive_curvature():
    tx, x = fnopt.scale_by_lbfgs(), jnp.asarray([1.0, 1.0])
    state = tx.init(x)
    for i in range(3):  # the gradient of -x^2: a maximum
        point = x * (1 + i)
        direction, state = tx.update(-point, state, point)
        assert jnp.vdot(direction, -point) > 0
    np.testing.assert_array_equal(state.weights_memory, np.zeros(10))


def test_the_relative_tolerance_of_backtracking_is_of_the_modulus():
    # From f(0) = -1 along 1 with slope 0; the first step of 1 has a value of -1 + rise.
    tx = fnopt.scale_by_backtracking_linesearch(5, slope_rtol=0.0, rtol=0.1, increase_factor=1.0)
    x = jnp.zeros(1)
    for rise, taken in ((0.05, 1.0), (0.15, 0.8)):
        _, state = tx.update(
            x + 1,
            tx.init(x),
            x,
            value=-1.0,
            grad=x,
            value_fn=lambda x, rise=rise: jnp.sum(jnp.where(x > 0.9, rise, 0.0)) - 1,
        )
        np.testing.assert_allclose(state.learning_rate, taken, rtol=1e-6)


@pytest.mark.parametrize("factor", [np.inf, 1.0, 0.5])
def test_growth_after_a_step_that_underflowed(factor):
    tx = fnopt.scale_by_backtracking_linesearch(2, increase_factor=factor, max_learning_rate=0.5)
    x = jnp.ones(2)
    state = tx.init(x)._replace(learning_rate=jnp.zeros(()))
    value, grad = jax.value_and_grad(rosenbrock)(x * 0.5)
    known = {"value": value, "grad": grad, "value_fn": rosenbrock}
    updates, state = tx.update(-grad, state, x * 0.5, **known)
    assert np.isfinite(updates).all()
    expected = 0.5 * 0.8**2 if factor == np.inf else 0
    np.testing.assert_allclose(state.learning_rate, expected, rtol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_zoom_steps_that_do_not_grow(factor):
    numbers = {"increase_factor": factor, "approx_dec_rtol": jnp.asarray(1e-6)}
    tx, x = fnopt.scale_by_zoom_linesearch(4, **numbers), jnp.zeros(2)

    def far(x):
        return jnp.sum((x - 100.0) ** 2)

    value, grad = jax.value_and_grad(far)(x)
    direction = -grad / 200  # the minimum is 100 steps of length 1 away
    updates, state = tx.update(direction, tx.init(x), x, value=value, grad=grad, value_fn=far)
    assert 0 < state.learning_rate <= 1
    np.testing.assert_allclose(state.value, far(x + updates), rtol=1e-6)
    assert state.value < value


def test_no_step_without_a_length():
    with pytest.raises(ValueError, match="increase_factor and max_learning_rate are infinite"):
        fnopt.scale_by_backtracking_linesearch(2, increase_factor=np.inf, max_learning_rate=np.inf)


@pytest.mark.parametrize("name", ["scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"])
def test_a_misspelt_argument_is_refused(name):
    tx = fnopt.chain(fnopt.sgd(1.0), getattr(fnopt, name)(5))
    x = jnp.ones(2)
    known = {"value": jnp.ones(()), "grad": x, "value_fn": lambda x, scale=1.0: scale * x.sum()}
    for wrong, right in {"valeu": "value", "scael": "scale"}.items():
        with pytest.raises(TypeError, match=f"argument '{wrong}', .* did you mean '{right}'"):
            tx.update(-x, tx.init(x), x, **known, **{wrong: 3})
    tx.update(-x, tx.init(x), x, **known, scale=2.0, loss=3.0)  # another member's, in a chain


SEARCHES = {
    "zoom": lambda: fnopt.chain(fnopt.sgd(1.0), fnopt.scale_by_zoom_linesearch(10)),
    "backtracking": lambda: fnopt.chain(
        fnopt.sgd(1.0), fnopt.scale_by_backtracking_linesearch(10, store_grad=True)
    ),
    "lbfgs": fnopt.lbfgs,
}


@pytest.mark.parametrize("name", SEARCHES)
def test_complex_params_step_as_their_real_and_imaginary_parts(name, x64):
    target = jnp.asarray([1 + 2j, -0.5j])

    def pairs(x):
        z = jax.lax.complex(x[0], x[1])
        return jnp.sum(jnp.abs(z - target) ** 4) + jnp.real(jnp.sum((z - target) ** 2)) / 3

    def numbers(z):
        return pairs(jnp.stack([z.real, z.imag]))

    tx = SEARCHES[name]()
    x, z = jnp.zeros((2, 2)), jnp.zeros(2, jnp.complex128)
    of_pairs, of_numbers = tx.init(x), tx.init(z)
    for _ in range(4):
        value, grad = fnopt.value_and_grad_from_state(pairs)(x, state=of_pairs)
        u, of_pairs = tx.update(grad, of_pairs, x, value=value, grad=grad, value_fn=pairs)
        x = x + u
        value, grad = fnopt.value_and_grad_from_state(numbers)(z, state=of_numbers)
        grad = fnopt.tree.conj(grad)
        u, of_numbers = tx.update(grad, of_numbers, z, value=value, grad=grad, value_fn=numbers)
        z = z + u
        np.testing.assert_allclose(z, jax.lax.complex(x[0], x[1]), rtol=1e-9)
