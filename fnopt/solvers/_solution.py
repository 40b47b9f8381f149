"""What a solver returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Status, is_converged, leaves_with_names
from fnopt.solvers._covariance import covariance_of


class History(NamedTuple):
    """One entry a step; entries from `steps` on are NaN (and False)."""

    cost: jax.Array  # [max_steps], after the step
    gradient_norm: jax.Array  # [max_steps], of J^T r after the step
    radius: jax.Array  # [max_steps], of the trust region after the step
    accepted: jax.Array  # bool[max_steps]


class StepInfo(NamedTuple):
    """What a callback gets at every step; as text it is a line of progress."""

    step: jax.Array  # int32, 1 at the first one
    params: Any  # after the step
    cost: jax.Array
    gradient_norm: jax.Array
    radius: jax.Array
    accepted: jax.Array  # bool

    def __str__(self) -> str:
        if isinstance(self.cost, Tracer):
            return repr(self)
        return (
            f"step {int(self.step):4d}  cost {float(self.cost):<12.6g} "
            f"gradient {float(self.gradient_norm):<9.3g} radius {float(self.radius):<9.3g} "
            f"{'accepted' if self.accepted else 'refused'}"
        )


class Solution(NamedTuple):
    r"""The result of :func:`fnopt.least_squares`; `print` gives a short report.

    It is a pytree of arrays, so it comes out of `jax.jit` and `jax.vmap` like any other.
    """

    params: Any  # the best params found, as they were given: tree, shapes, dtypes
    cost: jax.Array  # half the sum of squares at params
    residuals: Any  # at params, as residual_fn returns them
    jacobian: jax.Array | None  # [m, n] at params, laid end to end; None if it isn't formed
    gradient_norm: jax.Array  # Euclidean norm of J^T r
    rank: jax.Array  # int32, how many directions of the params the data determine
    steps: jax.Array  # int32, steps made, refused ones too
    nfev: jax.Array  # int32, evaluations of the residuals
    njev: jax.Array  # int32, evaluations of the Jacobian
    status: jax.Array  # int32, a fnopt.Status
    history: History | None = None
    tangent: jax.Array | None = None  # [p, n], d params / d what is fitted; None if they are it
    dof: jax.Array | None = None  # int32, residuals that count minus params that are fitted

    @property
    def message(self) -> Any:
        """Why the solver stopped, in words; for a batch a (nested) list. Outside jit only."""
        codes = np.asarray(self.status)
        if codes.ndim == 0:
            return Status(int(codes)).message
        return [self._replace(status=code).message for code in codes]

    @property
    def converged(self) -> jax.Array:
        """Whether a convergence test was met."""
        return is_converged(self.status)

    def __str__(self) -> str:
        if isinstance(self.status, Tracer):
            return repr(self)
        return _report(self) if jnp.ndim(self.status) == 0 else _batch_report(self)


def _report(solution: Solution) -> str:
    residuals = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(solution.residuals)]
    m = sum(r.size * (1 + np.iscomplexobj(r)) for r in residuals)
    plain = _is_plain(residuals, float(solution.cost))
    n = _fitted(solution)
    of = f"half the sum of {m} squares" if plain else f"the loss of {m} residuals"
    lines = [
        f"least squares: {solution.message}",
        f"  cost {float(solution.cost):.6g} ({of}), "
        f"gradient norm {float(solution.gradient_norm):.2g}",
        f"  {int(solution.steps)} steps, {int(solution.nfev)} residual and "
        f"{int(solution.njev)} Jacobian evaluations",
    ]
    if plain and solution.dof is not None and int(solution.dof) > 0:
        chi2 = 2 * float(solution.cost) / int(solution.dof)
        lines.append(f"  reduced chi-square {chi2:.4g}, {int(solution.dof)} degrees of freedom")
    if 0 <= int(solution.rank) < n:
        lines.append(f"  rank {int(solution.rank)} of {n}: the data don't determine all params")
    return "\n".join(lines + _parameter_lines(solution))


def _is_plain(residuals: list[np.ndarray], cost: float) -> bool:
    """Whether the cost is that of plain squares, not of a robust loss."""
    total = sum(float(np.sum(np.square(np.abs(r.astype(complex))))) for r in residuals) / 2
    coarse = max(float(jnp.finfo(r.dtype).eps) for r in residuals)
    return abs(total - cost) <= max(1e-4, 8 * coarse) * max(total, cost)


def _fitted(solution: Solution) -> int:
    """How many numbers were fitted."""
    if solution.tangent is not None:
        return solution.tangent.shape[1]
    return sum(np.size(leaf) for leaf in jax.tree.leaves(solution.params))


_MOST_SHOWN = 12  # parameters with a line of their own


def _parameter_lines(solution: Solution) -> list[str]:
    pairs, _ = leaves_with_names(solution.params)
    names = [name for path, leaf in pairs for name in _entry_names(path, np.shape(leaf))]
    if len(names) > _MOST_SHOWN:
        return [f"  {len(names)} parameters in {len(pairs)} leaves"]
    values = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for _, leaf in pairs])
    errors, held = _errors(solution, values.size), _held(solution, values.size)
    width = max(map(len, names))
    return [
        f"  {name:<{width}}  {value:>12.6g}{'   (held)' if still else _plus_minus(error)}"
        for name, value, error, still in zip(names, values, errors, held, strict=True)
    ]


def _errors(solution: Solution, size: int) -> np.ndarray:
    if solution.jacobian is None:
        return np.full(size, np.nan)
    return np.sqrt(np.asarray(np.diagonal(covariance_of(solution)), np.float64))


def _held(solution: Solution, size: int) -> np.ndarray:
    """Which params don't move with what is fitted."""
    if solution.tangent is None:
        return np.zeros(size, bool)
    return ~np.any(np.asarray(solution.tangent), axis=1)


def _plus_minus(error: float) -> str:
    return "" if np.isnan(error) else f" ± {error:.2g}"


def _entry_names(path: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [path or "x"]
    return [f"{path or 'x'}[{', '.join(map(str, i))}]" for i in np.ndindex(*shape)]


def _batch_report(solution: Solution) -> str:
    codes = np.ravel(np.asarray(solution.status))
    lines = [f"least squares: {codes.size} problems"]
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        lines.append(f"  {count:>6}  {Status(int(code)).message}")
    return "\n".join(lines)
