"""Inference of the matrices among the parameters, and of their axes, from the jaxpr of a loss."""

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
# Primitives whose output has the dimensions of the input, in the same order.
_ELEMENTWISE = {"convert_element_type", "copy", "copy_p", "neg", "rev", "name"}


class _Operand(NamedTuple):
    """Axes of a parameter in an operand that is computed from the parameter.

    Attributes:
        dims: For each dimension of the operand, the axes of the parameter along it.
        scanned: The axes of the parameter over which enclosing scans iterate.
    """

    dims: tuple[Axes, ...]
    scanned: Axes = ()


def matrix_axes(
    loss_fn: Callable[..., Any],
    changes: Mapping[str, bool | int | tuple[int, ...]] | None = None,
    *,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Infer which parameters are matrices, and their row and column axes, from a loss function.

    A parameter is a matrix if it is used only in matrix products or convolutions, always along the
    same axes. The contracted axes are the rows of the matrix, and all other axes are columns. Axes
    of batched products and of scans are batch axes. The function finds layers stacked for
    `jax.lax.scan`, experts under `vmap`, attention kernels with three axes and convolutions. It
    doesn't depend on the model library or on parameter names. Lookup tables (also tied tables),
    biases, scales and kernels of depthwise convolutions aren't matrices.

    Experts with the same inputs are one wide matrix, as in the jaxpr. Experts with separate inputs
    are a batch. An output layer is a matrix, and a fused kernel (query, key and value) is one
    matrix. Use `changes` to override the result: `{"head/*": False, "*/qkv": 3}`.

    Args:
        loss_fn: `loss_fn(params, *args, **kwargs) -> scalar`, of a batch or of one example.
        changes: A mapping from patterns on leaf paths to False (not a matrix) or to a `split` of
            the columns; see `MatrixDimensionNumbers`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.

    Returns:
        A function of `(params, *args, **kwargs)`. It returns a tree like the params, with a
        `MatrixDimensionNumbers` for every matrix and None for other leaves. Pass this tree to any
        matrix method as `weight_dimension_numbers`. The function only traces the loss, so arguments
        may be arrays or `jax.ShapeDtypeStruct`.

    Raises:
        TypeError: In the returned function, if the loss isn't a scalar.
        ValueError: In the returned function, if a pattern in `changes` matches no leaf.

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

        def loss_of_leaves(leaves: Sequence[Any], args: Any, kwargs: Any) -> Any:
            out = loss_fn(treedef.unflatten(leaves), *args, **kwargs)
            value = out[0] if has_aux else out
            if not is_array_like(value) or jnp.shape(value):
                raise TypeError(
                    f"matrix_axes: loss_fn returned {type_text(value)}, expected a scalar. Return "
                    "the mean or the sum; pass has_aux=True if loss_fn returns (value, aux)."
                )
            return value

        # A parameter is a matrix if all its sites imply the same dimension numbers.
        result = find_sites(jax.make_jaxpr(loss_of_leaves)(leaves, args, kwargs), len(leaves))
        numbers_of_leaf: dict[int, set[Any]] = {i: {None} for i in result.unsupported}
        for site in result.sites:
            for i in site.weight.leaves:
                numbers_of_leaf.setdefault(i, set()).add(_numbers(site))
        sets = [numbers_of_leaf.get(i, {None}) for i in range(len(leaves))]
        numbers = [x.pop() if len(x) == 1 else None for x in sets]
        named_leaves, _ = leaves_with_names(params)
        rule = by_pattern(changes or {"*": True}, default=True)
        paths = [path for path, _ in named_leaves]
        unmatched = [pattern for pattern in changes or () if not rule.finds(pattern, paths)]
        if unmatched:
            raise ValueError(
                f"matrix_axes: the patterns {names_text(unmatched)} of `changes` match no leaf, "
                f"expected patterns that match some of the leaves {names_text(paths)}."
            )
        numbers = [
            n if n is None or x is True else dataclasses.replace(n, split=x) if x else None
            for n, x in zip(numbers, rule.choose(named_leaves), strict=True)
        ]
        return treedef.unflatten(numbers)

    return axes_fn


def _numbers(site: Any) -> MatrixDimensionNumbers | None:
    """Infer the axes of the parameter at one site; None if it isn't used as a matrix there."""
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
    axes = [*rows, *columns, *{*batch, *operand.scanned}]
    # A reshape may merge a row axis and a column axis into one dimension.
    if not rows or not columns or len({*axes}) < len(axes):
        return None
    return MatrixDimensionNumbers(rows, columns)


def _operand(weight: Any) -> _Operand | None:
    """Locate a parameter's axes in a value computed from it; None if it has other inputs."""
    if not weight.moves_only or len(weight.leaves) != 1:
        return None
    if not weight.inputs:
        return _Operand(tuple((a,) for a in range(weight.aval.ndim)))
    source = _operand(weight.inputs[0])
    eqn = getattr(weight, "eqn", None)
    if source is None or len(weight.inputs) > 1:
        return None
    if eqn is None:  # an entry of a scanned array
        first, *others = source.dims
        return _Operand(tuple(others), source.scanned + first)
    dims = _move(eqn, source.dims, weight.inputs[0].aval.shape, weight.aval.shape)
    return None if dims is None else source._replace(dims=dims)


def _move(eqn: Any, dims: tuple[Axes, ...], old: Axes, new: Axes) -> tuple[Axes, ...] | None:
    """Update the axes along each dimension for an equation that permutes or moves elements."""
    name, params = eqn.primitive.name, eqn.params
    if name == "transpose":
        return tuple(dims[d] for d in params["permutation"])
    if name == "broadcast_in_dim":
        axes_of_dim = dict(zip(params["broadcast_dimensions"], dims, strict=True))
        return tuple(axes_of_dim.get(d, ()) for d in range(len(new)))
    if name in {"reshape", "squeeze", "expand_dims"}:
        return _reshape(dims, old, new)
    return dims if name in _ELEMENTWISE or old == new or name in {"slice", "split"} else None


def _reshape(dims: tuple[Axes, ...], old: Axes, new: Axes) -> tuple[Axes, ...]:
    """Update the axes along each dimension for a reshape.

    A dimension covers the range from its stride to the stride of the preceding dimension. A new
    dimension contains the axes of all old dimensions whose ranges overlap with its range.
    Dimensions of size 1 have an empty range, and contain no axes.
    """
    spans = list(zip(dims, _spans(old), strict=True))
    return tuple(
        tuple(a for axes, (low, high) in spans if low < top and bottom < high for a in axes)
        for bottom, top in _spans(new)
    )


def _spans(shape: Axes) -> list[tuple[int, int]]:
    """Stride of each dimension, and the stride of the preceding dimension."""
    out, stride = [], 1
    for size in reversed(shape):
        out.append((stride, stride * size))
        stride *= size
    return out[::-1]
