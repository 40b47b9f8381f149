"""Every rule over the parameters of its primitive, against the nonzeros of dense Jacobians."""

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import sparse
from jax.extend import core as jex
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard

import fnopt
from fnopt.jacobians.dependence import RULES, dependence
from fnopt.programs import jaxprs

N = 24
POINTS = tuple(jnp.cos(jnp.arange(k, k + 3 * N, 3.0)) + 0.1 * k for k in (1, 8))
FILL, CLIP, PROMISE = (
    getattr(lax.GatherScatterMode, name) for name in ("FILL_OR_DROP", "CLIP", "PROMISE_IN_BOUNDS")
)
W = np.linspace(0.5, 2.5, 64, dtype=np.float32)
HOLES = np.where(np.arange(64) % 3 == 0, 0, W).astype(np.float32)  # a matrix with zeros
EYE = np.eye(3, dtype=np.float32)
LOWER = np.tril(W[:9].reshape(3, 3)) + EYE
ON_EXPLICIT_MESH = NamedSharding(
    jax.make_mesh((1,), ("d",), devices=jax.devices()[:1], axis_types=(AxisType.Explicit,)),
    PartitionSpec("d"),
)


def at(shape, fn, *others):
    """A function of the vector whose first elements are an array of this shape."""
    return lambda x: fn(x[: math.prod(shape)].reshape(shape), *others)


def of(values, *shape):
    return values[: math.prod(shape)].reshape(shape)


def gathered(shape, indices, sizes, mode, **numbers):
    numbers = lax.GatherDimensionNumbers(**numbers)
    indices = np.asarray(indices)
    return at(shape, lambda a: lax.gather(a, indices, numbers, sizes, mode=mode))


def scattered(name, shape, indices, updates, mode, unique, **numbers):
    numbers = lax.ScatterDimensionNumbers(**numbers)
    indices, size = np.asarray(indices), math.prod(shape)

    def fn(x):
        a, b = of(x, *shape), x[size : size + math.prod(updates)].reshape(updates)
        return getattr(lax, name)(a, indices, b, numbers, mode=mode, unique_indices=unique)

    return fn


def scatters(name, unique=False):
    rows = {
        "update_window_dims": (1,),
        "inserted_window_dims": (0,),
        "scatter_dims_to_operand_dims": (0,),
    }
    batched = {
        "update_window_dims": (),
        "inserted_window_dims": (1,),
        "scatter_dims_to_operand_dims": (1,),
        "operand_batching_dims": (0,),
        "scatter_indices_batching_dims": (0,),
    }
    repeated = [[2], [0]] if unique else [[2], [2]]
    return [
        scattered(name, (4, 3), repeated, (2, 3), CLIP, unique, **rows),
        scattered(name, (4, 3), [[9], [1]], (2, 3), FILL, unique, **rows),
        scattered(name, (4, 3), [[9], [1]], (2, 3), CLIP, unique, **rows),
        scattered(name, (2, 4), [[1], [3]], (2,), PROMISE, unique, **batched),
    ]


def conv(shape, kernel, strides=(1, 1), padding=((0, 0), (0, 0)), weights=W, **options):
    return at(
        shape,
        lambda a: lax.conv_general_dilated(a, of(weights, *kernel), strides, padding, **options),
    )


def by_kernel(shape, image, **options):
    return at(
        shape,
        lambda k: lax.conv_general_dilated(of(W, *image), k, (1, 1), ((0, 1), (0, 0)), **options),
    )


def window(size, strides, padding, base=(1, 1), dilation=(1, 1), init=0.0, op=lax.add):
    options = {"base_dilation": base, "window_dilation": dilation}
    return at((4, 5), lambda a: lax.reduce_window(a, init, op, size, strides, padding, **options))


def largest_backwards(size, strides, padding):
    """The derivative of max-pooling by reverse mode, as a function of what comes back."""

    def fn(x):
        image = of(np.cos(W), 4, 5)
        _, pull = jax.vjp(
            lambda a: lax.reduce_window(a, -np.inf, lax.max, size, strides, padding), image
        )
        shape = jax.eval_shape(
            lambda a: lax.reduce_window(a, -np.inf, lax.max, size, strides, padding), image
        ).shape
        return pull(of(x, *shape))[0]

    return fn


