"""Inference of each parameter's row, column and batch axes from the jaxpr of a loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import leaves_with_names, names_text, type_text
from fnopt.numerics import is_array_like
from fnopt.optimizers._matrix_rule import MatrixDimensionNumbers
from fnopt.transforms import by_pattern

Axes = tuple[int, ...]
_SAME = {"convert_element_type", "copy", "copy_p", "neg", "rev", "name"}


class _Operand(NamedTuple):
    """The axes of a param along each dimension of an operand, and the axes of scans."""

    dims: tuple[Axes, ...]
    scanned: Axes = ()


def matrix_axes(
    loss_fn: Callable[..., Any],
    changes: Mapping[str, bool | int | tuple[int, ...]] | None = None,
    *,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Find which parameters are matrices, and along which axes, from the jaxpr of a loss.

    A parameter is a matrix if it is used only in matrix products or convolutions, always along the
    same axes. The contracted axes are the rows of the matrix; all other axes are columns. Axes of
    batched products and of scans are batch axes. The function finds layers stacked for
    `jax.lax.scan`, experts under `vmap`, attention kernels of three axes and convolutions, for
    every model library and any parameter names. Lookup tables (also tied ones), biases, scales and
    kernels of depthwise convolutions aren't matrices.

    Experts that share their inputs are one wide matrix, as in the jaxpr; experts with separate
    inputs are a batch. The function treats an output layer as a matrix, and a fused kernel (query,
    key and value) as one matrix. Use `changes` to override the result: `{"head/*": False, "*/qkv":
    3}`.

    Args:
        loss_fn: `loss_fn(params, *args, **kwargs) -> scalar`, of a batch or of one example.
        changes: A mapping from patterns on leaf paths to False (no matrix) or a `split` of columns.
        has_aux: Whether `loss_fn` returns `(value, aux)`.

    Returns:
        A function `(params, *args, **kwargs)` -> a tree like the params, with a
        `MatrixDimensionNumbers` for every matrix and None elsewhere: the
        `weight_dimension_numbers` of every matrix method. The function only traces the loss, so it
        takes arrays or their shapes.

    Raises:
        TypeError: In use, if the loss isn't a scalar.
        ValueError: In use, if a pattern in `changes` matches no leaf.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> params = {"table": jnp.ones((9, 4)), "layers": jnp.ones((3, 4, 4)), "b": jnp.ones(4)}
        >>> def loss(params, tokens):
        ...     h = params["table"][tokens] + params["b"]
        ...     layer = lambda h, w: (jnp.tanh(h @ w), None)
        ...     return jax.lax.scan(layer, h, params["layers"])[0].sum()
        >>> axes = fnopt.matrix_axes(loss)(params, jnp.zeros(5, int))
        >>> axes["layers"], axes["table"], axes["b"]
        (MatrixDimensionNumbers(reduction_axis=(1,), output_axis=(2,), split=1), None, None)
        >>> tx = fnopt.muon(0.02, weight_dimension_numbers=axes)
    """

    def axes_fn(params: Any, *args: Any, **kwargs: Any) -> Any:
        from fnopt.gradients.ghost import find_sites  # slow to import, and used only here

        leaves, treedef = jax.tree.flatten(params)

        def flat(leaves: Sequence[Any], args: Any, kwargs: Any) -> Any:
            out = loss_fn(treedef.unflatten(leaves), *args, **kwargs)
            value = out[0] if has_aux else out
            if not is_array_like(value) or jnp.shape(value):
                raise TypeError(
                    f"matrix_axes: loss_fn returned {type_text(value)}, expected a "
                    "scalar: take the mean or the sum, and pass has_aux=True if it "
                    "returns (value, aux)."
                )
            return value

        found = find_sites(jax.make_jaxpr(flat)(leaves, args, kwargs), len(leaves))
        roles: dict[int, set[Any]] = {i: {None} for i in found.lost}
        for site in found.sites:
            for i in site.weight.leaves:
                roles.setdefault(i, set()).add(_numbers(site))
        sets = [roles.get(i, {None}) for i in range(len(leaves))]
        numbers = [x.pop() if len(x) == 1 else None for x in sets]
        names, _ = leaves_with_names(params)
        rule = by_pattern(changes or {"*": True}, default=True)
        paths = [name for name, _ in names]
        lost = [pattern for pattern in changes or () if not rule.finds(pattern, paths)]
        if lost:
            raise ValueError(
                f"matrix_axes: the changes {names_text(lost)} match no leaf of {names_text(paths)}."
            )
        changed = [
            n if n is None or x is True else dataclasses.replace(n, split=x) if x else None
            for n, x in zip(numbers, rule.choose(names), strict=True)
        ]
        return treedef.unflatten(changed)

    return axes_fn


