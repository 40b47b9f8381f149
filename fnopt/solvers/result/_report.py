"""Text report of a solution: its status, and the params with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import count_text, leaves_with_names
from fnopt.jacobians import SparseJacobian, held_as_zeros
from fnopt.linear import least_square_sum
from fnopt.manifolds import in_tangents, is_on
from fnopt.solvers.linear_model._sparse_gram import algebra_text
from fnopt.solvers.result._covariance import correlation_of, errors_of
from fnopt.solvers.result._values import bound_note, entry_names

Solution = Any  # fnopt.solvers.Solution, whose file imports this one
_MAX_LINES = 40  # largest number of params with one line each
_MAX_NAMES = 6  # largest number of names in a sentence
_ALMOST_ONE = 0.9995  # smallest correlation that three decimals round to 1.000


def report(
    solution: Solution,
    *,
    title: str = "least squares",
    names: Sequence[str] | None = None,
    absolute_sigma: bool = False,
    more: Sequence[str] = (),
) -> str:
    """Return a short report of one fit.

    Args:
        solution: The fit.
        title: The first words of the report.
        names: The names of the numbers in the params, by default the paths of the tree.
        absolute_sigma: Whether the residuals are divided by known standard deviations.
        more: Further lines about the goodness of fit.

    Returns:
        The text.
    """
    residuals = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(solution.residuals)]
    m = sum(r.size * (1 + np.iscomplexobj(r)) for r in residuals)
    squares = sum(float(np.sum(np.square(np.abs(r.astype(complex))))) for r in residuals)
    cost, half_squares = float(solution.cost), squares / 2
    has_no_loss = _is_half_sum(residuals, cost, half_squares)
    # The cost of tiny or huge residuals under- or overflows in the solution's dtype. `half_squares`
    # is computed in float64.
    if not any(_in_range(value, solution.cost.dtype) for value in (cost, half_squares)):
        has_no_loss, cost = True, half_squares
    terms = count_text(m, "square" if has_no_loss else "residual")
    kind = f"half the sum of {terms}" if has_no_loss else f"the loss of {terms}"
    derivatives = count_text(int(solution.nhev or 0), "second derivative")
    seconds = f", {derivatives} r''" if solution.nhev else ""
    lines = [
        f"{title}: {solution.worded(names)}",
        f"  cost {cost:.6g} ({kind}), gradient norm {float(solution.gradient_norm):.2g}",
        f"  {count_text(int(solution.steps), 'step')}, {int(solution.nfev)} residual and "
        f"{int(solution.njev)} Jacobian evaluations{seconds}",
    ]
    lines += _linear_solver_lines(solution)
    if has_no_loss and np.isfinite(cost) and int(solution.dof) > 0:
        chi2 = 2 * cost / int(solution.dof)
        degrees = count_text(int(solution.dof), "degree")
        lines.append(f"  reduced chi-square {chi2:.4g}, {degrees} of freedom")
    if m == 1 and fitted_count(solution) > 1:
        lines.insert(1, "  the function returns one residual; for a scalar loss use fnopt.minimize")
    return "\n".join([*lines, *more, *_param_lines(solution, names, absolute_sigma)])


def _linear_solver_lines(solution: Solution) -> list[str]:
    """Return a line about the linear solver of the steps, unless it uses a dense matrix."""
    if isinstance(solution.jacobian, SparseJacobian):
        return [f"  steps by {algebra_text(solution.jacobian)}"]
    if solution.jacobian is None and int(solution.rank) < 0:
        return ["  steps by conjugate gradients, without a matrix"]
    return []


def batch_report(name: str, result: Any) -> str:
    """Return a report of a batch of problems: the number of problems for each status."""
    codes = np.ravel(np.asarray(result.status))
    lines = [f"{name}: {count_text(codes.size, 'problem')}"]
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        lines.append(f"  {count:>6}  {result._replace(status=code).message}")
    return "\n".join(lines)


def _is_half_sum(residuals: list[np.ndarray], cost: float, half_squares: float) -> bool:
    """Whether the cost is half the sum of squares, so that there is no effective robust loss."""
    # A solution doesn't store the loss, so the two numbers are compared up to rounding error.
    eps = max(float(jnp.finfo(r.dtype).eps) for r in residuals)
    return abs(half_squares - cost) <= eps**0.5 * max(half_squares, cost)


def _in_range(cost: Any, dtype: Any) -> bool:
    """Whether a sum of squares has full precision in a dtype."""
    return float(least_square_sum(dtype)) <= float(cost) <= float(jnp.finfo(dtype).max)


def fitted_count(solution: Solution) -> int:
    """Return the number of fitted variables that aren't fixed by equal bounds."""
    fixed = 0 if solution.fixed is None else int(np.sum(solution.fixed))
    if solution.tangent is not None:
        return solution.tangent.shape[1] - fixed
    return sum(np.size(leaf) for leaf in jax.tree.leaves(in_tangents(solution.params))) - fixed


