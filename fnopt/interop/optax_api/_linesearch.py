"""Line searches that print why they failed."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax

from fnopt import transforms
from fnopt.core import Member, Transformation, static
from fnopt.transforms.states import ZoomLinesearchInfo


class _printing(Transformation):
    """A line search that prints its errors where a criterion is missed."""

    floating_alone = True

    inner: Any
    tolerance: Any
    name: str = static()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The line search, whose state is the state."""
        return (Member(self.inner._place, self.inner, state),)

    def init(self, params: Any) -> Any:
        """The state of the line search."""
        return self.inner.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The step of the line search; prints if it isn't what was looked for."""
        scaled, state = self.inner.update(updates, state, params, **extra_args)
        errors = {"decrease": state.info.decrease_error}
        if isinstance(state.info, ZoomLinesearchInfo):
            errors["curvature"] = state.info.curvature_error
        text = f"{self.name}: no step meets the criteria. Step {{step}}, value {{value}}, " + (
            ", ".join(f"error of the {name} {{{name}}}" for name in errors)
        )
        missed = functools.reduce(
            jax.numpy.logical_or, [e > self.tolerance for e in errors.values()]
        )

        def report() -> None:
            jax.debug.print(text, step=state.learning_rate, value=state.value, **errors)

        jax.lax.cond(missed, report, lambda: None)
        return scaled, state


def _accept_verbose(search: Any, tolerance: str) -> Any:
    @functools.wraps(search)
    def make(*args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        tx = search(*args, **kwargs)
        return _printing(tx, getattr(tx, tolerance), search.__name__) if verbose else tx

    own = inspect.signature(search)
    more = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False)
    make.__signature__ = own.replace(parameters=[*own.parameters.values(), more])  # pyright: ignore[reportAttributeAccessIssue]
    return make


scale_by_backtracking_linesearch = _accept_verbose(
    transforms.scale_by_backtracking_linesearch, "atol"
)
scale_by_zoom_linesearch = _accept_verbose(transforms.scale_by_zoom_linesearch, "tol")
