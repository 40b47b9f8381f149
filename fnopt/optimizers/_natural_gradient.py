"""Natural gradient descent for any loss of a model's outputs, in the output space of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.errors import type_text
from fnopt.optimizers._batch_step import (
    BatchStep,
    BatchStepDescent,
    DampingRule,
    GaussNewtonDescentState,
    step_dtype,
)
from fnopt.sharding import use_mesh_of

if TYPE_CHECKING:
    from fnopt.curvature import BatchLoss

_NAME = "natural_gradient"
Functions = Callable[[Any, Any], Any] | tuple[Callable[[Any, Any], Any], ...]


def _functions(value: Any) -> Functions:
    functions = tuple(value) if isinstance(value, (list, tuple)) else value
    for fn in functions if isinstance(functions, tuple) else (functions,):
        if not callable(fn):
            raise TypeError(
                f"{_NAME}: got {type_text(fn)} as a function, expected model_fn(params, example) "
                "and loss_fn(outputs, example), or a sequence of each."
            )
    return functions


class natural_gradient(BatchStepDescent):
    r"""Natural gradient descent: the exact Gauss-Newton step for any loss of a model's outputs.

    Derivatives through the updates are NaN for softmax losses, because the square root of a
    singular output Hessian has no derivative.

    .. math:: L(\theta) = \frac1n \sum_i \ell(f(\theta, x_i), x_i), \qquad
              G = \frac1n \sum_i J_i^\top H_i J_i, \qquad
              d = -(G + \lambda I)^{-1} \nabla L

    with the Jacobian :math:`J_i` of the outputs and the Hessian :math:`H_i` of the loss with
    respect to the outputs. For a softmax cross-entropy, a logistic or a Poisson loss of logits, `G`
    is the Fisher matrix. The step is computed for all parameters jointly, without a block or
    diagonal approximation. Neither `G` nor `J` is formed. For a batch of `n` examples with `C`
    outputs each, let `f` be the vector of all outputs, and :math:`s = \partial L / \partial f`.
    Then the step is

    .. math:: d = -J^\top (H K + \lambda I)^{-1} s, \qquad K = J J^\top \in \mathbb R^{nC \times nC}

    The products with `J` are computed by :func:`fnopt.curvature.batch_jacobian`, and the system is
    solved by one Cholesky factorization. A step needs memory for several matrices of :math:`(nC)^2`
    numbers. With momentum :math:`\mu`, the method is SPRING: :math:`d_t = v - (G + \lambda I)^{-1}
    (\nabla L + G v)` with :math:`v = \mu d_{t-1}`. The step is scaled by :math:`(1 -
    \mu^{2t})^{-1/2}`, because momentum starts at zero.

    The step is halved until the loss of the batch satisfies Armijo's condition, and rejected as in
    :func:`fnopt.gauss_newton_descent`. That optimizer computes the same step for half the mean
    square of residuals. If a full step achieves more than three quarters of the decrease that the
    quadratic model predicts, the damping is halved. If the step is shortened or achieves less than
    one quarter, the damping is doubled. `update` ignores the gradients (they may be `None`): call
    `update(None, state, params, batch=batch)`.

    Args:
        model_fn: `f(params, example) -> outputs` of ONE example. The outputs are an array or a
            tree, such as the logits of all positions of a sequence.
        loss_fn: `loss(outputs, example) -> scalar`. The objective is the mean loss of the batch.
            For several models, pass sequences of models, losses and batches; the objective is then
            the sum of their mean losses.
        learning_rate: The initial step length of the line search, a number or a `Schedule`.
        damping: :math:`\lambda`; with `adaptive`, the initial damping. For small batches of noisy
            data, use a large constant damping (`adaptive=False`) to avoid overfitting each batch.
        momentum: :math:`\mu`; `None` disables momentum.
        adaptive: Whether to adapt the damping.
        halvings: The maximum number of step halvings; 0 accepts every finite step.
        method: `'auto'`, `'ghost'` or `'formed'`, as in :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: The number of examples to process at once; `None` processes the whole batch.
        solver: `'cholesky'` factorizes a matrix with one row per output of the batch, for up to
            32,768 outputs. In float32, this takes :math:`16 (nC)^2` bytes and :math:`(nC)^3 / 3`
            operations. `'cg'` uses conjugate gradients without this matrix; each iteration computes
            one product with `J` and one with its transpose.
        iterations: The maximum number of conjugate-gradient iterations.
        rank: The rank of the Nyström preconditioner for conjugate gradients; 0 disables it. The
            preconditioner needs `rank` additional products. It saves many iterations if `K` has a
            few large and many small eigenvalues.
        axis_name: Inside `jax.shard_map`, the named axis over which the batch is sharded. The step
            uses the whole batch, as in :func:`fnopt.gauss_newton_descent`.

    Raises:
        TypeError: If a param isn't a real floating array, or the loss isn't a real scalar.
        ValueError: If a hyper-parameter is out of range. In use, if the loss has no curvature with
            respect to the outputs, or couples more than 512 outputs. In use, if the batch has too
            many outputs for a factorization.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def model(params, example):
        ...     return example["x"] @ params["w"]
        >>> def loss(logits, example):
        ...     return jax.nn.logsumexp(logits) - logits[example["label"]]
        >>> x = jax.random.normal(jax.random.key(0), (64, 3))
        >>> batch = {"x": x, "label": jnp.argmax(x @ jnp.eye(3)[::-1], axis=1)}
        >>> params = {"w": jnp.zeros((3, 3))}
        >>> tx = fnopt.natural_gradient(model, loss)
        >>> state = tx.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = tx.update(None, state, params, batch=batch)
        ...     return fnopt.apply_updates(params, updates), state
        >>> for _ in range(6):
        ...     params, state = step(params, state)
        >>> print(jnp.mean(jnp.argmax(x @ params["w"], axis=1) == batch["label"]))
        1.0

    Reference:
        Amari, 1998, "Natural gradient works efficiently in learning"; Schraudolph, 2002, for `G`;
        Ren and Goldfarb, 2019, arXiv:1906.02353, for the solution in output space; Goldshlager,
        Abrahamsen and Lin, 2024, arXiv:2401.10190 (SPRING); Frangella, Tropp and Udell, 2021,
        arXiv:2110.02820 (Nyström preconditioner).
    """

    # For confident predictions, the quadratic model overestimates the decrease. If the damping
    # never grew (grow = 1), the steps would soon overfit each batch.
    damping_rule: ClassVar[DampingRule] = DampingRule(good=0.75, shrink=0.5, grow=2.0)

    model_fn: Functions = static(convert=_functions)
    loss_fn: Functions = static(convert=_functions)
    learning_rate: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    damping: Scalar = hyper(default=1e-2, gt=0)
    momentum: Scalar | None = hyper(default=None, ge=0, lt=1)
    adaptive: bool = static(default=True)
    halvings: int = static(default=10, least=0)
    method: str = static(default="auto")
    chunk_size: int | None = static(default=None, least=1)
    solver: str = static(default="cholesky", choices=("cholesky", "cg"))
    iterations: int = static(default=100, least=1)
    rank: int = static(default=0, least=0)
    axis_name: Any = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = [len(f) if isinstance(f, tuple) else None for f in (self.model_fn, self.loss_fn)]
        if counts[0] != counts[1] or 0 in counts:
            raise TypeError(
                f"{_NAME}: got model_fn = {self.model_fn!r} and loss_fn = {self.loss_fn!r}, "
                "expected two functions, or two nonempty sequences of the same length."
            )

    def update(
        self,
        updates: Any,
        state: GaussNewtonDescentState,
        params: Any = None,
        *,
        batch: Any,
        **extra_args: Any,
    ) -> tuple[Any, GaussNewtonDescentState]:
        """Take a step that decreases the loss of the batch, or reject the step."""
        from fnopt.curvature import BatchLoss  # `import fnopt` doesn't import curvature

        with use_mesh_of(batch, params):
            loss = BatchLoss(
                self.model_fn,
                self.loss_fn,
                params,
                batch,
                dtype=step_dtype(params),
                method=self.method,
                chunk_size=self.chunk_size,
                name=_NAME,
                axis_name=self.axis_name,
            )
            return self._take_step(
                state, self._direction(loss, state, params), params, loss.value_at
            )

    def _direction(self, loss: BatchLoss, state: GaussNewtonDescentState, params: Any) -> BatchStep:
        from fnopt.curvature import output_step

        momentum_change = self._momentum_change(state, loss.J)
        iterations = self.iterations if self.solver == "cg" else None
        damping = self._current_damping(state)
        solution = output_step(loss, damping, momentum_change, iterations, self.rank)
        # The outputs are only as accurate as the narrowest dtype among the params.
        eps = max(float(jnp.finfo(jnp.result_type(p)).eps) for p in jax.tree.leaves(params))
        return self._batch_step(
            state,
            loss.J.rmv(solution.weights),
            solution.slope,
            solution.second_derivative,
            loss.value,
            solution.known,
            4 * loss.rounding(eps),
        )