def product(shape, other, numbers, weights=W, swapped=False):
    def fn(a):
        b = of(weights, *other)
        return lax.dot_general(b, a, numbers) if swapped else lax.dot_general(a, b, numbers)

    return at(shape, fn)


def triangular(shape, **options):
    a = LOWER if options.get("lower") else LOWER.T
    return at(shape, lambda b: lax.linalg.triangular_solve(a, b, **options))


def solve(x, structure=None):
    a = np.stack(
        [
            W[:4].reshape(2, 2) + 2 * np.eye(2, dtype=np.float32),
            W[3:7].reshape(2, 2) - 3 * np.eye(2, dtype=np.float32),
        ]
    )
    return jnp.linalg.solve(a, of(x, 2, 2, 3))


def bcoo(dense, batch=0):
    return sparse.BCOO.fromdense(dense, n_batch=batch)


SPARSE, BATCH = bcoo(of(HOLES, 5, 6)), bcoo(of(HOLES, 2, 3, 4), 1)
BY_ROWS = sparse.BCSR.fromdense(of(HOLES, 5, 6))
OF_ROWS = sparse.BCOO.fromdense(of(HOLES, 4, 6), n_dense=1)
ROWS_OF_BATCH = sparse.BCSR.fromdense(of(HOLES, 2, 3, 4), n_batch=1)
PAIR = jnp.asarray([1, 0])


def turned(x):
    return lax.complex(x, 2 * x)


def unknown(x, index):
    """Indices that depend on numbers."""
    return index + jnp.argmax(x[:1])


