"""NumPy functions that compute the equations of a jaxpr."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import numpy as np

Eqn = Any  # a `jax.extend.core.JaxprEqn`, whose abstract values are arrays
Rule = Callable[..., Any]


def numpy_rule(eqn: Eqn) -> Rule | None:
    """Return a function of NumPy arrays that computes an equation.

    Args:
        eqn: An equation without inner jaxprs.

    Returns:
        The function, which returns an array, or a sequence of arrays for several results. None if
        NumPy has no equivalent operation with the same result dtypes.
    """
    name = eqn.primitive.name
    try:
        make = _RULES.get(name)
        rule = _ELEMENTWISE.get(name) if make is None else make(eqn)
        return rule if rule is not None and _matches_jax(eqn, rule) else None
    except (TypeError, ValueError, OverflowError):  # NumPy raises an error for the dtypes
        return None


def _matches_jax(eqn: Eqn, rule: Rule) -> bool:
    """Whether results for arrays of ones have the shapes and dtypes of the equation's outputs."""
    out = rule(*(np.ones(v.aval.shape, v.aval.dtype) for v in eqn.invars))
    results = out if eqn.primitive.multiple_results else [out]
    expected = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
    return [(np.shape(x), x.dtype) for x in results] == expected


def identity(x: Any) -> Any:
    """Rule of identity operations; a program omits operations with this rule."""
    return x


# Python's operators are five times as fast as NumPy's functions on NumPy's scalars.
_ELEMENTWISE: dict[str, Rule] = {
    "add": operator.add,
    "add_any": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "abs": operator.abs,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "max": np.maximum,
    "min": np.minimum,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),  # the sign of -0 is -0
    "square": np.square,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "pow": np.power,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "nextafter": np.nextafter,
    "is_finite": np.isfinite,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    **dict.fromkeys(["stop_gradient", "copy", "copy_p", "name", "tap", "pvary"], identity),
}


def _div(eqn: Eqn) -> Rule | None:
    # JAX truncates integer quotients, NumPy doesn't.
    return operator.truediv if np.issubdtype(eqn.outvars[0].aval.dtype, np.inexact) else None


def _integer_pow(eqn: Eqn) -> Rule | None:
    exponent = eqn.outvars[0].aval.dtype.type(eqn.params["y"])
    return lambda x: np.power(x, exponent)


def _select(eqn: Eqn) -> Rule | None:
    if len(eqn.invars) != 3:
        return None
    if eqn.invars[0].aval.shape:
        return lambda which, no, yes: np.where(which, yes, no)
    return lambda which, no, yes: yes if which else no


def _convert(eqn: Eqn) -> Rule | None:
    old_dtype, new_dtype = eqn.invars[0].aval.dtype, eqn.params["new_dtype"]
    if np.issubdtype(old_dtype, np.inexact) and not np.issubdtype(new_dtype, np.inexact):
        return None  # NumPy doesn't define conversions of numbers out of range
    if old_dtype.kind == "c" and np.dtype(new_dtype).kind != "c":
        return lambda x: x.real.astype(new_dtype)
    return identity if old_dtype == new_dtype else lambda x: x.astype(new_dtype)


def _iota(eqn: Eqn) -> Rule:
    p, shape = eqn.params, eqn.outvars[0].aval.shape
    size = [-1 if axis == p["dimension"] else 1 for axis in range(len(shape))]
    numbers = np.arange(shape[p["dimension"]], dtype=p["dtype"]).reshape(size)
    return lambda: np.broadcast_to(numbers, shape)


def _broadcast(eqn: Eqn) -> Rule:
    shape, dims = eqn.outvars[0].aval.shape, eqn.params["broadcast_dimensions"]
    old, dtype = eqn.invars[0].aval, eqn.outvars[0].aval.dtype
    aligned = [1] * len(shape)
    for axis, size in zip(dims, old.shape, strict=True):
        aligned[axis] = size
    if tuple(aligned) == tuple(shape):
        return identity if old.shape == shape else lambda x: x.reshape(shape)
    if not old.shape:
        return lambda x: np.full(shape, x, dtype)

    def broadcast(x: Any) -> Any:
        out = np.empty(shape, dtype)
        out[...] = x.reshape(aligned)
        return out

    return broadcast


