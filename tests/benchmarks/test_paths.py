"""The record of paths has every optimizer that it can have."""

from __future__ import annotations

import numpy as np
import pytest

import fnopt
from benchmarks import paths


def test_the_record_has_every_recipe() -> None:
    # `python -m benchmarks paths NAME` adds a new one
    assert set(paths.read()) == set(paths.recipes())


def test_no_recipe_is_forgotten() -> None:
    known = set(paths.recipes()) | paths.OTHERS
    others = {name for name in fnopt.optimizers.__all__ if not name.startswith("scale_by")} - known
    assert others == {
        "MatrixDimensionNumbers",
        "gauss_newton_bartlett_estimator_diag_hessian",
        "hutchinson_estimator_diag_hessian",
        *("matrix_axes", "matrix_labels", "matrix_report", "MatrixReport", "MatrixRow"),
        *("partition_matrices", "width_scaled"),
        *("normalize_neurons", "orthogonalize", "precondition_by_inputs"),
        *("cap_spectral_norm", "floor_update_ratio", "qk_clip", "subtract_direction"),
    }


@pytest.mark.parametrize("function", ["parabola", "rosenbrock"])
def test_paths_begin_at_the_start_and_hold_their_values(function: str) -> None:
    height = getattr(paths, function)
    for name, runs in paths.read().items():
        path = np.array(runs[function]["path"])
        np.testing.assert_allclose(path[0], paths.START[function], err_msg=name)
        assert len(path) == len(paths.RECORDED) == len(runs[function]["values"])
        first = runs[function]["values"][0]
        np.testing.assert_allclose(height(*path[0]), first, rtol=1e-3, err_msg=name)


def test_all_optimizers_get_down_the_parabola() -> None:
    ends = {name: runs["parabola"]["values"][-1] for name, runs in paths.read().items()}
    slow = {name for name, end in ends.items() if end > 1e-4}
    # one direction for 200 steps; a sum of gradients that swings
    assert slow == {"galore", "simplified_ademamix"}
