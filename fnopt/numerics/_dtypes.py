"""Shapes and dtypes of leaves, compute dtypes, step counts, and a test for tracers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import partial_eval

_CONFIG: Any = jax.config  # JAX creates its fields at run time


def compute_dtype(*dtypes: Any) -> Any:
    """Dtype for a computation: the common dtype of the operands, at least float32.

    bfloat16 and float16 are widened, because an exponential average with b2 = 0.999 never decays in
    bfloat16, and 1e-8 is zero in float16.

    Args:
        *dtypes: Floating or complex dtypes.

    Returns:
        A NumPy dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.numerics import compute_dtype
        >>> compute_dtype(jnp.bfloat16), compute_dtype(jnp.complex64)
        (dtype('float32'), dtype('complex64'))
    """
    return _compute_dtype(dtypes, _CONFIG.jax_enable_x64)


@functools.cache
def _compute_dtype(dtypes: tuple[Any, ...], x64: bool) -> Any:
    del x64  # `x64` is a cache key, because without it float64 is float32
    # JAX doesn't promote float8 implicitly; float32 represents every float8 number.
    promotable = [jnp.float32 if _is_float8(d) else d for d in dtypes]
    # Operands of a formula may differ in dtype even if the user has enabled strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *promotable)


def wide_dtype(dtype: Any) -> Any:
    """Dtype in which to sum: at least float32 for floating dtypes, unchanged for others."""
    return compute_dtype(dtype) if _is_inexact(dtype) else dtype


def _is_float8(dtype: Any) -> bool:
    dtype = jnp.dtype(dtype)
    return dtype.itemsize == 1 and _is_inexact(dtype)


def real_dtype(dtype: Any) -> Any:
    """Dtype of the real part: float32 for complex64, unchanged for real dtypes."""
    return jnp.finfo(dtype).dtype


def dtype_of(x: Any) -> Any:
    """Dtype of an array or a Python number; faster than `jnp.result_type`."""
    if isinstance(x, (np.ndarray, np.generic)):  # JAX converts float64 to float32 without x64
        return jnp.result_type(x)
    try:
        return x.dtype
    except AttributeError:
        return jnp.result_type(x)


def shape_of(x: Any) -> tuple[int, ...]:
    """Shape of an array or a Python number; faster than `jnp.shape`."""
    try:
        return x.shape
    except AttributeError:
        return jnp.shape(x)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of a shape broadcasts to the target shape."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(n in (1, m) for n, m in pairs)


def default_float() -> Any:
    """JAX's default float dtype: float64 with x64 enabled, otherwise float32."""
    # Callers convert numbers to this dtype, because `jnp.asarray(1e-3)` is weakly typed. A step
    # returns strongly typed arrays, so the second step would be traced again.
    return jnp.dtype(jax.dtypes.canonicalize_dtype(float))


def is_inexact(x: Any) -> bool:
    """Whether a leaf is a floating or complex array, or a Python float or complex number."""
    if isinstance(x, (float, complex)):
        return True
    return hasattr(x, "dtype") and _is_inexact(x.dtype)


def is_array_like(x: Any) -> bool:
    """Whether a leaf is an array or a number (an activation function, for example, is neither)."""
    return hasattr(x, "dtype") or isinstance(x, (bool, int, float, complex))


@functools.cache
def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def safe_increment(count: jax.Array) -> jax.Array:
    """`count + 1`, saturating at the dtype's largest value."""
    # NumPy constants are faster to trace than JAX arrays, and every member of a chain needs both.
    limit, one = np.asarray(jnp.iinfo(count.dtype).max - 1, count.dtype), np.ones((), count.dtype)
    return lax.add(lax.min(count, limit), one)


def zero_count() -> jax.Array:
    """A new step count: a strongly typed int32 scalar."""
    return jnp.zeros((), jnp.int32)


# A private class of JAX. If a release renames the class, `is_traced` returns False: results stay
# correct, but tracing is slower.
_TRACER: Any = getattr(partial_eval, "DynamicJaxprTracer", ())


def is_traced(*arrays: Any) -> bool:
    """Whether any of the arrays belongs to a program that is being traced.

    While a program is traced, every operation becomes an equation, even on concrete numbers. Under
    a `vmap` or a `grad` outside of `jit`, operations run eagerly, and the result is False.
    """
    for x in arrays:  # noqa: SIM110  (faster than `any`; an eager update calls it for every member)
        if isinstance(x, _TRACER):
            return True
    return False