def _reshape(eqn: Eqn) -> Rule | None:
    shape = eqn.outvars[0].aval.shape
    transposes = eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None
    if shape == eqn.invars[0].aval.shape and not transposes:
        return identity
    return None if transposes else lambda x: x.reshape(shape)


def _slice(eqn: Eqn) -> Rule:
    p = eqn.params
    strides = p["strides"] or [1] * len(p["start_indices"])
    index = tuple(map(slice, p["start_indices"], p["limit_indices"], strides))
    return lambda x: x[index]


def _concatenate(eqn: Eqn) -> Rule:
    axis = eqn.params["dimension"]
    return lambda *parts: np.concatenate(parts, axis)


def _split(eqn: Eqn) -> Rule:
    prefix = (slice(None),) * eqn.params["axis"]
    ends = np.cumsum([0, *eqn.params["sizes"]])
    parts = [(*prefix, slice(start, end)) for start, end in itertools.pairwise(ends)]
    return lambda x: [x[part] for part in parts]


def _pad(eqn: Eqn) -> Rule | None:
    config, out = eqn.params["padding_config"], eqn.outvars[0].aval
    if any(low < 0 or high < 0 or inside for low, high, inside in config):
        return None
    sizes = eqn.invars[0].aval.shape
    index = tuple(slice(low, low + k) for (low, _, _), k in zip(config, sizes, strict=True))

    def pad(x: Any, value: Any) -> Any:
        padded = np.full(out.shape, value, out.dtype)
        padded[index] = x
        return padded

    return pad


