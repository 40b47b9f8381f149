"""Federated learning: a server that stores the params, and clients that store the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import (
    Scalar,
    Slot,
    Transformation,
    Value,
    apply_updates,
    as_transformation,
    cast_like,
    check_same_tree,
    hyper,
)
from fnopt.distributed._local_steps import add_proximal_gradient, all_finite
from fnopt.errors import check_inexact
from fnopt.numerics import compute_dtype, real_dtype, safe_increment, zero_count
from fnopt.transforms import scale


class ServerState(NamedTuple):
    """State of the server: the round, the params, and the state of its optimizer."""

    round: jax.Array
    params: Any
    opt_state: Any


class federated(Value):
    r"""Server of federated learning, which takes optimizer steps along the clients' mean change.

    .. math:: \theta \leftarrow \theta + \mathrm{outer}\Bigl(\frac{\sum_k n_k\,
              (\theta - \theta_k)}{\sum_k n_k}\Bigr)

    `init(params)` makes the state from fresh or pretrained params. `update(state, client_params,
    num_examples)` uses the params of all clients in a round. The user's loop or framework selects
    the clients and communicates with them. `outer=None` is FedAvg, `fnopt.adam(...)` is FedAdam.

    Args:
        outer: The optimizer of the server; None for `scale(-1)`, which sets the params to the
            clients' mean.

    Example:
        >>> from fnopt import distributed
        >>> server = distributed.federated(None)
        >>> state = server.init({"w": jnp.zeros(())})
        >>> clients = [{"w": jnp.asarray(1.0)}, {"w": jnp.asarray(4.0)}]
        >>> state = server.update(state, clients, num_examples=[20, 10])
        >>> state.params, state.round
        ({'w': Array(2., dtype=float32)}, Array(1, dtype=int32))

    Reference:
        McMahan et al., 2016, arXiv:1602.05629; Reddi et al., 2020, arXiv:2003.00295.
    """

    outer: Any

    def __post_init__(self) -> None:
        outer = scale(-1.0) if self.outer is None else self.outer
        self._set("outer", as_transformation(outer, "federated: outer"))
        super().__post_init__()

    def init(self, params: Any) -> ServerState:
        """Make the state before the first round, with fresh or pretrained params."""
        return ServerState(zero_count(), params, self.outer.init(params))

    def update(
        self, state: ServerState, client_params: Sequence[Any], num_examples: Any = None
    ) -> ServerState:
        """Return the state after a round.

        Args:
            state: The previous state.
            client_params: The params of every participating client, trees like `state.params`.
            num_examples: The weight of each client; equal by default.

        Returns:
            The next state, a tree of arrays. A client with non-finite params is ignored, and under
            `jax.jit` also a client with a negative or non-finite weight. If every client is
            ignored, the params and the optimizer's state don't change.

        Raises:
            ValueError: If there is no client, the numbers of weights and clients differ, or the
                trees of a client and the server differ. The message names client and leaf. Outside
                `jax.jit`, also if a weight is negative or not finite, or all weights are zero.
        """
        clients = list(client_params)
        if not clients:
            raise ValueError(
                "federated: there are no clients, expected at least one. Skip the update "
                "of a round without clients."
            )
        weights = _weights(num_examples, len(clients))
        for k, client in enumerate(clients):
            check_same_tree(client, state.params, f"params of client {k}", "params of the server")
        check_inexact(state.params, "params of the server")
        finite = jnp.stack([all_finite(client) for client in clients])
        valid_weights = jnp.where(finite, weights, jnp.zeros_like(weights))
        has_weight = jnp.sum(valid_weights) > 0
        # Without a valid client, the fractions are 0 instead of 0 / 0, and the step is discarded.
        fractions = valid_weights / jnp.where(
            has_weight, jnp.sum(valid_weights), jnp.ones_like(weights[0])
        )
        gradient = jax.tree.map(
            lambda p, *xs: _mean_change(p, xs, fractions), state.params, *clients
        )
        updates, opt_state = self.outer.update(gradient, state.opt_state, state.params)
        next_values = apply_updates(state.params, cast_like(updates, state.params)), opt_state
        selected = jax.tree.map(
            lambda a, b: jnp.where(has_weight, a, b), next_values, (state.params, state.opt_state)
        )
        return ServerState(safe_increment(state.round), *selected)


def _weights(num_examples: Any, clients: int) -> jax.Array:
    weights = jnp.ones(clients) if num_examples is None else jnp.asarray(num_examples)
    weights = weights.astype(jnp.float32)
    if weights.shape != (clients,):
        raise ValueError(
            f"federated: num_examples has shape {weights.shape}, expected ({clients},), one number "
            "per client."
        )
    # Traced weights can't be checked; below, each invalid weight becomes zero.
    is_concrete = not isinstance(weights, Tracer)
    if is_concrete and not (all_finite(weights) & (weights >= 0).all() & weights.any()):
        raise ValueError(
            f"federated: num_examples = {weights.tolist()}, expected finite numbers >= 0 with a "
            "positive sum."
        )
    return jnp.where(jnp.isfinite(weights) & (weights >= 0), weights, jnp.zeros_like(weights))


def _mean_change(p: Any, xs: Sequence[Any], weights: jax.Array) -> jax.Array:
    dtype = compute_dtype(jnp.result_type(p))
    fractions = weights.astype(real_dtype(dtype))
    p = jnp.asarray(p, dtype)
    # The changes are averaged and not the params: a change may be below the rounding error of the
    # params.
    total = jnp.zeros_like(p)
    for k, x in enumerate(xs):
        change = fractions[k].astype(dtype) * (p - jnp.asarray(x, dtype))
        # `where`, because 0 times the NaN of an excluded client is NaN.
        total += jnp.where(fractions[k] > 0, change, jnp.zeros_like(change))
    return total


class ProximalState(NamedTuple):
    """Initial params of a client."""

    start: Slot


class add_proximal_term(Transformation):
    r"""Add the gradient of a proximal term: :math:`u = g + \mu\, (\theta - \theta_0)`.

    This is the gradient of FedProx's objective :math:`\ell(\theta) + \frac\mu2 \lVert \theta -
    \theta_0 \rVert^2`. The proximal term limits how far clients with different data diverge from
    their common initial params. Put the transform first in a client's chain.

    Args:
        strength: :math:`\mu`.

    Example:
        >>> from fnopt import distributed
        >>> tx = fnopt.chain(distributed.add_proximal_term(0.5), fnopt.sgd(1.0))
        >>> state = tx.init({"w": jnp.asarray(1.0)})
        >>> tx.update({"w": jnp.asarray(0.0)}, state, {"w": jnp.asarray(3.0)})[0]
        {'w': Array(-1., dtype=float32)}

    Reference:
        Li et al., 2018, arXiv:1812.06127.
    """

    State = ProximalState
    fill: ClassVar[Any] = {"start": "params"}
    needs_params = True

    strength: Scalar = hyper(ge=0)

    def update(
        self, updates: Any, state: ProximalState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ProximalState]:
        """Add the gradient of the proximal term."""
        return add_proximal_gradient(updates, self.strength, params, state.start), state
