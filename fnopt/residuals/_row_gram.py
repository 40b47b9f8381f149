"""Gram matrices of the rows of a Jacobian, through what is done to the residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.core import gathered
from fnopt.residuals._derivative import counted


def scaled_rows(gram: Any, factors: Callable[[jax.Array], jax.Array]) -> Any:
    r"""The Gram matrix :math:`b_i K_{ij} b_j` of rows times factors `b(x)`; `None` for none."""
    if gram is None:
        return None

    def scaled(x: jax.Array, factor: Any = None) -> jax.Array:
        b = gathered(factors(x))  # as the Gram matrix is
        return counted(b[:, None], counted(b[None, :], gram(x, factor)))

    return scaled


def mixed_rows(gram: Any, mix: Callable[[jax.Array], jax.Array]) -> Any:
    r"""The Gram matrix :math:`A K A^\top` of rows mixed by a linear map; `None` for none."""
    if gram is None:
        return None

    def mixed(x: jax.Array, factor: Any = None) -> jax.Array:
        return jax.vmap(mix)(jax.vmap(mix, 1, 1)(gram(x, factor)))

    return mixed
