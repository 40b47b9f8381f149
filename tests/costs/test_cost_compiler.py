"""Counts against the compiler's own, on programs without loops."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fnopt.costs import cost
from fnopt.costs._flops import valid_taps
from tests.costs import cost_models as models
from tests.costs.cost_models import f32


def of_squares(model):
    return lambda params, x: jnp.sum(jnp.square(model(params, x)))


LOOP_FREE = {
    "mlp": (models.mlp_loss, models.mlp_shapes()),
    "mlp, gradient": (jax.value_and_grad(models.mlp_loss), models.mlp_shapes()),
    "transformer": (models.transformer, models.transformer_shapes()),
    "transformer, gradient": (
        jax.value_and_grad(models.transformer_loss),
        models.transformer_shapes(),
    ),
    "cnn": (models.cnn, models.cnn_shapes()),
}


@pytest.mark.parametrize("name", LOOP_FREE)
def test_within_two_percent_of_the_jitted(name):
    fn, args = LOOP_FREE[name]
    c = cost(fn, compile=True)(*args)
    assert c.matmul_flops > 0.9 * c.flops  # elsewhere the compiler's choice of fusions decides
    assert c.flops == pytest.approx(c.compiled.flops, rel=0.02)


def test_a_conv_nets_gradient_against_the_program_before_optimisation():
    # The CPU compiler replaces the gradient of max pooling by more work (3.6 % of all FLOPs here).
    fn, args = jax.grad(of_squares(models.cnn)), models.cnn_shapes()
    assert cost(fn)(*args).flops == pytest.approx(before_optimisation(fn, *args), rel=0.001)


def before_optimisation(fn, *args):
    # A program that computes nothing has no such entry.
    return jax.jit(fn).lower(*args).cost_analysis().get("flops", 0.0)


@st.composite
def dots(draw):
    """Shapes and dimension numbers of any dot_general."""
    batch, contracted, left, right = (
        draw(st.lists(st.integers(1, 5), max_size=n)) for n in (2, 2, 2, 2)
    )

    def shuffled(free):
        order = draw(st.permutations(range(len(batch + contracted + free))))
        sizes = batch + contracted + free
        place = {axis: i for i, axis in enumerate(order)}
        axes = [place[i] for i in range(len(batch + contracted))]
        return [sizes[i] for i in order], axes[: len(batch)], axes[len(batch) :]

    (lhs, lhs_batch, lhs_sum), (rhs, rhs_batch, rhs_sum) = shuffled(left), shuffled(right)
    return f32(*lhs), f32(*rhs), ((lhs_sum, rhs_sum), (lhs_batch, rhs_batch))


@settings(max_examples=50, deadline=None)
@given(dots())
def test_any_dot_general(case):
    lhs, rhs, numbers = case

    def fn(a, b):
        return lax.dot_general(a, b, numbers)

    assert cost(fn)(lhs, rhs).matmul_flops == before_optimisation(fn, lhs, rhs)


@st.composite
def convolutions(draw):
    """Shapes and parameters of any convolution whose result isn't empty."""
    rank = draw(st.integers(1, 2))
    small = st.integers(1, 3)
    groups = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))  # of features, of the batch
    features, out = draw(small) * groups[0], draw(small) * groups[0] * groups[1]
    batch = draw(small) * groups[1]

    def each(values):
        return draw(st.tuples(*[values] * rank))

    kernel, sizes, rhs_dilation = each(st.integers(1, 4)), each(st.integers(4, 9)), each(small)
    # With at least as much padding as the window is wide there is always an output.
    padding = [
        (draw(st.integers(-1, 3)) + k * d, draw(st.integers(0, 3)))
        for k, d in zip(kernel, rhs_dilation, strict=True)
    ]
    kwargs = {
        "window_strides": each(small),
        "padding": padding,
        "lhs_dilation": each(small),
        "rhs_dilation": rhs_dilation,
        "feature_group_count": groups[0],
        "batch_group_count": groups[1],
        "dimension_numbers": draw(
            st.sampled_from([("NCH", "OIH", "NCH"), ("NHC", "HIO", "CHN")])
            if rank == 1
            else st.sampled_from([("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "WNHC")])
        ),
    }
    lhs_sizes = dict(zip("NC", (batch, features), strict=True)) | dict(
        zip("HW", sizes, strict=False)
    )
    rhs_sizes = dict(zip("OI", (out, features // groups[0]), strict=True)) | dict(
        zip("HW", kernel, strict=False)
    )
    lhs_spec, rhs_spec, _ = kwargs["dimension_numbers"]
    return f32(*(lhs_sizes[c] for c in lhs_spec)), f32(*(rhs_sizes[c] for c in rhs_spec)), kwargs


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_any_convolution(case):
    lhs, rhs, kwargs = case

    def fn(x, w):
        return lax.conv_general_dilated(x, w, **kwargs)

    assert cost(fn)(lhs, rhs).matmul_flops == before_optimisation(fn, lhs, rhs)


def test_transposed_convolutions_and_the_gradients_of_convolutions():
    x, w = f32(2, 3, 9, 9), f32(4, 3, 3, 3)

    def conv(x, w):
        return lax.conv_general_dilated(x, w, (2, 2), "SAME")

    def transposed(x, w):
        return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NCHW", "IOHW", "NCHW"))

    pullback = jax.vjp(conv, *(jnp.zeros(s.shape) for s in (x, w)))[1]
    for fn, args in ((transposed, (f32(2, 4, 5, 5), w)), (pullback, (f32(2, 4, 5, 5),))):
        assert cost(fn)(*args).matmul_flops == before_optimisation(fn, *args)


@given(
    st.integers(0, 12),
    st.integers(1, 6),
    st.integers(1, 4),
    st.tuples(st.integers(-3, 8), st.integers(-3, 8)),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_taps_agree_with_looking_at_each(size, kernel, stride, padding, lhs_dilation, rhs_dilation):
    places = {i * lhs_dilation for i in range(size)}
    length = max(0, (size - 1) * lhs_dilation + 1) if size else 0
    outputs = (sum(padding) + length - (kernel - 1) * rhs_dilation - 1) // stride + 1
    every = itertools.product(range(max(outputs, 0)), range(kernel))
    found = sum(o * stride + k * rhs_dilation - padding[0] in places for o, k in every)
    assert valid_taps(size, kernel, stride, padding, lhs_dilation, rhs_dilation) == found