WINDOWS = [
    ((2, 2), (1, 1), ((0, 0), (0, 0))),
    ((2, 3), (2, 1), ((1, 0), (0, 2))),
    ((1, 2), (3, 2), ((0, 1), (1, 1))),
]
NUMBERS = lax.ConvDimensionNumbers
EXACT = {
    "add": [lambda x: x[:4] + x[4:8]],
    "sub": [lambda x: x[:4] - x[4:8]],
    "neg": [lambda x: -x],
    "div": [lambda x: x / W[:N]],
    "real": [lambda x: jnp.real(turned(x[:3]))],
    "imag": [lambda x: jnp.imag(turned(x[:3]))],
    "conj": [lambda x: jnp.conj(turned(x[:3]))],
    "convert_element_type": [lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)],
    "reduce_precision": [lambda x: lax.reduce_precision(x, 6, 9)],
    "copy": [jnp.copy],
    "name": [lambda x: checkpoint_name(x, "here")],
    "optimization_barrier": [lambda x: lax.optimization_barrier((x[:3], x[2:]))[1]],
    "device_put": [lambda x: jax.device_put(x, jax.devices()[0])],
    "sharding_constraint": [
        lambda x: lax.with_sharding_constraint(
            x, jax.sharding.SingleDeviceSharding(jax.devices()[0])
        )
    ],
    "reshard": [lambda x: reshard(x, ON_EXPLICIT_MESH)],
    "mul": [lambda x: x * HOLES[:N]],
    "select_n": [
        lambda x: jnp.where(np.arange(12) % 5 > 1, x[:12], x[12:]),
        lambda x: lax.select_n(np.arange(6) % 3, x[:6], x[6:12], x[12:18]),
        lambda x: lax.select_n(jnp.asarray(True), x[:6], x[6:12]),
    ],
    "pad": [
        at((3, 4), lambda a: lax.pad(a, jnp.float32(0), [(1, 2, 0), (0, 0, 2)])),
        at((3, 4), lambda a: lax.pad(a, a[0, 0], [(-1, 1, 1), (2, -3, 1)])),
        at((3, 4), lambda a: lax.pad(a, jnp.float32(0), [(-1, -1, 0), (-2, -1, 0)])),
    ],
    "reshape": [
        at((2, 4), lambda a: a.ravel(order="F")),
        at((2, 3, 4), lambda a: a.reshape(4, 6, order="F")),
        at((2, 3, 4), lambda a: lax.reshape(a, (4, 6), (1, 2, 0))),
        at((2, 3, 4), lambda a: lax.reshape(a, (6, 4))),
        at((2, 4), lambda a: a.prod(1)),
    ],
    "squeeze": [at((2, 1, 3, 1), lambda a, d=d: lax.squeeze(a, d)) for d in ((1,), (1, 3))],
    "broadcast_in_dim": [
        at((2, 3), lambda a: lax.broadcast_in_dim(a, (2, 4, 3), (0, 2))),
        at((2, 3), lambda a: lax.broadcast_in_dim(a, (4, 2, 3), (1, 2))),
        at((2, 1), lambda a: lax.broadcast_in_dim(a, (2, 3), (0, 1))),
    ],
    "transpose": [at((2, 3, 4), lambda a, p=p: a.transpose(p)) for p in ((1, 2, 0), (0, 2, 1))],
    "rev": [at((2, 3, 4), lambda a, d=d: lax.rev(a, d)) for d in ((1,), (0, 2))],
    "slice": [
        at((5, 4), lambda a: lax.slice(a, (1, 0), (5, 3), (2, 1))),
        at((5, 4), lambda a: lax.slice(a, (0, 1), (3, 4))),
    ],
    "concatenate": [at((2, 3), lambda a, d=d: lax.concatenate([a, a[::-1]], d)) for d in (0, 1)],
    "split": [
        at((5, 4), lambda a: lax.split(a, (1, 3, 1), 0)[1]),
        at((5, 4), lambda a: lax.split(a, (1, 3), 1)[::-1]),
    ],
    "stack": [at((2, 3), lambda a, k=k: jnp.stack([a, a[::-1], a], k)) for k in (0, 1, 2)],
    "unstack": [at((2, 3, 4), lambda a, k=k: jnp.unstack(a, axis=k)[::-1]) for k in (0, 1, 2)],
    "tile": [at((2, 3), lambda a, r=r: jnp.tile(a, r)) for r in ((1, 2), (3, 2))],
    "dynamic_slice": [
        at((4, 5), lambda a: lax.dynamic_slice(a, (1, 9), (2, 3))),
        at((4, 5), lambda a: lax.dynamic_slice(a, (-7, 1), (1, 4))),
        at((4, 5), lambda a: lax.dynamic_slice(a, (2, unknown(a, 1)), (2, 5))),
    ],
    "dynamic_update_slice": [
        lambda x: lax.dynamic_update_slice(of(x, 3, 4), x[12:16].reshape(2, 2), (5, 1)),
        lambda x: lax.dynamic_update_slice(of(x, 3, 4), x[12:20].reshape(2, 4), (1, 0)),
    ],
    "gather": [
        gathered(
            (4, 3),
            [[2], [2], [9]],
            (1, 3),
            mode,
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        )
        for mode in (FILL, CLIP)
    ]
    + [
        gathered(
            (4, 5),
            [[2, 0], [1, 3]],
            (2, 1),
            CLIP,
            offset_dims=(0,),
            collapsed_slice_dims=(1,),
            start_index_map=(1, 0),
        ),
        gathered(
            (2, 4, 3),
            [[[1], [3]], [[0], [0]]],
            (1, 1, 3),
            PROMISE,
            offset_dims=(2,),
            collapsed_slice_dims=(1,),
            start_index_map=(1,),
            operand_batching_dims=(0,),
            start_indices_batching_dims=(0,),
        ),
        lambda x: x[np.asarray([-1, 3, 3])],
    ],
    "scatter": [
        *scatters("scatter", True),
        lambda x: x.at[PAIR].set(x[2:4] ** 2, unique_indices=True),
    ],
    "scatter-add": scatters("scatter_add"),
    "scatter-sub": scatters("scatter_sub"),
    "scatter-mul": [
        at(
            (4, 3),
            lambda a, mode=mode: a.at[np.asarray([1, 9])].multiply(
                2 * np.ones((2, 3), np.float32), unique_indices=True, mode=mode
            ),
        )
        for mode in ("drop", "clip")
    ]
    + [at((4, 3), lambda a: a.at[:, np.asarray([1, 2])].multiply(2.0, unique_indices=True))],
    "reduce_sum": [at((2, 3, 4), lambda a, k=k: jnp.sum(a, k)) for k in ((1,), (0, 2), (0, 1, 2))],
    "cumsum": [
        at((3, 4), lambda a, k=k, r=r: lax.cumsum(a, k, r)) for k in (0, 1) for r in (False, True)
    ],
    "dot_general": [
        product((2, 3), (3, 4), (((1,), (0,)), ((), ()))),
        product((2, 3), (3, 4), (((1,), (0,)), ((), ())), HOLES),
        product((2, 3, 4), (4, 2, 5), (((2,), (0,)), ((0,), (1,))), HOLES),
        product((2, 3, 4), (5, 3, 4), (((2, 1), (2, 1)), ((), ())), HOLES),
        product((2, 3, 4), (4, 2, 5), (((1,), (0,)), ((0,), (2,))), HOLES, True),
        product((4, 2, 3), (2, 4, 2), (((2,), (1,)), ((1,), (0,))), W, True),
        product((2, 3), (2,), (((), ()), ((0,), (0,))), W),
    ],
    "fft": [
        at((2, 3, 4), lambda a: jnp.fft.ifft(turned(a), axis=1)),
        at((2, 2, 3), lambda a: jnp.fft.fft2(turned(a))),
    ],
    "conv_general_dilated": [
        conv((1, 2, 4, 3), (3, 2, 2, 2)),
        conv((2, 1, 4, 3), (1, 1, 2, 3), (2, 1), ((1, 1), (2, -1)), HOLES),
        conv((1, 2, 4, 3), (4, 1, 2, 2), rhs_dilation=(2, 1), feature_group_count=2),
        conv((1, 1, 3, 4), (2, 1, 2, 2), lhs_dilation=(2, 1), padding=((0, 1), (-1, 0))),
        conv((4, 3, 2), (2, 2, 2), (1,), ((0, 1),), dimension_numbers=("NHC", "HIO", "NHC")),
        conv((4, 3, 2), (2, 2, 2), (1,), ((0, 1),), dimension_numbers=("HNC", "OIH", "CHN")),
    ],
    "reduce_window_sum": [window(*w) for w in WINDOWS]
    + [window((2, 2), (1, 2), ((0, 1), (-1, 1)), (2, 1), (1, 2))],
    "select_and_scatter_add": [],
    "triangular_solve": [
        triangular((3, 2), left_side=True, lower=True),
        triangular((2, 3), left_side=False, lower=True),
        triangular((3, 2), left_side=True, lower=False, transpose_a=True),
        triangular((2, 3), left_side=False, lower=False, transpose_a=True),
        triangular((3, 2), left_side=True, lower=True, transpose_a=True),
        triangular((2, 3), left_side=False, lower=False),
        at(
            (2, 3, 2),
            lambda b: lax.linalg.triangular_solve(
                np.stack([LOWER, LOWER]), b, left_side=True, lower=True
            ),
        ),
    ],
    "tridiagonal_solve": [
        at(
            (4, 3),
            lambda b: lax.linalg.tridiagonal_solve(
                W[:4] * (np.arange(4) > 0), 5 + W[:4], W[:4] * (np.arange(4) < 3), b
            ),
        )
    ],
    "custom_linear_solve": [
        solve,
        at(
            (2, 3),
            lambda b: lax.custom_linear_solve(
                lambda v: 2 * v, b, lambda _, c: c / 2, symmetric=True
            ),
        ),
    ],
    "bcoo_dot_general": [
        lambda x: SPARSE @ x[:6],
        lambda x: SPARSE @ of(x, 6, 3),
        lambda x: of(x, 4, 5) @ SPARSE,
        at((4, 6), lambda a: SPARSE @ a.T),
        at((4, 6), jax.vmap(lambda row: SPARSE @ row)),
        lambda x: sparse.BCOO((x[: SPARSE.nse], SPARSE.indices), shape=SPARSE.shape) @ W[:6],
        lambda x: sparse.bcoo_dot_general(
            BATCH, of(x, 2, 4), dimension_numbers=(((2,), (1,)), ((0,), (0,)))
        ),
        lambda x: sparse.bcoo_dot_general(
            BATCH, of(x, 2, 3, 2), dimension_numbers=(((1,), (1,)), ((0,), (0,)))
        ),
        lambda x: sparse.bcoo_dot_general(
            BATCH, of(x, 3, 2), dimension_numbers=(((0, 1), (1, 0)), ((), ()))
        ),
    ],
    "bcsr_dot_general": [
        lambda x: BY_ROWS @ x[:6],
        lambda x: BY_ROWS @ of(x, 6, 3),
        at((4, 6), jax.vmap(lambda row: BY_ROWS @ row)),
        lambda x: sparse.bcsr_dot_general(
            ROWS_OF_BATCH, of(x, 2, 4), dimension_numbers=(((2,), (1,)), ((0,), (0,)))
        ),
    ],
    "bcoo_todense": [
        lambda x: sparse.BCOO((x[: SPARSE.nse], SPARSE.indices), shape=SPARSE.shape).todense(),
        lambda x: sparse.BCOO(
            (x[: BATCH.data.size].reshape(BATCH.data.shape), BATCH.indices), shape=BATCH.shape
        ).todense(),
    ],
    "bcsr_todense": [
        lambda x: sparse.BCSR(
            (x[: BY_ROWS.nse], BY_ROWS.indices, BY_ROWS.indptr), shape=BY_ROWS.shape
        ).todense(),
    ],
    "add_any": [lambda x: jax.grad(lambda y: jnp.sum(y[1:] * y[:-1]))(x)],
}
LOOSE = {
    "fft": [at((2, 3, 4), lambda a: jnp.fft.rfft(a))],
    "complex": [lambda x: lax.complex(x[:3], x[3:6])],
    "mul": [lambda x: x * x[0]],
    "select_n": [lambda x: jnp.where(x > 0, x, x[::-1])],
    "dynamic_slice": [at((4, 5), lambda a: lax.dynamic_slice(a, (unknown(a, 2), 1), (1, 2)))],
    "dynamic_update_slice": [
        lambda x: lax.dynamic_update_slice(of(x, 3, 4), x[12:16].reshape(2, 2), (1, unknown(x, 1)))
    ],
    "gather": [
        lambda x: of(x, 4, 6)[unknown(x, PAIR)],
        lambda x: jnp.sort(of(x, 4, 6), 1),
        lambda x: jnp.take_along_axis(of(x, 4, 6), jnp.argsort(of(x, 4, 6), 0), 0),
        lambda x: lax.top_k(of(x, 4, 6), 2)[0],
    ],
    "scatter": [
        *scatters("scatter"),
        lambda x: of(x, 4, 6).at[unknown(x, PAIR)].set(x[:12].reshape(2, 6)),
    ],
    "scatter-add": [lambda x: of(x, 4, 6).at[:, unknown(x, PAIR)].add(x[:8].reshape(4, 2))],
    "select_and_gather_add": [window(*w, init=-np.inf, op=lax.max) for w in WINDOWS]
    + [window((2, 2), (1, 2), ((0, 1), (1, 1)), (2, 1), (1, 2), -np.inf, lax.max)],
    "select_and_scatter_add": [largest_backwards(*w) for w in WINDOWS],
    "conv_general_dilated": [
        by_kernel((4, 1, 2, 2), (2, 1, 4, 3), batch_group_count=2),
        by_kernel((4, 1, 2, 2), (1, 2, 4, 3), feature_group_count=2),
        by_kernel((3, 2, 2, 2), (1, 2, 4, 3)),
        conv((4, 1, 3, 2), (2, 1, 2, 2), batch_group_count=2),
    ],
    "bcoo_dot_general": [  # entries that are rows
        lambda x: sparse.bcoo_dot_general(
            OF_ROWS, x[:4], dimension_numbers=(((0,), (0,)), ((), ()))
        ),
    ],
}
CASES = {name: EXACT.get(name, []) + LOOSE.get(name, []) for name in EXACT | LOOSE}


