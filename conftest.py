"""What every test runs under: CPU, strict dtype promotion, warnings as errors, x64 off.

`FNOPT_TEST_PLATFORM=gpu` (or another of JAX's platforms) runs them there: see `tests.accelerator`.
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

collect_ignore = ["tests/optimizers/torch_rules.py"]  # needs PyTorch, which no test does

PLATFORM = os.environ.get("FNOPT_TEST_PLATFORM", "cpu")
# JAX calls NVIDIA's GPUs "cuda". The CPU stays available beside any accelerator.
NAMES = {"cpu": "cpu", "gpu": "cuda,cpu"}

# Benchmarks are compiled as users compile.
compile_quickly(PLATFORM)

jax.config.update("jax_platforms", NAMES.get(PLATFORM, f"{PLATFORM},cpu"))
jax.config.update("jax_num_cpu_devices", 2)  # so that sharding can be tested
if PLATFORM != "cpu" and jax.default_backend() == "cpu":
    raise RuntimeError(
        f"FNOPT_TEST_PLATFORM={PLATFORM}, but JAX {jax.__version__} finds only the CPU; "
        "install the JAX of that platform, such as jax[cuda13]"
    )


def pytest_collection_finish(session):
    """What is imported and collected stays."""
    collect_rarely()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Deals units of tests that share compiled programs."""
    # Not --dist loadgroup: it marks items in a way that pytest 9.2 doesn't read, without a word.
    from tests.scheduler import Units

    return Units(config, log)


_MAPPINGS = pathlib.Path("/proc/self/maps")
# Of the 65,530 that Linux gives a process by default. Clearing takes seconds, and then what tests
# share is compiled again.
_MOST_MAPPINGS = 35_000


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
def two_devices():
    """Skips a test that runs on two devices where there is one, such as a machine of one GPU."""
    if jax.device_count() < 2:
        pytest.skip(f"needs two devices, and {jax.default_backend()} has {jax.device_count()}")


@pytest.fixture
def x64():
    """Switches 64-bit numbers on for one test."""
    with jax.enable_x64(True):
        yield
