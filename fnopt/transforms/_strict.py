"""Checks for unknown and missing extra arguments."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from fnopt.core import ANY, Transformation, extra_arg_names, names_text, where
from fnopt.transforms._chain import Wrapper


class strict(Wrapper):
    """Refuse unknown extra arguments, and name all missing ones at once.

    Every `update` takes any extra argument, so that one call serves all members of a chain. The
    price is that a misspelled one is not noticed. With `strict` around the whole optimizer it is,
    while the step is traced. The state is that of the inner optimizer, so you can add or remove the
    wrapper during training.

    The known names are the keyword-only parameters of `update` (see `Transformation.reads`).
    Functions given as extra arguments, such as `value_fn`, add the names of their own parameters.
    Another library's transform that takes `**kwargs` takes everything; with one inside nothing is
    unknown.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.

    Raises:
        TypeError: From `update`, if an extra argument is unknown or missing.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.strict(fnopt.chain(fnopt.sgd(0.1), fnopt.reduce_on_plateau()))
        >>> tx.needs
        ('value',)
        >>> params = {"w": jnp.ones(2)}
        >>> tx.update(params, tx.init(params), params, value=1.0, los=2.0)
        Traceback (most recent call last):
        ...
        TypeError: strict: update got ['los'], which nothing in it takes; it takes ['value'].
    """

    has_own_state = False

    @property
    def other_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner transform takes gradients of another form than the params."""
        return self.inner.other_gradients

    def reads(self) -> Mapping[str, bool]:
        """Any name, because `strict` checks each."""
        return {ANY: False}

    def init(self, params: Any) -> Any:
        """The inner state."""
        return self.inner.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The inner updates, if all argument names are known."""
        _check(self.inner, extra_args)
        return self.inner.update(updates, state, params, **extra_args)


def _check(tx: Transformation, given: dict[str, Any]) -> None:
    known = extra_arg_names(tx, given)
    unknown = [] if ANY in known else sorted(given.keys() - known)
    missing = [name for name in tx.needs if name not in given]
    if not (unknown or missing):
        return
    parts = []
    if unknown:
        near = {name: difflib.get_close_matches(name, sorted(known), n=1) for name in unknown}
        hints = [f"{found[0]!r} for {name!r}" for name, found in near.items() if found]
        hint = f" (did you mean {', '.join(hints)}?)" if hints else ""
        parts.append(f"got {names_text(unknown)}, which nothing in it takes{hint}")
    if missing:
        parts.append(f"needs {names_text(missing)}, which it did not get")
    if unknown or not known:
        parts.append(f"it takes {names_text(sorted(known - {ANY}))}" if known else "it takes none")
    raise TypeError(f"{where()}update {'; '.join(parts)}.")
