"""Training on several devices: shardings of a state, ZeRO, local SGD, federated learning."""

from __future__ import annotations

from fnopt.distributed._federated import ProximalState, ServerState, add_proximal_term, federated
from fnopt.distributed._local_steps import DilocoState, diloco
from fnopt.distributed._quantized_delta import Codes, QuantizedDeltaState, quantized_delta
from fnopt.distributed._relayout import gather_state, scatter_state
from fnopt.distributed._sharded import sharded
from fnopt.distributed._state_sharding import init_sharded, state_sharding

__all__ = [
    "Codes",
    "DilocoState",
    "ProximalState",
    "QuantizedDeltaState",
    "ServerState",
    "add_proximal_term",
    "diloco",
    "federated",
    "gather_state",
    "init_sharded",
    "quantized_delta",
    "scatter_state",
    "sharded",
    "state_sharding",
]