def named_entries(params: Any) -> list[str]:
    """Return the names of the numbers in a tree, in the order of its leaves."""
    return [name for path, leaf in _entries(params) for name in entry_names(path, np.shape(leaf))]


def _param_lines(
    solution: Solution, names: Sequence[str] | None, absolute_sigma: bool
) -> list[str]:
    """Return the report lines of the params: warnings first, then the value of each param."""
    names = named_entries(solution.params) if names is None else list(names)
    values = np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for _, leaf in _entries(solution.params)]
    )
    rank, n = int(solution.rank), fitted_count(solution)
    errors, correlated = np.full(values.size, np.nan), np.zeros(values.size, bool)
    missing, lines = undetermined_text(solution, names) or "all params", []
    if isinstance(solution.jacobian, jax.Array):
        # A copy, because it is modified below.
        errors = np.array(errors_of(solution, absolute_sigma), np.float64)
        infinite = [name for name, error in zip(names, errors, strict=True) if np.isinf(error)]
        missing = listed(infinite) if 0 < len(infinite) < len(names) else missing
        correlated, correlation = _correlated(solution, values, errors)
        if rank == n and int(solution.dof) == 0:
            # As many residuals as params: without degrees of freedom there are no standard errors.
            errors = np.where(np.isinf(errors), np.nan, errors)
            lines.append("  no degrees of freedom, so no standard errors")
        if correlated.any():
            which = listed([names[i] for i in np.flatnonzero(correlated)])
            lines.append(f"  jointly undetermined: {which} (correlation {correlation:.3f})")
    if 0 <= rank < n:
        lines.insert(0, f"  rank {rank} of {n}: the data don't determine {missing}")
    notes = _notes(solution, errors, correlated)
    order = np.arange(values.size)
    if values.size > _MAX_LINES:
        size = np.where(values != 0, np.abs(values), 1)
        # Without standard errors, a stable sort keeps the order of the parameters.
        relative_errors = np.where(np.isnan(errors), 0, errors) / size
        order = np.argsort(-relative_errors, kind="stable")[:_MAX_LINES]
        worst = f"{_MAX_LINES} worst determined ones"
        which = worst if np.any(errors > 0) else f"first {_MAX_LINES}"
        lines.append(f"  {values.size} parameters, the {which}:")
    errors[correlated] = np.nan  # too large to determine the digits of the value
    name_width = max((len(names[i]) for i in order), default=0)
    texts = [_rounded(values[i], errors[i]) for i in order]
    text_width = max(map(len, texts), default=0)
    return lines + [
        f"  {names[i]:<{name_width}}  {text:<{text_width}}{notes[i]}".rstrip()
        for i, text in zip(order, texts, strict=True)
    ]


