"""Sparse Jacobians by colors, against dense ones."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.jacobians import check_sparsity, sparse_jacobian


def chain(x, c=2.0):
    """Broyden's tridiagonal function."""
    y = jnp.concatenate([jnp.zeros(1, x.dtype), x, jnp.zeros(1, x.dtype)])
    return (3 - c * y[1:-1]) * y[1:-1] - y[:-2] - 2 * y[2:] + 1


def band(n):
    i = np.arange(n)
    return np.r_[i, i[1:], i[:-1]], np.r_[i, i[:-1], i[1:]]


def arrow(p):
    total = jnp.sum(p["x"] ** 2) * p["b"]
    return {"each": jnp.sin(p["x"]), "total": total}


def spear(x):
    """An arrow both ways: a full row, a full column and the diagonal."""
    return jnp.concatenate([jnp.sum(x**2)[None], x[1:] ** 2 * x[0]])


ARROW = np.zeros((7, 7), bool)
ARROW[:6, 1:], ARROW[6] = np.eye(6), True
P = {"b": jnp.float32(2.0), "x": jnp.arange(6.0)}
X = jnp.arange(9.0)
DENSE = np.zeros((9, 9), bool)
DENSE[band(9)] = True


CASES = {
    "band": (chain, X, band(9), "auto", (3, False)),
    "found": (chain, X, None, "auto", (3, False)),
    "boolean": (chain, X, DENSE, "reverse", (3, True)),
    "arrow": (arrow, P, ARROW, "auto", (2, True)),
    "arrow forward": (arrow, P, ARROW, "forward", (7, False)),
    "arrow both ways": (spear, X + 1, None, "auto", (3, False)),
    "arrow both ways, reverse": (spear, X + 1, None, "reverse", (9, True)),
}


@pytest.mark.parametrize("name", list(CASES))
def test_it_is_the_dense_one(name):
    fn, params, pattern, mode, (colors, by_rows) = CASES[name]
    dense = fnopt.jacobian(fn, form="matrix")
    v, w = jnp.cos(jnp.arange(9.0)), jnp.sin(jnp.arange(9.0))

    @jax.jit
    def both(params):
        J, want = sparse_jacobian(fn, pattern, mode=mode)(params), dense(params)
        m, n = J.shape
        scaled = (J.times_rows(w[:m]).matrix(), w[:m, None] * want)
        return (
            J,
            scaled,
            (J.matrix(), want),
            (J.mv(v[:n]), want @ v[:n]),
            (J.rmv(w[:m]), w[:m] @ want),
        )

    J, *pairs = both(params)
    assert (J.colors, J.by_rows) == (colors, by_rows)
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", [None, band(9)], ids=["found", "given"])
def test_a_composition_has_the_pattern_of_the_product(pattern):
    def inner(p):  # the first is fixed, the last is tied to two others
        return jnp.concatenate([jnp.ones(1), p["x"] ** 2, p["x"][:1] * p["x"][2:3]])

    p = {"x": jnp.arange(1.0, 8.0)}
    J = sparse_jacobian(chain, pattern).composed(inner)(p)
    want = jax.jacfwd(lambda p: chain(inner(p)))(p)["x"]
    np.testing.assert_allclose(J.matrix(), want, rtol=1e-6)
    assert np.all((J.sparsity.rows, J.sparsity.cols) == np.asarray(np.nonzero(want)))


def test_a_scipy_matrix_is_a_pattern():
    sparse = pytest.importorskip("scipy.sparse")
    pattern = sparse.diags([np.ones(8), np.ones(9), np.ones(8)], [-1, 0, 1])
    J = jax.jit(sparse_jacobian(chain, pattern))(X)
    np.testing.assert_allclose(J.matrix(), jax.jacfwd(chain)(X), rtol=1e-6)


def test_it_goes_to_scipy_and_to_jax():
    sparse = pytest.importorskip("scipy.sparse")
    for fn in (chain, spear):
        J, want = sparse_jacobian(fn)(X + 1), jax.jacfwd(fn)(X + 1)
        got = J.to_scipy()
        assert isinstance(got, sparse.csr_array)
        assert got.nnz == J.sparsity.rows.size
        np.testing.assert_allclose(got.toarray(), want, rtol=1e-6)
        bcoo = jax.jit(lambda x, fn=fn: sparse_jacobian(fn)(x).to_bcoo())(X + 1)
        np.testing.assert_allclose(bcoo.todense(), want, rtol=1e-6)


