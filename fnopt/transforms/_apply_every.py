"""Sums of updates, applied every few steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, Slot, static


class ApplyEveryState(NamedTuple):
    """Steps so far, and the sum of the updates since the last that were handed on."""

    count: jax.Array
    grad_acc: Slot


class apply_every(Leafwise):
    r"""Add up updates, and return the sum every `k` steps, zeros in between.

    .. math:: u_t = \begin{cases} \sum_{i=t-k+1}^{t} g_i & k \text{ divides } t \\
              0 & \text{otherwise} \end{cases}

    What comes before it in a chain makes `k` steps with one set of params, and what comes after
    sees zeros. For a batch in parts, where the whole optimizer makes one step for the mean
    gradient, take `accumulate`.

    Args:
        k: After how many steps, a whole number.

    Raises:
        ValueError: If `k` isn't a whole number, at least 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.apply_every(2), {"w": jnp.ones(2)}
        >>> first, state = tx.update(g, tx.init(g))
        >>> second, state = tx.update(g, state)
        >>> print(first["w"], second["w"])
        [0. 0.] [2. 2.]
    """

    State = ApplyEveryState

    k: int = static(default=1, least=1)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Whether the sum begins anew, and whether it is handed on."""
        return {"begins": (t - 1) % self.k == 0, "emits": t % self.k == 0}

    def leaf(self, h: Any, g: Any, acc: Any) -> Any:
        acc = jnp.where(h.begins > 0, g, acc + g)
        return jnp.where(h.emits > 0, acc, jnp.zeros_like(acc)), acc
