"""Extra arguments for a transform that sees the params in another form."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_FUNCTIONS = ("value_fn", "obj_fn", "logits_fn", "residual_fn")  # of the params


def translated(
    extra_args: dict[str, Any], inward: Callable[[Any], Any], outward: Callable[[Any], Any]
) -> dict[str, Any]:
    """Extra arguments for an inner transform whose params, gradients and updates have another form.

    `inward` brings a tree like the params to the form that the inner transform knows, `outward`
    its params to the tree that the functions of the params take. So a line search or an estimate of
    curvature works under a mask, and sees the other leaves as constants.
    """
    new = dict(extra_args)
    for name in _FUNCTIONS:
        if callable(new.get(name)):
            new[name] = _after(outward, new[name])
    if callable(new.get("grad_fn")):
        new["grad_fn"] = _before(inward, _after(outward, new["grad_fn"]))
    if new.get("grad") is not None:
        new["grad"] = inward(new["grad"])
    return new


def _after(outward: Callable[[Any], Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)  # the names of its parameters say which extra arguments it gets
    def called(params: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(outward(params), *args, **kwargs)

    return called


def _before(inward: Callable[[Any], Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(fn)(lambda *args, **kwargs: inward(fn(*args, **kwargs)))
