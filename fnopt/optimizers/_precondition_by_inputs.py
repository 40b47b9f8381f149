"""Preconditioning of kernel gradients by the second moments of the layers' inputs."""

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
    """Step count, and for every matrix the mean second moment of its inputs."""

    count: jax.Array
    moment: CustomSlot


class precondition_by_inputs(Transformation):
    r"""Multiply gradients by the inverse mean second moment of their layer's inputs.

    .. math:: C_t = \beta\, C_{t-1} + (1-\beta)\, \tfrac1N X_t^\top X_t, \qquad
              u_t = (\hat C_t + \epsilon c\, I)^{-1} G_t, \qquad c = \operatorname{tr}(\hat C_t) / n

    for kernels in `x @ W`, where the rows of `X`, `[N, n]`, are the inputs `x` of the layer. Before
    `orthogonalize`, the chain is Newton-Muon. `update` takes `input_moments`, a dict from the path
    of every kernel to `X^T X / N`, `[n, n]` (`[k, n, n]` for a stack), computed from the inputs
    that `fnopt.taps` returns. The state has `n^2` numbers per kernel.

    Args:
        decay: :math:`\beta`.
        damping: :math:`\epsilon`, relative to the mean eigenvalue.
        weight_dimension_numbers: The axes of the matrices, as in `orthogonalize`.

    Raises:
        ValueError: In use, if a kernel has no moment, or a moment of another shape.

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
        """Multiply gradients by the inverse moments, and update the mean moments."""
        pairs, treedef = leaves_with_names(updates)
        layouts = layouts_of(self.weight_dimension_numbers, updates)
        slots, count = treedef.flatten_up_to(state.moment), safe_increment(state.count)
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        solve, new, means = sequential(self._solve), [], []
        for (name, g), layout, own in zip(pairs, layouts, slots, strict=True):
            g = widen(g)
            parts = layout.to_matrices(g, wide=False)
            given = _moments(name, input_moments, own)
            decay = jnp.asarray(self.decay).astype(g.dtype)
            own = tuple(ema(C, M.astype(C.dtype), decay.astype(C.dtype)) for C, M in given)
            seen = bias_correction(decay, count)
            out = [solve(x, C.astype(g.dtype) / seen) for x, C in zip(parts, own, strict=True)]
            new.append(layout.to_leaf(out, g, wide=False))
            means.append(own)
        state = PreconditionByInputsState(count, treedef.unflatten(means))
        return treedef.unflatten(new), state

    def _solve(self, g: jax.Array, C: jax.Array) -> jax.Array:
        mean = jnp.trace(C, axis1=1, axis2=2)[:, None, None] / C.shape[-1]
        ridge = jnp.asarray(self.damping).astype(g.dtype) * nonzero(mean)
        L = jnp.linalg.cholesky(C + ridge * jnp.eye(C.shape[-1], dtype=C.dtype))
        half = jax.lax.linalg.triangular_solve(L, g, left_side=True, lower=True)
        return jax.lax.linalg.triangular_solve(
            L, half, left_side=True, lower=True, transpose_a=True
        )


def _moments(name: str, given: Any, own: tuple[jax.Array, ...]) -> list[tuple[Any, Any]]:
    """Pairs of the mean and the new moment of a leaf."""
    if name not in given:
        raise ValueError(
            f"{where()}input_moments has no entry for {leaf_text(name)}, only for "
            f"{', '.join(map(repr, given))}: expected X^T X / N of the inputs of every kernel."
        )
    M = jnp.asarray(given[name])
    if len(own) != 1 or M.size != own[0].size or M.shape[-2:] != own[0].shape[-2:]:
        raise ValueError(
            f"{where()}input_moments[{name!r}] has shape {M.shape}, expected "
            f"{' and '.join(str(C.shape) for C in own)}: a square matrix of the kernel's rows."
        )
    return [(own[0], M.reshape(own[0].shape))]
