"""Static fields of values: flags, names, integers and functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fnopt.errors import check_choice, is_integer, where


def static(
    *,
    default: Any = dataclasses.MISSING,
    convert: Callable[[Any], Any] | None = None,
    least: int | None = None,
    choices: tuple[Any, ...] = (),
) -> Any:
    """Declare a static field, such as a flag or a function: hashed, compared, never traced.

    A field annotated `bool`, `int`, `str` or `Callable` (or one of these `| None`) accepts only
    values of that type. With `convert`, this function checks the value instead.

    Args:
        default: The default value; without a default, the field is required.
        convert: A function that converts the given value to its stored form.
        least: The smallest allowed integer.
        choices: The allowed values; all by default.

    Returns:
        A dataclass field.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> class sign_flip(fnopt.Transformation):
        ...     enabled: bool = fnopt.static(default=True)
        ...     def update(self, updates, state, params=None, **extra_args):
        ...         return (jax.tree.map(jnp.negative, updates) if self.enabled else updates), state
        >>> sign_flip()
        sign_flip(enabled=True)
    """
    metadata = {"static": True, "convert": convert, "least": least, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def is_static(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is static, and therefore not a leaf of the pytree."""
    return bool(field.metadata.get("static"))


# For each simple annotation of a static field: description, test, and conversion to the stored
# form.
_KINDS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "bool": ("True or False", lambda value: isinstance(value, (bool, np.bool_)), bool),
    "int": ("a whole number", is_integer, int),
    "str": ("a string", lambda value: isinstance(value, str), str),
    "Callable": ("a function", callable, lambda value: value),
}


def _as_annotated(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a static value to the field's annotated type, if this is one of `_KINDS`."""
    annotation = getattr(field.type, "__name__", str(field.type))
    name, least = annotation.partition("[")[0].removesuffix(" | None"), field.metadata["least"]
    if name not in _KINDS or (value is None and annotation.endswith("None")):
        return value
    words, fits, stored = _KINDS[name]
    expected = words if least is None else f"{words} >= {least}"
    # The value is checked at construction, because an error inside a jitted step would be far from
    # its cause.
    if not fits(value):
        raise TypeError(f"{where()}{owner}: {field.name} = {value!r}, expected {expected}.")
    if least is not None and value < least:
        raise ValueError(f"{where()}{owner}: {field.name} = {value}, expected {expected}.")
    return stored(value)


def _converted(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a static value to its stored form; an error names the owner and the field."""
    try:
        return field.metadata["convert"](value)
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix(where())
        if type(error) not in (TypeError, ValueError) or text.startswith(f"{owner}: "):
            raise
        if field.name not in text:
            text = f"{field.name} = {value!r}: {text}"
        raise type(error)(f"{where()}{owner}: {text}") from None


def checked_static(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """Check a static value, and return its stored, hashable form."""
    check = _converted if field.metadata["convert"] else _as_annotated
    value = check(owner, field, value)
    if choices := field.metadata["choices"]:
        check_choice(value, choices, field.name, f"{where()}{owner}")
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{where()}{owner}: static field {field.name} = {value!r} can't be hashed; "
            "use a tuple, a string, a number or a function."
        ) from None
    return value
