"""What `kfac` makes of networks as people write them: nothing is on a bare diagonal."""

from __future__ import annotations

import math

import jax
import pytest

from fnopt.curvature import kfac_report
from tests.curvature.public_models import INPUTS, LIBRARIES

# Each network in one library, all libraries in turn; the module prints all thirty.
CASES = [(library, name) for i, name in enumerate(INPUTS) for library in [[*LIBRARIES][i % 3]]]
CASES.append(("flax", "autoencoder"))


@pytest.mark.parametrize(("library", "name"), CASES)
def test_public_models_are_covered(library, name):
    pytest.importorskip(library.lower())
    with jax.numpy_dtype_promotion("standard"):  # theirs
        model, *shapes = LIBRARIES[library](name)
        report = kfac_report(model)(*shapes)
    sizes = {"kronecker": 0, "dense": 0}
    for p in report.params:
        assert p.block in sizes, f"{p.name}: {p.why}"
        sizes[p.block] += math.prod(p.shape)
    assert report.coverage == 1
    assert sizes["kronecker"] >= 0.95 * sum(sizes.values())
