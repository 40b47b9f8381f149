"""What it costs, counted on traced programs and asked of the compiler: no clock involved."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
import zoo

from fnopt.costs import cost
from fnopt.gradients import clipped_grad, gradient_statistics, per_example_norms

# The gradient of a whole matrix has to be formed for every example: it is computed from other
# params before it meets the example, enters in several ways, or is left to vmap.
FORMED = {"lora_merged", "weight_norm", "regularised", "branches", "own_derivative"}
# Hardly anything in these is a matrix product.
NO_PRODUCTS = {
    "activations_with_params",
    "taken_with_fill",
    "words_beyond_the_table",
    "bag_of_words",
}
COUNTED = [m for m in zoo.MODELS if m.__name__ not in FORMED | NO_PRODUCTS]


def plain(loss):
    def total(params, batch):
        return jnp.sum(jax.vmap(loss, (None, 0))(params, batch))

    return jax.grad(total)


def flops(fn, shapes):
    return cost(fn)(*shapes).matmul_flops


def wide(make, width=zoo.WIDE):
    loss = make(width).loss
    return loss, jax.eval_shape(lambda: tuple(make(width)[1:]))


@pytest.mark.parametrize("make", COUNTED, ids=lambda make: make.__name__)
def test_a_tenth_more_matrix_products_than_a_plain_gradient(make):
    loss, shapes = wide(make)
    clipped = clipped_grad(loss, 1.0, method="ghost", chunk_size=zoo.SIZE)
    assert flops(clipped, shapes) <= 1.10 * flops(plain(loss), shapes)


def dense(widths=(784, 512, 512, 10), size=256):
    def loss(params, example):
        x, label = example
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        return zoo.cross_entropy(x @ params[-1][0] + params[-1][1], label)

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    params = [(shape(n, m), shape(m)) for n, m in itertools.pairwise(widths)]
    return loss, (params, (shape(size, widths[0]), jax.ShapeDtypeStruct((size,), jnp.int32)))


def test_norms_alone_need_no_gradient():
    loss, shapes = dense()
    assert flops(per_example_norms(loss), shapes) <= 0.6 * flops(plain(loss), shapes)


def test_statistics_take_the_products_of_a_gradient():
    loss, shapes = dense()
    assert flops(gradient_statistics(loss), shapes) <= 1.05 * flops(plain(loss), shapes)


def temporary(fn, shapes):
    return jax.jit(fn).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers have other temporaries")
def test_memory_of_a_dense_network():
    loss, shapes = dense()
    clipped, own = temporary(clipped_grad(loss, 1.0), shapes), temporary(plain(loss), shapes)
    assert clipped <= 2 * own
    # The norms alone keep the factors of all layers until it is known that no sum of squares is out
    # of range (1.67 times the memory of a plain gradient; 1.1 before norms were safe).
    assert temporary(per_example_norms(loss), shapes) <= 1.75 * own
    assert clipped < 256 * 784 * 512 * 4 / 50  # the gradients of the first layer alone


def test_memory_of_a_transformer():
    loss, shapes = wide(zoo.transformer_scanned)
    clipped = clipped_grad(loss, 1.0, method="ghost")
    assert temporary(clipped, shapes) <= 2 * temporary(plain(loss), shapes)
