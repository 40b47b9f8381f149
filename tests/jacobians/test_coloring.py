import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fnopt.jacobians import Sparsity
from fnopt.jacobians._coloring import bicoloring
from fnopt.jacobians._compressed import coloring


def of(pattern):
    rows, cols = np.nonzero(pattern)
    return Sparsity(rows, cols, pattern.shape)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 9), st.floats(0, 1))
def test_columns_of_one_color_share_no_row(seed, m, n, density):
    pattern = np.random.default_rng(seed).random((m, n)) < density
    found = of(pattern)
    for k in range(found.colors):
        assert pattern[:, found.color == k].sum(axis=1).max() <= 1
    most = int(pattern.sum(axis=1).max())
    assert max(most, 1) <= found.colors <= n
    # What the sums of each color hold is the matrix.
    A = np.where(pattern, np.arange(m * n).reshape(m, n) + 1, 0)
    sums = A @ found.seeds(int).T
    B = np.zeros_like(A)
    B[found.rows, found.cols] = sums[found.rows, found.color[found.cols]]
    np.testing.assert_array_equal(B, A)


def test_a_band_has_as_many_colors_as_its_width_and_a_repeated_entry_counts_once():
    i = np.arange(10_000)
    found = Sparsity(np.r_[i, i, i[1:], i[:-1]], np.r_[i, i, i[:-1], i[1:]], (10_000, 10_000))
    assert found.rows.size == 29_998
    assert found.colors == 3


def test_an_arrow_needs_few_colors_by_rows_only():
    pattern = np.eye(40, dtype=bool)
    pattern[0] = True
    assert of(pattern).colors == 40
    assert of(pattern.T).colors == 2


def summed(A, sparsity):
    return A @ sparsity.seeds(A.dtype).T


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_sums_of_both_hold_all_entries(seed, full_rows, full_columns, flat):
    rng = np.random.default_rng(seed)
    m, n = (5, 14) if flat else (14, 9)
    pattern = rng.random((m, n)) < 0.12
    pattern[rng.choice(m, full_rows, replace=False)] = True
    pattern[:, rng.choice(n, full_columns, replace=False)] = True
    fewest = min(of(pattern).colors, of(pattern.T).colors)
    found = coloring(*np.nonzero(pattern), (m, n), "auto")
    if not isinstance(found, tuple):
        assert found.colors < fewest  # never more passes than in one direction
    both = bicoloring(*np.nonzero(pattern), (m, n), 1_000)  # the best one, worth it or not
    if both is None:
        assert np.unique(pattern.sum(1)[pattern.any(1)]).size <= 1  # no row fuller than others
        return
    A = np.where(pattern, np.arange(m * n).reshape(m, n) + 1, 0)
    sums = summed(A, both.columns), summed(A.T, both.rows)
    B = np.zeros_like(A)
    for to, part, values in zip((B, B.T), (both.columns, both.rows), sums, strict=True):
        to[part.rows, part.cols] = values[part.rows, part.color[part.cols]]
    np.testing.assert_array_equal(B, A)
    assert both.columns.rows.size + both.rows.rows.size == pattern.sum()


def test_an_arrow_both_ways_takes_three_colors_of_both():
    pattern = np.eye(24, dtype=bool)
    pattern[0] = pattern[:, 0] = True
    assert of(pattern).colors == of(pattern.T).colors == 24
    found = coloring(*np.nonzero(pattern), pattern.shape, "auto")
    assert found.colors == 3
