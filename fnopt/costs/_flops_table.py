"""The FLOPs of each primitive: one table from its name to a rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fnopt.costs import _flops as flops
from fnopt.costs._graph import IN_PLACE, VIEWS, Op, names
from fnopt.costs._work import Work

Rule = Callable[[Op], Work]

# Moves, makes or names data, or works on whole numbers and random bits only.
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

# A complex operation in real ones.
_COMPLEX = {"mul": 6, "div": 11, "square": 5, "one_minus_square": 3, "polynomial": 4}


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _arithmetic(op: Op, count: int) -> Work:
    """`count` operations, if they are on floating-point numbers."""
    if not any(_is_float(a) for a in [*op.avals, op.out]):
        return Work()
    complex_valued = any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in op.avals)
    return Work(elementwise_flops=count * (_COMPLEX.get(op.name, 2) if complex_valued else 1))


def _free(op: Op) -> Work:
    del op
    return Work()


def _elementwise(op: Op) -> Work:
    return _arithmetic(op, op.out.size)


def _transcendental(op: Op) -> Work:
    return Work(transcendentals=op.out.size)


def _integer_pow(op: Op) -> Work:
    y = op.params["y"]
    # By repeated squaring, and one division for a negative power.
    products = abs(y).bit_length() - 1 + abs(y).bit_count() - 1 if y else 0
    return _arithmetic(op, op.out.size * (products + (y < 0)))


def _one_minus_square(op: Op) -> Work:
    return _arithmetic(op, 2 * op.out.size)


def _polynomial(op: Op) -> Work:
    # Horner: one product and one sum for each coefficient after the first.
    return _arithmetic(op, 2 * op.out.size * (len(op.inputs) - 2))


def _reduction(op: Op) -> Work:
    return _arithmetic(op, max(op.avals[0].size - op.out.size, 0))


def _cumulative(op: Op) -> Work:
    n = op.avals[0].shape[op.params["axis"]]
    return _arithmetic(op, op.avals[0].size // max(n, 1) * max(n - 1, 0))


def _cumulative_logsumexp(op: Op) -> Work:
    return Work(elementwise_flops=2 * op.out.size, transcendentals=2 * op.out.size)


def _window(op: Op) -> Work:
    return _arithmetic(op, op.out.size * (math.prod(op.params["window_dimensions"]) - 1))


def _window_gather(op: Op) -> Work:
    return _arithmetic(op, op.out.size * math.prod(op.params["window_dimensions"]))


def _window_scatter(op: Op) -> Work:
    source = op.avals[0].size
    return _arithmetic(op, source * math.prod(op.params["window_dimensions"]))


def _scatter(op: Op) -> Work:
    return _arithmetic(op, op.avals[2].size)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_FREE, _free),
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_TRANSCENDENTAL, _transcendental),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(_CUMULATIVE, _cumulative),
    **dict.fromkeys(_WINDOWS, _window),
    **dict.fromkeys(IN_PLACE - {"dynamic_update_slice", "scatter"}, _scatter),
    "integer_pow": _integer_pow,
    "one_minus_square": _one_minus_square,
    "polynomial": _polynomial,
    "cumlogsumexp": _cumulative_logsumexp,
    "select_and_gather_add": _window_gather,
    "select_and_scatter_add": _window_scatter,
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

# These read and write memory of their own; everything else is thought of as fused into them.
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
    """Why a primitive has no rule."""
    if name in _COMMUNICATION:
        return "communication between devices isn't counted"
    if name in _HOST:
        return "it runs on the host"
    if name in _ITERATIVE:
        return "an iterative factorisation, whose work depends on the numbers"
    if name in {"ffi_call", "custom_call", "pallas_call"}:
        return "a kernel that can't be looked into"
    return "no rule for this primitive"
