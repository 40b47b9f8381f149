"""Root finding for as many equations as params: `Root`, the search, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Params, Status, is_converged, status_messages
from fnopt.errors import (
    check_count,
    check_function,
    check_inexact,
    check_returned,
    check_tolerance,
    count_text,
    explain_jax_errors,
    missing_attribute,
    show_report,
)
from fnopt.jacobians import SparseJacobian, forward_from_reverse, real_vector
from fnopt.numerics import compute_dtype, matmul, real_dtype
from fnopt.programs import (
    convert_closure,
    copy_function,
    is_data,
    is_eager,
    tiered_call,
    trace_and_call,
    trace_function,
)
from fnopt.residuals import (
    Parametrization,
    floating_start,
    newton_steps,
    parametrize,
    perturb_zero_columns,
    root_tangent,
)
from fnopt.sharding import pvary_for
from fnopt.solvers._driver import least_squares
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.problem._call import (
    checked_args,
    first_call_hints,
    run_in_available_mode,
)
from fnopt.solvers.result._report import batch_report
from fnopt.solvers.result._values import value_lines

# Messages of statuses whose general text is about least squares.
_MESSAGES = {
    Status.CONVERGED_COST: "converged: the equations hold to tol",
    Status.STALLED: (
        "not converged: no step reduces the residual norm, but the equations don't hold to tol. "
        "Try another initial guess, and check that a root exists"
    ),
    Status.NONFINITE_START: "failed: the equations or their Jacobian aren't finite at these params",
    Status.NONFINITE_STEP: "failed: every step led to equations that are not finite",
}

# Attributes of SciPy's result, and what to use instead.
_SCIPY = {"x": "params", "fun": "residuals", "success": "converged", "nit": "steps"}


class Root(NamedTuple, Generic[Params]):
    """The result of :func:`fnopt.root` and :func:`fnopt.fixed_point`; a pytree of arrays.

    Attributes:
        params: The solution, with the tree, shapes and dtypes of the initial guess.
        residuals: The values of the equations at `params`: a tree like the result of `fun`.
        steps: Number of steps, rejected ones included, int32.
        nfev: Number of evaluations of `fun`.
        status: Reason why the search stopped: a `fnopt.Status` as int32; `message` is its text.
        aux: The auxiliary output of `fun` at `params`.
    """

    params: Params
    residuals: Any
    steps: jax.Array
    nfev: jax.Array
    status: jax.Array
    aux: Any = None

    @property
    def message(self) -> Any:
        """Text of `status` (a list of texts for a batch); not available under `jax.jit`."""
        return status_messages(self.status, _MESSAGES)

    @property
    def converged(self) -> jax.Array:
        """Whether the equations hold within the tolerance."""
        return is_converged(self.status)

    _repr_pretty_ = show_report

    if not TYPE_CHECKING:
        __getattr__ = missing_attribute("a Root", _SCIPY)

    def __str__(self) -> str:
        if isinstance(self.status, Tracer):
            return repr(self)
        if jnp.ndim(self.status):
            return batch_report("root", self)
        leaves = jax.tree.leaves(self.residuals)
        largest = max((float(jnp.max(jnp.abs(r))) for r in leaves), default=0)
        steps, nfev = count_text(int(self.steps), "step"), count_text(int(self.nfev), "evaluation")
        lines = [f"root: {self.message}", f"  largest residual {largest:.2g}, {steps}, {nfev}"]
        return "\n".join(lines + value_lines(self.params))


def split_pair(out: Any, caller: str) -> tuple[Any, Any]:
    """Split the output of a function into the equations and the auxiliary output."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(
            f"{caller}: with has_aux=True fun returned {type(out).__name__}, expected a pair "
            "(equations, aux). Return a pair, or leave has_aux out."
        )
    check_returned(out[1], f"{caller}: aux of fun")
    return out[0], out[1]


def find_root(
    caller: str,
    fun: Callable[..., Any],
    params: Any,
    args: Any,
    has_aux: bool,
    solver: LeastSquaresMethod | None,
    tol: Any,
    max_steps: int,
    jac: Any = None,
) -> Root:
    """Check the arguments of `root`, and find a root; `caller` is the public function's name."""
    check_function(fun, "fun", caller)
    max_steps = check_count(max_steps, "max_steps", caller)
    check_tolerance(tol, "tol", caller)
    args = checked_args(args, caller)
    params = floating_start(params)
    check_inexact(params, "params", fitted=True)
    solver = levenberg_marquardt() if solver is None else solver
    static: dict[str, Any] = {"caller": caller, "has_aux": has_aux, "max_steps": max_steps}

    def run(solver: LeastSquaresMethod) -> Root:
        if function is not None:  # the search is traced once per jaxpr of `fun`, not in every call
            return tiered_call(_traced_root, function, params, args, solver, tol, **static)

        def find(params: Any, args: Any, tol: Any) -> Root:
            return _traced_root(fun, params, args, solver, tol, jac=jac, **static)

        return trace_and_call(find, params, args, tol)

    with first_call_hints(params, "fun"), explain_jax_errors(caller, "fun"):
        only_data = jac is None and is_data((solver, tol)) and is_eager((params, args, tol))
        function = trace_function(fun, _widened(params), *args) if only_data else None
        return run_in_available_mode(run, solver, caller, "fun")


