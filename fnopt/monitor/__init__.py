"""Looking at training without changing it: the health of gradients, and what a step costs."""

from fnopt.monitor._exponents import histogram_edges
from fnopt.monitor._flags import Flag, FlagReport, FlagState, health_flags
from fnopt.monitor._health import Health, health

__all__ = [
    "Flag",
    "FlagReport",
    "FlagState",
    "Health",
    "health",
    "health_flags",
    "histogram_edges",
]
