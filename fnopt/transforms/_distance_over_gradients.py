"""Layer-wise distance over gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.core import (
    CustomSlot,
    Leafwise,
    Scalar,
    Slot,
    as_dtype,
    compute_dtype,
    global_norm,
    hyper,
    joint_norm,
    nonzero,
    real_dtype,
    safe_sqrt,
    static,
)


class ScaleByDistanceOverGradientsState(NamedTuple):
    """For every leaf the largest distance from its start, the norm of its gradients, the start."""

    max_dist: CustomSlot
    grad_norm: CustomSlot
    init_params: Slot


class scale_by_distance_over_gradients(Leafwise):
    r"""Scale every leaf by its distance from the start over the root of summed squared gradients.

    .. math:: u_t = c\, \frac{\max_{i \le t} \lVert \theta_i - \theta_0 \rVert}
              {\sqrt{\sum_{i \le t} \lVert g_i \rVert^2 + \epsilon}}\, g_t

    Before the first step the distance is taken as :math:`r\,(1 + \lVert \theta_0 \rVert)`. For one
    step size of all leaves see `dog`.

    Args:
        reps_rel: :math:`r`.
        eps: :math:`\epsilon`.
        param_dtype: Storage dtype of the start; None for the params' own, but at least float32.
        global_scale: :math:`c`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_distance_over_gradients(0.5), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update({"w": jnp.asarray([0.0, 2.0])}, tx.init(params), params)[0]["w"].round(1)
        Array([0., 3.], dtype=float32)

    Reference:
        Ivgi, Hinder and Carmon, 2023, arXiv:2302.12022.
    """

    State = ScaleByDistanceOverGradientsState
    needs_params = True

    reps_rel: Scalar = hyper(default=1e-6, ge=0)
    eps: Scalar = hyper(default=1e-8, ge=0)
    param_dtype: Any = static(default=None, convert=as_dtype)
    global_scale: Scalar = hyper(default=1.0)

    def fill(self, slot: str) -> Any:
        """The start of the params."""
        return "params"

    def storage(self, slot: str) -> Any:
        """`param_dtype`."""
        return self.param_dtype

    def start(self, slot: str, p: Any) -> Any:
        """The first distance, and no gradients."""
        dtype = real_dtype(compute_dtype(p.dtype))
        if slot == "grad_norm":
            return jnp.zeros((), dtype)
        return jnp.asarray(self.reps_rel, dtype) * (1 + global_norm(p).astype(dtype))

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The scalars beside the norms."""
        del t
        return {"least": safe_sqrt(h.eps)}

    def leaf(self, h: Any, g: Any, p: Any, farthest: Any, norm: Any, start: Any) -> Any:
        farthest = jnp.maximum(farthest, global_norm(p - start))
        norm = joint_norm([norm, global_norm(g).astype(norm.dtype)])  # no squares: they overflow
        step = h.global_scale * farthest / nonzero(joint_norm([norm, h.least]))
        return step * g, farthest, norm, start