def _widened(params: Any) -> Any:
    """Convert 16-bit params to 32 bits, because 16 bits are insufficient to resolve small steps."""
    return jax.tree.map(lambda p: jnp.asarray(p, compute_dtype(jnp.result_type(p))), params)


def _traced_root(
    fun: Callable[..., Any],
    params: Any,
    args: tuple[Any, ...],
    solver: LeastSquaresMethod,
    tol: Any,
    *,
    caller: str,
    has_aux: bool,
    max_steps: int,
    jac: Any = None,
) -> Root:
    """Find a root under a trace: flatten the params, search, and convert the root to params."""
    wide = pvary_for(fun, _widened(params), *args)
    dtype = real_dtype(compute_dtype(*(p.dtype for p in jax.tree.leaves(wide))))
    # Points on manifolds are represented by tangent coordinates at the initial guess.
    parametrization = parametrize(wide)
    vector = real_vector(parametrization.free, dtype)

    def equations(x: jax.Array) -> Any:
        out = fun(parametrization.assemble(vector.unflatten(x)), *args)
        return split_pair(out, caller)[0] if has_aux else out

    shapes = jax.eval_shape(copy_function(equations), jax.ShapeDtypeStruct((vector.size,), dtype))
    check_inexact(shapes, "the equations")
    out = real_vector(shapes, dtype)
    if out.size != vector.size:
        raise ValueError(
            f"{caller}: fun returned {count_text(out.size, 'number')}, expected {vector.size}, "
            "the number of params. For more or fewer equations use fnopt.least_squares."
        )
    start = vector.flatten(parametrization.free)

    def residual(x: jax.Array) -> jax.Array:
        return out.flatten(equations(x))

    J = None if jac is None else _sparse_jacobian_at(jac, parametrization, vector, args, caller)
    x, residuals, counts = _differentiable_root(residual, start, solver, tol, max_steps, J)
    solution = parametrization.assemble(vector.unflatten(x))
    aux = split_pair(fun(solution, *args), caller)[1] if has_aux else None
    params_out = jax.tree.map(lambda new, old: new.astype(jnp.result_type(old)), solution, params)
    return Root(params_out, out.unflatten(residuals), *counts, aux=aux)


def _sparse_jacobian_at(
    jac: Any, parametrization: Parametrization, vector: Any, args: tuple[Any, ...], caller: str
) -> Callable[[jax.Array], SparseJacobian]:
    """Return the user's sparse Jacobian as a function of the vector of params."""
    if parametrization.kinds:
        raise ValueError(
            f"{caller}: got jac with params on manifolds, expected no jac. Leave jac out."
        )

    def jacobian(x: jax.Array) -> SparseJacobian:
        J = jac(vector.unflatten(x), *args)
        if J.shape != (x.size, x.size):
            raise ValueError(
                f"{caller}: jac has shape {J.shape}, expected {(x.size, x.size)}. Pass "
                "jac=fnopt.sparse_jacobian(g), where g returns only the equations, without aux."
            )
        return J

    return jacobian


def _differentiable_root(
    fn: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    solver: Any,
    tol: Any,
    max_steps: int,
    jac: Callable[[jax.Array], SparseJacobian] | None = None,
) -> tuple[jax.Array, jax.Array, tuple[Any, ...]]:
    """Find a root of a function of a vector, differentiable by the implicit function theorem.

    Args:
        fn: `fn(x)` returns the equations, of the shape `[n]` of `x`.
        x: The initial guess.
        solver: The method.
        tol: The tolerance of the equations, or None.
        max_steps: The maximum number of steps.
        jac: `jac(x)` returns the sparse Jacobian; None for automatic differentiation.

    Returns:
        The root, the residuals at the root, and (steps, nfev, status).
    """
    # `custom_jvp` differentiates only with respect to arguments, so captured arrays become
    # arguments. The root depends on `consts`, but not on the initial guess or `jac_consts`.
    f, consts = convert_closure(fn, x)
    J: Any
    J, jac_consts = (None, []) if jac is None else convert_closure(jac, x)
    # The rule below takes a JVP, which JAX doesn't derive for a `custom_vjp`.
    if solver.jacobian == "reverse" and not solver.geodesic:
        f = forward_from_reverse(f)

    @jax.custom_jvp
    def run(x: jax.Array, consts: list[Any], jac_consts: list[Any]) -> tuple[jax.Array, Any]:
        def r(v: jax.Array) -> jax.Array:
            return f(v, *consts)

        jac_fn = None if J is None else (lambda v: J(v, *jac_consts))
        # `perturb_zero_columns` forms a dense Jacobian, which may be too large with `jac`.
        start = perturb_zero_columns(r, x) if J is None else x
        fit = least_squares(r, start, jac=jac_fn, solver=solver, max_steps=max_steps)
        sparse = None if jac_fn is None else jac_fn(fit.params)
        solution, residuals, status = _correct_and_check_root(r, x, fit, sparse, tol)
        return solution, (residuals, fit.steps, fit.nfev, status)

    @run.defjvp
    def run_jvp(primals: Any, tangents: Any) -> Any:
        (x, consts, jac_consts), (_, consts_dot, _) = primals, tangents
        root, rest = run(x, consts, jac_consts)
        tangent = root_tangent(lambda v, consts: f(v, *consts), root, consts, consts_dot)
        return (root, rest), (tangent, jax.custom_derivatives.zero_from_primal(rest))

    root, (residuals, *counts) = run(x, consts, jac_consts)
    return root, residuals, tuple(counts)


