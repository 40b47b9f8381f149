"""Conversion of optimizers between fnopt, optax and flax, and privacy accounting.

Most training loops don't need this package. flax, Equinox and optax call the `init` and `update` of
an fnopt optimizer, and `fnopt.chain` accepts (init, update) pairs of other libraries. Other
libraries are imported only when a function of this package is called.
"""

from __future__ import annotations

from fnopt.interop._conversion import (
    from_optax,
    nnx_optimizer,
    register_flax_points,
    to_optax,
)
from fnopt.interop._other_names import suggest_name as suggest_name
from fnopt.interop._privacy import calibrated_noise, privacy_epsilon

__all__ = [
    "calibrated_noise",
    "from_optax",
    "nnx_optimizer",
    "privacy_epsilon",
    "register_flax_points",
    "to_optax",
]
