"""Tracing and compilation for programs that run once: tests, pages, smoke runs.

Nearly all of their time is compilation. No optimization, XLA's older emitters and one module for
LLVM instead of a module for each processor take a third to a half of it, and an MLIR context that
many programs share (making one registers all dialects) most of what is left for the
programs of a single operation, of which a run has thousands.
"""

from __future__ import annotations

import gc
import os
import threading

import jax

FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
# A context keeps the constants and places of all its programs, so it isn't kept for ever.
_PROGRAMS = 200
# JAX 0.11 knows only one kind of emitters, and refuses to hear of the other.
OLD_EMITTERS = " --xla_cpu_use_fusion_emitters=false"


# Without timing the algorithms of every product.
GPU_FLAGS = "--xla_gpu_autotune_level=0"


def compile_quickly(platform: str = "cpu") -> None:
    """Sets the flags for this process and those that it starts, unless somebody has set others."""
    if "XLA_FLAGS" not in os.environ:
        old = jax.__version_info__ < (0, 11)
        cpu = FLAGS + OLD_EMITTERS * old
        flags = {"cpu": cpu, "gpu": GPU_FLAGS}.get(platform)
        if flags:
            os.environ["XLA_FLAGS"] = flags
    _share_contexts()


def collect_rarely() -> None:
    """Garbage collection when there is something to collect; not of what is there now.

    Tracing makes objects by the million, nearly all of which go by their counts of references: the
    collector looked at them, and at all imported modules, for a fourteenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def _share_contexts() -> None:
    """An MLIR context for some hundred programs, as JAX 0.12 has one for ten by itself."""
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir

        make, owned = mlir.make_ir_context, threading.local()
    except (ImportError, AttributeError):
        return  # as slow as before

    def lowering() -> bool:
        try:
            return ir.Context.current is not None
        except ValueError:
            return False

    def shared() -> object:
        # One program may be compiled while another is lowered: in the same context its parts would
        # end up inside of the other. And a page that takes the flags back measures what users have.
        if lowering() or "XLA_FLAGS" not in os.environ:
            return make()
        left = getattr(owned, "left", 0)
        if not left:
            owned.context, left = make(), _PROGRAMS
        owned.left = left - 1
        return owned.context

    mlir.make_ir_context = shared