def _numbers(site: Any) -> MatrixDimensionNumbers | None:
    """Return the rows and columns of the param at this site; None if the param isn't a matrix."""
    operand = _operand(site.weight)
    if operand is None or site.kind not in {"dot", "conv"}:
        return None
    numbers = site.eqn.params["dimension_numbers"]
    if site.kind == "dot":
        contracted, batched = (pair[site.position] for pair in numbers)
        columns = [d for d in range(len(operand.dims)) if d not in {*contracted, *batched}]
        groups = contracted, columns, batched
    else:
        out, *rows = numbers.rhs_spec
        groups = (rows, [out], []) if site.eqn.params["feature_group_count"] == 1 else ((), (), ())
    rows, columns, batch = (tuple(sorted({a for d in g for a in operand.dims[d]})) for g in groups)
    everything = [*rows, *columns, *{*batch, *operand.scanned}]
    if not rows or not columns or len({*everything}) < len(everything):
        return None
    return MatrixDimensionNumbers(rows, columns)


def _operand(weight: Any) -> _Operand | None:
    """Positions of a parameter's axes in a value that depends only on this parameter; else None."""
    if not weight.moves_only or len(weight.leaves) != 1:
        return None
    if not weight.inputs:
        return _Operand(tuple((a,) for a in range(weight.aval.ndim)))
    before = _operand(weight.inputs[0])
    eqn = getattr(weight, "eqn", None)
    if before is None or len(weight.inputs) > 1:
        return None
    if eqn is None:  # an entry of a scanned array
        first, *rest = before.dims
        return _Operand(tuple(rest), before.scanned + first)
    dims = _move(eqn, before.dims, weight.inputs[0].aval.shape, weight.aval.shape)
    return None if dims is None else before._replace(dims=dims)


def _move(eqn: Any, dims: tuple[Axes, ...], old: Axes, new: Axes) -> tuple[Axes, ...] | None:
    """The axes along each dimension after an equation that permutes or moves elements."""
    name, params = eqn.primitive.name, eqn.params
    if name == "transpose":
        return tuple(dims[d] for d in params["permutation"])
    if name == "broadcast_in_dim":
        places = dict(zip(params["broadcast_dimensions"], dims, strict=True))
        return tuple(places.get(d, ()) for d in range(len(new)))
    if name in {"reshape", "squeeze", "expand_dims"}:
        return _reshape(dims, old, new)
    return dims if name in _SAME or old == new or name in {"slice", "split"} else None


def _reshape(dims: tuple[Axes, ...], old: Axes, new: Axes) -> tuple[Axes, ...]:
    """The axes along each dimension of a reshaped array.

    Strides and sizes of both shapes determine the old axes in each new dimension. Dimensions of
    size 1 have no axes.
    """
    spans = list(zip(dims, _spans(old), strict=True))
    return tuple(
        tuple(a for axes, (low, high) in spans if low < top and bottom < high for a in axes)
        for bottom, top in _spans(new)
    )


def _spans(shape: Axes) -> list[tuple[int, int]]:
    """For every dimension, its stride and the stride of the preceding dimension."""
    out, stride = [], 1
    for size in reversed(shape):
        out.append((stride, stride * size))
        stride *= size
    return out[::-1]
