"""FLOP rules of primitives, keyed by the primitive's name."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp

from fnopt.costs import _flops as flops
from fnopt.costs._graph import IN_PLACE, VIEWS, Op, names
from fnopt.costs._roofline import Work

Rule = Callable[[Op], Work]

# Primitives without FLOPs: they move, create or name data, or operate on integers or random bits.
_FREE = VIEWS | names("""
    concatenate stack pad iota zeros_like empty empty2 create_token after_all axis_index
    real imag complex
    random_wrap random_unwrap random_seed random_bits random_fold_in random_split random_clone
    threefry2x32 threefry4x32 philox2x32 philox4x32 iota_2x32_shape rng_bit_generator rng_uniform
    shift_left shift_right_arithmetic shift_right_logical population_count clz mulhi
    dynamic_update_slice scatter lu_pivots_to_permutation pbroadcast mesh_cast unvary
    inspect_sharding dce_sink tie
""")
_ELEMENTWISE = names("""
    add add_any sub mul div rem max min neg abs sign floor ceil round square clamp select_n eq
    ne lt le gt ge eq_to lt_to le_to is_finite nextafter and or xor not conj
""")
_TRANSCENDENTAL = names("""
    exp exp2 expm1 log log2 log1p logistic sqrt rsqrt cbrt pow sin cos tan asin acos atan atan2 sinh
    cosh tanh asinh acosh atanh erf erfc erf_inv lgamma digamma polygamma igamma igammac
    igamma_grad_a random_gamma_grad regularized_incomplete_beta bessel_i0e bessel_i1e zeta
""")
_REDUCTIONS = names("""
    reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin
    reduce
""")
_CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin"}
_WINDOWS = {"reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"}

# Real operations per complex operation; 2 for other names. A product takes 4 products and 2 sums. A
# quotient a conj(b) / |b|^2 takes 6 for the product, 3 for |b|^2 and 2 divisions.
_COMPLEX = {"mul": 6, "div": 11, "square": 5, "one_minus_square": 3, "polynomial": 4}


def _arithmetic(op: Op, count: int) -> Work:
    """`count` FLOPs if the dtype is floating, else 0."""
    if not any(jnp.issubdtype(a.dtype, jnp.inexact) for a in [*op.avals, op.out]):
        return Work()
    complex_valued = any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in op.avals)
    return Work(elementwise_flops=count * (_COMPLEX.get(op.name, 2) if complex_valued else 1))


def _integer_pow(op: Op) -> Work:
    y = op.params["y"]
    # Repeated squaring, and one division for a negative power.
    products = abs(y).bit_length() - 1 + abs(y).bit_count() - 1 if y else 0
    return _arithmetic(op, op.out.size * (products + (y < 0)))


def _cumulative(op: Op) -> Work:
    n = op.avals[0].shape[op.params["axis"]]
    return _arithmetic(op, op.avals[0].size // max(n, 1) * max(n - 1, 0))


def _window_size(op: Op) -> int:
    return math.prod(op.params["window_dimensions"])


RULES: dict[str, Rule] = {
    **dict.fromkeys(_FREE, lambda op: Work()),
    **dict.fromkeys(_ELEMENTWISE, lambda op: _arithmetic(op, op.out.size)),
    **dict.fromkeys(_TRANSCENDENTAL, lambda op: Work(transcendentals=op.out.size)),
    **dict.fromkeys(
        _REDUCTIONS, lambda op: _arithmetic(op, max(op.avals[0].size - op.out.size, 0))
    ),
    **dict.fromkeys(_CUMULATIVE, _cumulative),
    **dict.fromkeys(_WINDOWS, lambda op: _arithmetic(op, op.out.size * (_window_size(op) - 1))),
    **dict.fromkeys(
        IN_PLACE - {"dynamic_update_slice", "scatter"},
        lambda op: _arithmetic(op, op.avals[2].size),
    ),
    "integer_pow": _integer_pow,
    "one_minus_square": lambda op: _arithmetic(op, 2 * op.out.size),
    # Horner: one product and one sum for each coefficient after the first.
    "polynomial": lambda op: _arithmetic(op, 2 * op.out.size * (len(op.inputs) - 2)),
    "cumlogsumexp": lambda op: Work(
        elementwise_flops=2 * op.out.size, transcendentals=2 * op.out.size
    ),
    "select_and_gather_add": lambda op: _arithmetic(op, op.out.size * _window_size(op)),
    "select_and_scatter_add": lambda op: _arithmetic(op, op.avals[0].size * _window_size(op)),
    "dot_general": flops.dot_general,
    "ragged_dot_general": flops.ragged_dot_general,
    "conv_general_dilated": flops.conv_general_dilated,
    "cholesky": flops.cholesky,
    "triangular_solve": flops.triangular_solve,
    "lu": flops.lu,
    "qr": flops.qr,
    "geqrf": flops.geqrf,
    "householder_product": flops.householder_product,
    "tridiagonal_solve": flops.tridiagonal_solve,
    "fft": flops.fft,
    "sort": flops.sort,
    "top_k": flops.top_k,
}

# Operations that read and write memory; other operations with a rule are assumed to be fused.
MEMORY_BOUND_BY_ITSELF = names("""
    dot_general ragged_dot_general conv_general_dilated cholesky triangular_solve lu qr geqrf
    householder_product tridiagonal_solve fft sort top_k
""")

_COMMUNICATION = names("""
    psum psum2 psum_invariant psum_scatter reduce_scatter pmax pmin ppermute all_gather
    all_gather_invariant all_gather_reduced all_to_all ragged_all_to_all pgather
""")
_HOST = {"pure_callback", "io_callback", "debug_callback", "debug_print"}
_ITERATIVE = {"eig", "eigh", "svd", "schur", "hessenberg", "tridiagonal"}


def reason_unknown(name: str) -> str:
    """Reason why a primitive has no FLOP rule."""
    if name in _COMMUNICATION:
        return "communication between devices isn't counted"
    if name in _HOST:
        return "it runs on the host"
    if name in _ITERATIVE:
        return "an iterative factorization, whose FLOPs depend on the values"
    if name in {"ffi_call", "custom_call", "pallas_call"}:
        return "a kernel that can't be inspected"
    return "no rule for this primitive"
