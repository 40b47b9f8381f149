"""Conversion of values to and from plain JSON."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import pkgutil
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core._value import Value, config_name, registry
from fnopt.errors import names_text


def to_config(value: Any) -> Any:
    """Describe an optimizer (or any fnopt value) by plain dicts, lists, numbers and strings.

    Args:
        value: A transformation, schedule or selector.

    Returns:
        A structure for `json.dumps`; `from_config` converts it to an equal value.

    Raises:
        TypeError: If a part can't be described (a lambda, another library's transform).

    Example:
        >>> import json, fnopt
        >>> tx = fnopt.adam(1e-3)
        >>> fnopt.from_config(json.loads(json.dumps(fnopt.to_config(tx)))) == tx
        True
    """
    return _encode(value, "")


def _encode(x: Any, path: str) -> Any:
    match x:
        case Value():
            fields = dataclasses.fields(x)  # pyright: ignore[reportArgumentType]
            contents = {f.name: _encode(getattr(x, f.name), f"{path}.{f.name}") for f in fields}
            return {"type": config_name(type(x)), **contents}
        case None | bool() | int() | str():
            return x
        case float():  # JSON has no infinity and no NaN
            return x if math.isfinite(x) else {"type": "float", "value": repr(x)}
        case tuple() | list():
            return [_encode(v, f"{path}[{i}]") for i, v in enumerate(x)]
        case dict():
            items = {k: _encode(v, f"{path}[{k!r}]") for k, v in x.items()}
            # JSON's keys are strings, so a dict with other keys is stored as pairs.
            is_json = all(isinstance(k, str) for k in items)
            return {"type": "dict", "items": items if is_json else list(map(list, items.items()))}
        case np.dtype():
            return {"type": "dtype", "name": x.name}
        case Tracer():
            raise TypeError(
                f"to_config: {_path_text(path)} is traced, expected a concrete number. Call "
                "to_config outside of jit, vmap and grad."
            )
        case jax.Array() | np.ndarray():
            # float64 represents every narrower float exactly, so `from_config` restores every bit.
            values = np.asarray(x).astype(np.float64).tolist()
            return {"type": "array", "dtype": x.dtype.name, "values": values}
    return _encode_function(x, path)


def _path_text(path: str) -> str:
    return path.lstrip(".") or "the value"


def _encode_function(x: Any, path: str) -> Any:
    name = getattr(x, "__qualname__", None)
    if name is None or "<" in name or _lookup(f"{x.__module__}:{name}") is not x:
        is_foreign = path.endswith((".init_fn", ".update_fn"))
        reason = " (another library's transform)" if is_foreign else ""
        raise TypeError(
            f"to_config: {_path_text(path)} = {x!r}{reason} has no plain description, expected "
            "a transform of fnopt or a function defined at the top of a module."
        )
    return {"type": "function", "name": f"{x.__module__}:{name}"}


def _lookup(name: str) -> Any:
    """Look up a function by `module:qualname` in imported modules; None if there is none."""
    # No module is imported, because a configuration from an untrusted source can name any module,
    # and an import runs the module's code.
    module, _, qualname = name.partition(":")
    value = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def from_config(config: Any) -> Any:
    """Build the value that `to_config` described.

    A user's classes and functions must be in modules that have been imported, because `from_config`
    imports only modules of fnopt.

    Args:
        config: The result of `to_config`, possibly through JSON.

    Returns:
        A value equal to the one described.

    Raises:
        ValueError: If a type or a field is unknown, or a field is missing; the message has a path.
        TypeError: If a field has a value of the wrong type.

    Example:
        >>> import fnopt
        >>> fnopt.from_config({"type": "fnopt.scale_by_adma"})
        Traceback (most recent call last):
        ...
        ValueError: from_config: unknown type 'fnopt.scale_by_adma'. Did you mean ...?
    """
    if not isinstance(config, dict) or "type" not in config:
        raise TypeError(
            f"from_config: {config!r} is a {type(config).__name__}, expected a dict with a 'type', "
            "as to_config returns it."
        )
    return _decode(config)


def _decode(x: Any) -> Any:
    if isinstance(x, list):
        return tuple(map(_decode, x))
    if not isinstance(x, dict):
        return x
    match x:
        case {"type": "float", "value": text}:
            return float(text)
        case {"type": "dict", "items": items}:
            pairs = items.items() if isinstance(items, dict) else items
            return {k: _decode(v) for k, v in pairs}
        case {"type": "dtype", "name": name}:
            return jnp.dtype(name)
        case {"type": "array", "dtype": dtype, "values": values}:
            return jnp.asarray(values, dtype)
        case {"type": "function", "name": name}:
            function = _lookup(name)
            if not callable(function):
                raise ValueError(
                    f"from_config: there is no function {name!r}; import its module first."
                )
            return function
        case {"type": str(name), **fields}:
            return _build(name, fields)
    raise ValueError(
        f"from_config: {x!r} has no key 'type', expected a dict as to_config returns it."
    )


def _build(name: str, config: dict[str, Any]) -> Any:
    if name not in registry and name.startswith("fnopt."):
        # A class is registered when its module is imported, and fnopt imports packages lazily.
        for package in pkgutil.iter_modules(sys.modules["fnopt"].__path__, "fnopt."):
            importlib.import_module(package.name)
    cls = registry.get(name)
    if cls is None:
        raise ValueError(f"from_config: unknown type {name!r}. {_type_advice(name)}")
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    names = [f.name for f in fields]
    unknown = [k for k in config if k not in names]
    if unknown:
        raise ValueError(
            f"from_config: {name} has no field {unknown[0]!r}, expected one of {names_text(names)}."
        )
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in config]
    if missing:
        raise ValueError(
            f"from_config: {name} lacks the field {missing[0]!r}, expected a value, because the "
            "field has no default."
        )
    return cls(**{k: _decode(v) for k, v in config.items()})


def _type_advice(name: str) -> str:
    """Advice for an unknown type in a configuration."""
    function = name.removeprefix("fnopt.")
    if callable(getattr(sys.modules["fnopt"], function, None)):
        return f"{function} is a function; a configuration describes the object that it returns."
    full_names = {full_name.rpartition(".")[2]: full_name for full_name in registry}
    matches = difflib.get_close_matches(name.rpartition(".")[2], full_names, n=3, cutoff=0.5)
    types = [full_names[n] for n in matches]
    return f"Did you mean {names_text(types)}?" if types else "Import the module of your class."
