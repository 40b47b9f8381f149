"""What `import fnopt` gives, and what it says about a name that it doesn't have."""

from __future__ import annotations

import operator
import pathlib
import subprocess
import sys
from itertools import chain

import pytest

import fnopt
from tests.top_level_stub import AT_ONCE, STUB, stub

SOURCE = pathlib.Path(fnopt.__file__)
LATER: dict[str, tuple[str, ...]] = fnopt._LATER


def test_type_checkers_and_python_see_the_same_names():
    assert STUB.read_text() == stub(), "run python -m tests.top_level_stub"
    starred = {n for package in AT_ONCE for n in getattr(fnopt, package).__all__}
    assert {*fnopt._NAMES} == starred | {*AT_ONCE} | {*LATER} | {*chain(*LATER.values())}
    assert {"adamw", "curve_fit", "least_squares", "per_example_grads"} <= {*fnopt.__all__}
    assert not {"clip", "trace", "tree", "scale_by_adam"} & {*fnopt.__all__}


def test_every_name_is_there_and_listed():
    assert len(set(fnopt.__all__)) == len(fnopt.__all__)
    assert set(dir(fnopt)) >= {*fnopt._NAMES} > {*fnopt.__all__}
    for package, names in LATER.items():
        for name in names:
            assert getattr(fnopt, name) is getattr(getattr(fnopt, package), name)


# What a program that trains with a first-order optimizer doesn't wait for.
QUICK = """
import sys, fnopt
assert "fnopt.solvers" not in sys.modules and "fnopt.gradients" not in sys.modules
assert fnopt.from_config({"type": "fnopt.levenberg_marquardt"}) == fnopt.levenberg_marquardt()
from fnopt import *
assert least_squares is fnopt.solvers.least_squares
"""


def test_packages_are_imported_when_they_are_needed():
    subprocess.run([sys.executable, "-c", QUICK], check=True, cwd=SOURCE.parent.parent)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AdamW", "Did you mean fnopt.adamw?"),
        ("cosine_schedule", "Did you mean fnopt.cosine_decay_schedule"),
        ("warmup_cosine", "Did you mean fnopt.warmup_cosine_decay_schedule?"),
        ("huber", "It is fnopt.residuals.huber."),
        ("ScaleByAdamState", "It is fnopt.optimizers.states.ScaleByAdamState."),
        ("MultiSteps", "Use fnopt.accumulate."),
        ("inject_hyperparams", "Use the optimizer itself"),
        ("contrib", "Use fnopt itself"),
        ("nnls", "Use fnopt.least_squares with bounds"),
        ("DPSGD", "Use fnopt.clipped_grad and fnopt.add_noise."),
        ("no_grad", "Use jax.lax.stop_gradient."),
        ("clip_grad_norm", "Use fnopt.clip_by_global_norm"),
        ("xyzzy", "module 'fnopt' has no attribute 'xyzzy'."),
    ],
)
def test_an_unknown_name_gets_advice(name, said):
    with pytest.raises(AttributeError) as caught:
        getattr(fnopt, name)
    assert said in str(caught.value)


def test_every_piece_of_advice_names_something_that_exists():
    from fnopt.interop._other_names import _ELSEWHERE

    for text in _ELSEWHERE.values():
        for word in text.replace("(", " ").replace(",", " ").split():
            if word.startswith("fnopt."):
                assert operator.attrgetter(word.removeprefix("fnopt.").rstrip("."))(fnopt)
