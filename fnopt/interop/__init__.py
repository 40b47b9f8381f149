"""Use fnopt's optimizers in other libraries, and other libraries' optimizers in fnopt.

Most training loops don't need this package. An fnopt optimizer has the `init` and `update` that
flax, Equinox and optax call, and `fnopt.chain` accepts other libraries' (init, update) pairs. The
functions here import other libraries only when they are called.
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
