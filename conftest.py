"""Configuration of all tests: CPU, strict dtype promotion, warnings as errors, x64 off.

`FNOPT_TEST_PLATFORM=gpu` (or another platform of JAX) selects another platform: see
`tests.accelerator`.
"""

import gc
import os
import pathlib

import jax
import jax.export
import pytest

from tests.quick_compile import collect_rarely, compile_quickly

if not hasattr(jax, "enable_x64"):  # before JAX 0.8
    from jax.experimental import enable_x64

    jax.enable_x64 = enable_x64

collect_ignore = ["tests/optimizers/torch_rules.py"]  # needs PyTorch, which isn't a dependency

PLATFORM = os.environ.get("FNOPT_TEST_PLATFORM", "cpu")
# JAX's name for NVIDIA's GPUs is "cuda". The CPU stays available with any accelerator.
NAMES = {"cpu": "cpu", "gpu": "cuda,cpu"}

# Tests only; benchmarks use XLA's default flags.
compile_quickly(PLATFORM)

jax.config.update("jax_platforms", NAMES.get(PLATFORM, f"{PLATFORM},cpu"))
jax.config.update("jax_num_cpu_devices", 2)  # so that sharding can be tested
if PLATFORM != "cpu" and jax.default_backend() == "cpu":
    raise RuntimeError(
        f"FNOPT_TEST_PLATFORM={PLATFORM}, but JAX {jax.__version__} finds only the CPU; "
        "install the JAX of that platform, such as jax[cuda13]"
    )


def pytest_collection_finish(session):
    """Exclude the imported modules and collected tests from garbage collection."""
    collect_rarely()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distribute units of tests that share compiled programs."""
    # pytest 9.2 silently ignores the marks of --dist loadgroup.
    from tests.scheduler import Units

    return Units(config, log)


_MAPPINGS = pathlib.Path("/proc/self/maps")
# About half of the 65,530 mappings of a process in Linux. Tests recompile shared programs after the
# caches are cleared, so a lower limit would cost time.
_MAX_MAPPINGS = 35_000


@pytest.fixture(autouse=True, scope="module")
def _bounded_number_of_programs():
    # Thousands of compiled programs would exceed the limit of memory mappings of a process.
    yield
    if _MAPPINGS.exists() and _MAPPINGS.read_bytes().count(b"\n") > _MAX_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def _strict_promotion():
    # The library casts every hyper-parameter explicitly, and must not rely on implicit promotion.
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    import jax.numpy as jnp

    import fnopt

    doctest_namespace.update(jax=jax, jnp=jnp, fnopt=fnopt)


@pytest.fixture
def two_devices():
    """Skip a test that needs two devices if there is only one."""
    if jax.device_count() < 2:
        pytest.skip(f"needs two devices, and {jax.default_backend()} has {jax.device_count()}")


@pytest.fixture
def x64():
    """Enable 64-bit numbers for one test."""
    with jax.enable_x64(True):
        yield
