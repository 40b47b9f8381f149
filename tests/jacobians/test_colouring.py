import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fnopt.jacobians import Sparsity


def of(pattern):
    rows, cols = np.nonzero(pattern)
    return Sparsity(rows, cols, pattern.shape)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 9), st.floats(0, 1))
def test_columns_of_one_colour_share_no_row(seed, m, n, density):
    pattern = np.random.default_rng(seed).random((m, n)) < density
    found = of(pattern)
    for k in range(found.colours):
        assert pattern[:, found.colour == k].sum(axis=1).max() <= 1
    most = int(pattern.sum(axis=1).max())
    assert max(most, 1) <= found.colours <= n
    # What the sums of each colour hold is the matrix.
    A = np.where(pattern, np.arange(m * n).reshape(m, n) + 1, 0)
    sums = A @ found.seeds(int).T
    B = np.zeros_like(A)
    B[found.rows, found.cols] = sums[found.rows, found.colour[found.cols]]
    np.testing.assert_array_equal(B, A)


def test_a_band_has_as_many_colours_as_its_width_and_a_repeated_entry_counts_once():
    i = np.arange(10_000)
    found = Sparsity(np.r_[i, i, i[1:], i[:-1]], np.r_[i, i, i[:-1], i[1:]], (10_000, 10_000))
    assert found.rows.size == 29_998
    assert found.colours == 3


def test_an_arrow_needs_few_colours_by_rows_only():
    pattern = np.eye(40, dtype=bool)
    pattern[0] = True
    assert of(pattern).colours == 40
    assert of(pattern.T).colours == 2