def outputs(fn):
    return sum(
        a.size * (1 + jnp.iscomplexobj(a)) for a in jax.tree.leaves(jax.eval_shape(fn, POINTS[0]))
    )


@pytest.fixture(scope="module")
def nonzeros():
    """Where the Jacobian of each function has entries at some point: all in one program."""
    flat = [fn for fns in CASES.values() for fn in fns]
    dense = jax.jit(fnopt.jacobian(lambda x: [fn(x) for fn in flat], form="matrix", mode="forward"))
    there = np.any([np.asarray(dense(x)) != 0 for x in POINTS], axis=0)
    parts = np.split(there, np.cumsum([outputs(fn) for fn in flat])[:-1])
    return {id(fn): part for fn, part in zip(flat, parts, strict=True)}


def tangent_program(fn):
    return jax.make_jaxpr(lambda x, v: jax.jvp(fn, (x,), (v,))[1])(POINTS[0], POINTS[0])


def pattern(fn, shape):
    P = np.zeros(shape, bool)
    P[fnopt.sparsity_pattern(fn)(POINTS[0])] = True
    return P


@pytest.mark.parametrize("name", list(CASES))
def test_a_rule_holds_all_entries_whatever_the_parameters(nonzeros, name):
    for k, fn in enumerate(CASES[name]):
        want = nonzeros[id(fn)]
        got = pattern(fn, want.shape)
        assert not np.any(want & ~got), f"{name}, case {k}: lacks {np.argwhere(want & ~got)[:5]}"
        if fn in EXACT.get(name, []):
            np.testing.assert_array_equal(got, want, f"{name}, case {k}")


