"""What every test runs under: CPU, strict dtype promotion, warnings as errors, x64 off."""

import jax
import pytest

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)  # so that sharding can be tested


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
