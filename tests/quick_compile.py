"""Compilation for programs that run once: tests, pages that measure nothing, smoke runs.

Nearly all of their time is compilation: XLA's older emitters and no optimization take a third to
a half of it. JAX 0.11 knows only one kind of emitters, and refuses to hear of the other.
"""

from __future__ import annotations

import os

import jax

FLAGS = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true"
)


def compile_quickly() -> None:
    """Sets the flags for this process and those that it starts, unless somebody has set others."""
    if "XLA_FLAGS" not in os.environ and jax.__version_info__ < (0, 11):
        os.environ["XLA_FLAGS"] = FLAGS
