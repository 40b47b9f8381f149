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
            inside = {f.name: _encode(getattr(x, f.name), f"{path}.{f.name}") for f in fields}
            return {"type": config_name(type(x)), **inside}
        case None | bool() | int() | str():
            return x
        case float():  # JSON has no infinity and no NaN
            return x if math.isfinite(x) else {"type": "float", "value": repr(x)}
        case tuple() | list():
            return [_encode(v, f"{path}[{i}]") for i, v in enumerate(x)]
        case dict():
            items = {k: _encode(v, f"{path}[{k!r}]") for k, v in x.items()}
            # JSON's keys are strings, so a dict with other keys is stored as pairs.
            plain = all(isinstance(k, str) for k in items)
            return {"type": "dict", "items": items if plain else list(map(list, items.items()))}
        case np.dtype():
            return {"type": "dtype", "name": x.name}
        case Tracer():
            raise TypeError(
                f"to_config: {_shown(path)} is traced and has no number yet: describe the "
                "optimizer outside of jit, vmap and grad."
            )
        case jax.Array() | np.ndarray():
            # A float64 holds every narrower float exactly, so the values come back bit for bit.
            values = np.asarray(x).astype(np.float64).tolist()
            return {"type": "array", "dtype": x.dtype.name, "values": values}
    return _encode_function(x, path)


def _shown(path: str) -> str:
    return path.lstrip(".") or "the value"


def _encode_function(x: Any, path: str) -> Any:
    name = getattr(x, "__qualname__", None)
    if name is None or "<" in name or _lookup(f"{x.__module__}:{name}") is not x:
        theirs = path.endswith((".init_fn", ".update_fn"))
        reason = " (another library's transform)" if theirs else ""
        raise TypeError(
            f"to_config: {_shown(path)} = {x!r}{reason} has no plain description; "
            "use fnopt's own transforms, or functions defined at the top of a module."
        )
    return {"type": "function", "name": f"{x.__module__}:{name}"}


def _lookup(name: str) -> Any:
    """Find a function by `module:qualname` in imported modules; a config never imports code."""
    # A configuration from an untrusted source can name any module, and an import would run its
    # code.
    module, _, qualname = name.partition(":")
    found = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def from_config(config: Any) -> Any:
    """Build the value that `to_config` described.

    A user's own classes and functions are found if their module has been imported. `from_config`
    never imports a module.

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
            f"from_config: {config!r} is a {type(config).__name__}, expected a dict with a 'type'."
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
            found = _lookup(name)
            if not callable(found):
                raise ValueError(f"from_config: no function {name!r}; import its module first.")
            return found
        case {"type": str(name), **fields}:
            return _build(name, fields)
    raise ValueError(f"from_config: {x!r} has no 'type'.")


def _build(name: str, config: dict[str, Any]) -> Any:
    if name not in registry and name.startswith("fnopt."):
        # A class registers when its module is imported, and packages of fnopt load lazily.
        for found in pkgutil.iter_modules(sys.modules["fnopt"].__path__, "fnopt."):
            importlib.import_module(found.name)
    cls = registry.get(name)
    if cls is None:
        raise ValueError(f"from_config: unknown type {name!r}. {_hint(name)}")
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    known = [f.name for f in fields]
    unknown = [k for k in config if k not in known]
    if unknown:
        raise ValueError(
            f"from_config: {name} has no field {unknown[0]!r}; it has {names_text(known)}."
        )
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in config]
    if missing:
        raise ValueError(f"from_config: {name} lacks the field {missing[0]!r}.")
    return cls(**{k: _decode(v) for k, v in config.items()})


def _hint(name: str) -> str:
    if callable(getattr(sys.modules["fnopt"], name.removeprefix("fnopt."), None)):
        return "It is a function: a configuration describes the object that it returns."
    last = {known.rpartition(".")[2]: known for known in registry}
    close = difflib.get_close_matches(name.rpartition(".")[2], last, n=3, cutoff=0.5)
    found = [last[n] for n in close]
    return f"Did you mean {names_text(found)}?" if found else "Import the module of your class."
