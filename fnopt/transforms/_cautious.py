"""Cautious updates: elements that agree with the gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.core import Scalar, hyper, map_leaves
from fnopt.transforms._chain import Wrapper


class CautiousState(NamedTuple):
    """The inner state."""

    inner_state: Any


class cautious(Wrapper):
    r"""Keep the elements of a step that descend along the current gradient, and rescale them.

    .. math:: m = [\,u\, g < 0\,], \qquad u' = \frac{m\, u}{\max(\bar m, \epsilon)}

    with the mean :math:`\bar m` over a leaf. Momentum may point uphill for the current batch; such
    elements of the step are zero. Put it around the whole optimizer: it compares the updates with
    the gradients that come in. Decoupled weight decay inside is masked with the rest; to leave it
    alone put it behind, `chain(cautious(adam(rate)), independent_weight_decay(rate * decay))`.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        eps: :math:`\epsilon`, the least fraction that is made up for.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.cautious(fnopt.sgd(1.0, momentum=0.9))
        >>> params = {"w": jnp.zeros(2)}
        >>> _, state = tx.update({"w": jnp.asarray([1.0, 1.0])}, tx.init(params), params)
        >>> updates, state = tx.update({"w": jnp.asarray([1.0, -0.5])}, state, params)
        >>> updates["w"].round(2)
        Array([-3.8,  0. ], dtype=float32)

    Reference:
        Liang, Chen, Liu and Liu, 2024, arXiv:2411.16085.
    """

    eps: Scalar = hyper(default=1e-3, gt=0, le=1)

    def init(self, params: Any) -> CautiousState:
        """The inner state."""
        return CautiousState(self.inner.init(params))

    def update(
        self, updates: Any, state: CautiousState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, CautiousState]:
        """The inner step where it agrees with the gradient."""
        new, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)

        def mask_leaf(u: Any, gradient: Any) -> Any:
            # Of unit numbers: products of small ones would vanish, of large ones overflow.
            agrees = (jnp.sign(u) * jnp.conj(jnp.sign(gradient))).real < 0
            share = agrees.sum(dtype=u.real.dtype) / max(agrees.size, 1)
            share = jnp.maximum(share, jnp.asarray(self.eps).astype(share.dtype))
            return jnp.where(agrees, u, jnp.zeros_like(u)) / share.astype(u.dtype)

        return map_leaves(mask_leaf, new, gradient=updates), CautiousState(inner_state)
