"""Inference of a model's matrices from the names and shapes of its parameters.

Kernels are named `kernel` in flax, `w` in haiku, and `weight` (with outputs first) in Equinox. The
shape of a kernel's bias consists of the kernel's stacked axes and outputs. For a kernel without a
bias, the number of stacked axes is inferred from the scales of nearby normalization layers. A leaf
with three or more axes isn't treated as a matrix if the roles of its axes are ambiguous.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

Shape = tuple[int, ...]
Path = tuple[str, ...]

_KERNELS = {"kernel", "w", "weight"}
_BIASES = {"bias", "b"}
# Leaves of flax, Equinox and haiku, and of state space models, that are vectors or tables.
_VECTOR = re.compile(r"(^|_)(bias|b\d+|scale|offset|gamma|beta|embeddings?|a_log)$")
_NORM = re.compile(r"norm|(^|_)ln(_|\d|$)")
_EMBEDDING = re.compile(r"embed|(^|_)(emb|wte|wpe|vocab|codebook|lookup)(_|\d|$)")
_OUTPUT = re.compile(r"(^|_)(head|logits|classifier)(_?\d+)?$")
_FUSED = re.compile(r"qkv|query_key_value|c_attn")


class Axes(NamedTuple):
    """Axes of the rows and of the columns of a leaf, and the number of matrices in its columns."""

    rows: Shape
    columns: Shape
    split: int = 1


# The result is cached, because matching the names takes longer than an eager step.
@functools.lru_cache(maxsize=256)
def axes_by_name(
    leaves: tuple[tuple[str, Shape], ...], has_outputs: bool = False
) -> tuple[Axes | None, ...]:
    """Infer the matrix axes of every leaf; None for a leaf that isn't a matrix.

    Args:
        leaves: Paths and shapes of all leaves.
        has_outputs: Whether to treat output layers (`head`, `logits`, `classifier`) as matrices.
    """
    shapes = {_parts(path): shape for path, shape in leaves}
    layers: dict[Path, dict[str, Shape]] = {}
    norms: dict[Path, set[Shape]] = {}  # the scales of normalization layers under a path
    for path, shape in shapes.items():
        layers.setdefault(path[:-1], {})["/".join(path[-1:])] = shape
        if shape and _is_of_norm(path):
            for i in range(len(path)):
                norms.setdefault(path[:i], set()).add(shape)

    def axes(path: Path, shape: Shape) -> Axes | None:
        names = [name.lower() for name in path]
        name, layer = names[-1] if names else "", names[-2] if len(names) > 1 else ""
        if _VECTOR.search(name) or any(map(_EMBEDDING.search, names)) or _is_of_norm(path):
            return None
        if not has_outputs and any(map(_OUTPUT.search, names)):
            return None
        siblings = layers[path[:-1]]
        # `d` is the skip connection of a state space model.
        if (name in _BIASES and siblings.keys() & _KERNELS) or (
            name == "d" and "A_log" in siblings
        ):
            return None
        n = len(shape)
        if name in _KERNELS:
            candidates = _kernel_candidates(path, layer, shape, layers, norms)
        else:  # another name: a matrix, or a stack of the experts' matrices
            is_stack = n > 2 and any("expert" in part for part in names)
            candidates = [Axes((n - 2,), (n - 1,))] if n == 2 or is_stack else []
        # Several candidates are ambiguous, so the leaf isn't treated as a matrix.
        is_unique = len(candidates) == 1
        return _split_fused(candidates[0], shape, name, layer) if is_unique else None

    return tuple(axes(_parts(path), shape) for path, shape in leaves)


def _parts(path: str) -> Path:
    """Split a path into its parts, without nnx's suffix for the array of a variable."""
    parts = path.split("/")
    while parts and parts[-1] in {"value", "raw_value"}:
        parts.pop()
    return tuple(parts)


def _is_of_norm(path: Path) -> bool:
    """Whether a leaf is the scale or offset of a normalization layer."""
    *layers, own = ("", *map(str.lower, path))
    name = layers[-1] if own in _KERNELS else own
    return own in {"scale", "offset"} or bool(_NORM.search(name))


