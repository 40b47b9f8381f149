"""A training step that updates every layer inside the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Scalar, Value, apply_updates, as_transformation, global_norm, hyper, static
from fnopt.errors import leaf_text, leaves_with_names, type_text
from fnopt.numerics import is_inexact, joint_norm
from fnopt.transforms._stored_slots import on_device
from fnopt.transforms._tree_algebra import real_dtype_of


class LayeredState(NamedTuple):
    """State of a `layered_step`.

    Attributes:
        outer: The optimizer's state for the outer params.
        layers: The optimizer's state for every layer, stacked.
        norm: The global norm of the last finite gradient; zero before the first step.
    """

    outer: Any
    layers: Any
    norm: jax.Array


class layered_step(Value):
    r"""Train stacked layers with the gradient of a single layer in memory at a time.

    .. math:: x_0 = \mathrm{first}(\theta, b), \quad x_\ell = \mathrm{layer}(\phi_\ell, x_{\ell-1},
              b), \quad L = \mathrm{last}(\theta, x_n, b)

    The backward pass runs from the last layer to the first. For each layer, the pass computes the
    gradient from the layer's input, takes the optimizer step of the layer, and discards the
    gradient. The inputs of all layers are stored, and each layer is recomputed in the backward
    pass, as with `jax.checkpoint`. For an elementwise optimizer, the step equals the step for the
    whole gradient.

    `step(params, state, *batch)` returns the new params, the new state and the loss. The params are
    a pair `(outer, layers)`: `outer` for `first` and `last`, and `layers` with a leading axis of
    layers in every leaf. The optimizer updates `outer` and each layer as separate trees. Therefore
    norms, shapes and paths refer to one layer: `clip_by_global_norm` inside the optimizer clips
    each layer separately, and a mask of layers is `by_pattern('kernel', default=False)`. Donate
    params and state; otherwise XLA stores both the old and the new arrays.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        first: `first(outer, *batch)` returns the input of the first layer, a tree of floating
            arrays.
        layer: `layer(layer_params, x, *batch)` returns the output of a layer, with the structure,
            shapes and dtypes of `x`.
        last: `last(outer, x, *batch)` returns the loss, a scalar.
        max_norm: The largest global norm of the gradient, over all layers and `outer`; None
            disables clipping.
        exact_norm: Whether an additional backward pass before the step computes the norm of the
            current gradient, which doubles the time. Otherwise the norm of the previous step's
            gradient is used, and the first step isn't clipped.

    Raises:
        TypeError: If the loss isn't a real scalar, or `x` isn't floating.
        ValueError: If leaves of the layers differ in their first axis, if this axis is empty, if
            `layer` changes the type of `x`, or for `exact_norm` without `max_norm`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> step = fnopt.layered_step(
        ...     fnopt.sgd(0.1),
        ...     first=lambda outer, x, y: x * outer,
        ...     layer=lambda w, h, x, y: jnp.tanh(h @ w),
        ...     last=lambda outer, h, x, y: jnp.mean((h - y) ** 2),
        ... )
        >>> params = jnp.ones(()), jnp.stack([jnp.eye(2)] * 3)
        >>> run = jax.jit(step, donate_argnums=(0, 1))
        >>> params, state, loss = run(params, step.init(params), jnp.ones((4, 2)), jnp.ones((4, 2)))
        >>> params[1].shape
        (3, 2, 2)

    Reference:
        Lv et al., 2023, arXiv:2306.09782 (LOMO), which also runs a second backward pass for norms.
    """

    inner: Any
    first: Callable[..., Any] = static()
    layer: Callable[..., Any] = static()
    last: Callable[..., Any] = static()
    max_norm: Scalar | None = hyper(default=None, gt=0, infinite=True, schedule=False)
    exact_norm: bool = static(default=False)

    def __post_init__(self) -> None:
        self._set("inner", as_transformation(self.inner, "layered_step: inner"))
        super().__post_init__()
        if self.exact_norm and self.max_norm is None:
            raise ValueError(
                "layered_step: exact_norm = True without max_norm, expected both. Pass the largest "
                "norm, for example max_norm=1.0, or omit exact_norm."
            )

    def init(self, params: tuple[Any, Any]) -> LayeredState:
        """Return the optimizer's states for the outer params and for every layer."""
        outer, layers = _pair(params)
        _depth(layers)
        states = jax.vmap(self.inner.init)(layers)
        zero = jnp.zeros((), real_dtype_of(params))
        return LayeredState(self.inner.init(outer), states, zero)

    def __call__(
        self, params: tuple[Any, Any], state: LayeredState, *batch: Any
    ) -> tuple[tuple[Any, Any], LayeredState, jax.Array]:
        """Return the new params, the new state, and the loss at the old params."""
        outer, layers = _pair(params)
        depth = _depth(layers)
        if not isinstance(state, LayeredState):
            raise TypeError(
                f"layered_step: the state is {type_text(state)}, expected a LayeredState. Make the "
                "state with init(params) of the layered_step, not of the optimizer."
            )
        for name, leaf in leaves_with_names(state.layers)[0]:
            # Without this check, `dynamic_slice` would clamp the index of a layer silently.
            if jnp.shape(leaf)[:1] != (depth,):
                raise ValueError(
                    f"layered_step: {leaf_text(name)} of the layers' state is {type_text(leaf)}, "
                    f"expected a first axis of length {depth}. Make the state with init(params)."
                )
        x, first_vjp = jax.vjp(lambda outer: self.first(outer, *batch), outer)
        # Checked before the scan, whose error for a carry of another type doesn't name `layer`.
        self._check(jax.eval_shape(lambda tree: _layer_at(tree, 0), layers), x, batch)
        x, inputs = lax.scan(lambda x, p: (self.layer(p, x, *batch), x), x, layers)
        loss, last_vjp = jax.vjp(lambda outer, x: self.last(outer, x, *batch), outer, x)
        if getattr(loss, "shape", None) != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise TypeError(
                f"layered_step: the function `last` returned {type_text(loss)}, expected a real "
                "scalar. Return the mean or the sum over the examples, without auxiliary results."
            )
        outer_grad, last_cotangent = last_vjp(jnp.ones_like(loss))

        def backward(takes_steps: bool, factor: Any) -> tuple[Any, Any, Any, Any]:
            """Run the backward pass over the layers, with the optimizer's steps if `takes_steps`.

            Returns the layers, their states, the gradient with respect to `outer`, and the norm.
            """

            def step_back(carry: Any, index_and_input: Any) -> Any:
                (cotangent, stack, (p, layer_state)), (i, x) = carry, index_and_input
                _, layer_vjp = jax.vjp(lambda p, x: self.layer(p, x, *batch), p, x)
                gradient, cotangent = layer_vjp(cotangent)
                norm = None if self.max_norm is None else global_norm(gradient)
                if takes_steps:
                    write = lambda x, y: lax.dynamic_update_index_in_dim(x, y, i, 0)  # noqa: E731
                    stack = jax.tree.map(write, stack, self._step(gradient, layer_state, p, factor))
                # The next layer is read from the stack after the write, and carried. If a fused
                # loop read the layer from the stack, XLA would copy the stack before the write.
                return (cotangent, stack, _layer_at(stack, jnp.maximum(i - 1, 0))), norm

            stack = layers, state.layers
            start = last_cotangent, stack, _layer_at(stack, depth - 1)
            indices = jnp.arange(depth, dtype=jnp.int32)
            carry, norms = lax.scan(step_back, start, (indices, inputs), reverse=True)
            cotangent, stack, _ = carry
            gradient = jax.tree.map(jnp.add, outer_grad, first_vjp(cotangent)[0])
            norm = state.norm
            if norms is not None:
                norms = jnp.append(norms, global_norm(gradient)).astype(norm.dtype)
                norm = joint_norm(norms)
            return (*stack, gradient, norm)

        factor = None
        if self.max_norm is not None:
            # Without an additional pass, only the norm of the previous step is available: a layer
            # is updated before the gradients of earlier layers are computed.
            norm = backward(False, None)[-1] if self.exact_norm else state.norm
            max_norm = jnp.asarray(self.max_norm, norm.dtype)
            factor = max_norm / jnp.maximum(norm, max_norm)
        layers, layer_states, gradient, norm = backward(True, factor)
        outer, outer_state = self._step(gradient, state.outer, outer, factor)
        norm = jnp.where(jnp.isfinite(norm), norm, state.norm)
        return (outer, layers), LayeredState(outer_state, layer_states, norm), loss

    def _step(self, gradient: Any, state: Any, params: Any, factor: Any) -> tuple[Any, Any]:
        if factor is not None:
            scale = lambda g: g * factor.astype(jnp.finfo(g.dtype).dtype)  # noqa: E731
            gradient = jax.tree.map(scale, gradient)
        updates, state = self.inner.update(gradient, state, params)
        return apply_updates(params, updates), state

    def _check(self, params: Any, x: Any, batch: Any) -> None:
        for name, leaf in leaves_with_names(x)[0]:
            if not is_inexact(leaf):
                raise TypeError(
                    f"layered_step: {leaf_text(name)} of the layers' input is {type_text(leaf)}, "
                    "expected a floating array. Pass an input that isn't floating in the batch."
                )
        input_types = _types(x)
        output_types = _types(jax.eval_shape(self.layer, params, x, *batch))
        if output_types != input_types:
            raise ValueError(
                f"layered_step: the function `layer` returned {type_text(output_types)} for the "
                f"input {type_text(input_types)}, expected the structure, shapes and dtypes of "
                "the input. Move operations that change the types to the function `first` or "
                "`last`."
            )


def _types(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _pair(params: Any) -> tuple[Any, Any]:
    if not isinstance(params, tuple) or len(params) != 2:
        raise ValueError(
            f"layered_step: params are {type_text(params)}, expected a pair (outer, layers): the "
            "params of the functions `first` and `last`, and the stacked params of the layers."
        )
    return params


def _depth(layers: Any) -> int:
    """Number of layers, the length of the first axis of every leaf."""
    leaves = leaves_with_names(layers)[0]
    lengths = {(jnp.shape(x) or (-1,))[0] for _, x in leaves}
    if len(lengths) != 1 or -1 in lengths:
        shapes = ", ".join(f"{leaf_text(name)}: {type_text(x)}" for name, x in leaves[:8])
        raise ValueError(
            f"layered_step: the params of the layers are [{shapes}], expected leaves with first "
            "axes of equal length, one entry per layer. Stack the params of the layers with "
            "jnp.stack."
        )
    depth = lengths.pop()
    if not depth:
        raise ValueError(
            "layered_step: the leaves of the layers have a first axis of length 0, expected at "
            "least one layer."
        )
    return depth


def _layer_at(tree: Any, i: Any) -> Any:
    """Select a layer of stacked arrays, and copy the layer to device memory."""
    return on_device(jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), tree))
