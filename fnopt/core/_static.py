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

    A field annotated `bool`, `int`, `str` or `Callable` (or one of these types `| None`) accepts
    only values of the annotated type. With `convert`, only `convert` checks the value.

    Args:
        default: The default value; without a default, the field is required.
        convert: A function that checks a value and converts it to its stored form.
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


# For each annotation that is checked: the expected value in words, the test, and the conversion to
# the stored form.
_KINDS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "bool": ("True or False", lambda value: isinstance(value, (bool, np.bool_)), bool),
    "int": ("an integer", is_integer, int),
    "str": ("a string", lambda value: isinstance(value, str), str),
    "Callable": ("a function", callable, lambda value: value),
}


def _convert_annotated(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a static value to the field's annotated type, if `_KINDS` contains the type."""
    annotation = getattr(field.type, "__name__", str(field.type))
    name, minimum = annotation.partition("[")[0].removesuffix(" | None"), field.metadata["least"]
    if name not in _KINDS or (value is None and annotation.endswith("None")):
        return value
    description, is_valid, convert = _KINDS[name]
    expected = description if minimum is None else f"{description} >= {minimum}"
    # The value is checked at construction, because an error inside a jitted step would be far from
    # the wrong value.
    if not is_valid(value):
        raise TypeError(f"{where()}{owner}: {field.name} = {value!r}, expected {expected}.")
    if minimum is not None and value < minimum:
        raise ValueError(f"{where()}{owner}: {field.name} = {value}, expected {expected}.")
    return convert(value)


def _apply_convert(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """Apply the field's `convert` to a value; an error names the owner and the field."""
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
    check = _apply_convert if field.metadata["convert"] else _convert_annotated
    value = check(owner, field, value)
    if choices := field.metadata["choices"]:
        check_choice(value, choices, field.name, f"{where()}{owner}")
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{where()}{owner}: static field {field.name} = {value!r} can't be hashed, expected a "
            "hashable value; use a tuple, a string, a number or a function."
        ) from None
    return value
