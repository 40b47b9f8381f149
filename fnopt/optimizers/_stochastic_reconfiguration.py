"""Stochastic reconfiguration of wave functions, solved in sample space (minSR), with SPRING."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Schedule,
    Status,
    Transformation,
    global_norm,
    hyper,
    slot_zeros,
    static,
)
from fnopt.numerics import HIGHEST, safe_increment, zero_count
from fnopt.optimizers._batch_step import check_solver, step_dtype, zero_unless
from fnopt.sharding import use_mesh_of
from fnopt.transforms import all_finite

if TYPE_CHECKING:
    from fnopt.curvature import CenteredJacobian, DampedGram

_NAME = "stochastic_reconfiguration"


class StochasticReconfigurationState(NamedTuple):
    """Step count, last direction, and the energy and variance of the last samples.

    Attributes:
        count: Number of updates that were made.
        momentum: The direction of the last step, like the params; `None` without momentum.
        status: A `Status`: `RUNNING`, or the reason why the last step was rejected.
        energy: The real part of the mean local energy before the last step.
        variance: The variance of the local energies; 0 for an eigenstate.
    """

    count: jax.Array
    momentum: Any
    status: jax.Array
    energy: jax.Array
    variance: jax.Array


class stochastic_reconfiguration(Transformation):
    r"""Stochastic reconfiguration (natural gradient of a wave function) by minSR, and SPRING.

    .. math:: d = -(S + \lambda I)^{-1} F, \qquad S = \mathrm{Re}\, X^\dagger X, \qquad
        F = \mathrm{Re}\, X^\dagger e,

    .. math:: X_s = \sqrt{w_s}\, \big(O_s - \textstyle\sum_t w_t O_t\big), \qquad
        e_s = \sqrt{w_s}\, \big(E_s - \textstyle\sum_t w_t E_t\big), \qquad
        O_s = \nabla_\theta \log \psi_\theta(s),

    with samples `s` of :math:`|\psi|^2`, their local energies :math:`E_s = (H \psi)(s) / \psi(s)`
    and weights `w` that sum to 1. `F` is half the gradient of the energy, and a step of length
    :math:`\tau` is a step of imaginary time. With more parameters than samples, the linear system
    is solved in sample space (minSR),

    .. math:: d = -X^\top (X X^\top + \lambda I)^{-1} e,

    with the real and the imaginary part of a sample as two rows. `X` is never formed: its Gram
    matrix is computed from one tape (:func:`fnopt.curvature.batch_jacobian`). With momentum
    :math:`\mu` the method is SPRING, :math:`d_t = \mu d_{t-1} - X^\top (X X^\top + \lambda I)^{-1}
    (e + \mu X d_{t-1})`.

    Parameters may be real or complex. Real and imaginary parts of complex parameters are separate
    parameters. If the logarithm is holomorphic, the step is the complex :math:`(X^\dagger X +
    \lambda I)^{-1} X^\dagger e`; for other amplitudes, the step is also correct.

    `update` ignores the gradients (they may be `None`): call `update(None, state, params,
    batch=samples, local_energies=E)`, with `weights=` for unequal weights. For exact sums, pass all
    configurations with the weights :math:`|\psi|^2`. A step that isn't finite or has negative
    weights is rejected: the update is zero, `status` in the state is the reason, and the momentum
    restarts.

    Args:
        log_amplitude_fn: `log_psi(params, sample)`, a real or complex scalar, of ONE sample. A real
            result is the logarithm of an amplitude without phase; only the real parts of the local
            energies are then used.
        learning_rate: :math:`\tau`, a number or a `Schedule`.
        damping: :math:`\lambda` (the diagonal shift).
        momentum: :math:`\mu`; `None` disables momentum. The paper on SPRING uses 0.99.
        max_norm: The largest norm of an update, SPRING's constraint; `None` disables it.
        method: `'auto'`, `'ghost'` or `'formed'`, as in :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: The number of samples to process at once; `None` processes all samples.
        axis_name: Inside `jax.shard_map`, the named axis over which samples, energies and weights
            are sharded. The step uses all samples and is equal on all devices.
        solver: `'cholesky'` factorizes a matrix with a row for each sample (two for a complex
            amplitude), up to 32,768; `'cg'` uses conjugate gradients without this matrix.
        iterations: The maximum number of conjugate-gradient iterations.
        rank: The rank of the Nyström preconditioner for conjugate gradients; 0 disables it.

    Raises:
        TypeError: If a param isn't floating, or the amplitude isn't a scalar.
        ValueError: If a hyper-parameter is out of range, energies or weights aren't `[n]`, or there
            are too many samples to factorize.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def log_psi(params, spin):  # one spin in a field along x: H = -sigma_x
        ...     return params["a"] * spin
        >>> tx, params = fnopt.stochastic_reconfiguration(log_psi, 0.2), {"a": jnp.float32(1.0)}
        >>> spins, state = jnp.asarray([1.0, -1.0]), tx.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     log = jax.vmap(log_psi, (None, 0))(params, spins)
        ...     energies = -jnp.exp(log[::-1] - log)
        ...     updates, state = tx.update(
        ...         None, state, params, batch=spins, local_energies=energies,
        ...         weights=jnp.exp(2 * log),
        ...     )
        ...     return fnopt.apply_updates(params, updates), state
        >>> for _ in range(30):
        ...     params, state = step(params, state)
        >>> print(f"{state.energy:.4f}")
        -1.0000

    Reference:
        Sorella, 1998, "Green function Monte Carlo with stochastic reconfiguration"; Chen and Heyl,
        2024, arXiv:2302.01941 (minSR); Rende, Viteritti, Bardone, Becca and Goldt, 2024,
        arXiv:2310.05715; Goldshlager, Abrahamsen and Lin, 2024, arXiv:2401.10190 (SPRING).
    """

    needs_params = True

    log_amplitude_fn: Callable[[Any, Any], Any] = static()
    learning_rate: ScalarOrSchedule = hyper(default=1e-2, ge=0, schedule=True)
    damping: Scalar = hyper(default=1e-3, gt=0)
    momentum: Scalar | None = hyper(default=None, ge=0, lt=1)
    max_norm: Scalar | None = hyper(default=None, gt=0, infinite=True)
    method: str = static(default="auto")
    chunk_size: int | None = static(default=None, least=1)
    axis_name: Any = static(default=None)
    solver: str = static(default="cholesky", choices=("cholesky", "cg"))
    iterations: int = static(default=100, least=1)
    rank: int = static(default=0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_solver(self, _NAME)
        if not callable(self.log_amplitude_fn):
            raise TypeError(
                f"{_NAME}: log_amplitude_fn is {self.log_amplitude_fn!r}, expected "
                "log_psi(params, sample)."
            )

    def init(self, params: Any) -> StochasticReconfigurationState:
        """The state before the first step."""
        momentum = None if self.momentum is None else slot_zeros(params)
        moments = (jnp.zeros((), step_dtype(params)) for _ in range(2))
        return StochasticReconfigurationState(
            zero_count(), momentum, Status.RUNNING.array, *moments
        )

    def update(
        self,
        updates: Any,
        state: StochasticReconfigurationState,
        params: Any = None,
        *,
        batch: Any,
        local_energies: Any,
        weights: Any = None,
        **extra_args: Any,
    ) -> tuple[Any, StochasticReconfigurationState]:
        """Take a step of imaginary time, or reject the step."""
        with use_mesh_of(batch, params):
            return self._step(state, params, batch, local_energies, weights)

    def _step(
        self,
        state: StochasticReconfigurationState,
        params: Any,
        batch: Any,
        local_energies: Any,
        weights: Any,
    ) -> tuple[Any, StochasticReconfigurationState]:
        from fnopt.curvature import CenteredJacobian  # `import fnopt` doesn't import curvature

        X = CenteredJacobian(
            self.log_amplitude_fn,
            params,
            batch,
            weights,
            dtype=step_dtype(params),
            method=self.method,
            chunk_size=self.chunk_size,
            axis_name=self.axis_name,
            name=_NAME,
        )
        energies = X.energies(local_energies, _NAME)
        e = X.center(energies)
        direction = self._direction(X, e, state)
        rate = self.learning_rate
        rate = rate(state.count) if isinstance(rate, Schedule) else rate
        moved = _scale(jnp.asarray(rate), direction)
        if self.max_norm is not None:
            size = global_norm(moved)
            most = jnp.asarray(self.max_norm).astype(size.dtype)
            moved = _scale(jnp.where(size > most, most / size, jnp.ones_like(size)), moved)
        known = all_finite((e, X.weights))
        accepted = known & all_finite((moved, direction))
        failed = jnp.where(known, Status.NONFINITE_STEP.array, Status.NONFINITE_START.array)
        return zero_unless(accepted, moved, params), StochasticReconfigurationState(
            safe_increment(state.count),
            # A rejected step resets the momentum, so that later steps are finite.
            None if self.momentum is None else zero_unless(accepted, direction, state.momentum),
            jnp.where(accepted, Status.RUNNING.array, failed),
            X.mean(energies)[0],
            jnp.dot(e, e, precision=HIGHEST),
        )

    def _direction(
        self, X: CenteredJacobian, e: jax.Array, state: StochasticReconfigurationState
    ) -> Any:
        K = self._gram(X)
        if self.momentum is None:
            return jax.tree.map(jnp.negative, X.rmv(K.inverse(e)))
        # SPRING (Goldshlager et al., 2024): of all solutions the one nearest to the last step.
        before = _scale(jnp.asarray(self.momentum), state.momentum)
        pulled = X.rmv(K.inverse(e + X.mv(before)))
        return jax.tree.map(lambda m, p: m - p.astype(m.dtype), before, pulled)

    def _gram(self, X: CenteredJacobian) -> DampedGram:
        from fnopt.curvature import check_rows, solve_by_cg, solve_by_cholesky

        damping = jnp.asarray(self.damping).astype(X.dtype)
        if self.solver == "cg":
            return solve_by_cg(X.times_gram, X.rows, X.dtype, damping, self.iterations, self.rank)
        check_rows(X.rows, "rows of log-derivatives", X.dtype, f"{_NAME}: ")
        return solve_by_cholesky(X.gram(), damping)


def _scale(factor: jax.Array, tree: Any) -> Any:
    return jax.tree.map(lambda x: factor.astype(jnp.finfo(x.dtype).dtype).astype(x.dtype) * x, tree)
