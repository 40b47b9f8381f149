"""Adam-mini: Adam with one mean square for every block of params."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, ScalarOrSchedule, Slot, static
from fnopt.core import slot_zeros as zeros
from fnopt.errors import check_inexact, where
from fnopt.numerics import as_dtype, compute_dtype, ema, real_dtype, squared_modulus, zero_count
from fnopt.optimizers._adam import AdamDirection
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import (
    Chain,
    as_labels,
    by_pattern,
    select,
)

# Each token of an embedding is a block (Zhang et al., 2024), because rare tokens have small
# squares.
_RULE = by_pattern({"*embed*": "rows"}, default="auto")


def _as_blocks(given: Any) -> Any:
    return _RULE if given is None else as_labels(given)


class ScaleByAdamMiniState(NamedTuple):
    """Step count, the mean of the gradient, and the mean square of every block."""

    count: jax.Array
    mu: Slot
    nu: CustomSlot


class scale_by_adam_mini(AdamDirection):
    r"""Adam's direction with one mean square for every block of a leaf.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_{t,b} = \beta_2 \nu_{t-1,b} + (1-\beta_2)\, \mathrm{mean}_{i \in b}\, |g_{t,i}|^2, \\
        u_{t,i} &= \frac{\hat\mu_{t,i}}{\sqrt{\hat\nu_{t,b(i)}} + \epsilon}

    The second moment takes negligible memory, because the elements of a block have curvature of
    similar scale. A block is a row of an embedding table, the weights of one output or of one
    attention head, or a whole leaf.

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        blocks: The blocks of every leaf, as labels (a tree of labels, `fnopt.by_pattern` or
            `fnopt.by_path`): `'leaf'` for one block; `'outputs'` for one block per index of the
            last axis (the kernels of flax and Keras, output heads); `'rows'` for one block per
            index of the first axis (embedding tables, PyTorch's kernels); an integer for any other
            axis, such as the axis of the heads in a kernel of shape (inputs, heads, size); `'auto'`
            for `'outputs'` with two or more axes, otherwise `'leaf'`. None means `'rows'` for paths
            that contain `embed`, and `'auto'` for other leaves.
        mu_dtype: Storage dtype of `mu`; by default the dtype of the params, at least float32.

    Raises:
        ValueError: From `init`, for another label.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"embed": jnp.ones((9, 2)), "kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
        >>> state = fnopt.scale_by_adam_mini().init(params)
        >>> {name: nu.shape for name, nu in state.nu.items()}
        {'bias': (1,), 'embed': (9, 1), 'kernel': (1, 3)}

    Reference:
        Zhang et al., 2024, arXiv:2406.16793.
    """

    State = ScaleByAdamMiniState
    # The flag is needed, because a `CustomSlot` doesn't declare that it holds squares of gradients.
    keeps_squares = True

    blocks: Any = static(default=None, convert=_as_blocks)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> ScaleByAdamMiniState:
        """Return zeros; `nu` has one number per block, in an array that keeps all axes."""
        check_inexact(params, "params")
        nu = jax.tree.map(_block_zeros, params, select(self.blocks, params))
        return ScaleByAdamMiniState(zero_count(), zeros(params, self.mu_dtype), nu)

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Update the average of the mean square of each block."""
        axes = tuple(i for i, n in enumerate(nu.shape) if n == 1)
        size = max(g.size // max(nu.size, 1), 1)  # 1 for an empty leaf, which has no mean
        # The division comes first: the sum over a large block would overflow.
        square = jnp.sum(squared_modulus(g) / size, axis=axes, keepdims=True)
        return ema(nu, square, h.b2, h.gain2)


def _block_zeros(p: Any, label: Any) -> jax.Array:
    """Return zeros with the sharding of the params."""
    p = jnp.asarray(p)
    kept = _block_axis(p.ndim, label)
    axes = tuple(i for i in range(p.ndim) if i != kept)
    # Zeros are computed like a sum of the params, which has the sharding of the gradients' means.
    dtype = real_dtype(compute_dtype(p.dtype))
    return jnp.zeros_like(jnp.sum(p, axis=axes, keepdims=True), dtype)


def _block_axis(ndim: int, label: Any) -> int | None:
    """Return the axis with one block per index; None for a single block."""
    if label == "auto":
        label = "outputs" if ndim > 1 else "leaf"
    named = {"leaf": None, "rows": 0, "outputs": ndim - 1}
    if isinstance(label, str) and label in named:
        return named[label] if ndim else None
    if isinstance(label, int) and not isinstance(label, bool) and -ndim <= label < ndim:
        return label % ndim
    raise ValueError(
        f"{where()}blocks: the label {label!r} of an array of {ndim} axes, expected 'leaf', "
        "'outputs', 'rows', 'auto' or an axis."
    )


@recipe
def adam_mini(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
    blocks: Any = None,
    mu_dtype: Any = None,
) -> Chain:
    r"""Adam-mini: AdamW with one mean square per block, and half of AdamW's optimizer state.

    .. math:: u_t = -\eta_t \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_{t,b}} + \epsilon} +
              \lambda_t\, \theta_t\right), \qquad \nu_{t,b} = \beta_2 \nu_{t-1,b} +
              (1-\beta_2)\, \mathrm{mean}_{i \in b}\, |g_{t,i}|^2

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda`, a number or a separate `Schedule`.
        mask: The leaves to decay; see `add_decayed_weights`. None decays all leaves.
        blocks: The blocks of every leaf; see `scale_by_adam_mini`. By default, blocks are the rows
            of leaves with `embed` in their path, the outputs of other matrices, and whole vectors.
        mu_dtype: Storage dtype of the mean; by default the dtype of the params, at least float32.

    Returns:
        A chain of `scale_by_adam_mini`, `add_decayed_weights` and `scale_by_learning_rate`, with
        the slots `mu` and `nu`; `nu` has one number per block.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> heads = fnopt.by_pattern({"*query*": 1, "*key*": 1}, default="auto")
        >>> tx = fnopt.adam_mini(0.1, blocks=heads)
        >>> params = {"query": jnp.ones((4, 2, 3)), "out": jnp.ones((6, 4))}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> {name: nu.shape for name, nu in fnopt.slots(state)["nu"].items()}
        {'out': (1, 4), 'query': (1, 2, 1)}

    Reference:
        Zhang et al., 2024, arXiv:2406.16793.
    """
    return descend(
        scale_by_adam_mini(b1, b2, eps, blocks, mu_dtype), learning_rate, weight_decay, mask
    )
