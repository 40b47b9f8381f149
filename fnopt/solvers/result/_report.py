"""The text report of a solution: its status, and the params with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import leaves_with_names
from fnopt.jacobians import SparseJacobian, held_as_zeros
from fnopt.manifolds import in_tangents, is_on
from fnopt.solvers.linear_model._sparse_gram import algebra_text
from fnopt.solvers.result._covariance import correlation_of, errors_of
from fnopt.solvers.result._values import bound_note, entry_names

Solution = Any  # fnopt.solvers.Solution, whose file imports this one
_MOST_SHOWN = 40  # parameters with a line of their own
_MOST_LISTED = 6  # names in a sentence
_ALIKE = 0.9995  # a correlation that is written as 1.000


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
        absolute_sigma: Whether the residuals are in units of known standard deviations.
        more: Further lines about the goodness of fit.

    Returns:
        The text.
    """
    residuals = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(solution.residuals)]
    m = sum(r.size * (1 + np.iscomplexobj(r)) for r in residuals)
    squares = sum(float(np.sum(np.square(np.abs(r.astype(complex))))) for r in residuals)
    cost, total = float(solution.cost), squares / 2
    plain = _is_plain(residuals, cost, total)
    if not any(_in_range(size, solution.cost.dtype) for size in (cost, total)):
        plain, cost = True, total
    of = f"half the sum of {m} squares" if plain else f"the loss of {m} residuals"
    seconds = f", {int(solution.nhev)} second derivatives r''" if solution.nhev else ""
    lines = [
        f"{title}: {solution.worded(names)}",
        f"  cost {cost:.6g} ({of}), gradient norm {float(solution.gradient_norm):.2g}",
        f"  {int(solution.steps)} steps, {int(solution.nfev)} residual and "
        f"{int(solution.njev)} Jacobian evaluations{seconds}",
    ]
    lines += _algebra(solution)
    if plain and np.isfinite(cost) and int(solution.dof) > 0:
        chi2 = 2 * cost / int(solution.dof)
        lines.append(f"  reduced chi-square {chi2:.4g}, {int(solution.dof)} degrees of freedom")
    if m == 1 and fitted_count(solution) > 1:
        lines.insert(1, "  one residual: if it is a loss, use fnopt.minimize")
    return "\n".join([*lines, *more, *_params(solution, names, absolute_sigma)])


def _algebra(solution: Solution) -> list[str]:
    """Return the line about the linear solver of the steps, if they don't use a dense matrix."""
    if isinstance(solution.jacobian, SparseJacobian):
        return [f"  steps by {algebra_text(solution.jacobian)}"]
    if solution.jacobian is None and int(solution.rank) < 0:
        return ["  steps by conjugate gradients, without a matrix"]
    return []


def batch_report(name: str, result: Any) -> str:
    """Return a report of a batch of problems: the number of problems for each status."""
    codes = np.ravel(np.asarray(result.status))
    lines = [f"{name}: {codes.size} problems"]
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        lines.append(f"  {count:>6}  {result._replace(status=code).message}")
    return "\n".join(lines)


def _is_plain(residuals: list[np.ndarray], cost: float, total: float) -> bool:
    """Whether the cost is half the sum of squares, without a robust loss."""
    coarse = max(float(jnp.finfo(r.dtype).eps) for r in residuals)
    return abs(total - cost) <= max(1e-4, 8 * coarse) * max(total, cost)


def _in_range(cost: Any, dtype: Any) -> bool:
    """Whether a sum of squares has full precision in a dtype."""
    kind = jnp.finfo(dtype)
    return 1e3 * float(kind.tiny) <= float(cost) <= float(kind.max) / 8


def fitted_count(solution: Solution) -> int:
    """Return the number of fitted numbers."""
    fixed = 0 if solution.fixed is None else int(np.sum(solution.fixed))
    if solution.tangent is not None:
        return solution.tangent.shape[1] - fixed
    return sum(np.size(leaf) for leaf in jax.tree.leaves(in_tangents(solution.params))) - fixed


def named_entries(params: Any) -> list[str]:
    """Return the names of the numbers in a tree, in the order of its leaves."""
    return [name for path, leaf in _entries(params) for name in entry_names(path, np.shape(leaf))]


def _params(solution: Solution, names: Sequence[str] | None, absolute_sigma: bool) -> list[str]:
    """Return the report lines of the params: first problems, then the value of each param."""
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
        correlated, most = _correlated(solution, values, errors)
        if rank == n and int(solution.dof) == 0:
            # As many residuals as params: without degrees of freedom there are no standard errors.
            errors = np.where(np.isinf(errors), np.nan, errors)
            lines.append("  no degrees of freedom, so no standard errors")
        if correlated.any():
            which = listed([names[i] for i in np.flatnonzero(correlated)])
            lines.append(f"  cannot be told apart: {which} (correlation {most:.3f})")
    if 0 <= rank < n:
        lines.insert(0, f"  rank {rank} of {n}: the data don't determine {missing}")
    notes = _notes(solution, errors, correlated)
    errors[correlated] = np.nan  # too large to determine the digits of the value
    order = np.arange(values.size)
    if values.size > _MOST_SHOWN:
        size = np.where(values != 0, np.abs(values), 1)
        worst = np.where(np.isnan(errors), 0, errors) / size
        order = np.argsort(-worst, kind="stable")[:_MOST_SHOWN]
        lines.append(f"  {values.size} parameters, the {_MOST_SHOWN} worst determined ones:")
    width = max((len(names[i]) for i in order), default=0)
    shown = [_rounded(values[i], errors[i]) for i in order]
    longest = max(map(len, shown), default=0)
    return lines + [
        f"  {names[i]:<{width}}  {text:<{longest}}{notes[i]}".rstrip()
        for i, text in zip(order, shown, strict=True)
    ]


