"""Preconditioning of a kernel's gradient by the second moment of its layer's inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Scalar, Transformation, hyper, static
from fnopt.errors import leaf_text, leaves_with_names, where
from fnopt.numerics import (
    bias_correction,
    compute_dtype,
    ema,
    nonzero,
    safe_increment,
    widen,
    zero_count,
)
from fnopt.optimizers._matrix_factors import zeros
from fnopt.optimizers._matrix_rule import as_rule, layouts_of
from fnopt.sharding import sequential


class PreconditionByInputsState(NamedTuple):
    """State of `precondition_by_inputs`.

    Attributes:
        count: :math:`t`, the number of steps.
        moment: :math:`C_t` of every matrix, the averaged second moment of the inputs.
    """

    count: jax.Array
    moment: CustomSlot


class precondition_by_inputs(Transformation):
    r"""Multiply gradients by the inverse second moment of their layer's inputs.

    .. math:: C_t = \beta\, C_{t-1} + (1-\beta)\, \tfrac1N X_t^\top X_t, \qquad
              u_t = (\hat C_t + \epsilon c\, I)^{-1} G_t, \qquad c = \operatorname{tr}(\hat C_t) / n

    for kernels `W` in `x @ W`, where the rows of `X`, `[N, n]`, are the inputs `x` of the layer,
    and :math:`\hat C_t = C_t / (1 - \beta^t)`. Before `orthogonalize`, the method is Newton-Muon.
    `update` needs `input_moments`, a dict from the path of every kernel to `X^T X / N`, `[n, n]`
    (`[k, n, n]` for a stack). Compute the moments from the inputs that `fnopt.taps` returns. The
    state has `n^2` numbers per kernel.

    Args:
        decay: :math:`\beta`, decay rate of :math:`C`, the moving average of the second moment.
        damping: :math:`\epsilon`, the damping relative to the mean eigenvalue of :math:`\hat C`.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a kernel has no moment, or if a moment has a wrong shape.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.precondition_by_inputs(damping=1e-6), {"w": jnp.ones((2, 3))}
        >>> moments = {"w": jnp.diag(jnp.asarray([2.0, 0.5]))}
        >>> updates, _ = tx.update(g, tx.init(g), input_moments=moments)
        >>> updates["w"][:, 0].round(3)
        Array([0.5, 2. ], dtype=float32)

    Reference:
        Du and Su, 2026, The Newton-Muon Optimizer.
    """

    decay: Scalar = hyper(default=0.95, ge=0, lt=1)
    damping: Scalar = hyper(default=0.1, gt=0)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)

    def init(self, params: Any) -> PreconditionByInputsState:
        """Return a zero count and zero moments."""
        leaves, treedef = jax.tree.flatten(params)
        layouts = zip(leaves, layouts_of(self.weight_dimension_numbers, params), strict=True)
        slots = [
            tuple(zeros(k, n, compute_dtype(p.dtype)) for k, n, _ in layout.shapes)
            for p, layout in layouts
        ]
        return PreconditionByInputsState(zero_count(), treedef.unflatten(slots))

    def update(
        self,
        updates: Any,
        state: PreconditionByInputsState,
        params: Any = None,
        *,
        input_moments: Any,
        **extra_args: Any,
    ) -> tuple[Any, PreconditionByInputsState]:
        """Update the averaged moments, and multiply the gradients by their inverses."""
        pairs, treedef = leaves_with_names(updates)
        layouts = layouts_of(self.weight_dimension_numbers, updates)
        slots, count = treedef.flatten_up_to(state.moment), safe_increment(state.count)
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        solve, new, moments = sequential(self._solve), [], []
        for (name, g), layout, slot in zip(pairs, layouts, slots, strict=True):
            g = widen(g)
            parts = layout.to_matrices(g, wide=False)
            decay = jnp.asarray(self.decay).astype(g.dtype)
            slot = tuple(
                ema(C, M.astype(C.dtype), decay.astype(C.dtype))
                for C, M in _pair_moments(name, input_moments, slot)
            )
            correction = bias_correction(decay, count)
            out = [
                solve(x, C.astype(g.dtype) / correction) for x, C in zip(parts, slot, strict=True)
            ]
            new.append(layout.to_leaf(out, g, wide=False))
            moments.append(slot)
        state = PreconditionByInputsState(count, treedef.unflatten(moments))
        return treedef.unflatten(new), state

    def _solve(self, g: jax.Array, C: jax.Array) -> jax.Array:
        mean_eigenvalue = jnp.trace(C, axis1=1, axis2=2)[:, None, None] / C.shape[-1]
        ridge = jnp.asarray(self.damping).astype(g.dtype) * nonzero(mean_eigenvalue)
        L = jnp.linalg.cholesky(C + ridge * jnp.eye(C.shape[-1], dtype=C.dtype))
        y = jax.lax.linalg.triangular_solve(L, g, left_side=True, lower=True)
        return jax.lax.linalg.triangular_solve(L, y, left_side=True, lower=True, transpose_a=True)


def _pair_moments(
    name: str, input_moments: Any, slot: tuple[jax.Array, ...]
) -> list[tuple[Any, Any]]:
    """Pair the averaged moment of a leaf with the new moment."""
    if name not in input_moments:
        raise ValueError(
            f"{where()}input_moments has entries for {', '.join(map(repr, input_moments))}, but "
            f"not for {leaf_text(name)}, expected X^T X / N of the inputs of every kernel."
        )
    M = jnp.asarray(input_moments[name])
    if len(slot) != 1 or M.size != slot[0].size or M.shape[-2:] != slot[0].shape[-2:]:
        raise ValueError(
            f"{where()}input_moments[{name!r}] has shape {M.shape}, expected "
            f"{' and '.join(str(C.shape) for C in slot)}: the shape of X^T X / N."
        )
    return [(slot[0], M.reshape(slot[0].shape))]
