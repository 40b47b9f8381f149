"""Stochastic reconfiguration of wave functions in sample space: minSR and SPRING."""

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
    """State of `stochastic_reconfiguration`.

    Attributes:
        count: :math:`t`, the number of steps, including rejected steps.
        momentum: :math:`d_t`, the direction of the last step; `None` without momentum.
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
    r"""Stochastic reconfiguration (natural gradient descent of a wave function): minSR and SPRING.

    .. math:: d = -(S + \lambda I)^{-1} F, \qquad S = \mathrm{Re}\, X^\dagger X, \qquad
        F = \mathrm{Re}\, X^\dagger e,

    .. math:: X_s = \sqrt{w_s}\, \big(O_s - \textstyle\sum_t w_t O_t\big), \qquad
        e_s = \sqrt{w_s}\, \big(E_s - \textstyle\sum_t w_t E_t\big), \qquad
        O_s = \nabla_\theta \log \psi_\theta(s),

    with samples `s` of :math:`|\psi|^2`, their local energies :math:`E_s = (H \psi)(s) / \psi(s)`,
    and weights `w` that sum to 1. `F` is half the gradient of the energy. A step of length
    :math:`\tau` is an evolution over the imaginary time :math:`\tau`. The linear system is solved
    in sample space (minSR), which is cheaper if there are more parameters than samples,

    .. math:: d = -X^\top (X X^\top + \lambda I)^{-1} e,

    with the real and the imaginary part of a sample as two rows. `X` is never formed; its Gram
    matrix is computed from one tape (see :func:`fnopt.curvature.batch_jacobian`). With momentum
    :math:`\mu`, the method is SPRING: :math:`d_t = \mu d_{t-1} - X^\top (X X^\top + \lambda I)^{-1}
    (e + \mu X d_{t-1})`.

    Parameters may be real or complex. The real and the imaginary part of a complex parameter are
    separate parameters. If :math:`\log \psi` is holomorphic in the parameters, the step is the
    complex :math:`-(X^\dagger X + \lambda I)^{-1} X^\dagger e`. Holomorphy isn't required.

    `update` ignores the gradients (they may be `None`): call `update(None, state, params,
    batch=samples, local_energies=E)`. Pass `weights=` for unequal weights. For exact sums, pass all
    configurations with the weights :math:`|\psi|^2`. A step is rejected if it isn't finite or a
    weight is negative. The update is then zero, `status` in the state is the reason, and the
    momentum restarts.

    Args:
        log_amplitude_fn: `log_psi(params, sample)` of ONE sample, a real or complex scalar. A real
            scalar is the logarithm of an amplitude without phase, for which only the real parts of
            the local energies are used.
        learning_rate: :math:`\tau`, a number or a `Schedule`.
        damping: :math:`\lambda`, the diagonal shift.
        momentum: :math:`\mu`; `None` disables momentum. The SPRING paper uses 0.99.
        max_norm: The largest norm of an update, as in SPRING; `None` disables the bound.
        method: `'auto'`, `'ghost'` or `'formed'`, as in :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: The number of samples to process at once; `None` processes all samples.
        axis_name: Inside `jax.shard_map`, the named axis over which samples, energies and weights
            are sharded. The step uses all samples and is equal on all devices.
        solver: `'cholesky'` factorizes a matrix with one row per sample (two rows for a complex
            amplitude), for up to 32,768 rows. `'cg'` uses conjugate gradients without this matrix.
        iterations: The maximum number of conjugate-gradient iterations.
        rank: The rank of the Nyström preconditioner for conjugate gradients; 0 disables it.

    Raises:
        TypeError: If a param isn't floating, or the amplitude isn't a scalar.
        ValueError: If a hyper-parameter is out of range, if energies or weights don't have the
            shape `[n]`, or if there are too many samples for a factorization.

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
                f"{_NAME}: log_amplitude_fn is {self.log_amplitude_fn!r}, expected a function "
                "log_psi(params, sample)."
            )

    def init(self, params: Any) -> StochasticReconfigurationState:
        """Return the initial state."""
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
        """Take a step in imaginary time, or reject the step."""
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
        update = _scale(jnp.asarray(rate), direction)
        if self.max_norm is not None:
            norm = global_norm(update)
            limit = jnp.asarray(self.max_norm).astype(norm.dtype)
            update = _scale(jnp.where(norm > limit, limit / norm, jnp.ones_like(norm)), update)
        is_defined = all_finite((e, X.weights))
        accepted = is_defined & all_finite((update, direction))
        failure = jnp.where(is_defined, Status.NONFINITE_STEP.array, Status.NONFINITE_START.array)
        return zero_unless(accepted, update, params), StochasticReconfigurationState(
            safe_increment(state.count),
            # A rejected step resets the momentum, so that later steps are finite.
            None if self.momentum is None else zero_unless(accepted, direction, state.momentum),
            jnp.where(accepted, Status.RUNNING.array, failure),
            X.mean(energies)[0],
            jnp.dot(e, e, precision=HIGHEST),
        )

    def _direction(
        self, X: CenteredJacobian, e: jax.Array, state: StochasticReconfigurationState
    ) -> Any:
        K = self._gram(X)
        if self.momentum is None:
            return jax.tree.map(jnp.negative, X.rmv(K.inverse(e)))
        # SPRING (Goldshlager et al., 2024): the solution closest to mu times the last direction.
        momentum = _scale(jnp.asarray(self.momentum), state.momentum)
        correction = X.rmv(K.inverse(e + X.mv(momentum)))
        return jax.tree.map(lambda m, c: m - c.astype(m.dtype), momentum, correction)

    def _gram(self, X: CenteredJacobian) -> DampedGram:
        from fnopt.curvature import check_rows, solve_by_cg, solve_by_cholesky

        damping = jnp.asarray(self.damping).astype(X.dtype)
        if self.solver == "cg":
            return solve_by_cg(X.times_gram, X.rows, X.dtype, damping, self.iterations, self.rank)
        check_rows(X.rows, "rows of log-derivatives", X.dtype, f"{_NAME}: ")
        return solve_by_cholesky(X.gram(), damping)


def _scale(factor: jax.Array, tree: Any) -> Any:
    return jax.tree.map(lambda x: factor.astype(jnp.finfo(x.dtype).dtype).astype(x.dtype) * x, tree)
