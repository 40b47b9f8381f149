"""Conversion of other libraries' optimizers to fnopt transformations."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fnopt.core._extra_args import ANY, extra_arg_parameters
from fnopt.core._static import static
from fnopt.core._transformation import Transformation
from fnopt.core._value import brief
from fnopt.errors import where


class from_pair(Transformation):
    """Convert another library's (init, update) pair to an fnopt transformation.

    `chain` and the other wrappers do this automatically for objects with `init` and `update`, and
    for pairs. The pair's update receives only the extra arguments in its signature.

    Args:
        init_fn: The pair's init function.
        update_fn: The pair's update function.

    Example:
        >>> import fnopt, optax
        >>> fnopt.chain(optax.scale(-0.1)).init({"w": 1.0})
        (EmptyState(),)
    """

    init_fn: Callable[..., Any] = static()
    update_fn: Callable[..., Any] = static()

    def init(self, params: Any) -> Any:
        """Call the pair's init function."""
        return self.init_fn(params)

    def reads(self) -> Mapping[str, bool]:
        """Map the keyword-only parameters of the pair's update to whether each is required.

        `'*'` is a key if the update accepts any name.
        """
        any_name = {ANY: False} if _signature(self.update_fn).takes_any else {}
        return {**extra_arg_parameters(self.update_fn), **any_name}

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Call the pair's update with the extra arguments in its signature."""
        signature = _signature(self.update_fn)
        args = (updates, state, params) if signature.takes_params else (updates, state)
        # optax's transformations without extra arguments raise an error for unknown arguments.
        if not signature.takes_any:
            extra_args = {
                k: v for k, v in extra_args.items() if k in extra_arg_parameters(self.update_fn)
            }
        return self.update_fn(*args, **extra_args)


class _Signature(NamedTuple):
    takes_params: bool
    takes_any: bool


@functools.cache  # `inspect` takes longer than an eager step
def _signature(update: Callable[..., Any]) -> _Signature:
    Kind = inspect.Parameter
    kinds = [p.kind for p in inspect.signature(update).parameters.values()]
    by_position = sum(k in (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD) for k in kinds)
    return _Signature(by_position > 2 or Kind.VAR_POSITIONAL in kinds, Kind.VAR_KEYWORD in kinds)


def _init_and_update(tx: Any) -> tuple[Any, Any]:
    # A class or a function that wasn't called. The methods of a class are unbound.
    if isinstance(tx, (type, types.FunctionType)):
        return None, None
    if callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None)):
        return tx.init, tx.update
    return tx if isinstance(tx, tuple) and len(tx) == 2 else (None, None)


def as_transformation(tx: Any, what: str = "member") -> Transformation:
    """Convert any (init, update) pair to a `Transformation`."""
    if isinstance(tx, Transformation):
        return tx
    pair = _init_and_update(tx)
    if not all(map(callable, pair)):
        hint = ""
        if callable(tx):
            hint = f" Did you forget to call it, as in {getattr(tx, '__name__', 'it')}(...)?"
        raise TypeError(
            f"{where()}{what} is {brief(tx)}, expected an optimizer: a fnopt Transformation or an "
            f"(init, update) pair.{hint}"
        )
    return from_pair(*pair)
