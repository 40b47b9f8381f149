"""Sharpness-aware minimization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Member,
    Slot,
    Transformation,
    apply_updates,
    as_transformation,
    cast_like,
    map_leaves,
    slot_copy,
    static,
)
from fnopt.errors import where
from fnopt.numerics import safe_increment, zero_count


class SAMState(NamedTuple):
    """Calls since the last step, both inner states, and the params before the ascent steps."""

    steps_since_sync: jax.Array
    inner_state: Any
    adv_state: Any
    cache: Slot


class sam(Transformation):
    r"""Sharpness-aware minimization: step along the gradient at the worst nearby point.

    .. math:: \tilde\theta = \theta + \rho\, \frac{g(\theta)}{\lVert g(\theta) \rVert}, \qquad
              u = \mathrm{inner}(g(\tilde\theta))

    The adversary is a *descent* optimizer, whose steps are negated to ascend. The paper's adversary
    is `fnopt.chain(fnopt.normalize_by_update_norm(eps=0.0), fnopt.sgd(rho))`.

    By default, a step consists of `sync_period` calls of `update`, and the training loop is the
    same as for other optimizers. The first calls move the params to the adversarial point; the last
    call takes a step from the params before the ascent. To evaluate the model between these calls,
    use `fnopt.slots(state)["cache"]` instead of the params. In opaque mode every call is a step,
    and `update` needs `grad_fn` as an extra argument.

    Args:
        optimizer: The optimizer, a `Transformation` or any (init, update) pair.
        adv_optimizer: The adversary.
        sync_period: The number of gradients per step.
        reset_state: Whether to reset the adversary's state in every step.
        opaque_mode: Whether one call takes the whole step. This mode needs the extra argument
            `grad_fn(params, i)`, the gradient at other params, where `i` counts the adversary's
            steps.
        batch_axis_name: In opaque mode, the mapped axis over which gradients are averaged.

    Raises:
        ValueError: If `sync_period` isn't an integer of at least 1.
        TypeError: From `update` in opaque mode without `grad_fn`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> adversary = fnopt.chain(fnopt.normalize_by_update_norm(eps=0.0), fnopt.sgd(0.1))
        >>> tx = fnopt.sam(fnopt.sgd(0.25), adversary, opaque_mode=True)
        >>> params, grad = {"w": jnp.asarray([1.0])}, jax.grad(lambda p: jnp.sum(p["w"] ** 2))
        >>> updates, state = tx.update(
        ...     grad(params), tx.init(params), params, grad_fn=lambda p, i: grad(p)
        ... )
        >>> updates["w"].round(3)  # a quarter of the gradient at 1.1
        Array([-0.55], dtype=float32)

    Reference:
        Foret, Kleiner, Mobahi and Neyshabur, 2021, arXiv:2010.01412.
    """

    needs_params = True

    optimizer: Any
    adv_optimizer: Any
    sync_period: int = static(default=2, least=1)
    reset_state: bool = static(default=True)
    opaque_mode: bool = static(default=False)
    batch_axis_name: str | None = static(default=None)

    def __post_init__(self) -> None:
        for name in ("optimizer", "adv_optimizer"):
            self._set(name, as_transformation(getattr(self, name), f"sam: {name}"))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The optimizer and its adversary."""
        states = (None, None) if state is None else (state.inner_state, state.adv_state)
        return (
            Member("optimizer", self.optimizer, states[0]),
            Member("adversary", self.adv_optimizer, states[1]),
        )

    def reads(self) -> Mapping[str, bool]:
        """Include `grad_fn`, which opaque mode requires."""
        return {**super().reads(), "grad_fn": self.opaque_mode}

    def init(self, params: Any) -> SAMState:
        """Return both inner states; in opaque mode no params are stored."""
        cache = None if self.opaque_mode else slot_copy(params)
        inner_state, adv_state = self.optimizer.init(params), self.adv_optimizer.init(params)
        return SAMState(zero_count(), inner_state, adv_state, cache)

    def update(
        self,
        updates: Any,
        state: SAMState,
        params: Any = None,
        *,
        grad_fn: Any = None,
        **extra_args: Any,
    ) -> tuple[Any, SAMState]:
        """Take an adversarial step, or in the last call an optimizer step."""
        if not self.opaque_mode:
            if grad_fn is not None:  # an inner transform may read it
                extra_args["grad_fn"] = grad_fn
            return self._step_in_calls(updates, state, params, extra_args)
        if grad_fn is None:
            raise TypeError(
                f"{where()}update needs the extra argument 'grad_fn' in opaque mode. Call "
                "update(updates, state, params, grad_fn=fn), where fn(params, i) is a gradient."
            )
        return self._step_in_one_call(updates, state, params, grad_fn, extra_args)

    def _step_in_calls(
        self, updates: Any, state: SAMState, params: Any, extra_args: Any
    ) -> tuple[Any, SAMState]:
        is_first = state.steps_since_sync == 0
        steps = safe_increment(state.steps_since_sync)
        is_last = steps >= self.sync_period

        cache = map_leaves(
            lambda p, c: (p, jnp.where(is_first, p, c)), params, outputs=2, cache=state.cache
        )[1]
        start = cast_like(cache, params)

        def descend() -> tuple[Any, Any, Any]:
            new_updates, inner = self.optimizer.update(
                updates, state.inner_state, start, **extra_args
            )
            # The caller adds the update to the adversarial params, so the update also includes the
            # difference to the params before the ascent.
            new_updates = map_leaves(
                lambda u, p, c: c - p + u, new_updates, params=params, cache=cache
            )
            adversary = self.adv_optimizer.init(params) if self.reset_state else state.adv_state
            return (
                new_updates,
                cast_like(inner, state.inner_state),
                cast_like(adversary, state.adv_state),
            )

        # `cond` requires equal dtypes in both branches, here the dtypes of `descend`.
        shapes = jax.eval_shape(descend)[0]

        def ascend() -> tuple[Any, Any, Any]:
            new_updates, adversary = self.adv_optimizer.update(
                updates, state.adv_state, params, **extra_args
            )
            new_updates = cast_like(map_leaves(lambda u: -u, new_updates), shapes)
            return new_updates, state.inner_state, cast_like(adversary, state.adv_state)

        new_updates, inner_state, adv_state = jax.lax.cond(is_last, descend, ascend)
        steps = jnp.where(is_last, zero_count(), steps)
        return new_updates, SAMState(steps, inner_state, adv_state, cache)

    def _step_in_one_call(
        self, updates: Any, state: SAMState, params: Any, grad_fn: Any, extra_args: Any
    ) -> tuple[Any, SAMState]:
        point, gradients, adversary = params, updates, state.adv_state
        extra_args = {"grad_fn": grad_fn, **extra_args}
        for i in range(self.sync_period - 1):
            step, adversary = self.adv_optimizer.update(gradients, adversary, point, **extra_args)
            point = apply_updates(point, map_leaves(lambda u: -u, step))
            gradients = grad_fn(point, i)
            if self.batch_axis_name is not None:
                gradients = jax.lax.pmean(gradients, axis_name=self.batch_axis_name)
        if self.reset_state:
            adversary = self.adv_optimizer.init(params)
        new_updates, inner_state = self.optimizer.update(
            gradients, state.inner_state, params, **extra_args
        )
        inner_state, adversary = cast_like(
            (inner_state, adversary), (state.inner_state, state.adv_state)
        )
        return new_updates, SAMState(state.steps_since_sync, inner_state, adversary, None)
