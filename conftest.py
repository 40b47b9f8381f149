"""What every test runs under: CPU, strict dtype promotion, warnings as errors, x64 off."""

import gc
import os
import pathlib

import jax
import jax.export
import pytest

if not hasattr(jax, "enable_x64"):  # before JAX 0.8
    from jax.experimental import enable_x64

    jax.enable_x64 = enable_x64

# Nearly all of a test's time is compilation, of a program that runs once: XLA's older emitters and
# no optimization take 40 % of it. JAX 0.11 knows only one kind of emitters. The documentation, the
# benchmarks and the two ends of the versions (Makefile) are compiled as users compile.
if "XLA_FLAGS" not in os.environ and jax.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
        " --xla_llvm_disable_expensive_passes=true"
    )

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)  # so that sharding can be tested


_MAPPINGS = pathlib.Path("/proc/self/maps")
_MOST_MAPPINGS = 20_000  # of the 65,530 that Linux gives a process by default


@pytest.fixture(autouse=True, scope="module")
def _bounded_number_of_programs():
    # Thousands of compiled programs would need more memory mappings than a process may have.
    yield
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > _MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def _strict_promotion():
    # The library casts every hyper-parameter itself, so nothing may rely on implicit promotion.
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    import jax.numpy as jnp

    import fnopt

    doctest_namespace.update(jax=jax, jnp=jnp, fnopt=fnopt)


@pytest.fixture
def x64():
    """Switches 64-bit numbers on for one test."""
    with jax.enable_x64(True):
        yield
