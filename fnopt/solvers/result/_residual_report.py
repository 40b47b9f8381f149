"""`ResidualReport`: residuals per leaf, and the observations with the largest residuals."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import check_count, leaves_with_names, where


class LeafResiduals(NamedTuple):
    """The residuals of one leaf.

    Attributes:
        name: The path of the leaf.
        size: The number of residuals.
        cost: Half the sum of squares of the residuals, without the robust loss.
        rms: The root mean square of the residuals; about 1 if `sigma` is the standard deviation of
            the data.
    """

    name: str
    size: int
    cost: float
    rms: float


class Observation(NamedTuple):
    """One observation: an entry of a vector of residuals, or a row along another leaf's last axis.

    Attributes:
        name: The path of the leaf.
        index: The index of the observation in the leaf.
        norm: The Euclidean norm of the observation's residuals.
    """

    name: str
    index: tuple[int, ...]
    norm: float


class ResidualReport(NamedTuple):
    """Residuals per leaf, and the observations with the largest residuals; `print` shows a table.

    Attributes:
        leaves: A :class:`LeafResiduals` for each leaf, in descending order of cost.
        largest: An :class:`Observation` for each of the largest norms, in descending order.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> y = jnp.asarray([[1.0, 2.0], [1.2, 2.2], [5.0, 2.0]])
        >>> def residuals(x):
        ...     return {"data": x - y, "prior": 0.1 * x}
        >>> loss = {"data": fnopt.residuals.cauchy(0.1), "prior": None}
        >>> print(fnopt.least_squares(residuals, jnp.ones(2), loss=loss).residual_report(2))
        residuals by leaf    number      cost     share       rms
          data                    6      7.85     99.7%      1.62
          prior                   2    0.0257      0.3%      0.16
        largest residuals      norm      cost     share
          data[2]              3.95      7.82     99.3%
          data[1]             0.244    0.0299      0.4%
    """

    leaves: tuple[LeafResiduals, ...]
    largest: tuple[Observation, ...]

    def __str__(self) -> str:
        total = sum(leaf.cost for leaf in self.leaves) or 1.0
        rows = [("residuals by leaf", "number", "cost", "share", "rms")]
        rows += [
            (f"  {name}", f"{size}", f"{cost:.3g}", f"{cost / total:.1%}", f"{rms:.3g}")
            for name, size, cost, rms in self.leaves
        ]
        rows.append(("largest residuals", "norm", "cost", "share", ""))
        for name, index, norm in self.largest:
            entry = f"  {name}[{', '.join(map(str, index))}]" if index else f"  {name}"
            cost = norm**2 / 2
            rows.append((entry, f"{norm:.3g}", f"{cost:.3g}", f"{cost / total:.1%}", ""))
        width = max(len(row[0]) for row in rows)
        lines = (f"{name:<{width}}" + "".join(f"{x:>10}" for x in row) for name, *row in rows)
        return "\n".join(map(str.rstrip, lines))


def residual_report(solution: Any, count: int) -> ResidualReport:
    """Return the residuals of each leaf, and the `count` observations with the largest residuals.

    Args:
        solution: The solution.
        count: The number of observations.
    """
    if isinstance(solution.status, Tracer) or jnp.ndim(solution.status):
        kind = "traced" if isinstance(solution.status, Tracer) else "of a batch of problems"
        raise TypeError(
            f"{where()}residual_report: the solution is {kind}, expected one concrete solution. "
            "Call residual_report outside jit, with one solution of a batch: "
            "jax.tree.map(lambda x: x[i], solutions)."
        )
    check_count(count, "count", "residual_report", least=0)
    leaves, observations = [], []
    for path, leaf in leaves_with_names(solution.residuals)[0]:
        size = np.abs(np.asarray(leaf).astype(complex))
        cost, name = float(np.sum(np.square(size))) / 2, path or "r"
        leaves.append(LeafResiduals(name, size.size, cost, (2 * cost / max(size.size, 1)) ** 0.5))
        norms = np.linalg.norm(size, axis=-1) if size.ndim > 1 else size
        # NaN is listed first, like an infinite residual.
        keys = np.where(np.isnan(norms), np.inf, norms)
        for k in np.argsort(-keys, axis=None, kind="stable")[:count]:
            index = tuple(map(int, np.unravel_index(k, norms.shape)))
            observations.append((float(keys[index]), Observation(name, index, float(norms[index]))))
    observations.sort(key=lambda pair: -pair[0])
    leaves.sort(key=lambda leaf: -leaf.cost)
    return ResidualReport(tuple(leaves), tuple(item for _, item in observations[:count]))