def _correlated(
    solution: Solution, values: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return a mask of highly correlated params with large errors, and the correlation."""
    corr = np.abs(np.asarray(correlation_of(solution), np.float64)) - np.eye(values.size)
    counted = np.isfinite(errors) & (errors > np.abs(values))
    if solution.tangent is not None:  # without tied params
        moves = np.asarray(solution.tangent) != 0
        # Params that depend on one variable only.
        moves &= np.sum(moves, axis=1, keepdims=True) == 1
        counted &= np.any(moves, axis=1)
        counted &= np.isin(np.arange(values.size), np.argmax(moves, axis=0))
    near = (corr >= _ALIKE) & counted & counted[:, None]  # False where it is NaN
    return np.any(near, axis=0), np.max(corr, where=near, initial=0)


def _entries(params: Any) -> list[tuple[str, Any]]:
    """Return the leaves keyed by name: tangents for manifolds, zeros for other objects."""

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
    """Name the params that the data don't determine; many of them by leaf. Empty if there are none.

    Args:
        solution: The fit.
        names: The names of the numbers in the params, by default the paths of the tree.
    """
    if solution.certificate is None or not np.any(solution.certificate.undetermined):
        return ""
    mask = np.asarray(solution.certificate.undetermined)
    leaves = [(path.removesuffix("/tangent"), leaf) for path, leaf in _entries(solution.params)]
    names = named_entries(solution.params) if names is None else names
    lost = mask if solution.tangent is None else _moving(solution.tangent, mask) != 0
    if len(names) != lost.size:
        return f"{mask.sum()} of {mask.size} params"
    if lost.sum() <= _MOST_LISTED:
        return listed([name for name, is_lost in zip(names, lost, strict=True) if is_lost])
    ends = np.cumsum([np.size(leaf) for _, leaf in leaves])
    parts = zip(leaves, np.split(lost, ends[:-1]), strict=True)
    of = listed([path or "x" for (path, _), part in parts if part.any()])
    free = fitted_count(solution) - int(solution.rank)
    if int(solution.rank) >= 0 and 0 < free < lost.sum():
        return f"{free} direction{'s' if free > 1 else ''} in {of}"
    return f"{lost.sum()} numbers in {of}"


def listed(names: list[str]) -> str:
    """Join up to six names."""
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _notes(solution: Solution, errors: np.ndarray, correlated: np.ndarray) -> list[str]:
    """Return the notes after the value of each param."""
    held, bounds = _held(solution, errors.size), _bounds(solution, errors.size)
    notes = []
    for i, error in enumerate(errors):
        if held[i]:
            notes.append("   (held)")
        elif bounds[i]:
            notes.append(bound_note(bounds[i]))
        elif np.isinf(error):
            notes.append("   (not determined)")
        elif correlated[i]:
            notes.append("   (not alone)")
        else:
            notes.append("" if np.isnan(error) else f" ± {_error(error)}")
    return notes


def _held(solution: Solution, size: int) -> np.ndarray:
    """Return a mask of the params that don't depend on the fitted variables."""
    free = np.ones(1, bool) if solution.fixed is None else ~np.asarray(solution.fixed)
    if solution.tangent is None:
        return np.broadcast_to(~free, (size,)) if free.size in (1, size) else np.zeros(size, bool)
    return _moving(solution.tangent, np.broadcast_to(free, solution.tangent.shape[1:])) == 0


def _moving(tangent: jax.Array | SparseJacobian, counts: np.ndarray) -> np.ndarray:
    """Return the sum of `counts` over the variables on which each param depends."""
    v = jnp.asarray(counts, jnp.int32)
    moves = jax.tree.map(lambda a: (a != 0).astype(jnp.int32), tangent)
    return np.asarray(moves.mv(v) if isinstance(moves, SparseJacobian) else moves @ v)


def _bounds(solution: Solution, size: int) -> np.ndarray:
    """Return -1 and 1 for params on their lower and upper bound, else 0."""
    if solution.at_bound is None:
        return np.zeros(size, int)
    sides = np.asarray(solution.at_bound)
    if solution.tangent is None:  # params are the fitted variables, or too many for a matrix
        return sides if sides.size == size else np.zeros(size, int)
    return np.sign(_moving(solution.tangent, sides))


def _error(error: float) -> str:
    """Format a standard error with two digits."""
    return f"{error:.{_decimals(error)}f}" if 1e-5 < error < 1e5 else f"{error:.2g}"


def _decimals(error: float) -> int:
    return max(0, 1 - int(np.floor(np.log10(float(f"{error:.1e}")))))


def _rounded(value: float, error: float) -> str:
    """Format a value with the digits that its error determines; by default without an error."""
    if not 0 < error < np.inf or (value == 0 and not 1e-5 < error < 1e5):  # or if it is NaN
        return f"{value:.6g}"
    if 1e-5 < error < 1e5 and abs(value) < 1e9:
        decimals = _decimals(error)
        return f"{round(value, decimals) + 0.0:.{decimals}f}"  # never -0
    digits = 2 + np.floor(np.log10(abs(value))) - np.floor(np.log10(error))
    return f"{value:.{int(np.clip(digits, 1, 9))}g}"
