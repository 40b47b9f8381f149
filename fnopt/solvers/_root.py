"""Roots of equations and fixed points: least squares with as many equations as params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Params
from fnopt.residuals import as_vector
from fnopt.solvers._equations import Root, find_root, split_pair
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.problem._call import started_from
from fnopt.solvers.problem._scipy import EXACT, ScipyTable, check_jac, first

_METHODS = {"root": (None, "hybr", "lm"), "fixed_point": (None, "del2", "iteration")}
_STEPS = ("maxfev", "maxiter")
# The last ones have no meaning here: the method doesn't depend on the units of the params.
_OPTIONS = ("xtol", "ftol", *_STEPS, *("eps", "epsfcn", "factor", "diag", "band", "col_deriv"))
_INSTEAD = {
    "bracket": "Give the middle of it as params; scipy.optimize.brentq keeps within a bracket",
    "func": "Call it fun, or give it first",
    "x0": "Call it params, or give it second",
    "fprime": f"Leave it out: {EXACT}",
    "full_output": "Leave it out: a Root has all of it",
    "callback": "Write fnopt.least_squares(fun, params, callback=...)",
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
    r"""Solves as many equations as there are params: :math:`F(\theta) = 0`.

    It uses :func:`fnopt.least_squares`: Newton's steps near the root and shorter ones far from it,
    also with a singular Jacobian. It converges only if the equations hold: a nonzero minimum of
    :math:`\|F\|` ends in `STALLED`. Like the other solvers it works under `jit` and `vmap`, and
    eager calls compile once.

    The root has derivatives, forward and reverse, with respect to the arrays that `fun` uses:
    :math:`\dot\theta = -J^{-1} \dot F`, from the implicit function theorem. They form the Jacobian,
    as the steps do: for up to some thousands of params.

    Args:
        fun: `fun(params, *args)` returns an array or a pytree with as many numbers as `params`, or
            `(that, aux)` with `has_aux`.
        params: Where to start: a pytree of floating or complex arrays, or of whole numbers, which
            are taken as floats. A list or tuple of numbers is one vector, as in SciPy.
        args: Further arguments of `fun`: pytrees of arrays.
        jac: `fnopt.sparse_jacobian(fun)`, for many equations of which each has few params: steps
            then come from a sparse factorisation, as in :func:`fnopt.least_squares`. What is left
            of an equation is compared with the larger of :math:`|\theta_j|` at the start and at
            the end, and Newton's steps aren't made. With `has_aux` it is that of the equations.
        has_aux: Whether `fun` returns `(equations, aux)`; `aux` at the root is returned.
        solver: The method; by default `fnopt.levenberg_marquardt()`.
        tol: What may be left of every equation, as a part of :math:`\sum_j |J_{ij} \theta_j|`; by
            default the rounding unit to the power 2/3. Newton's steps that still reduce the
            residuals, as at a root of zero, are taken too.
        max_steps: Maximum number of steps.
        **scipy_options: SciPy's keywords, of `fsolve` too: `maxfev`, `maxiter`, `xtol` and `ftol`
            (either is `tol`, if that isn't given), by themselves or in `options`, and methods
            `'hybr'` and `'lm'`, which mean the default here; `x0` for `params`.

    Returns:
        A `Root`. Whether it converged, and why it stopped, is in its `status` and `message`: values
        never raise.

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
    params = started_from("root", params, scipy_options)
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
    r"""Finds params that a function leaves as they are: :math:`F(\theta) = \theta`.

    The root of :math:`F(\theta) - \theta`, by :func:`fnopt.root`, which also converges if iterating
    :math:`F` diverges.

    Args:
        fun: `fun(params, *args)` returns a tree like `params`, or `(that, aux)` with `has_aux`.
        params: Where to start: a pytree of floating or complex arrays, or of whole numbers, which
            are taken as floats. A list or tuple of numbers is one vector, as in SciPy.
        args: Further arguments of `fun`: pytrees of arrays.
        has_aux: Whether `fun` returns a pair.
        solver: The method; by default `fnopt.levenberg_marquardt()`.
        tol: As in :func:`fnopt.root`.
        max_steps: Maximum number of steps.
        **scipy_options: As in :func:`fnopt.root`; methods are `'del2'` and `'iteration'`.

    Returns:
        A `Root`, whose residuals are :math:`F(\theta) - \theta`.

    Raises:
        TypeError: If `fun` is not a function, or params are not floating.
        ValueError: If `fun` returns another tree, or other shapes, than `params`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> end = fnopt.fixed_point(lambda x, a: (x + a / x) / 2, 1.0, args=(2.0,))
        >>> round(float(end.params), 4)
        1.4142

    Reference:
        See :func:`fnopt.root`.
    """
    params = started_from("fixed_point", params, scipy_options)
    tol, max_steps = read_scipy_options("fixed_point", scipy_options, tol, max_steps)
    if not callable(fun):
        raise TypeError(f"fixed_point: fun is {fun!r:.60}, expected a function of the params.")

    def displacement(params: Any, *args: Any) -> Any:
        image = fun(params, *args)
        image, aux = split_pair(image, "fixed_point") if has_aux else (image, None)
        image = as_vector(image) if isinstance(params, jax.Array) else image
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (image, params)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"fixed_point: fun returned {shapes[0]}, expected the shapes of the params, "
                f"{shapes[1]}."
            )
        difference = jax.tree.map(lambda a, b: jnp.asarray(a) - b, image, params)
        return (difference, aux) if has_aux else difference

    return find_root("fixed_point", displacement, params, args, has_aux, solver, tol, max_steps)


def read_scipy_options(
    caller: str, keywords: dict[str, Any], tol: Any, max_steps: int
) -> tuple[Any, int]:
    """The tolerance and the most steps of a call with SciPy's keywords.

    Args:
        caller: The function that is called.
        keywords: Keywords and values that aren't its own; in `options`, or beside each other.
        tol: Its tolerance.
        max_steps: Its most steps.

    Returns:
        The two.

    Raises:
        TypeError: For a keyword that neither knows, or that is called otherwise here.
        ValueError: For a method that isn't here.
    """
    options = (*_OPTIONS, "gtol")
    table = ScipyTable(caller, ("method", "jac", "options", *options), _INSTEAD, options, _STEPS)
    read, methods = table.read(keywords), _METHODS[caller]
    if read.get("method") not in methods:
        raise ValueError(
            f"{caller}: method = {read['method']!r}, expected one of {methods}, which all mean "
            "Newton's steps with the exact Jacobian here. For more params than a matrix can have, "
            "scipy.optimize itself is the tool."
        )
    jac = keywords.get("jac")
    if caller != "root" or not hasattr(jac, "plan"):  # which a sparse Jacobian has
        sparse = ", or for many equations in few params each fnopt.sparse_jacobian(fun)"
        check_jac(caller, jac, "the equations", sparse if caller == "root" else "")
    tol = first(read, "xtol", "ftol", given=tol)
    return tol, min(max_steps, table.most_steps(read, max_steps))
