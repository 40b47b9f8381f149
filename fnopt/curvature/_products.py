"""Products of a vector with the Hessian, the Gauss-Newton and the Fisher matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import cast_like
from fnopt.curvature._sums import (
    check_direction,
    checked_options,
    explain_errors,
    scalar,
    sum_over_examples,
)
from fnopt.jacobians import checked_outputs
from fnopt.sharding import pvary_like, reshard_like


def hvp(
    fn: Callable[..., jax.Array],
    *,
    reduction: str = "mean",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., Any]:
    r"""Make the Hessian-vector product of a scalar function.

    .. math:: H v = \nabla^2 f(\theta)\, v
              = \tfrac{d}{dt} \nabla f(\theta + t v) \big|_{t=0}

    by forward-over-reverse differentiation, at the cost of about two gradients, without forming
    `H`.

    Args:
        fn: `fn(params) -> scalar`; or, with a batch, `fn(params, example) -> scalar` for ONE
            example, whose values are averaged (or summed) over the batch.
        reduction: `'mean'` or `'sum'` over the examples.
        chunk_size: Number of examples to differentiate at once; `None` for all.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then include the examples of all devices,
            and the result is equal on all devices. With `None`, sums include the examples of this
            call.

    Returns:
        A function `(params, v, batch=None)` -> `H v`; `v` and `H v` are trees like the params.

    Raises:
        TypeError: If a param isn't real and floating, or the loss isn't a real scalar.
        ValueError: If the structure or shapes of `v` and the params differ, or the example axes
            disagree or are empty.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.curvature import hvp
        >>> hvp(lambda x: jnp.sum(x**3))(jnp.asarray([1.0, 2.0]), jnp.ones(2)).tolist()
        [6.0, 12.0]

    Reference:
        Pearlmutter, 1994, "Fast exact multiplication by the Hessian".
    """
    chunk_size = checked_options(reduction, chunk_size, "hvp")
    loss = explain_errors(fn, "hvp")

    def product(params: Any, v: Any, batch: Any = None) -> Any:
        check_direction(v, params, "hvp")

        def total(params: Any, chunk: Any) -> Any:
            def f(p: Any) -> jax.Array:
                if batch is None:
                    return scalar(fn(p), "hvp")
                return jnp.sum(jax.vmap(loss, (None, 0))(p, chunk))

            # Forward over reverse takes less memory than reverse over reverse (Pearlmutter, 1994).
            return jax.jvp(jax.grad(f), (params,), (_tangent(v, params),))[1]

        if batch is None:
            if axis_name is not None:
                raise ValueError(
                    f"hvp: got axis_name={axis_name!r} but no batch, expected both or neither. "
                    "Pass the batch that is sharded along this axis, or omit axis_name."
                )
            return total(params, None)
        return sum_over_examples(total, params, batch, reduction, chunk_size, "hvp", axis_name)

    return product


def ggn_vp(
    model_fn: Callable[[Any, Any], Any],
    loss_fn: Callable[[Any, Any], jax.Array],
    *,
    reduction: str = "mean",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[[Any, Any, Any], Any]:
    r"""Make the product with the generalized Gauss-Newton matrix.

    .. math:: G v = \frac1n \sum_i J_i^\top H_i J_i v, \qquad
              J_i = \frac{\partial f(\theta, x_i)}{\partial \theta}, \quad
              H_i = \nabla^2_f\, \ell(f, x_i)

    `G` is the Hessian without the second derivatives of the model. `G` is positive semidefinite if
    the loss is convex in the outputs. For the squared error and the cross entropy of logits, `G` is
    the Fisher matrix.

    Args:
        model_fn: `f(params, example) -> outputs` for ONE example, an array or a tree.
        loss_fn: `loss(outputs, example) -> scalar`.
        reduction: `'mean'` or `'sum'` over the examples.
        chunk_size: Number of examples to differentiate at once; `None` for all.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then include the examples of all devices,
            and the result is equal on all devices. With `None`, sums include the examples of this
            call.

    Returns:
        A function `(params, v, batch)` -> `G v`; `v` and `G v` are trees like the params.

    Raises:
        TypeError: If a param isn't real and floating, or the loss isn't a real scalar.
        ValueError: If the structure or shapes of `v` and the params differ, or the example axes
            disagree or are empty.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.curvature import ggn_vp
        >>> product = ggn_vp(lambda w, x: w @ x, lambda f, x: 0.5 * f**2, reduction="sum")
        >>> product(jnp.zeros(2), jnp.ones(2), jnp.eye(2) * 3).tolist()
        [9.0, 9.0]

    Reference:
        Schraudolph, 2002, "Fast curvature matrix-vector products for second-order gradient
        descent".
    """
    chunk_size = checked_options(reduction, chunk_size, "ggn_vp")
    outputs_of, loss = (
        explain_errors(model_fn, "ggn_vp", is_loss=False),
        explain_errors(loss_fn, "ggn_vp"),
    )

    def product(params: Any, v: Any, batch: Any) -> Any:
        check_direction(v, params, "ggn_vp")

        def total(params: Any, chunk: Any) -> Any:
            def model(p: Any) -> Any:
                return checked_outputs(jax.vmap(outputs_of, (None, 0))(p, chunk), "ggn_vp")

            outputs, Jv = jax.jvp(model, (params,), (_tangent(v, params),))
            slope = jax.vmap(jax.grad(loss))
            # H J v is a Hessian-vector product too, so `H` isn't formed.
            HJv = jax.jvp(lambda f: slope(f, chunk), (outputs,), (Jv,))[1]
            return jax.vjp(model, params)[1](HJv)[0]

        return sum_over_examples(total, params, batch, reduction, chunk_size, "ggn_vp", axis_name)

    return product


def fisher_vp(
    loss_fn: Callable[[Any, Any], jax.Array],
    *,
    reduction: str = "mean",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[[Any, Any, Any], Any]:
    r"""Make the product with the Fisher matrix of the labels in the batch.

    .. math:: F v = \frac1n \sum_i g_i\, (g_i \cdot v), \qquad
              g_i = \nabla_\theta\, \ell(\theta, x_i)

    for a loss that is a negative log-likelihood. With labels *sampled from the model*, `F` is an
    unbiased estimate of the Fisher matrix. With the labels of the data, `F` is the empirical Fisher
    matrix, which is a different matrix.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar` for ONE example.
        reduction: `'mean'` or `'sum'` over the examples.
        chunk_size: Number of examples to differentiate at once; `None` for all.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then include the examples of all devices,
            and the result is equal on all devices. With `None`, sums include the examples of this
            call.

    Returns:
        A function `(params, v, batch)` -> `F v`; `v` and `F v` are trees like the params.

    Raises:
        TypeError: If a param isn't real and floating, or the loss isn't a real scalar.
        ValueError: If the structure or shapes of `v` and the params differ, or the example axes
            disagree or are empty.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.curvature import fisher_vp
        >>> product = fisher_vp(lambda w, x: w @ x, reduction="sum")
        >>> product(jnp.zeros(2), jnp.ones(2), jnp.asarray([[1.0, 2.0], [0.0, 1.0]])).tolist()
        [3.0, 7.0]

    Reference:
        Kunstner, Balles and Hennig, 2019, "Limitations of the Empirical Fisher Approximation",
        arXiv:1905.12558.
    """
    chunk_size = checked_options(reduction, chunk_size, "fisher_vp")
    loss = explain_errors(loss_fn, "fisher_vp")

    def product(params: Any, v: Any, batch: Any) -> Any:
        check_direction(v, params, "fisher_vp")

        def total(params: Any, chunk: Any) -> Any:
            def losses(p: Any) -> jax.Array:
                return jax.vmap(loss, (None, 0))(p, chunk)

            # sum_i g_i (g_i . v) = J^T J v with the Jacobian J of the losses, `[n, P]`.
            _, derivatives = jax.jvp(losses, (params,), (_tangent(v, params),))
            return jax.vjp(losses, params)[1](derivatives)[0]

        return sum_over_examples(
            total, params, batch, reduction, chunk_size, "fisher_vp", axis_name
        )

    return product


def _tangent(v: Any, params: Any) -> Any:
    # JAX requires a tangent to have the dtypes, shardings and varying axes of its primal.
    return pvary_like(jax.tree.map(reshard_like, cast_like(v, params), params), params)