def met(name):
    """The equations of a primitive in the programs of its cases."""
    programs = [tangent_program(fn).jaxpr for fn in CASES[name]]
    return [e for p in programs for e in jaxprs.equations(p) if e.primitive.name == name]


# Never more than one value: programs, which differ anyway.
ONE_VALUE = {"custom_linear_solve": {"jaxprs"}, "scatter-mul": {"mode"}}
# Of older JAX, or fnopt's own.
UNMET = {"copy_p", "expand_dims", "tap"}


@pytest.mark.parametrize("name", sorted(RULES.keys() - UNMET))
def test_the_sweep_meets_every_parameter_that_a_rule_reads(name):
    equations = met(name)
    assert equations, f"no case has {name}"
    assert all(RULES[name].knows(eqn) for eqn in equations)
    for param in RULES[name].reads - ONE_VALUE.get(name, set()):
        values = {str(eqn.params[param]) for eqn in equations}
        assert len(values) > 1, f"{name} always has {param} = {values}"


def with_param(fn, name, **params):
    """The tangent program of a function, with other parameters of a primitive."""
    closed = tangent_program(fn)
    eqns = [
        e.replace(params={k: v for k, v in {**e.params, **params}.items() if v != "gone"})
        if e.primitive.name == name
        else e
        for e in closed.jaxpr.eqns
    ]
    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=eqns), closed.consts)