def test_without_scipy_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match=r"to_scipy needs scipy: install it with `pip install sc"):
        sparse_jacobian(chain)(X).to_scipy()


@jax.custom_vjp
def backwards_only(x):
    return x**2


backwards_only.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))


def forwards_only(x):
    return spear(jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] ** 2), (0, x))[1])


def test_the_default_takes_a_mode_that_the_function_has():
    for fn, colors, by_rows in (
        (lambda x: spear(backwards_only(x)), 9, True),
        (lambda x: chain(backwards_only(x)), 3, True),
        (forwards_only, 9, False),
    ):
        J = sparse_jacobian(fn)(X + 1)
        assert (J.colors, J.by_rows) == (colors, by_rows)
        plain = jax.jacrev(fn) if by_rows else jax.jacfwd(fn)
        np.testing.assert_allclose(J.matrix(), plain(X + 1), rtol=1e-5)


def test_a_fit_by_sums_of_rows_and_columns():
    n = 300
    x = jnp.linspace(1.0, 2.0, n)

    def residuals(x, y):
        return spear(x) / n - y

    solution = jax.jit(
        lambda start, y: fnopt.least_squares(
            residuals, start, args=(y,), jac=sparse_jacobian(residuals), loss="soft_l1", sigma=0.5
        )
    )(x + 0.1 * jnp.sin(7 * x), spear(x) / n)
    assert bool(solution.converged)
    np.testing.assert_allclose(solution.residuals, 0, atol=1e-5)


def test_many_colors_are_pushed_in_chunks():
    n = 300
    jac = jax.jit(sparse_jacobian(lambda x: x * x.sum(), np.ones((n, n), bool)))
    x = jnp.linspace(0.0, 1.0, n)
    want = np.outer(x, np.ones(n)) + np.eye(n) * float(x.sum())
    np.testing.assert_allclose(jac(x).matrix(), want, rtol=1e-5)


def test_problems_with_too_large_a_factor_form_no_matrix(monkeypatch):
    monkeypatch.setattr("fnopt.jacobians._elimination._MOST_DENSE_MULTIPLICATIONS", 1e5)
    n = 2000
    far = np.random.default_rng(0).permutation(n)

    def coupled(x):
        return chain(x) + 0.1 * jnp.sin(x[far])

    jac = sparse_jacobian(coupled)

    def solve(x):
        return fnopt.least_squares(coupled, x, jac=jac, loss="soft_l1", sigma=2.0)

    compiled = jax.jit(solve).lower(-jnp.ones(n)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < n * n
    solution = compiled(-jnp.ones(n))
    assert bool(solution.converged)
    assert solution.jacobian is None
    np.testing.assert_allclose(solution.residuals, 0, atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "text"), [("forward", r"in rows \[4\] "), ("reverse", r"and columns \[3\] ")]
)
def test_an_entry_outside_of_the_pattern_is_found(mode, text):
    rows, cols = band(9)
    x = X / 9 + 0.1
    check_sparsity(chain, (rows, cols), mode=mode)(x)
    kept = ~((rows == 4) & (cols == 3))
    check = check_sparsity(chain, (rows[kept], cols[kept]), mode=mode)
    with pytest.raises(ValueError, match=text):
        check(x)


