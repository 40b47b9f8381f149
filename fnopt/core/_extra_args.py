"""Extra arguments of `update`: their names, the transforms that read them, and translation."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import type_text, where
from fnopt.numerics import is_array_like

EXTRA_ARGS: Mapping[str, str] = {
    "value": "the loss at the params, a scalar",
    "grad": "the gradient of the loss at the params, if the updates are not this gradient",
    "value_fn": (
        "`value_fn(params, **others)`: the loss as a function; `others` are the extra "
        "arguments that its signature names"
    ),
    "grad_fn": "`grad_fn(params, i)`: the gradient at other params, in the i-th call of a step",
    "obj_fn": "`obj_fn(params)`: the loss as a function of the params alone, for its curvature",
    "logits_fn": "`logits_fn(params)`: the model's logits for the batch, of shape (..., classes)",
    "residual_fn": (
        "`residual_fn(params)` or `residual_fn(params, example)`: the residuals of the "
        "least-squares cost"
    ),
    "jac": "`jac(params)`: the Jacobian of the residuals, if available",
    "batch": "the examples of the residuals",
    "local_energies": "the local energies of the batch's samples of a wave function, of shape [n]",
    "weights": "the weight of each sample of the batch, of shape [n]",
    "weight": "the weight of this gradient in a mean, such as the number of tokens in its batch",
    "input_moments": "second moments of the inputs of each matrix, `a a^T` averaged over the batch",
    "max_logits": "the largest attention logits of each head in the batch",
    "num_examples": "the number of examples in a worker's steps, which is the worker's weight",
    "participates": "whether a worker takes part in this round",
}
"""Names and descriptions of all extra arguments of `update` that the library reads.

A transform that needs one of these arguments uses this name, so that one call works for all members
of a chain. User-defined transforms may use other names.
"""

ANY = "*"
"""Stands for all names if a function accepts any extra argument (`**kwargs`)."""


# The result is cached, because `inspect.signature` takes longer than an eager step.
@functools.cache
def extra_arg_parameters(update: Callable[..., Any]) -> Mapping[str, bool]:
    """Map each extra argument in the signature of an `update` to whether it is required."""
    parameters = inspect.signature(update).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


@functools.cache
def required_extra_args(update: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the required extra arguments of an `update`."""
    return tuple(name for name, required in extra_arg_parameters(update).items() if required)


def parameter_names(fn: Callable[..., Any]) -> frozenset[str]:
    """Names of a function's parameters after the first; `'*'` if it accepts any name."""
    parameters = list(inspect.signature(fn).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset({ANY})
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(p.name for p in parameters[1:] if p.kind in kinds)


def names_read(tx: Any) -> frozenset[str]:
    """Names of extra arguments that a transform or its inner transforms read; `'*'` for any."""
    return frozenset(tx.reads()).union(*(names_read(member.tx) for member in tx.members()))


def extra_arg_names(tx: Any, given: Mapping[str, Any]) -> frozenset[str]:
    """Names of extra arguments that a transform or the given `value_fn` reads."""
    read, fn = names_read(tx), given.get("value_fn")
    return read | parameter_names(fn) if "value_fn" in read and callable(fn) else read


def check_spelling(tx: Any, given: Mapping[str, Any]) -> None:
    """Raise a TypeError for a misspelled extra argument."""
    # The members aren't visited for standard names, because this would slow down eager steps.
    if given.keys() <= EXTRA_ARGS.keys():
        return
    names = extra_arg_names(tx, given)
    for name in () if ANY in names else sorted(given.keys() - names - EXTRA_ARGS.keys()):
        # 0.8 is the similarity ratio of 'valeu' and 'value'.
        matches = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
        if matches:
            raise TypeError(
                f"{where()}update got the extra argument {name!r}, which no member of the "
                f"optimizer reads; did you mean {matches[0]!r}?"
            )


def scalar_loss(value: Any, dtype: Any) -> jax.Array:
    """Convert the extra argument `value`, or the result of `value_fn`, to a scalar.

    Raises:
        ValueError: If the loss isn't a single real number.
    """
    if not is_array_like(value) or jnp.shape(value) not in ((), (1,)) or jnp.iscomplexobj(value):
        raise ValueError(
            f"{where()}the value of the loss is {type_text(value)}, expected one real number. Sum "
            "or average over the batch."
        )
    return jnp.reshape(jnp.asarray(value), ()).astype(dtype)


_FUNCTIONS = ("value_fn", "obj_fn", "logits_fn", "residual_fn")  # functions of the params


def translate_extra_args(
    extra_args: dict[str, Any], inward: Callable[[Any], Any], outward: Callable[[Any], Any]
) -> dict[str, Any]:
    """Translate extra arguments for an inner transform whose params have another structure.

    `inward` converts a tree with the structure of the params to the inner structure. `outward`
    converts inner params to the tree that the user's functions of the params accept. Therefore a
    line search or a curvature estimate also works under a mask, with the other leaves as constants.
    """
    new_args = dict(extra_args)
    for name in _FUNCTIONS:
        if callable(new_args.get(name)):
            new_args[name] = _compose(new_args[name], outward)
    if callable(new_args.get("grad_fn")):
        grad_fn = _compose(new_args["grad_fn"], outward)
        new_args["grad_fn"] = functools.wraps(grad_fn)(
            lambda *args, **kw: inward(grad_fn(*args, **kw))
        )
    if new_args.get("grad") is not None:
        new_args["grad"] = inward(new_args["grad"])
    return new_args


def _compose(fn: Callable[..., Any], outward: Callable[[Any], Any]) -> Callable[..., Any]:
    """Compose a function of the params with `outward`; the signature doesn't change."""

    # `wraps` keeps the signature, because `value_fn` gets the extra arguments that it names.
    @functools.wraps(fn)
    def composed(params: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(outward(params), *args, **kwargs)

    return composed
