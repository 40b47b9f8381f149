"""`root` and `fixed_point`: systems with as many equations as params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Params
from fnopt.errors import check_function
from fnopt.residuals import as_vector
from fnopt.solvers._equations import Root, find_root, split_pair
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.problem._call import initial_guess
from fnopt.solvers.problem._scipy import EXACT, ScipyTable, check_jac, value_or_option

_METHODS = {"root": (None, "hybr", "lm"), "fixed_point": (None, "del2", "iteration")}
_STEPS = ("maxfev", "maxiter")
# `eps` and the following options have no effect, because derivatives are exact and the method
# scales the params.
_OPTIONS = ("xtol", "ftol", *_STEPS, *("eps", "epsfcn", "factor", "diag", "band", "col_deriv"))
_INSTEAD = {
    "bracket": "Pass the midpoint as params, or use scipy.optimize.brentq, which needs a bracket",
    "func": "Rename it to fun, or pass it first",
    "x0": "Rename it to params, or pass it second",
    "fprime": f"Leave it out, because {EXACT}",
    "full_output": "Leave it out, because a Root contains all results",
    "callback": "Call fnopt.least_squares(fun, params, callback=...)",
}


def root(
    fun: Callable[..., Any],
    params: Params | None = None,
    args: tuple[Any, ...] = (),
    *,
    jac: Any = None,
    has_aux: bool = False,
    solver: LeastSquaresMethod | None = None,
    tol: float | jax.Array | None = None,
    max_steps: int = 1000,
    **scipy_options: Any,
) -> Root[Params]:
    r"""Solve a system with as many equations as params: :math:`F(\theta) = 0`.

    `root` uses :func:`fnopt.least_squares`, which takes Newton steps near the root and shorter
    steps far from the root or if the Jacobian is singular. The search converges only if the
    equations hold. At a nonzero minimum of :math:`\|F\|` the status is `STALLED`. `root` works
    under `jit` and `vmap`, and eager calls with new data of the same shapes don't compile again.

    The root is differentiable in forward and reverse mode, with respect to the arrays that `fun`
    uses: :math:`\dot\theta = -J^{-1} \dot F`, by the implicit function theorem. Steps and
    derivatives form the Jacobian, so use `root` for at most a few thousand params.

    Args:
        fun: `fun(params, *args)` returns an array or a pytree with as many numbers as `params`, or
            `(equations, aux)` with `has_aux`.
        params: The initial guess: a pytree of floating or complex arrays. Integers are converted to
            floats. A list or tuple of numbers is converted to a vector, as in SciPy.
        args: Additional arguments of `fun`: pytrees of arrays.
        jac: `fnopt.sparse_jacobian(fun)`, for many equations, each of which depends on few params.
            Steps then use a sparse factorization, as in :func:`fnopt.least_squares`. The test with
            `tol` uses the larger of :math:`|\theta_j|` at the initial guess and at the root, and
            the final Newton steps are omitted. With `has_aux`, pass the Jacobian of the equations.
        has_aux: Whether `fun` returns `(equations, aux)`; `aux` at the root is returned.
        solver: The method; by default `fnopt.levenberg_marquardt()`.
        tol: Tolerance of every equation's residual, relative to :math:`\sum_j |J_{ij} \theta_j|`;
            by default the machine epsilon to the power 2/3. If a residual exceeds the tolerance,
            for example at a root of zero, Newton steps test whether the residual converges to zero.
        max_steps: Maximum number of steps.
        **scipy_options: Keywords of SciPy's `root` and `fsolve`: `maxfev`, `maxiter`, `xtol` and
            `ftol` (both set `tol`, if `tol` is None), as keywords or in `options`; the methods
            `'hybr'` and `'lm'`, which select the default solver; and `x0` for `params`.

    Returns:
        A `Root`. `status` and `message` report whether the search converged, and why it stopped.
        Nonfinite values don't raise an exception.

    Raises:
        TypeError: If `fun` is not a function, or params or equations are not floating.
        ValueError: If there are more or fewer equations than params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.root(lambda x: jnp.cos(x) - x, 0.5)
        >>> round(float(end.params), 4), bool(end.converged)
        (0.7391, True)

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory; see
        :class:`fnopt.levenberg_marquardt`.
    """
    params = initial_guess("root", params, scipy_options)
    tol, max_steps = read_scipy_options("root", {**scipy_options, "jac": jac}, tol, max_steps)
    jac = jac if callable(jac) else None
    return find_root("root", fun, params, args, has_aux, solver, tol, max_steps, jac)


def fixed_point(
    fun: Callable[..., Any],
    params: Params | None = None,
    args: tuple[Any, ...] = (),
    *,
    has_aux: bool = False,
    solver: LeastSquaresMethod | None = None,
    tol: float | jax.Array | None = None,
    max_steps: int = 1000,
    **scipy_options: Any,
) -> Root[Params]:
    r"""Find a fixed point of a function: :math:`F(\theta) = \theta`.

    The search solves :math:`F(\theta) - \theta = 0` by :func:`fnopt.root`, so it may also converge
    if the iteration :math:`\theta \leftarrow F(\theta)` diverges.

    Args:
        fun: `fun(params, *args)` returns a tree like `params`, or `(tree, aux)` with `has_aux`.
        params: The initial guess: a pytree of floating or complex arrays. Integers are converted to
            floats. A list or tuple of numbers is converted to a vector, as in SciPy.
        args: Additional arguments of `fun`: pytrees of arrays.
        has_aux: Whether `fun` returns `(tree, aux)`; `aux` at the fixed point is returned.
        solver: The method; by default `fnopt.levenberg_marquardt()`.
        tol: As in :func:`fnopt.root`.
        max_steps: Maximum number of steps.
        **scipy_options: As in :func:`fnopt.root`; methods are `'del2'` and `'iteration'`.

    Returns:
        A `Root`, whose residuals are :math:`F(\theta) - \theta`.

    Raises:
        TypeError: If `fun` is not a function, or params are not floating.
        ValueError: If the output of `fun` doesn't have the tree and the shapes of `params`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.fixed_point(lambda x, a: (x + a / x) / 2, 1.0, args=(2.0,))
        >>> round(float(end.params), 4)
        1.4142

    Reference:
        See :func:`fnopt.root`.
    """
    params = initial_guess("fixed_point", params, scipy_options)
    tol, max_steps = read_scipy_options("fixed_point", scipy_options, tol, max_steps)
    check_function(fun, "fun", "fixed_point")

    def displacement(params: Any, *args: Any) -> Any:
        image = fun(params, *args)
        image, aux = split_pair(image, "fixed_point") if has_aux else (image, None)
        image = as_vector(image) if isinstance(params, jax.Array) else image
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (image, params)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"fixed_point: fun returned arrays of shapes {shapes[0]}, expected the shapes of "
                f"the params, {shapes[1]}."
            )
        difference = jax.tree.map(lambda a, b: jnp.asarray(a) - b, image, params)
        return (difference, aux) if has_aux else difference

    return find_root("fixed_point", displacement, params, args, has_aux, solver, tol, max_steps)


def read_scipy_options(
    caller: str, keywords: dict[str, Any], tol: Any, max_steps: int
) -> tuple[Any, int]:
    """Return the tolerance and the maximum number of steps of a call with SciPy's keywords.

    Args:
        caller: The public function that was called.
        keywords: The keywords that the function doesn't declare, with their values.
        tol: The tolerance passed to the caller.
        max_steps: The maximum number of steps passed to the caller.

    Returns:
        The tolerance and the maximum number of steps.

    Raises:
        TypeError: If a keyword is unknown, or has another name in fnopt.
        ValueError: If fnopt doesn't have the method.
    """
    options = (*_OPTIONS, "gtol")
    table = ScipyTable(caller, ("method", "jac", "options", *options), _INSTEAD, options, _STEPS)
    read, methods = table.read(keywords), _METHODS[caller]
    if read.get("method") not in methods:
        raise ValueError(
            f"{caller}: method = {read['method']!r}, expected one of {methods}, which all "
            "select Newton steps with the exact Jacobian. If the Jacobian is too large for a "
            "matrix, use scipy.optimize."
        )
    jac = keywords.get("jac")
    if caller != "root" or not hasattr(jac, "plan"):  # a sparse Jacobian has `plan`
        sparse = ", or fnopt.sparse_jacobian(fun) for many equations in few params each"
        check_jac(caller, jac, "the equations", sparse if caller == "root" else "")
    tol = value_or_option(tol, read, "xtol", "ftol")
    return tol, min(max_steps, table.smallest_limit(read, max_steps))
