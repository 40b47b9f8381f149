"""Result of `curve_fit`, with statistics, predictions and a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import Params
from fnopt.curves._curve_data import checked_x
from fnopt.curves._plot import plot_fit
from fnopt.curves._profile import profile_intervals
from fnopt.curves._residuals import Boxed, call_model
from fnopt.curves._uncertainty import (
    Band,
    confidence_intervals,
    correlation,
    predict_band,
    reduced_chi_square,
    solution_of,
    standard_errors,
)
from fnopt.errors import missing_attribute, names_text, show_report
from fnopt.numerics import euclidean_norm
from fnopt.residuals import whitened
from fnopt.solvers import Solution, report

# Attributes of lmfit's and SciPy's results, and the expressions that replace them in fnopt.
_ELSEWHERE = {
    "best_fit": "fit.predict(fit.x)",
    "best_values": "fit.params",
    "chisqr": "fit.chi_square",
    "conf_interval": "fit.profile_intervals()",
    "covar": "fit.covariance",
    "eval": "fit.predict(x)",
    "eval_uncertainty": "fit.predict_band(x)",
    "fit_report": "fit.report()",
    "fun": "fit.residuals",
    "redchi": "fit.reduced_chi_square",
    "residual": "fit.residuals",
    "rsquared": "fit.r_squared",
    "success": "fit.converged",
    **dict.fromkeys(("errors", "perr", "stderr"), "fit.standard_errors"),
}


class Fit(tuple[Params, jax.Array]):
    r"""Result of :func:`fnopt.curve_fit`, which `popt, pcov = fit` unpacks like SciPy's pair.

    `print(fit)` prints the report. A fit is a pytree, so functions under `jax.jit` and `jax.vmap`
    can return it. Functions of a :class:`fnopt.solvers.Solution` also accept a `Fit`.

    Attributes:
        popt: The params, a tree like `p0`. If each argument of the model is one number, they are an
            array of shape `[n]` in the order of `names`.
        pcov: The covariance of the params, `[n, n]`.
        names: The names of the `n` numbers, in the order of `pcov`.
        solution: The result of :func:`fnopt.least_squares`, with status, steps and certificate.
        y: The data.
        sigma: Standard deviations of the data, or their covariance matrix; None without `sigma`.
        absolute_sigma: Whether the variance of the data is known.
    """

    popt: Params
    pcov: jax.Array
    names: tuple[str, ...]
    solution: Solution[Params]
    y: jax.Array
    sigma: jax.Array | None
    absolute_sigma: bool
    model: Boxed  # the model function, which may be a pytree with arrays
    passing: str  # "numbers": f(x, *popt), "names": f(x, **popt), "tree": f(x, popt)
    positions: Boxed  # the positions of the data
    options: Boxed  # bounds, constraints and loss, for the refits of `profile_intervals`
    likelihood: str | None

    def __new__(cls, popt: Params, pcov: jax.Array, **fields: Any) -> Fit[Params]:
        self = super().__new__(cls, (popt, pcov))
        vars(self).update(fields, popt=popt, pcov=pcov)
        return self

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"Fit.{name} can't be assigned, because a Fit is immutable. Call curve_fit again."
        )

    if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any attribute
        __getattr__ = missing_attribute("a Fit", _ELSEWHERE)

    def __reduce__(self) -> Any:
        return _rebuild, (vars(self),)

    @property
    def x(self) -> Any:
        """The positions of the data."""
        return self.positions.opened()

    @property
    def params(self) -> Any:
        """The params, as a dict keyed by the model's arguments or as a tree like `p0`."""
        return self.named(self.solution.params)

    def named(self, params: Any) -> Any:
        """Convert the params of a solution to the form of `params`."""
        if self.passing == "numbers":
            return {name: params[..., i] for i, name in enumerate(self.names)}
        return dict(params) if self.passing == "names" else params

    @property
    def standard_errors(self) -> Any:
        """Standard error of every param, a tree like `params`."""
        return standard_errors(self)

    @property
    def covariance(self) -> jax.Array:
        """Covariance matrix of the params, `[n, n]`."""
        return self.pcov

    @property
    def correlations(self) -> jax.Array:
        """Correlation matrix of the params, `[n, n]`."""
        return correlation(self)

    def confidence_intervals(self, level: float = 0.95) -> tuple[Any, Any]:
        """Confidence intervals of the params; see :func:`fnopt.confidence_intervals`."""
        return confidence_intervals(self, level)

    def profile_intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Profile-likelihood intervals; see :func:`fnopt.curves.profile_intervals`."""
        return profile_intervals(self, level)

    def evaluate(self, params: Any, x: Any) -> jax.Array:
        """Evaluate the model at `x` for other params, in the form of `params` or `popt`."""
        solution_of(self, "predict")
        if self.passing == "numbers":
            named = (
                params if isinstance(params, dict) else dict(zip(self.names, params, strict=False))
            )
            if len(params) != len(self.names) or {*named} != {*self.names}:
                raise ValueError(
                    f"Fit.evaluate: params = {params!r:.60}, expected a dict with the keys "
                    f"{names_text([*self.names])}, or as many numbers."
                )
            params = [named[name] for name in self.names]
        return call_model(self.model.opened(), self.passing, params, x)

    def predict(self, x: Any) -> jax.Array:
        """Evaluate the fitted model at `x`."""
        return self.evaluate(self.params, checked_x(x, check_finite=False))

    def predict_band(self, x: Any, level: float = 0.95, *, noise: Any = False) -> Band:
        """Evaluate the fitted model with a confidence band; see :func:`fnopt.predict_band`."""
        x = checked_x(x, check_finite=False)
        return predict_band(lambda params: self.evaluate(params, x), self, level, noise=noise)

    def plot(self, *, level: float = 0.95, axes: Any = None) -> Any:
        """Draw data, curve, band and residuals; see :func:`fnopt.curves.plot_fit`."""
        return plot_fit(self, level=level, axes=axes)

    @property
    def residuals(self) -> jax.Array:
        """Model minus data, not divided by `sigma`."""
        return self.predict(self.x) - self.y

    @property
    def size(self) -> jax.Array:
        """Number of data with a finite `sigma`, as int32."""
        return self.solution.dof + self.solution.rank

    def _counts(self) -> tuple[jax.Array, jax.Array]:
        """Number of data and number of determined params, in the dtype of the fit."""
        dtype = self.pcov.dtype
        return self.size.astype(dtype), self.solution.rank.astype(dtype)

    def _chi(self) -> jax.Array:
        """Square root of the chi-square, which is in range even if the square isn't."""
        return euclidean_norm(jax.tree.leaves(solution_of(self, "chi_square").residuals))

    @property
    def chi_square(self) -> jax.Array:
        r"""Sum of the squared residuals divided by `sigma`, or the deviance for counts.

        A sum out of the range of the dtype is 0 or infinite, for example in float32 if all
        residuals are below 1e-23 or one is above 1e19.
        """
        return jnp.square(self._chi())

    @property
    def reduced_chi_square(self) -> jax.Array:
        """Chi-square divided by the degrees of freedom."""
        return reduced_chi_square(self)

    @property
    def deviance(self) -> jax.Array:
        r"""Minus twice the log-likelihood, up to a constant.

        The deviance is :math:`\chi^2` if the variance of the data is known, and
        :math:`m \ln(\chi^2 / m)` otherwise.
        """
        if self.absolute_sigma:
            return self.chi_square
        m, _ = self._counts()
        # The logarithm of the root, because the square may be out of range.
        return 2 * m * jnp.log(self._chi() / jnp.sqrt(m))

    @property
    def aic(self) -> jax.Array:
        """Akaike information criterion, `deviance + 2 k` for `k` determined params."""
        return self.deviance + 2 * self._counts()[1]

    @property
    def bic(self) -> jax.Array:
        """Bayesian information criterion, `deviance + k ln m` for `m` data."""
        m, k = self._counts()
        return self.deviance + jnp.log(m) * k

    @property
    def r_squared(self) -> jax.Array:
        r"""Coefficient of determination :math:`R^2`, weighted by `sigma`."""
        whiten = whitened(self.y, self.sigma)
        # R² compares the model with a constant that is fitted to the whitened data. Norms stay in
        # range where squares overflow or underflow.
        ones, y = jnp.ravel(whiten(jnp.ones_like(self.y))), jnp.ravel(whiten(self.y))
        unit = ones / euclidean_norm([ones]).astype(ones.dtype)
        total = euclidean_norm([y - jnp.sum(unit * y) * unit])
        return 1 - jnp.square(euclidean_norm([whiten(self.residuals)]) / total)

    @property
    def converged(self) -> jax.Array:
        """Whether the fit passed a convergence test."""
        return self.solution.converged

    @property
    def message(self) -> Any:
        """Reason why the fit stopped."""
        return self.solution.worded(self.names)

    def report(self) -> str:
        """Format the params with standard errors, statistics of the fit, and its problems."""
        name = "deviance" if self.likelihood else "chi-square"
        lines = [
            f"  {name} {float(self.chi_square):.6g}, R² {float(self.r_squared):.6g}, "
            f"AIC {float(self.aic):.6g}, BIC {float(self.bic):.6g} of {int(self.size)} data"
        ]
        return report(
            self.solution,
            title="curve fit",
            names=self.names,
            absolute_sigma=self.absolute_sigma,
            more=lines,
        )

    def __repr__(self) -> str:
        return f"Fit(popt={self.popt!r}, pcov={self.pcov!r})"

    def __str__(self) -> str:
        is_traced = isinstance(self.solution.status, Tracer)
        return repr(self) if is_traced or jnp.ndim(self.solution.status) > 0 else self.report()

    _repr_pretty_ = show_report


_LEAVES = ("popt", "pcov", "solution", "y", "sigma", "model", "positions", "options")
_STATIC = ("names", "absolute_sigma", "passing", "likelihood")


def _rebuild(fields: dict[str, Any]) -> Fit:
    return Fit(**fields)


def _flatten(fit: Fit) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    fields = vars(fit)
    return tuple(fields[name] for name in _LEAVES), tuple(fields[name] for name in _STATIC)


def _unflatten(aux: tuple[Any, ...], children: Any) -> Fit:
    fields = dict(zip((*_LEAVES, *_STATIC), (*children, *aux), strict=True))
    return Fit(**fields)


jax.tree_util.register_pytree_node(Fit, _flatten, _unflatten)
