"""L-BFGS with a line search, as an optimizer like any other."""

from __future__ import annotations

from typing import Any

from fnopt.core import ScalarOrSchedule
from fnopt.optimizers._recipe import recipe
from fnopt.optimizers._scale_by_lbfgs import scale_by_lbfgs
from fnopt.transforms import Chain, chain, scale, scale_by_learning_rate, scale_by_zoom_linesearch

_ZOOM = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


@recipe
def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: Any = _ZOOM,
) -> Chain:
    r"""L-BFGS: gradients times a low-rank approximation of the inverse Hessian.

    .. math:: u_t = -\eta_t P_t\, g_t

    For a function that is the same in every step. `update` takes `value`, `grad` and `value_fn`,
    which the line search needs. :func:`fnopt.minimize` is a driver that passes them, stops on
    convergence and takes bounds.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`, before the line search; by default 1.
        memory_size: How many differences of params and gradients are remembered.
        scale_init_precond: Whether the recursion starts from the last curvature, or from 1.
        linesearch: What scales the step, such as :class:`fnopt.scale_by_zoom_linesearch` or
            :class:`fnopt.scale_by_backtracking_linesearch`; None for none.

    Returns:
        A chain of `scale_by_lbfgs`, the learning rate and the line search.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def f(x): return jnp.sum((x - 1) ** 2)
        >>> tx, x = fnopt.lbfgs(), jnp.zeros(3)
        >>> state, value_and_grad = tx.init(x), fnopt.value_and_grad_from_state(f)
        >>> for _ in range(3):
        ...     value, grad = value_and_grad(x, state=state)
        ...     u, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=f)
        ...     x = fnopt.apply_updates(x, u)
        >>> print(x.round(3))
        [1. 1. 1.]

    Reference:
        Liu and Nocedal (1989), On the limited memory BFGS method for large scale optimization.
    """
    rate = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    members = [scale_by_lbfgs(memory_size, scale_init_precond), rate]
    return chain(*members) if linesearch is None else chain(*members, linesearch)
