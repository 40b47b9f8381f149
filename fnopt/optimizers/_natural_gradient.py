"""Natural gradient for any loss of a model's outputs, solved in the output space of a batch."""

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


def _functions(given: Any) -> Functions:
    found = tuple(given) if isinstance(given, (list, tuple)) else given
    several = found if isinstance(found, tuple) else (found,)
    for fn in several:
        if not callable(fn):
            raise TypeError(
                f"{_NAME}: a function is {type_text(fn)}, expected model_fn(params, example) and "
                "loss_fn(outputs, example), or a sequence of each."
            )
    return found


class natural_gradient(BatchStepDescent):
    r"""Natural gradient descent: the exact Gauss-Newton step for any loss of a model's outputs.

    Derivatives through the updates are NaN for softmax losses, because the root of a singular
    output Hessian has no derivative.

    .. math:: L(\theta) = \frac1n \sum_i \ell(f(\theta, x_i), x_i), \qquad
              G = \frac1n \sum_i J_i^\top H_i J_i, \qquad
              d = -(G + \lambda I)^{-1} \nabla L

    with the Jacobian :math:`J_i` of the outputs and the Hessian :math:`H_i` of the loss with
    respect to the outputs. For a softmax cross-entropy, a logistic or a Poisson loss of logits `G`
    is the Fisher matrix. `G` covers all parameters jointly, without a block or diagonal
    approximation. Neither `G` nor `J` is formed. With `C` outputs per example, all outputs of the
    batch as one vector, and :math:`s = \partial L / \partial f`, the step is

    .. math:: d = -J^\top (H K + \lambda I)^{-1} s, \qquad K = J J^\top \in \mathbb R^{nC \times nC}

    from :func:`fnopt.curvature.batch_jacobian` and one Cholesky factorization. Several matrices of
    :math:`(nC)^2` numbers are in memory. With momentum :math:`\mu` the method is SPRING, :math:`d_t
    = v - (G + \lambda I)^{-1} (\nabla L + G v)` with :math:`v = \mu d_{t-1}`, scaled by :math:`(1 -
    \mu^{2t})^{-1/2}` for the first steps.

    The step is halved until the loss of the batch satisfies Armijo's condition, and rejected as in
    :func:`fnopt.gauss_newton_descent`, which computes the same step for half the mean square of
    residuals. The damping is halved if a full step achieves three quarters of the decrease that the
    quadratic model predicts. The damping is doubled if the step was shortened or achieved less than
    one quarter. `update` ignores the gradients (they may be `None`): call `update(None, state,
    params, batch=batch)`.

    Args:
        model_fn: `f(params, example) -> outputs` of ONE example, an array or a tree: logits, or the
            logits of all positions of a sequence.
        loss_fn: `loss(outputs, example) -> scalar`. The objective is its mean over the batch. For
            several models (a sequence, with sequences of losses and of batches) the objective is
            the sum.
        learning_rate: The first trial step length, a number or a `Schedule`.
        damping: :math:`\lambda`; the initial damping, if it adapts. For small batches of noisy
            data, a large constant damping (`adaptive=False`) keeps a step from overfitting its
            batch.
        momentum: :math:`\mu`; `None` disables momentum.
        adaptive: Whether the damping adapts.
        halvings: The maximum number of step halvings; 0 accepts every finite step.
        method: `'auto'`, `'ghost'` or `'formed'`, as in :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: The number of examples to process at once; `None` processes the whole batch.
        solver: `'cholesky'` factorizes a matrix with a row for each of the batch's :math:`nC`
            outputs, in :math:`16 (nC)^2` bytes (of float32) and :math:`(nC)^3 / 3` operations, up
            to 32,768 outputs. `'cg'` uses conjugate gradients without this matrix. Each of its
            iterations takes a backward and a forward product with the tape.
        iterations: The maximum number of conjugate-gradient iterations.
        rank: The rank of the Nyström preconditioner for conjugate gradients; 0 disables it. The
            preconditioner takes `rank` additional products, and saves many iterations if the kernel
            has some large and many small eigenvalues.
        axis_name: Inside `jax.shard_map`, the named axis over which the batch is sharded: the step
            uses the examples of all devices, as in :func:`fnopt.gauss_newton_descent`.

    Raises:
        TypeError: If a param isn't a real floating array, or the loss isn't a real scalar.
        ValueError: If a hyper-parameter is out of range, if the loss has no curvature with respect
            to the outputs or couples more than 512 outputs, or if there are too many outputs to
            factorize.

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
        Ren and Goldfarb, 2019, arXiv:1906.02353, for the solve among outputs; Goldshlager,
        Abrahamsen and Lin, 2024, arXiv:2401.10190 (SPRING); Frangella, Tropp and Udell, 2021,
        arXiv:2110.02820 (Nyström's preconditioner).
    """

    # For nearly decided outputs, the model of a batch predicts too large a decrease: a damping that
    # only shrinks would soon overfit each batch.
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
                f"{_NAME}: model_fn is {self.model_fn!r} and loss_fn {self.loss_fn!r}, expected a "
                "function each, or sequences of as many."
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

        before = self._momentum_change(state, loss.J)
        iterations = self.iterations if self.solver == "cg" else None
        found = output_step(loss, self._current_damping(state), before, iterations, self.rank)
        # Outputs have the rounding error of the widest-spaced dtype among the params.
        eps = max(float(jnp.finfo(jnp.result_type(p)).eps) for p in jax.tree.leaves(params))
        return self._batch_step(
            state,
            loss.J.rmv(found.weights),
            found.slope,
            found.second_derivative,
            loss.value,
            found.known,
            4 * loss.rounding(eps),
        )