def _kernel_candidates(
    path: Path,
    layer: str,
    shape: Shape,
    layers: dict[Path, dict[str, Shape]],
    norms: dict[Path, set[Shape]],
) -> list[Axes]:
    """List all axes of a kernel that agree with names and shapes."""
    depths = _stacked_axis_counts(path, shape, norms)
    others = {name: s for name, s in layers[path[:-1]].items() if name != path[-1]}
    is_outputs_first = path[-1].lower() == "weight"
    if len(others) == 1 and others.keys() <= _BIASES:  # a layer with one kernel and its bias
        (bias,) = others.values()
        candidates = [*_candidates_by_bias(shape, bias, is_outputs_first)]
        if not candidates and len(shape) == 2 and len(bias) == 1:  # a vector, not a bias
            candidates = [*_candidates_by_layer(layer, 2, 0, is_outputs_first, False)]
        if len(candidates) > 1:
            candidates = [x for x in candidates if min(x.rows + x.columns) in depths]
    else:
        has_query = (*path[:-2], "query") in layers
        if len(shape) > 2 and any("expert" in name.lower() for name in path):
            depths = {len(shape) - 2}
        candidates = [
            axes
            for depth in depths
            for axes in _candidates_by_layer(layer, len(shape), depth, is_outputs_first, has_query)
        ]
    # The kernel of a depthwise convolution has an input axis of length 1, and isn't a matrix.
    inputs = {x: min(x.rows) if x.columns < x.rows else max(x.rows) for x in candidates}
    return [x for x in candidates if len(x.rows) == 1 or shape[inputs[x]] > 1]


def _stacked_axis_counts(path: Path, shape: Shape, norms: dict[Path, set[Shape]]) -> set[int]:
    """Possible numbers of stacked axes, from the scales of the nearest normalization layers."""
    prefixes = (path[:i] for i in reversed(range(len(path))))
    nearest = next((norms[prefix] for prefix in prefixes if prefix in norms), set())
    depths = {len(s) - 1 for s in nearest if s[:-1] == shape[: len(s) - 1]}
    return depths or ({0} if len(shape) == 2 else set())


def _candidates_by_bias(shape: Shape, bias: Shape, is_outputs_first: bool) -> Iterator[Axes]:
    """Yield axes for which the bias has the stacked axes and the outputs of the kernel."""
    n, is_matched = len(shape), False
    if is_outputs_first:
        for b in range(n - 1):
            outputs = shape[: b + 1]
            if bias in {outputs, outputs + (1,) * (n - b - 2)}:
                is_matched = True
                yield Axes(tuple(range(b + 1, n)), (b,))
    if not is_matched:
        for b in range(len(bias)):
            c = n - len(bias) + b
            if b < c and bias == shape[:b] + shape[c:]:
                yield Axes(tuple(range(b, c)), tuple(range(c, n)))


def _candidates_by_layer(
    layer: str, n: int, depth: int, is_outputs_first: bool, has_query: bool
) -> Iterator[Axes]:
    """Yield axes of a kernel with `n` axes, the first `depth` of them stacked, by layer name."""
    if n - depth < 2:
        return
    first, *middle, last = range(depth, n)
    if not middle or "conv" in layer:
        rows = (*middle, last) if is_outputs_first else (first, *middle)
        yield Axes(rows, (first,) if is_outputs_first else (last,))
    elif len(middle) == 1 and layer in {"query", "key", "value"}:
        yield Axes((first,), (*middle, last))
    elif len(middle) == 1 and layer == "out" and has_query:
        yield Axes((first, *middle), (last,))


def _split_fused(axes: Axes, shape: Shape, *names: str) -> Axes:
    """Split the columns of a fused kernel into the three matrices of query, key and value."""
    columns = [shape[a] for a in axes.columns]
    is_threefold = columns[0] == 3 or columns == [3 * math.prod(shape[a] for a in axes.rows)]
    return axes._replace(split=3) if is_threefold and any(map(_FUSED.search, names)) else axes
