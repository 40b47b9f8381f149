"""The base of the transforms that wrap another transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import Member, Transformation, as_transformation, cast_like


class Wrapper(Transformation):
    """A transform around one `inner` transform, whose state it keeps in `inner_state`.

    Extra arguments of `update` are the inner transform's: a wrapper hands on all that it gets.
    """

    has_own_state: ClassVar[bool] = True  # False where the state is the inner one itself

    inner: Any  # a Transformation once constructed; another library's pair is taken too

    def __post_init__(self) -> None:
        self._set("inner", as_transformation(self.inner, f"{type(self).__name__}: inner"))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner transform, by its own name."""
        inner_state = state if state is None or not self.has_own_state else state.inner_state
        return (Member(self.inner._place, self.inner, inner_state),)

    def _step_if(
        self,
        holds: jax.Array,
        updates: Any,
        inner_state: Any,
        params: Any,
        extra_args: dict[str, Any],
        otherwise: Any = None,
        prepare: Callable[[Any], Any] = lambda updates: updates,
    ) -> tuple[Any, Any]:
        """The inner step if a condition holds; else other updates (zeros) and the old state."""

        def step() -> tuple[Any, Any]:
            gradients = prepare(updates)
            new, inner = self.inner.update(gradients, inner_state, params, **extra_args)
            return new, cast_like(inner, inner_state)

        def skip() -> tuple[Any, Any]:
            shapes, _ = jax.eval_shape(step)
            other = jax.tree.map(jnp.zeros_like, shapes) if otherwise is None else otherwise
            return cast_like(other, shapes), inner_state

        return jax.lax.cond(holds, step, skip)
