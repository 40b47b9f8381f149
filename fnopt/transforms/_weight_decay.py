"""Decoupled weight decay, and cautious steps and decay, which depend on the gradient's sign."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, Scalar, ScalarOrSchedule, Slot, hyper, is_none, map_leaves, static
from fnopt.numerics import is_static_zero
from fnopt.transforms._chain import Wrapper
from fnopt.transforms._masked import keep_selected
from fnopt.transforms._select import as_mask, select_mask


class AddDecayedWeightsState(NamedTuple):
    """Number of previous updates; None for a constant decay."""

    count: jax.Array | None


class add_decayed_weights(Leafwise):
    r"""Add a multiple of the parameters to the updates: :math:`u_t = g_t + \lambda_t\, \theta_t`.

    Between a direction and `scale_by_learning_rate`, `add_decayed_weights` is decoupled weight
    decay. Before a direction, `add_decayed_weights` adds the gradient of :math:`\frac{\lambda}{2}
    \lVert \theta \rVert^2`.

    Args:
        weight_decay: :math:`\lambda`, a number or a `Schedule`.
        mask: The leaves to decay: a tree of bools (or a prefix tree), a pattern on the leaf path
            such as `'*/kernel'`, `fnopt.by_path` or `fnopt.by_pattern`. With None, all leaves
            decay.

    Raises:
        ValueError: From `init`, if the mask doesn't match the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.add_decayed_weights(0.5), {"w": jnp.full(2, 4.0)}
        >>> tx.update({"w": jnp.ones(2)}, tx.init(params), params)[0]
        {'w': Array([3., 3.], dtype=float32)}

        A pattern excludes biases:

        >>> tx = fnopt.add_decayed_weights(0.5, mask="*/kernel")
        >>> params = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}
        >>> tx.update(params, tx.init(params), params)[0]
        {'bias': Array([1., 1.], dtype=float32), 'kernel': Array([1.5, 1.5], dtype=float32)}

    Reference:
        Loshchilov and Hutter, 2019, arXiv:1711.05101.
    """

    State = AddDecayedWeightsState
    needs_params = True
    reads_step = False

    weight_decay: ScalarOrSchedule = hyper(default=0.0, schedule=True)
    mask: Any = static(default=None, convert=lambda mask: None if mask is None else as_mask(mask))

    def init(self, params: Any) -> AddDecayedWeightsState:
        """Return a zero count, if a schedule needs it."""
        if self.mask is not None:
            select_mask(self.mask, params)  # raises an error if the mask doesn't match the params
        return super().init(params)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        # XLA can't remove 0 * p, which may be NaN, so a zero decay would still read the params.
        return g if is_static_zero(h.weight_decay) else g + h.weight_decay * p

    def update(
        self, updates: Any, state: AddDecayedWeightsState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AddDecayedWeightsState]:
        """Add the decay to the updates."""
        if self.mask is None:
            return self._step(updates, state, params)
        mask = select_mask(self.mask, params)
        new_updates, state = self._step(
            keep_selected(mask, updates), state, keep_selected(mask, params)
        )
        merge = lambda g, u: g if u is None else u  # noqa: E731
        return jax.tree.map(merge, updates, new_updates, is_leaf=is_none), state


class independent_weight_decay(add_decayed_weights):
    r"""Decay weights by a fraction that does not depend on the learning rate.

    .. math:: u_t = g_t - \lambda_t\, \theta_t

    Put `independent_weight_decay` after a whole optimizer, whose updates include the minus sign and
    the learning rate: `chain(adam(rate), independent_weight_decay(1e-4))`. Then the best decay
    doesn't depend on the learning rate. If the learning rate follows a schedule, use a schedule of
    the same shape for the decay. Otherwise weights still decay when the learning rate is zero.

    Args:
        weight_decay: :math:`\lambda`, the fraction that a step removes, a number or a `Schedule`.
        mask: The leaves to decay; see `add_decayed_weights`.

    Raises:
        ValueError: From `init`, if the mask doesn't match the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.sgd(0.1), fnopt.independent_weight_decay(0.25))
        >>> params = {"w": jnp.full(2, 4.0)}
        >>> tx.update({"w": jnp.zeros(2)}, tx.init(params), params)[0]
        {'w': Array([-1., -1.], dtype=float32)}

    Reference:
        Loshchilov and Hutter, 2019, arXiv:1711.05101; Wortsman et al., 2023, arXiv:2309.14322.
    """

    weight_decay: ScalarOrSchedule = hyper(default=0.0, ge=0, schedule=True)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        return g - h.weight_decay * p


class cautious_weight_decay(add_decayed_weights):
    r"""Decay only the weights whose magnitude the update decreases.

    .. math:: u_t = g_t + \lambda_t\, [\,g_t\, \theta_t \ge 0\,]\, \theta_t

    Put `cautious_weight_decay` between a direction and `scale_by_learning_rate`, like
    `add_decayed_weights`. The stationary points are then the stationary points of the loss without
    decay.

    Args:
        weight_decay: :math:`\lambda`, a number or a `Schedule`.
        mask: The leaves to decay; see `add_decayed_weights`.

    Raises:
        ValueError: From `init`, if the mask doesn't match the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.cautious_weight_decay(0.5), {"w": jnp.asarray([4.0, -4.0])}
        >>> tx.update({"w": jnp.ones(2)}, tx.init(params), params)[0]
        {'w': Array([3., 1.], dtype=float32)}

    Reference:
        Chen et al., 2025, arXiv:2510.12402.
    """

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        # The product of signs, because the product of small numbers underflows.
        decays = (jnp.sign(g) * jnp.conj(jnp.sign(p))).real >= 0
        return g + h.weight_decay * jnp.where(decays, p, jnp.zeros_like(p))


class DecayToAnchorState(NamedTuple):
    """Number of previous updates (None for a constant strength), and the initial params."""

    count: jax.Array | None
    anchor: Slot


class decay_to_anchor(Leafwise):
    r"""Add L2 regularization towards the initial parameters (L2-SP).

    .. math:: u_t = g_t + \lambda_t\, (\theta_t - \theta_0)

    In fine-tuning, weights decay towards the pretrained values. Before an optimizer,
    `decay_to_anchor` adds the gradient of :math:`\frac{\lambda}{2} \lVert \theta - \theta_0
    \rVert^2`, as in the paper; between a direction and `scale_by_learning_rate`, the regularization
    is decoupled. New layers have no pretrained values and decay to zero: `chain(masked(
    decay_to_anchor(a), 'body/*'), add_decayed_weights(b, 'head/*'), ...)`.

    Args:
        strength: :math:`\lambda`, a number or a `Schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.decay_to_anchor(0.5), {"w": jnp.ones(2)}
        >>> state = tx.init(params)
        >>> tx.update({"w": jnp.zeros(2)}, state, {"w": jnp.full(2, 3.0)})[0]
        {'w': Array([1., 1.], dtype=float32)}

    Reference:
        Li, Grandvalet and Davoine, 2018, arXiv:1802.01483.
    """

    State = DecayToAnchorState
    fill: ClassVar[Any] = {"anchor": "params"}
    needs_params = True
    reads_step = False

    strength: ScalarOrSchedule = hyper(ge=0, schedule=True)

    def leaf(self, h: Any, g: Any, p: Any, anchor: Any) -> Any:
        return g + h.strength * (p - anchor), anchor


class CautiousState(NamedTuple):
    """The inner state."""

    inner_state: Any


class cautious(Wrapper):
    r"""Keep only the elements of a step that decrease the current loss, and rescale the step.

    .. math:: m = [\,u\, g < 0\,], \qquad u' = \frac{m\, u}{\max(\bar m, \epsilon)}

    where :math:`\bar m` is the mean of the mask over a leaf. With momentum, some elements of a step
    may increase the loss of the current batch; these elements are set to zero. Put `cautious`
    around the whole optimizer, because `cautious` compares the updates with the incoming gradients.
    Decoupled weight decay inside `cautious` is also masked. For unmasked decay, put the decay after
    `cautious`: `chain(cautious(adam(rate)), independent_weight_decay(rate * decay))`.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        eps: :math:`\epsilon`, the lower bound of :math:`\bar m` in the rescaling.

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

    State = CautiousState

    # The bound in the code of Liang et al. (2024): steps grow by a factor of 1,000 at most.
    eps: Scalar = hyper(default=1e-3, gt=0, le=1)

    def update(
        self, updates: Any, state: CautiousState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, CautiousState]:
        """Mask the elements of the inner step that don't descend, and rescale the step."""
        step, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)

        def mask_leaf(u: Any, gradient: Any) -> Any:
            # The product of signs can't underflow or overflow.
            descends = (jnp.sign(u) * jnp.conj(jnp.sign(gradient))).real < 0
            fraction = descends.sum(dtype=u.real.dtype) / max(descends.size, 1)
            fraction = jnp.maximum(fraction, jnp.asarray(self.eps).astype(fraction.dtype))
            return jnp.where(descends, u, jnp.zeros_like(u)) / fraction.astype(u.dtype)

        return map_leaves(mask_leaf, step, gradient=updates), CautiousState(inner_state)