BAD = [
    (
        lambda: jax.jit(lambda x: sparse_jacobian(chain)(x).to_scipy())(X),
        TypeError,
        "the entries are traced, expected concrete values. Call to_scipy",
    ),
    (lambda: jax.jit(check_sparsity(chain, DENSE))(X), TypeError, "the check outside of jax.jit"),
    (
        lambda: check_sparsity(lambda x: jnp.sqrt(x - 1) * chain(x), DENSE)(X),
        ValueError,
        "the derivative is not finite",
    ),
    (lambda: sparse_jacobian(chain, np.eye(3)), TypeError, "pattern is ndarray, expected a bool"),
    (lambda: sparse_jacobian(chain, ([0.0], [1])), TypeError, "expected a boolean array"),
    (lambda: sparse_jacobian(chain, band(9), mode="up"), ValueError, "mode = 'up', expected one"),
    (
        lambda: sparse_jacobian(chain, DENSE)(X[:5]),
        ValueError,
        r"the pattern has shape \(9, 9\), expected \(5, 5\) for 5 outputs and 5 params",
    ),
    (
        lambda: sparse_jacobian(chain, band(9))(X[:5]),
        ValueError,
        "indices from 0 to 8, expected 0 to 4 for 5 outputs",
    ),
    (
        lambda: fnopt.least_squares(lambda x: chain(x)[:3], X, jac=sparse_jacobian(chain, DENSE)),
        ValueError,
        r"sparse Jacobian of shape \(9, 9\), expected \(3, 9\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(("fn", "x"), [(chain, X), (spear, X + 1)])
def test_sums_in_chunks_and_entries_by_index_are_those_of_the_dense_jacobian(fn, x, monkeypatch):
    monkeypatch.setattr("fnopt.jacobians._compressed._AT_ONCE", 18)  # two colors of nine rows
    J = sparse_jacobian(fn)(x)
    dense = np.asarray(jax.jacfwd(fn)(x))
    np.testing.assert_allclose(J.matrix(), dense, rtol=1e-6)
    rows, cols, _ = J.entries
    index = np.asarray([[3, 0], [rows.size, 5]])  # one index past the end
    expected = np.append(dense[rows, cols], 0)[index]
    np.testing.assert_allclose(J.values(index), expected, rtol=1e-6)
    w = np.linspace(-1, 1, 9, dtype="f")
    np.testing.assert_allclose(J.rmv(w), w @ dense, rtol=1e-5, atol=1e-5)


def _chain(x):
    return x[1:] - x[:-1] ** 2


def _arrow(x):
    return jnp.concatenate([x[:1] * jnp.sum(x), x[1:] * x[0]])


@pytest.mark.parametrize("call", ["forward", "reverse", "both", "hessian", "operator"])
def test_a_vector_of_another_length_is_refused(call):
    # JAX clamps indices that are too large, so the product would be wrong.
    x = jnp.arange(1.0, 7.0)
    J = {
        "forward": lambda: fnopt.sparse_jacobian(_chain, mode="forward")(x),
        "reverse": lambda: fnopt.sparse_jacobian(_chain, mode="reverse")(x),
        "both": lambda: fnopt.sparse_jacobian(_arrow)(x),
        "hessian": lambda: fnopt.sparse_hessian(lambda x: jnp.sum(x**3))(x),
        "operator": lambda: fnopt.jacobian(_chain, form="operator")(x),
    }[call]()
    lengths = {"mv": J.shape[1], "rmv": J.shape[0], "times_rows": J.shape[0]}
    for method, length in lengths.items():
        if not hasattr(J, method):
            continue
        for wrong in (1, length - 1, length + 1, 2 * length):
            with pytest.raises(ValueError, match=rf"{method}.*{wrong}.*expected"):
                getattr(J, method)(jnp.ones(wrong))
        getattr(J, method)(jnp.ones(length))
        with pytest.raises(ValueError, match=method if call != "operator" else "does not match"):
            getattr(J, method)({"a": jnp.ones(length)})


def test_without_params_the_matrix_is_empty():
    x = jnp.zeros(0)
    assert fnopt.sparse_jacobian(lambda x: 2 * x)(x).matrix().shape == (0, 0)
    assert fnopt.sparse_hessian(lambda x: jnp.sum(x**3))(x).matrix().shape == (0, 0)
    assert [part.size for part in fnopt.sparsity_pattern(lambda x: 2 * x)(x)] == [0, 0]
    assert "0 unknowns" in str(fnopt.sparse_jacobian(lambda x: 2 * x).plan(x))


@pytest.mark.parametrize(
    "name",
    ["jacobian", "per_example_jacobian", "sparse_jacobian", "sparse_hessian", "sparsity_pattern"],
)
def test_an_argument_that_is_not_a_function_is_refused_at_the_call(name):
    with pytest.raises(TypeError, match=rf"{name}: fn is int, expected .* as in {name}\(f\)"):
        getattr(fnopt, name)(3)


def test_a_jac_without_its_function_is_named():
    with pytest.raises(TypeError, match=r"fn is float32\[3\], .* as in sparse_jacobian\(f\)"):
        fnopt.least_squares(_chain, jnp.ones(3), jac=fnopt.sparse_jacobian)