@pytest.mark.parametrize(
    ("params", "entries"),
    [
        ({}, N),
        ({"flavour": None}, N),
        ({"flavour": "new"}, N * N),
        ({"permutation": "gone"}, N * N),
    ],
)
def test_a_parameter_that_a_rule_does_not_know_mixes_all(params, entries):
    program = with_param(at((4, 6), jnp.transpose), "transpose", **params)
    sets, (ids,) = dependence(program, N)
    assert sets.entries(ids) == entries


def test_a_rule_sees_only_what_it_says_that_it_reads():
    (eqn,) = met("transpose")[:1]
    seen = []
    rule = RULES["transpose"]._replace(derive=lambda sets, op, inputs: seen.append(op.params) or [])
    rule._replace(reads=frozenset())(None, eqn, [], None)
    assert seen == [{}]


# Linear primitives without a rule: their inputs mix. Whoever adds one here says why.
MIXED = {
    "between devices": (
        "all_gather all_gather_invariant all_gather_reduced all_to_all pbroadcast "
        "pbroadcast_dynamic ppermute preduced psum psum_invariant pvary ragged_all_to_all "
        "reduce_scatter reduced_vary_cast reduced_vary_cast_p unreduced_psum "
        "unreduced_reduce_scatter vary_unreduced_cast vary_unreduced_cast_p shard_map"
    ),
    "a host or a kernel computes it": (
        "ffi_call pure_callback io_callback debug_callback debug_print custom_lin"
    ),
    "a program with an interface of its own": "composite linear_call remat_opt",
    "no numbers": "box_get box_set new_box new_log log_extend log_read from_edtype to_edtype",
    "groups by numbers": "ragged_dot_general",
    "nobody has met it": "dce_sink stage tie layout_constraint with_memory_space_constraint",
    "linear in its coefficients, which are traced": "polynomial",
    "experimental sparse matrices": (
        "bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_spdot_general "
        "bcoo_transpose bcsr_extract bcsr_fromdense coo_fromdense "
        "coo_matmat coo_matvec coo_todense csr_fromdense csr_matmat csr_matvec csr_todense spsolve "
        "todense"
    ),
}
CALLS = {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "cond", "while", "scan"}


