"""What `kfac` makes of networks as people write them: nothing is on a bare diagonal."""

from __future__ import annotations

import math

import jax
import pytest

from fnopt.curvature import kfac_report
from tests.curvature.public_models import INPUTS, LIBRARIES, block_of

# Each network in one library, all libraries in turn; the module prints all thirty.
CASES = [(library, name) for i, name in enumerate(INPUTS) for library in [[*LIBRARIES][i % 3]]]
CASES.append(("flax", "LSTM"))
# Its normalization has a scale for each position and channel: no product with a matrix.
LEAST = {("Equinox", "MLP-Mixer"): 0.89}


@pytest.mark.parametrize(("library", "name"), CASES)
def test_public_models_are_covered(library, name):
    pytest.importorskip(library.lower())
    with jax.numpy_dtype_promotion("standard"):  # theirs
        model, *shapes = LIBRARIES[library](name)
        report = kfac_report(model)(*shapes)
    sizes = dict.fromkeys(("products", "moments of rows and columns", "dense"), 0)
    for p in report.params:
        assert block_of(p) in sizes, f"{p.name}: {p.why}"
        sizes[block_of(p)] += math.prod(p.shape)
    assert report.coverage == 1
    assert sizes["products"] >= LEAST.get((library, name), 0.95) * sum(sizes.values())