def _window(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Slices of given sizes at the start indices, clamped to the array like in JAX."""
    limits = zip(starts, sizes, np.shape(x), strict=True)
    firsts = [min(max(int(start), 0), n - size) for start, size, n in limits]
    return tuple(slice(i, i + size) for i, size in zip(firsts, sizes, strict=True))


def _dynamic_slice(eqn: Eqn) -> Rule:
    sizes = eqn.params["slice_sizes"]
    return lambda x, *starts: x[_window(x, starts, sizes)]


def _dynamic_update_slice(eqn: Eqn) -> Rule:
    def update(x: Any, part: Any, *starts: Any) -> Any:
        out = np.array(x)
        out[_window(x, starts, np.shape(part))] = part
        return out

    return update


def _reduce(ufunc: Any) -> Callable[[Eqn], Rule | None]:
    def make(eqn: Eqn) -> Rule | None:
        axes, dtype = tuple(eqn.params["axes"]), eqn.outvars[0].aval.dtype
        is_boolean = ufunc in (np.logical_and, np.logical_or)  # takes a third of bitwise_and's time
        if 0 in eqn.invars[0].aval.shape or (is_boolean and dtype.kind != "b"):
            return None
        return lambda x: ufunc.reduce(x, axis=axes, dtype=dtype)

    return make


def _cumulative(ufunc: Any) -> Callable[[Eqn], Rule | None]:
    def make(eqn: Eqn) -> Rule | None:
        axis, dtype = eqn.params["axis"], eqn.outvars[0].aval.dtype
        backward = eqn.params["reverse"]
        return None if backward else lambda x: ufunc.accumulate(x, axis=axis, dtype=dtype)

    return make


def _dot(eqn: Eqn) -> Rule:
    (left, right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    ranks = [var.aval.ndim for var in eqn.invars]
    if not batch_left and len(left) == 1 and max(ranks) <= 2:
        # `np.dot` sums over the last axis of the first array and the first axis of the second.
        transposes = left[0] < ranks[0] - 1, right[0] > 0
        return lambda a, b: np.dot(a.T if transposes[0] else a, b.T if transposes[1] else b)
    # Every axis has an integer label, and contracted or batch axes of both operands share a label.
    # The result has batch axes, then free left axes, then free right axes, as in `dot_general`.
    left_axes = list(range(ranks[0]))
    right_axes = list(range(ranks[0], sum(ranks)))
    for i, j in zip((*batch_left, *left), (*batch_right, *right), strict=True):
        right_axes[j] = left_axes[i]
    free_axes = [i for i in left_axes if i not in (*batch_left, *left)]
    out = [*batch_left, *free_axes, *(j for j in right_axes if j >= ranks[0])]
    return lambda a, b: np.einsum(a, left_axes, b, right_axes, out)


def _geqrf(eqn: Eqn) -> Rule:
    def geqrf(a: Any) -> Any:
        reflectors, factors = np.linalg.qr(a, mode="raw")
        return np.swapaxes(reflectors, -1, -2), factors

    return geqrf


def _svd(eqn: Eqn) -> Rule | None:
    p = eqn.params

    def svd(a: Any) -> Any:
        try:
            out = np.linalg.svd(a, p["full_matrices"], p["compute_uv"])
        except np.linalg.LinAlgError:  # JAX's result for matrices that aren't finite
            return tuple(np.full(v.aval.shape, np.nan, v.aval.dtype) for v in eqn.outvars)
        return (out[1], out[0], out[2]) if p["compute_uv"] else (out,)

    is_supported = eqn.invars[0].aval.ndim == 2 and p.get("subset_by_index") is None
    return svd if is_supported else None


def _cholesky(eqn: Eqn) -> Rule | None:
    def cholesky(a: Any) -> Any:
        try:
            return np.linalg.cholesky(a)
        except np.linalg.LinAlgError:  # JAX's result for matrices that aren't positive definite
            return np.full_like(a, np.nan)

    return cholesky if eqn.invars[0].aval.ndim == 2 else None


def _triangular_solve(eqn: Eqn) -> Rule | None:
    p = eqn.params
    if not p["left_side"] or p["conjugate_a"]:
        return None

    # Substitution row by row, because NumPy has no triangular solve.
    n, upper = eqn.invars[0].aval.shape[-1], p["lower"] == p["transpose_a"]
    rows = [slice(i, i + 1) for i in range(n)][:: -1 if upper else 1]
    product = np.dot if eqn.invars[0].aval.ndim == 2 else np.matmul  # `np.dot` takes half the time

    def solve(a: Any, b: Any) -> Any:
        a = np.swapaxes(a, -1, -2) if p["transpose_a"] else a
        x = np.array(b)
        for row in rows:
            solved = slice(row.stop, n) if upper else slice(row.start)
            value = x[..., row, :]
            if row is not rows[0]:
                value -= product(a[..., row, solved], x[..., solved, :])
            if not p["unit_diagonal"]:
                value /= a[..., row, row]
        return x

    return solve


_RULES: dict[str, Callable[[Eqn], Rule | None]] = {
    "div": _div,
    "integer_pow": _integer_pow,
    "select_n": _select,
    "convert_element_type": _convert,
    "bitcast_convert_type": lambda eqn: methodcaller("view", np.dtype(eqn.params["new_dtype"])),
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": lambda eqn: methodcaller("transpose", eqn.params["permutation"]),
    "slice": _slice,
    "rev": lambda eqn: functools.partial(np.flip, axis=eqn.params["dimensions"]),
    "split": _split,
    "concatenate": _concatenate,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "dot_general": _dot,
    "reduce_sum": _reduce(np.add),
    "reduce_prod": _reduce(np.multiply),
    "reduce_max": _reduce(np.maximum),
    "reduce_min": _reduce(np.minimum),
    "reduce_and": _reduce(np.logical_and),
    "reduce_or": _reduce(np.logical_or),
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "geqrf": _geqrf,
    "svd": _svd,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
}