def _linear_primitives_of_jax() -> set[str]:
    # By a process of its own, where no other library has added primitives.
    code = """
import jax, jax.experimental.sparse
from jax.interpreters import ad
print(*{p.name for p in [*ad.primitive_transposes, *getattr(ad, "fancy_transposes", {})]})
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_every_linear_primitive_has_a_rule_or_a_reason():
    linear = _linear_primitives_of_jax()
    excused = {name for names in MIXED.values() for name in names.split()}
    assert not excused & RULES.keys()
    missing = linear - RULES.keys() - excused - CALLS
    assert not missing, f"add a rule, or a line in MIXED: {sorted(missing)}"


def rows(x):
    return of(x, 4, 6)


def matrices(x):
    return x.reshape(6, 2, 2) + 3 * np.eye(2, dtype=np.float32)


# What a member of a batch depends on is that member: so many entries, and no more.
APART = {
    "stack": (lambda x: jnp.stack([x[1:], x[:-1]], 1), 46),
    "unstack": (lambda x: jnp.unstack(rows(x))[1], 6),
    "tile": (lambda x: jnp.tile(rows(x), (2, 2)), 96),
    "sort": (lambda x: jnp.sort(rows(x), 1), 4 * 36),
    "largest": (lambda x: lax.top_k(rows(x), 2)[0], 4 * 12),
    "at the largest": (lambda x: rows(x)[np.arange(4), jnp.argmax(rows(x), 1)], 4 * 6),
    "into the largest": (
        lambda x: jnp.zeros((4, 6)).at[np.arange(4), jnp.argmax(rows(x), 1)].set(x[:4]),
        4 * 6,
    ),
    "inverse": (lambda x: jnp.linalg.inv(matrices(x)), 6 * 16),
    "solution": (lambda x: jnp.linalg.solve(matrices(x), np.ones((6, 2, 1), np.float32)), 6 * 8),
    "pooling": (lambda x: largest_of_pairs(rows(x)), 24),
}


def largest_of_pairs(a):
    return lax.reduce_window(a, -np.inf, lax.max, (1, 2), (1, 2), "VALID")


@pytest.mark.parametrize("name", list(APART))
def test_members_of_a_batch_are_kept_apart(name):
    fn, entries = APART[name]
    assert fnopt.sparsity_pattern(fn)(POINTS[0])[0].size == entries


def test_what_is_written_into_a_mutable_array_is_not_lost():
    if not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no jax.new_ref")

    def fn(x):
        total = jax.new_ref(jnp.zeros(3))
        total[...] = 2 * x[:3]
        return total[...] + x[3:6]

    assert pattern(fn, (3, N)).all()


def test_a_sparse_matrix_made_of_traced_numbers_is_named():
    def f(x):
        return sparse.BCOO.fromdense(jnp.asarray(np.diag(np.ones(N)))) @ x

    with pytest.raises(TypeError, match="passes bcoo_fromdense an array as `nse`"):
        fnopt.sparsity_pattern(f)(POINTS[0])


def test_a_solver_under_vmap_keeps_the_examples_apart():
    solve_each = jax.vmap(lambda b: jax.scipy.sparse.linalg.cg(lambda v: 2 * v, b)[0])
    want = np.kron(np.eye(4, dtype=bool), np.ones((6, 6), bool))
    np.testing.assert_array_equal(pattern(at((4, 6), solve_each), (N, N)), want)