def _correlated(
    solution: Solution, values: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return a mask of jointly undetermined params, and the largest correlation of two of them.

    The errors of such params exceed their values, and their correlation rounds to 1.
    """
    corr = np.abs(np.asarray(correlation_of(solution), np.float64)) - np.eye(values.size)
    mask = np.isfinite(errors) & (errors > np.abs(values))
    if solution.tangent is not None:
        # Tied params have a correlation of 1 by definition. Of all params that depend only on the
        # same variable, keep the first.
        depends = np.asarray(solution.tangent) != 0
        depends &= np.sum(depends, axis=1, keepdims=True) == 1
        mask &= np.any(depends, axis=1)
        mask &= np.isin(np.arange(values.size), np.argmax(depends, axis=0))
    pairs = (corr >= _ALMOST_ONE) & mask & mask[:, None]  # False for NaN
    return np.any(pairs, axis=0), np.max(corr, where=pairs, initial=0)


def _entries(params: Any) -> list[tuple[str, Any]]:
    """Return the names and values of the leaves.

    Points on manifolds are replaced by tangent vectors, and other objects by zeros.
    """

    def with_tangent(node: Any) -> Any:
        return {"tangent": node.value} if is_on(node) else node

    tree = jax.tree.map(with_tangent, in_tangents(params), is_leaf=is_on)
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(held_as_zeros(tree)), strict=True)
    numbers = [
        zero if jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.extended) else leaf
        for leaf, zero in pairs
    ]
    return leaves_with_names(jax.tree.unflatten(jax.tree.structure(tree), numbers))[0]


def undetermined_text(solution: Solution, names: Sequence[str] | None = None) -> str:
    """List the params that the data don't determine; if they are many, list their leaves.

    Args:
        solution: The fit.
        names: The names of the numbers in the params, by default the paths of the tree.

    Returns:
        The text; empty if the data determine all params.
    """
    if solution.certificate is None or not np.any(solution.certificate.undetermined):
        return ""
    mask = np.asarray(solution.certificate.undetermined)
    leaves = [(path.removesuffix("/tangent"), leaf) for path, leaf in _entries(solution.params)]
    names = named_entries(solution.params) if names is None else names
    undetermined = mask if solution.tangent is None else _sum_variables(solution.tangent, mask) != 0
    if len(names) != undetermined.size:
        return f"{mask.sum()} of {count_text(mask.size, 'param')}"
    count = undetermined.sum()
    if count <= _MAX_NAMES:
        return listed([names[i] for i in np.flatnonzero(undetermined).tolist()])
    ends = np.cumsum([np.size(leaf) for _, leaf in leaves])
    leaf_masks = zip(leaves, np.split(undetermined, ends[:-1]), strict=True)
    paths = listed([path or "x" for (path, _), leaf_mask in leaf_masks if leaf_mask.any()])
    deficiency = fitted_count(solution) - int(solution.rank)
    if int(solution.rank) >= 0 and 0 < deficiency < count:
        return f"{count_text(deficiency, 'direction')} in {paths}"
    return f"{count_text(count, 'number')} in {paths}"


def listed(names: list[str]) -> str:
    """Join the first six names, and count the others."""
    others = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + others


def _notes(solution: Solution, errors: np.ndarray, correlated: np.ndarray) -> list[str]:
    """Return the note after the value of each param."""
    fixed, bounds = _fixed(solution, errors.size), _bounds(solution, errors.size)
    notes = []
    for i, error in enumerate(errors):
        if fixed[i]:
            notes.append("   (fixed)")
        elif bounds[i]:
            notes.append(bound_note(bounds[i]))
        elif np.isinf(error):
            notes.append("   (not determined)")
        elif correlated[i]:
            notes.append("   (jointly undetermined)")
        else:
            notes.append("" if np.isnan(error) else f" ± {_error(error)}")
    return notes


def _fixed(solution: Solution, size: int) -> np.ndarray:
    """Return a mask of the params that don't depend on a free variable."""
    free = np.ones(1, bool) if solution.fixed is None else ~np.asarray(solution.fixed)
    if solution.tangent is None:
        return np.broadcast_to(~free, (size,)) if free.size in (1, size) else np.zeros(size, bool)
    free = np.broadcast_to(free, solution.tangent.shape[1:])
    return _sum_variables(solution.tangent, free) == 0


def _sum_variables(tangent: jax.Array | SparseJacobian, values: np.ndarray) -> np.ndarray:
    """Return, for each param, the sum of `values` over the variables on which the param depends."""
    v = jnp.asarray(values, jnp.int32)
    depends = jax.tree.map(lambda a: (a != 0).astype(jnp.int32), tangent)
    return np.asarray(depends.mv(v) if isinstance(depends, SparseJacobian) else depends @ v)


def _bounds(solution: Solution, size: int) -> np.ndarray:
    """Return -1 for params on their lower bound, 1 for params on their upper bound, else 0."""
    if solution.at_bound is None:
        return np.zeros(size, int)
    sides = np.asarray(solution.at_bound)
    # Without a tangent, the params are the fitted variables, or they are too many for a matrix.
    if solution.tangent is None:
        return sides if sides.size == size else np.zeros(size, int)
    return np.sign(_sum_variables(solution.tangent, sides))


def _error(error: float) -> str:
    """Format a standard error with two digits."""
    return f"{error:.{_decimals(error)}f}" if 1e-5 < error < 1e5 else f"{error:.2g}"


def _decimals(error: float) -> int:
    # Round to two digits first: 0.0996 becomes 0.10, which needs two decimals, not three.
    return max(0, 1 - int(np.floor(np.log10(float(f"{error:.1e}")))))


def _rounded(value: float, error: float) -> str:
    """Format a value with the digits that its error determines; without an error, six digits."""
    if not 0 < error < np.inf or (value == 0 and not 1e-5 < error < 1e5):  # also for NaN
        return f"{value:.6g}"
    if 1e-5 < error < 1e5 and abs(value) < 1e9:
        decimals = _decimals(error)
        return f"{round(value, decimals) + 0.0:.{decimals}f}"  # never -0
    digits = 2 + np.floor(np.log10(abs(value))) - np.floor(np.log10(error))
    return f"{value:.{int(np.clip(digits, 1, 9))}g}"
