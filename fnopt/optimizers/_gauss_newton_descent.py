"""Gauss-Newton steps for networks, solved in the space of a batch's residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import HIGHEST
from fnopt.optimizers._batch_step import (
    BatchStep,
    BatchStepDescent,
    DampingRule,
    GaussNewtonDescentState,
    step_dtype,
)

if TYPE_CHECKING:
    from fnopt.curvature import BatchJacobian, DampedGram

_NAME = "gauss_newton_descent"


class gauss_newton_descent(BatchStepDescent):
    r"""Gauss-Newton (natural gradient) descent in the space of a batch's residuals.

    .. math:: f(\theta) = \frac{1}{2n} \sum_i \|r(\theta, x_i)\|^2, \qquad
        d = -J^\top (J J^\top + \lambda I)^{-1} r,

    with `r` and `J` divided by :math:`\sqrt n`. This is the step :math:`-(J^\top J + \lambda
    I)^{-1} \nabla f` for all parameters jointly, without a block or diagonal approximation. `J` is
    never formed (see :func:`fnopt.curvature.batch_jacobian`). A step costs about two gradients and
    a Cholesky factorization with one row per residual of the batch. If the batch has more residuals
    than there are parameters, the matrix has one row per parameter instead. With momentum
    :math:`\mu`, the method is SPRING,

    .. math:: d_t = \mu d_{t-1} - J^\top (J J^\top + \lambda I)^{-1} (r + \mu J d_{t-1}),

    where :math:`d_t` is the solution of this batch's system closest to :math:`\mu d_{t-1}`. The
    step is scaled by :math:`(1 - \mu^{2t})^{-1/2}`, because momentum starts at zero.

    The step is halved until the loss of the batch satisfies Armijo's condition. If no step length
    satisfies the condition, the step is rejected. The update is then zero, `status` in the state is
    the reason, the damping increases, and the momentum restarts. If a full step achieves more than
    half of the decrease that the quadratic model predicts, the damping decreases.

    As in :func:`fnopt.levenberg_marquardt`, `update` ignores the gradients (they may be `None`) and
    needs the residuals: `update(None, state, params, residual_fn=fn, batch=batch)`, where `fn` is
    the residual function of ONE example. For several residual functions with separate batches (an
    equation and its boundary conditions), pass sequences; the loss is the sum of their losses.

    Args:
        learning_rate: The initial step length of the line search, a number or a `Schedule`.
        damping: :math:`\lambda`; with `adaptive`, the initial damping.
        momentum: :math:`\mu`; `None` disables momentum.
        adaptive: Whether to adapt the damping.
        halvings: The maximum number of step halvings. 0 accepts every finite step, as ENGD-W and
            SPRING were published. If `adaptive` is False, 0 also saves the loss evaluation.
        method: `'auto'`, `'ghost'` or `'formed'`, as in :func:`fnopt.curvature.batch_jacobian`.
            With `'ghost'` or `'formed'`, the system is solved in residual space for any number of
            residuals.
        chunk_size: The number of examples to process at once; `None` processes the whole batch.
        axis_name: Inside `jax.shard_map`, the named axis over which the batch is sharded, as in
            :func:`fnopt.curvature.batch_jacobian`. The step uses the whole batch and is equal on
            all devices.
        solver: `'cholesky'` factorizes the Gram matrix, for up to 32,768 residuals of the batch.
            `'cg'` uses conjugate gradients without this matrix; each iteration computes one product
            with `J` and one with its transpose.
        iterations: The maximum number of conjugate-gradient iterations.
        rank: The rank of the Nyström preconditioner for conjugate gradients; 0 disables it. The
            preconditioner needs `rank` additional products. It saves many iterations if the Gram
            matrix has a few large and many small eigenvalues.

    Raises:
        ValueError: If a hyper-parameter is out of range.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def residual(params, example):
        ...     x, y = example
        ...     return params["a"] * jnp.exp(params["b"] * x) - y
        >>> x = jnp.linspace(0.0, 1.0, 5)
        >>> batch, params = (x, 2 * jnp.exp(-x)), {"a": jnp.ones(()), "b": jnp.zeros(())}
        >>> tx = fnopt.gauss_newton_descent()
        >>> state = tx.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = tx.update(None, state, params, residual_fn=residual, batch=batch)
        ...     return fnopt.apply_updates(params, updates), state
        >>> for _ in range(20):
        ...     params, state = step(params, state)
        >>> print(f"{params['a']:.3f} {params['b']:.3f}")
        2.000 -1.000

    Reference:
        Ren and Goldfarb, 2019, arXiv:1906.02353; Müller and Zeinhofer, 2023, arXiv:2302.13163;
        Goldshlager, Abrahamsen and Lin, 2024, arXiv:2401.10190 (SPRING); Guzmán-Cordero,
        Dangel, Goldshlager and Zeinhofer, 2025, arXiv:2505.12149 (ENGD-W).
    """

    # After a small gain ratio or a shortened step, the damping stays (grow = 1), because the line
    # search already shortened the step. A damping that grew would stay near its initial value,
    # because each step has a new batch.
    damping_rule: ClassVar[DampingRule] = DampingRule(good=0.5, shrink=0.25, grow=1.0)

    learning_rate: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    damping: Scalar = hyper(default=1e-3, gt=0)
    momentum: Scalar | None = hyper(default=None, ge=0, lt=1)
    adaptive: bool = static(default=True)
    halvings: int = static(default=10, least=0)
    method: str = static(default="auto")
    chunk_size: int | None = static(default=None, least=1)
    axis_name: Any = static(default=None)
    solver: str = static(default="cholesky", choices=("cholesky", "cg"))
    iterations: int = static(default=100, least=1)
    rank: int = static(default=0, least=0)

    def update(
        self,
        updates: Any,
        state: GaussNewtonDescentState,
        params: Any = None,
        *,
        residual_fn: Callable[..., Any] | Any,
        batch: Any,
        **extra_args: Any,
    ) -> tuple[Any, GaussNewtonDescentState]:
        """Take a step that decreases the loss of the batch, or reject the step."""
        from fnopt.curvature import batch_jacobian  # `import fnopt` doesn't import curvature

        def jacobian(method: str) -> BatchJacobian:
            options = {"chunk_size": self.chunk_size, "axis_name": self.axis_name}
            return batch_jacobian(residual_fn, method=method, **options)(params, batch)

        J = jacobian(self.method)
        # J is lazy, so a second J costs nothing. In parameter space, the rows of J are formed
        # anyway, and a tape would save no work.
        is_tall = (self.method, self.solver) == ("auto", "cholesky") and J.shape[0] > J.shape[1]
        J = jacobian("formed") if is_tall else J
        dtype = step_dtype(params)
        # The loss is a mean over the examples, so residuals are divided by sqrt(n).
        scale = jnp.concatenate([jnp.full(n * k, n**-0.5, dtype) for n, k in J.sizes])

        def value_at(params: Any) -> jax.Array:
            return _half_square(scale * J.vector_at(params).astype(dtype))

        solve = _solve_in_parameter_space if is_tall else self._solve_in_residual_space
        return self._take_step(state, self._direction(J, scale, state, solve), params, value_at)

    def _direction(
        self,
        J: BatchJacobian,
        scale: jax.Array,
        state: GaussNewtonDescentState,
        solve: Callable[..., tuple[Any, jax.Array, jax.Array]],
    ) -> BatchStep:
        # With x = J^T (J J^T + lam I)^-1 (r + mu J d), the direction is mu d - x, and the residuals
        # change by mu J d - J x. Both parts of the quadratic model are products of this change.
        r = scale * J.vector.astype(scale.dtype)
        change = self._momentum_change(state, J)
        change = jnp.zeros_like(r) if change is None else scale * change.astype(r.dtype)
        x, Jx, jacobian_scale = solve(J, scale, r + change, self._current_damping(state))
        change = change - Jx
        value = _half_square(r)
        return self._batch_step(
            state,
            x,
            jnp.dot(r, change, precision=HIGHEST),
            jnp.dot(change, change, precision=HIGHEST),
            value,
            jnp.isfinite(value) & jnp.all(jnp.isfinite(jacobian_scale)),
            4 * jnp.finfo(r.dtype).eps * value,
        )

    def _solve_in_residual_space(
        self, J: BatchJacobian, scale: jax.Array, b: jax.Array, damping: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        """Return `x = J^T (J J^T + lam I)^-1 b`, `J x`, and `lam`, which is finite only if J is."""
        K = self._gram(J, scale, damping)
        a = K.inverse(b)
        return J.rmv(scale * a), K.times(a), K.lam

    def _gram(self, J: BatchJacobian, scale: jax.Array, damping: jax.Array) -> DampedGram:
        from fnopt.curvature import check_rows, solve_by_cg, solve_by_cholesky

        if self.solver == "cholesky":
            check_rows(scale.size, "residuals", scale.dtype, f"{_NAME}: ")
            K = J.gram().astype(scale.dtype)
            return solve_by_cholesky(scale[:, None] * K * scale[None, :], damping)

        def scaled_gram(x: jax.Array) -> jax.Array:
            product = J.mv(J.rmv(scale * x))
            return scale * J.flatten(J.parts(product)).astype(x.dtype)

        return solve_by_cg(
            scaled_gram, scale.size, scale.dtype, damping, self.iterations, self.rank
        )


def _solve_in_parameter_space(
    J: BatchJacobian, scale: jax.Array, b: jax.Array, damping: jax.Array
) -> tuple[Any, jax.Array, jax.Array]:
    """Return `x = (J^T J + lam I)^-1 J^T b`, `J x`, and the squared norms of the columns of J."""
    from fnopt.curvature import solve_by_cholesky

    G = J.normal([1 / n for n, _ in J.sizes]).astype(scale.dtype)
    gradient, unravel = J.ravel(J.rmv(scale * b))
    y = solve_by_cholesky(G, damping).inverse(gradient.astype(scale.dtype))
    x = unravel(y.astype(gradient.dtype))
    Jx = J.flatten(J.parts(J.mv(x)))
    return x, scale * Jx.astype(scale.dtype), jnp.diagonal(G)


def _half_square(r: jax.Array) -> jax.Array:
    return jnp.dot(r, r, precision=HIGHEST) / 2
