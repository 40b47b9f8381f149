r"""Detection of cross entropies, which are linear in scores and in log-sum-exps of scores.

Let scores :math:`z = B f + c` be linear in the outputs of the model, :math:`p` their softmax,
and the loss linear in :math:`f` and :math:`L = \log \sum_i e^{z_i}`. Then

.. math:: \nabla^2 \ell = B^\top w \left(\operatorname{diag} p - p p^\top\right) B = V V^\top,
    \qquad V = B^\top \sqrt w \left(\operatorname{diag} \sqrt p - p \sqrt p^\top\right),
    \qquad w = \frac{\partial \ell}{\partial L},

so a square root of the Hessian costs as much as the loss, without an eigenvalue problem for every
position. Such losses are recognized from their jaxpr.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.numerics import is_inexact
from fnopt.programs import jaxprs
from fnopt.sharding import pvary_like

_LINEAR = {
    "broadcast_in_dim",
    "concatenate",
    "convert_element_type",
    "copy",
    "cumsum",
    "dynamic_slice",
    "expand_dims",
    "gather",
    "neg",
    "pad",
    "reduce_sum",
    "reshape",
    "rev",
    "slice",
    "split",
    "squeeze",
    "stack",
    "transpose",
}  # linear in their floating operands
_SAME = {"abs", "convert_element_type", "copy"}  # don't change the value of a positive sum
_MOVES = {"broadcast_in_dim", "expand_dims", "reshape", "squeeze"}  # change the shape only


class _Value(NamedTuple):
    """The abstract value of a variable in the jaxpr of a loss.

    Attributes:
        value: The array.
        kind: `'constant'`, `'scores'` (linear in the outputs), `'linear'` (linear in outputs and
            log-sum-exps), `'exp'` (exponential of scores), `'sum'` (sum of exponentials), or
            `'other'`.
        scores: The scores in an `'exp'` or a `'sum'`.
        axes: The axes that a `'sum'` reduces.
    """

    value: Any
    kind: str = "constant"
    scores: Any = None
    axes: tuple[int, ...] = ()


class _Piece(NamedTuple):
    """Scores, their class axes, and the shape of their log-sum-exp."""

    scores: jax.Array
    axes: tuple[int, ...]
    shape: tuple[int, ...]


def is_softmax_loss(loss: Any, count: int, dtype: Any, example: Any) -> bool:
    """Whether a loss of `count` outputs has a softmax Hessian at all outputs and examples.

    Args:
        loss: Function of one example's outputs, a vector, and the example; returns a number.
        count: Number of outputs.
        dtype: The dtype of the outputs.
        example: Shapes and dtypes of an example.
    """
    kinds: list[bool] = []

    def read_kind(f: jax.Array, example: Any) -> None:
        result, pieces = _read(loss, f, example, None)
        kinds.append(result.kind == "linear" and bool(pieces))

    jax.eval_shape(read_kind, jax.ShapeDtypeStruct((count,), dtype), example)
    return kinds[0]


def softmax_rows(loss: Any, f: jax.Array, example: Any, key: jax.Array, samples: int) -> jax.Array:
    r"""Random combinations :math:`V \epsilon` of the columns of the root, `[samples, C]`.

    Args:
        loss: A loss for which `is_softmax_loss` is true.
        f: The outputs of one example, `[C]`.
        example: The example.
        key: A key for the signs :math:`\epsilon`.
        samples: Number of combinations.
    """

    def scores(f: jax.Array) -> list[jax.Array]:
        return [piece.scores for piece in _read(loss, f, example, None)[1]]

    pieces = _read(loss, f, example, None)[1]
    zeros = [jnp.zeros(p.shape, p.scores.dtype) for p in pieces]
    weights = jax.grad(lambda taps: _read(loss, f, example, taps)[0].value)(pvary_like(zeros, f))
    keys = jax.random.split(key, len(pieces))
    rows = [_row(p, w, k, samples) for p, w, k in zip(pieces, weights, keys, strict=True)]
    pull = jax.linear_transpose(jax.linearize(scores, f)[1], f)
    (combinations,) = jax.vmap(pull)(rows)
    return combinations * samples**-0.5


def _row(piece: _Piece, weights: jax.Array, key: jax.Array, samples: int) -> jax.Array:
    z, axes = piece.scores, piece.axes
    # The root of diag(p) - p p^T: diag(p^(1/2)) (I - q q^T) with q = p^(1/2), of length 1.
    top = jnp.max(z, axes, keepdims=True)
    powers = jnp.exp(z - jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top)))
    total = jnp.sum(powers, axes, keepdims=True)
    # The total is 0 if all scores are minus infinity.
    p = powers / jnp.where(total > 0, total, jnp.ones_like(total))
    w = jnp.maximum(weights, 0).reshape(total.shape)
    root = jnp.sqrt(p)
    signs = jax.random.rademacher(key, (samples, *z.shape), z.dtype)
    class_axes = tuple(a + 1 for a in axes)
    mean = jnp.sum(root * signs, class_axes, keepdims=True)
    return jnp.sqrt(w) * (root * signs - p * mean)


def _read(
    loss: Any, f: jax.Array, example: Any, taps: Sequence[jax.Array] | None
) -> tuple[_Value, list[_Piece]]:
    """Classify the values in the jaxpr of a loss by their dependence on the outputs.

    Args:
        loss: The loss.
        f: The outputs.
        example: The example.
        taps: Zeros to add to the log-sum-exps. The derivatives of the loss with respect to `taps`
            are the weights `w`.
    """
    # The jaxpr is inspected and not the name of the loss, so that a user's cross entropy is
    # recognized too.
    closed = jax.make_jaxpr(lambda f, example: loss(f, example))(f, example)
    reader = _Reader(taps)
    inputs = [_Value(f, "scores"), *map(_Value, jax.tree.leaves(example))]
    (result,) = jaxprs.interpret(closed.jaxpr, closed.consts, inputs, reader.equation)
    return _as_value(result), reader.pieces


def _as_value(x: Any) -> _Value:
    return x if isinstance(x, _Value) else _Value(x)


class _Reader:
    def __init__(self, taps: Sequence[jax.Array] | None) -> None:
        self.taps, self.pieces = taps, list[_Piece]()

    def equation(self, eqn: Any, inputs: list[Any]) -> list[_Value]:
        ins = [*map(_as_value, inputs)]
        if ins and ins[0].kind == "scores" and _is_custom_rule(eqn, "log_softmax"):
            return [self.log_softmax(ins[0].value)]
        outs = jaxprs.bind(eqn, [x.value for x in ins])
        if len(outs) > 1 and eqn.primitive.name not in _LINEAR:
            is_constant = all(x.kind == "constant" for x in ins)
            return [_Value(x, "constant" if is_constant else "other") for x in outs]
        return [self.output(eqn, ins, x) for x in outs]

    def output(self, eqn: Any, ins: list[_Value], out: jax.Array) -> _Value:
        """Classify an output as constant, scores, exponential, sum, linear, or other."""
        name, kinds = eqn.primitive.name, {x.kind for x in ins} - {"constant"}
        if not kinds or name == "stop_gradient" or not is_inexact(out):
            return _Value(out)
        if kinds <= {"scores", "linear"} and _is_linear(eqn, ins):
            return _Value(out, "linear" if "linear" in kinds else "scores")
        (first, *_) = ins
        if name == "exp" and first.kind == "scores":
            return _Value(out, "exp", first.value)
        if first.kind == "exp" and name in {"convert_element_type", "copy"}:
            return _Value(out, *first[1:])
        if first.kind == "exp" and name == "reduce_sum":
            return _Value(out, "sum", first.scores, tuple(eqn.params["axes"]))
        if first.kind == "sum" and (
            name in _SAME or (name in _MOVES and first.value.size == out.size)
        ):
            return _Value(out, *first[1:])
        if first.kind == "sum" and name == "log":
            return _Value(self.log_sum(first.scores, first.axes, out), "linear")
        return _Value(out, "other")

    def log_sum(self, scores: jax.Array, axes: tuple[int, ...], out: jax.Array) -> jax.Array:
        number = len(self.pieces)
        self.pieces.append(_Piece(scores, axes, out.shape))
        return out if self.taps is None else out + self.taps[number].astype(out.dtype)

    def log_softmax(self, scores: jax.Array) -> _Value:
        total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        return _Value(scores - self.log_sum(scores, (scores.ndim - 1,), total), "linear")


def _is_custom_rule(eqn: Any, scope: str) -> bool:
    """Whether an equation calls a function of `fnopt.losses` with a custom derivative."""
    sub = jaxprs.called_jaxpr(eqn) if jaxprs.is_custom_rule(eqn) else None
    return sub is not None and all(scope in jaxprs.name_scopes(e) for e in sub.jaxpr.eqns)


def _is_linear(eqn: Any, ins: list[_Value]) -> bool:
    """Whether an equation is linear in the operands that depend on the outputs of the model."""
    name, varying = eqn.primitive.name, [x.kind != "constant" for x in ins]
    if name in {"add", "sub", "add_any"} or name in _LINEAR:
        return True
    if name in {"mul", "dot_general"}:
        return sum(varying) == 1
    if jaxprs.is_custom_rule(eqn):
        return not varying[0] and _is_custom_rule(eqn, "weighted")
    if name == "div":
        return not varying[1]
    return name == "select_n" and not varying[0]
