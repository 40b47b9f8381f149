"""Naming a value inside a function."""

from __future__ import annotations

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from fnopt.core import leaves_with_names

SCOPE = "scope:"
_RESERVED = "*?[]#"


def tap(name: str, x: Any) -> Any:
    """Names a value inside a function, so that `capture`, `patch` and others find it.

    The identity: while nobody looks, the compiled program is the same as without it. It works in
    any JAX code (jit, grad, vmap, scan, remat, branches, custom derivative rules) and in the
    modules of any framework. It is `jax.ad_checkpoint.checkpoint_name`, so values that are already
    named for a rematerialisation policy are taps as they stand, and a policy knows a tap by name.

    Args:
        name: What the value is called; slashes are welcome (`'layer_3/attention'`). Where one name
            is used several times, the nodes are `name#0`, `name#1`, … in the order of the program.
        x: An array, or a tree, whose leaves are then called `name/path`.

    Returns:
        `x`.

    Raises:
        TypeError: If the name isn't a string.
        ValueError: If the name is empty, has one of `*?[]#` in it, or begins with `scope:`.

    Example:
        >>> from fnopt.gradients import capture, tap
        >>> def loss(w, x):
        ...     return jnp.sum(tap("hidden", w * x) ** 2)
        >>> _, seen = capture(loss, "hidden", cotangents=True)(jnp.float32(2.0), jnp.ones(2))
        >>> seen.values["hidden"].tolist(), seen.cotangents["hidden"].tolist()
        ([2.0, 2.0], [4.0, 4.0])
    """
    _check_name(name)
    pairs, treedef = leaves_with_names(x)
    named = [checkpoint_name(leaf, f"{name}/{path}" if path else name) for path, leaf in pairs]
    return jax.tree.unflatten(treedef, named)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"tap: the name is a {type(name).__name__}, expected a string: tap('hidden', x)."
        )
    if not name or name.startswith(SCOPE) or any(c in name for c in _RESERVED):
        raise ValueError(
            f"tap: the name is {name!r}, expected some text without any of '{_RESERVED}', which "
            f"select nodes, and not beginning with {SCOPE!r}, which selects scopes."
        )