def _correct_and_check_root(
    r_fn: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    fit: Any,
    sparse: SparseJacobian | None,
    tol: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Check whether the result of least squares is a root, and correct it by Newton steps.

    The result is a root if every equation passes one of two tests:

    - Its residual is at most `tol` times the terms of the linear model, :math:`|J| |x|`.
    - Newton steps reduce its residual by a factor of 1000 or more, and the steps shrink.

    If an equation of a root fails the first test, the point after the Newton steps is returned,
    unless a residual grew. In a sum of squares, the residual of a small equation is lost in the
    rounding error of a large equation. With a sparse Jacobian, no Newton steps are taken, and `|x|`
    is the larger of the magnitudes at the initial guess and at the fitted params.

    Args:
        r_fn: The residuals as a function of a vector.
        start: The initial guess, of shape `[n]`.
        fit: The solution of least squares.
        sparse: The sparse Jacobian at the fitted params, or None.
        tol: The tolerance, or None.

    Returns:
        The root, the residuals at the root, and the status.
    """
    # Least squares also converges at a nonzero minimum of the residual norm. The residual at the
    # initial guess isn't a suitable scale for the test, because it may be arbitrarily large.
    r, x = fit.residuals, fit.params
    # Dennis and Schnabel (1983), section 7.2: two thirds of the digits. eps^(2/3) is 200 times
    # (float64: 2e5 times) the rounding error eps |J| |x|.
    tol = jnp.asarray(jnp.finfo(r.dtype).eps ** (2 / 3) if tol is None else tol, r.dtype)
    residual_size, terms = jnp.abs(r), jnp.zeros_like(r)
    if sparse is not None:
        terms = jax.tree.map(jnp.abs, sparse).mv(jnp.maximum(jnp.abs(start), jnp.abs(x)))
    elif isinstance(fit.jacobian, jax.Array):
        terms = matmul(jnp.abs(fit.jacobian), jnp.abs(x))
    # Every residual would be small relative to infinite terms.
    is_small = (residual_size <= tol * terms) & jnp.isfinite(terms)
    all_small = jnp.all(is_small)
    has_ended = is_converged(fit.status) | (fit.status == Status.STALLED.value)
    ill_posed = (fit.status == Status.ILL_POSED.value) & jnp.all(jnp.isfinite(r))
    # Convergence of least squares alone isn't convergence to a root.
    status = jnp.where(has_ended | ill_posed, Status.STALLED.array, fit.status)
    if sparse is not None:
        return x, r, jnp.where(all_small, Status.CONVERGED_COST.array, status)
    new_x, first_step, last_step = newton_steps(r_fn, x)
    new_r = r_fn(new_x)
    # Newton steps towards a root at infinity reduce the residuals without shrinking.
    shrinks = jnp.abs(last_step) <= jnp.maximum(jnp.abs(first_step) / 2, tol * jnp.abs(new_x))
    # Newton steps towards a root of multiplicity k multiply the residual by (1 - 1/k)^k per step,
    # which is below exp(-1). Seven of the ten steps suffice: exp(-7) = 1e-3.
    reduced_1000_fold = jnp.abs(new_r) <= jnp.asarray(1e-3, r.dtype) * residual_size
    passes_newton_test = reduced_1000_fold & jnp.all(shrinks)
    no_larger = jnp.all(jnp.abs(new_r) <= jnp.maximum(residual_size, tol * terms))
    is_root = jnp.all(is_small | (has_ended & passes_newton_test))
    status = jnp.where(is_root, Status.CONVERGED_COST.array, status)
    use_newton = is_root & no_larger & ~all_small
    return jnp.where(use_newton, new_x, x), jnp.where(use_newton, new_r, r), status
