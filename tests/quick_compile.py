"""Reduce the compile time of programs that run once: tests, documentation pages, smoke runs.

Compilation takes nearly all of the time of these programs. Three settings save a third to a half of
this time: no optimization, XLA's older emitters, and one LLVM module instead of one per processor.
A run compiles thousands of programs with a single operation, for which a new MLIR context is
expensive, because it registers all dialects. Therefore many programs share one context.
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
# Programs per context. A context stores constants and locations of its programs and never frees
# them, so a context for all programs would need too much memory.
_PROGRAMS = 200
# JAX 0.11 has only one kind of emitters, and XLA raises an error for unknown flags.
OLD_EMITTERS = " --xla_cpu_use_fusion_emitters=false"


# Don't time the algorithms of every matrix product.
GPU_FLAGS = "--xla_gpu_autotune_level=0"


def compile_quickly(platform: str = "cpu") -> None:
    """Set the flags for this process and its child processes, unless XLA_FLAGS is set."""
    if "XLA_FLAGS" not in os.environ:
        old = jax.__version_info__ < (0, 11)
        cpu = FLAGS + OLD_EMITTERS * old
        flags = {"cpu": cpu, "gpu": GPU_FLAGS}.get(platform)
        if flags:
            os.environ["XLA_FLAGS"] = flags
    _share_contexts()


def collect_rarely() -> None:
    """Run the garbage collector less often, and exclude all existing objects.

    Tracing creates millions of objects, and reference counts free nearly all of them. With the
    default thresholds, the collector took a fourteenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def _share_contexts() -> None:
    """Share an MLIR context between `_PROGRAMS` programs; JAX 0.12 shares one between ten."""
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir

        make, local = mlir.make_ir_context, threading.local()
    except (ImportError, AttributeError):
        return  # this version of JAX has other internals, so compilation isn't faster

    def lowering() -> bool:
        try:
            return ir.Context.current is not None
        except ValueError:
            return False

    def shared() -> object:
        # JAX may compile a program while it lowers another program. In a shared context, operations
        # of the first program would become part of the second. Pages that remove the flags measure
        # times, so they use JAX's own contexts.
        if lowering() or "XLA_FLAGS" not in os.environ:
            return make()
        remaining = getattr(local, "remaining", 0)
        if not remaining:
            local.context, remaining = make(), _PROGRAMS
        local.remaining = remaining - 1
        return local.context

    mlir.make_ir_context = shared
