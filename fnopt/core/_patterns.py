"""Glob patterns on the paths of leaves: the one dialect that every selecting argument uses."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(path: str, pattern: str) -> bool:
    """Whether a glob pattern matches the path of a leaf or of one of its parents.

    `*` stands for any text, slashes included, `?` for one character, `[ab]` for one of a set. A
    leading `*/` also stands for nothing, so `'*/bias'` finds `'bias'` at the top of a tree too. A
    pattern that fits a branch selects all leaves below it, and `''` the whole tree.

    Args:
        path: A leaf's path, as `leaf_paths` spells it.
        pattern: A path, the path of a branch, or a glob of either. Upper and lower case differ.

    Returns:
        True if the leaf is selected.

    Example:
        >>> path = "encoder/dense/bias"
        >>> [fnopt.core.matches(path, p) for p in ("encoder", "*/bias", "*/dense", "bias", "enc")]
        [True, True, True, False, False]
    """
    branch = f"{pattern.rstrip('/')}/*"
    return any(fnmatchcase(p, q) for p in (path, f"/{path}") for q in (pattern, branch))
