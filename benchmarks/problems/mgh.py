"""The 35 test problems of Moré, Garbow and Hillstrom (1981), with initial guesses and minima.

Reference:
    Moré, Garbow and Hillstrom (1981), Testing unconstrained optimization software, ACM
    Transactions on Mathematical Software 7(1), and Algorithm 566.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems import mgh_fixed as fixed
from benchmarks.problems import mgh_variable as variable


class Problem(NamedTuple):
    """A problem; its minimum is a sum of squares without the factor of a half."""

    number: int  # number in the paper
    name: str
    residuals: Callable[[Any], Any]  # function of a vector of any floating dtype
    start: np.ndarray  # [n]
    minimum: float
    others: tuple[float, ...] = ()  # values of known local minima and of infima at infinity
    factors: tuple[int, ...] = (1, 10, 100)  # multiples of the standard initial guess

    def starts(self) -> dict[str, np.ndarray]:
        """Return multiples of the standard initial guess; a zero guess is replaced by constants."""
        zero = not np.any(self.start)
        far = np.ones_like(self.start) if zero else self.start
        return {f"{k}x": self.start if k == 1 else k * far for k in self.factors}


def _problem(
    number: int,
    residuals: Callable[[Any], Any],
    start: Sequence[float] | np.ndarray,
    minimum: float = 0.0,
    others: tuple[float, ...] = (),
    factors: tuple[int, ...] = (1, 10, 100),
) -> Problem:
    name = residuals.__name__
    if number >= 20:
        name = f"{name}{len(start)}"
    return Problem(number, name, residuals, np.asarray(start, float), minimum, others, factors)


def _ramp(n: int) -> np.ndarray:
    """Return the points j / (n + 1)."""
    return np.arange(1, n + 1) / (n + 1)


# The minima have all digits of the paper. Bard's local minimum 1.77493 isn't in the paper; all
# eigenvalues of the Hessian are positive there. Problems with fewer than three initial guesses have
# the guesses of MINPACK's tests, because the sum of squares overflows or is flat farther away.
PROBLEMS = [
    _problem(1, fixed.rosenbrock, [-1.2, 1]),
    _problem(2, fixed.freudenstein_roth, [0.5, -2], others=(48.9842,)),
    _problem(3, fixed.powell_badly_scaled, [0, 1], others=(1e-8,)),
    _problem(4, fixed.brown_badly_scaled, [1, 1]),
    _problem(5, fixed.beale, [1, 1]),
    _problem(6, fixed.jennrich_sampson, [0.3, 0.4], 124.362, (259.58,), factors=(1,)),
    _problem(7, fixed.helical_valley, [-1, 0, 0]),
    _problem(8, fixed.bard, [1, 1, 1], 8.21487e-3, (1.77493, 17.4286)),
    _problem(9, fixed.gaussian, [0.4, 1, 0], 1.12793e-8, (0.281128, 0.547453)),
    _problem(10, fixed.meyer, [0.02, 4000, 250], 87.9458, factors=(1, 10)),
    _problem(11, fixed.gulf, [5, 2.5, 0.15], others=(32.835,)),
    _problem(12, fixed.box, [0, 10, 20], others=(0.0755887,), factors=(1,)),
    _problem(13, fixed.powell_singular, [3, -1, 0, 1]),
    _problem(14, fixed.wood, [-3, -1, -3, -1]),
    _problem(15, fixed.kowalik_osborne, [0.25, 0.39, 0.415, 0.39], 3.07505e-4, (1.02734e-3,)),
    _problem(16, fixed.brown_dennis, [25, 5, -5, -1], 85822.2),
    _problem(17, fixed.osborne1, [0.5, 1.5, -1, 0.01, 0.02], 5.46489e-5, factors=(1,)),
    _problem(18, fixed.biggs, [1, 2, 1, 1, 1, 1], others=(5.65565e-3, 0.306367)),
    _problem(
        19,
        fixed.osborne2,
        [1.3, 0.65, 0.65, 0.7, 0.6, 3, 5, 7, 2, 4.5, 5.5],
        4.01377e-2,
        factors=(1,),
    ),
    _problem(20, variable.watson, np.zeros(6), 2.28767e-3),
    _problem(20, variable.watson, np.zeros(9), 1.39976e-6),
    _problem(20, variable.watson, np.zeros(12), 4.72238e-10),
    _problem(21, variable.extended_rosenbrock, [-1.2, 1] * 5),
    _problem(22, variable.extended_powell_singular, [3, -1, 0, 1] * 3),
    _problem(23, variable.penalty1, np.arange(1, 5), 2.24997e-5),
    _problem(23, variable.penalty1, np.arange(1, 11), 7.08765e-5),
    _problem(24, variable.penalty2, np.full(4, 0.5), 9.37629e-6),
    _problem(24, variable.penalty2, np.full(10, 0.5), 2.93660e-4),
    _problem(25, variable.variably_dimensioned, 1 - np.arange(1, 11) / 10),
    # All but the first of the next two aren't in the paper: the Hessian is regular there, and
    # Newton's step shorter than 4e-9.
    _problem(
        26, variable.trigonometric, np.full(10, 0.1), others=(2.79506e-5, 4.21863e-5, 8.78823e-4)
    ),
    _problem(27, variable.brown_almost_linear, np.full(10, 0.5), others=(1.0, 1.84125)),
    _problem(28, variable.discrete_boundary_value, _ramp(10) * (_ramp(10) - 1)),
    _problem(29, variable.discrete_integral, _ramp(10) * (_ramp(10) - 1)),
    _problem(30, variable.broyden_tridiagonal, np.full(10, -1.0)),
    _problem(31, variable.broyden_banded, np.full(10, -1.0)),
    _problem(32, variable.linear_full_rank, np.ones(10), 10),
    _problem(33, variable.linear_rank_one, np.ones(10), 20 * 19 / (2 * 41)),
    _problem(34, variable.linear_rank_one_with_zeros, np.ones(10), (400 + 60 - 6) / (2 * 37)),
    _problem(35, variable.chebyquad, _ramp(8), 3.51687e-3, factors=(1,)),
    _problem(35, variable.chebyquad, _ramp(9), factors=(1,)),
    # The paper's minimum of this one, 6.50395e-3, is only a local one.
    _problem(35, variable.chebyquad, _ramp(10), 4.77271e-3, (6.50395e-3,), factors=(1,)),
]


# By which relative and absolute amounts a sum of squares may be above the minimum. The paper
# prints 6 digits. In float32 the residuals of the larger ones are rounded to 1e-6 or so.
_ABOVE = {"float64": (1e-5, 1e-14), "float32": (1e-3, 1e-9)}


def outcome(problem: Problem, found: float, dtype: str = "float64") -> str:
    """Judges a sum of squares: `'solved'`, `'local minimum'` or `'elsewhere'`."""
    relative, absolute = _ABOVE[dtype]
    if found <= problem.minimum * (1 + relative) + absolute:
        return "solved"
    is_known = any(abs(found - other) <= 1e-3 * other for other in problem.others)
    return "local minimum" if is_known else "elsewhere"
