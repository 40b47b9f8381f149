"""Matching of biases to weights by shape and name."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

Shape = tuple[int, ...]

_MANY = 64  # leaves side by side; a layer has a handful, a list of parameters hundreds


@functools.lru_cache(maxsize=64)
def weights_of(names: tuple[str, ...], shapes: tuple[Shape | None, ...]) -> tuple[int, ...]:
    """For every leaf the one that it is the bias of, as an index; itself if there is none.

    A bias stands beside its weights in the tree and has some of their axes: `[64]` beside
    `[128, 64]`, `[4, 16]` beside `[64, 4, 16]`. Of several such weights it is the one whose name is
    most alike: `b1` belongs to `w1`.

    Args:
        names: The paths of the leaves.
        shapes: Their shapes; `None` for what is no single leaf.
    """
    found = list(range(len(names)))
    by_parent = sorted(range(len(names)), key=lambda i: _parent(names[i]))
    for _, group in itertools.groupby(by_parent, key=lambda i: _parent(names[i])):
        beside = list(group)
        if len(beside) > _MANY:
            continue
        for i in beside:
            weights = [j for j in beside if _is_bias(shapes[i], shapes[j])]
            found[i] = max(weights, key=lambda j: _common_ends(names[i], names[j]), default=i)
    return tuple(found)


def biases_of(weights: Sequence[int], shapes: Sequence[Shape | None]) -> tuple[int | None, ...]:
    """For every leaf the bias whose zeros say how many of its units are inactive.

    That is itself if it is a vector or has weights of its own, and `None` for matrices without a
    bias. The zeros of such a matrix may be unused rows of an embedding, or inputs that are always
    zero.
    """
    first = {w: i for i, w in reversed([*enumerate(weights)]) if w != i}
    return tuple(
        i if weights[i] != i or shape is None or len(shape) < 2 else first.get(i)
        for i, shape in enumerate(shapes)
    )


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _is_bias(bias: Shape | None, weights: Shape | None) -> bool:
    if bias is None or weights is None:
        return False
    own, others = ([n for n in shape if n != 1] for shape in (bias, weights))
    left = iter(others)  # Equinox has [channels, 1, 1]
    return 0 < len(own) < len(others) and all(n in left for n in own)


def _common_ends(a: str, b: str) -> int:
    """Length of the common prefix and suffix of two names."""

    def count_equal(pairs: Iterable[tuple[str, str]]) -> int:
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    return count_equal(zip(a, b, strict=False)) + count_equal(zip(a[::-1], b[::-1], strict=False))
