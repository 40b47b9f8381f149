"""Adam-mini: Adam with one mean square for each block of parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, ScalarOrSchedule, Slot, static
from fnopt.core import slot_zeros as zeros
from fnopt.errors import check_inexact, count_text, where
from fnopt.numerics import as_dtype, compute_dtype, ema, real_dtype, squared_modulus, zero_count
from fnopt.optimizers._adam import AdamDirection
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import (
    Chain,
    as_labels,
    by_pattern,
    select,
)

# Each token of an embedding is a block (Zhang et al., 2024), because the gradients of rare tokens
# are small.
_DEFAULT_BLOCKS = by_pattern({"*embed*": "rows"}, default="auto")


def _as_blocks(blocks: Any) -> Any:
    return _DEFAULT_BLOCKS if blocks is None else as_labels(blocks)


class ScaleByAdamMiniState(NamedTuple):
    r"""State of `scale_by_adam_mini`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_{t,b}`, one mean square for each block.
    """

    count: jax.Array
    mu: Slot
    nu: CustomSlot


class scale_by_adam_mini(AdamDirection):
    r"""Divide Adam's averaged gradient by one root mean square for each block of a leaf.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_{t,b} = \beta_2 \nu_{t-1,b} + (1-\beta_2)\, \mathrm{mean}_{i \in b}\, |g_{t,i}|^2, \\
        u_{t,i} &= \frac{\hat\mu_{t,i}}{\sqrt{\hat\nu_{t,b(i)}} + \epsilon}

    where :math:`\hat\mu` and :math:`\hat\nu` are bias-corrected as in Adam. A block is a row of an
    embedding table, the weights of one output or of one attention head, or a whole leaf. One number
    per block is enough, because the elements of a block have similar curvature. The second moment
    then needs negligible memory.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the mean squares.
        eps: :math:`\epsilon`, added outside the square root.
        blocks: A label for each leaf: a tree of labels, `fnopt.by_pattern` or `fnopt.by_path`.
            `'leaf'` makes the leaf one block. `'outputs'` makes one block per index of the last
            axis (kernels of flax and Keras, output heads). `'rows'` makes one block per index of
            the first axis (embedding tables, PyTorch's kernels). An integer selects another axis,
            such as the axis of the heads in a kernel of shape (inputs, heads, size). `'auto'` means
            `'outputs'` for leaves with two or more axes, otherwise `'leaf'`. None means `'rows'`
            for paths that contain `embed`, and `'auto'` for other leaves.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Raises:
        ValueError: In `init`, if a label is invalid.

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
    # The flag is set here, because a `CustomSlot` doesn't declare that it keeps squared gradients.
    keeps_squares = True

    blocks: Any = static(default=None, convert=_as_blocks)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> ScaleByAdamMiniState:
        """Return zeros; `nu` has one number per block, and as many axes as the leaf."""
        check_inexact(params, "params")
        nu = jax.tree.map(_block_zeros, params, select(self.blocks, params))
        return ScaleByAdamMiniState(zero_count(), zeros(params, self.mu_dtype), nu)

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Update the moving average of each block's mean square."""
        axes = tuple(i for i, n in enumerate(nu.shape) if n == 1)
        size = max(g.size // max(nu.size, 1), 1)  # 1 for an empty leaf, which has no mean
        # Divide before the sum, because the sum over a large block could overflow.
        square = jnp.sum(squared_modulus(g) / size, axis=axes, keepdims=True)
        return ema(nu, square, h.b2, h.gain2)


def _block_zeros(p: Any, label: Any) -> jax.Array:
    """Return a zero for each block, sharded like the parameters."""
    p = jnp.asarray(p)
    block_axis = _block_axis(p.ndim, label)
    axes = tuple(i for i in range(p.ndim) if i != block_axis)
    # A sum of the params has the sharding that means of the gradients will have.
    dtype = real_dtype(compute_dtype(p.dtype))
    return jnp.zeros_like(jnp.sum(p, axis=axes, keepdims=True), dtype)


def _block_axis(ndim: int, label: Any) -> int | None:
    """Return the axis with one block per index; None for a single block."""
    if label == "auto":
        label = "outputs" if ndim > 1 else "leaf"
    axis_of_label = {"leaf": None, "rows": 0, "outputs": ndim - 1}
    if isinstance(label, str) and label in axis_of_label:
        return axis_of_label[label] if ndim else None
    if isinstance(label, int) and not isinstance(label, bool) and -ndim <= label < ndim:
        return label % ndim
    raise ValueError(
        f"{where()}blocks: got the label {label!r} for an array with "
        f"{count_text(ndim, 'axis', 'axes')}, expected 'leaf', 'outputs', 'rows', 'auto' or the "
        "index of an axis."
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
    r"""Adam-mini: AdamW with one mean square per block, which halves the optimizer state.

    .. math:: u_t = -\eta_t \left(\frac{\hat\mu_t}{\sqrt{\hat\nu_{t,b}} + \epsilon} +
              \lambda_t\, \theta_t\right), \qquad \nu_{t,b} = \beta_2 \nu_{t-1,b} +
              (1-\beta_2)\, \mathrm{mean}_{i \in b}\, |g_{t,i}|^2

    where :math:`\hat\mu_t` and :math:`\hat\nu_{t,b}` are bias-corrected as in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the mean squares.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.
        blocks: A label for each leaf; see `scale_by_adam_mini`. By default, blocks are the rows of
            leaves with `embed` in their path, the outputs of other matrices, and whole vectors.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

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
