"""Orders of unknowns for a narrow band."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fnopt.jacobians import Sparsity, band_of, reverse_cuthill_mckee


def test_a_matrix_without_a_band_is_told():
    i = np.arange(50)
    arrow = Sparsity(np.r_[i, i], np.r_[i, 0 * i], (50, 50))
    assert band_of(arrow, False, 20) is None
    full_row = Sparsity(np.zeros(50, int), i, (50, 50))
    assert band_of(full_row, False, 20) is None


@given(st.integers(0, 2**32 - 1), st.integers(2, 7))
def test_a_shuffled_grid_gets_a_narrow_band(seed, width):
    length = 20
    rng = np.random.default_rng(seed)
    name = rng.permutation(width * length).reshape(length, width)
    one, other = (
        np.r_[name[1:].ravel(), name[:, 1:].ravel()],
        np.r_[name[:-1].ravel(), name[:, :-1].ravel()],
    )
    order = reverse_cuthill_mckee(np.r_[one, other], np.r_[other, one], width * length)
    assert sorted(order) == list(range(width * length))
    position = np.argsort(order)
    assert np.abs(position[one] - position[other]).max() <= 2 * width


def test_islands_stay_together():
    order = reverse_cuthill_mckee(np.asarray([0, 3]), np.asarray([3, 0]), 5)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    at = order.tolist()
    assert abs(at.index(0) - at.index(3)) == 1
