"""One dialect of glob patterns wherever leaves are selected by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.errors import matches
from fnopt.monitor._groups import group

PARAMS = {
    "encoder": {"dense": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}},
    "encoder2": {"bias": jnp.ones(2)},
    "bias": jnp.ones(2),
}
PATHS = ["bias", "encoder/dense/bias", "encoder/dense/kernel", "encoder2/bias"]
SELECTED = {
    "encoder": PATHS[1:3],
    "encoder/": PATHS[1:3],
    "encoder/*": PATHS[1:3],
    "*/dense": PATHS[1:3],
    "encoder?": PATHS[3:],
    "*/bias": [PATHS[0], PATHS[1], PATHS[3]],
    "bias": PATHS[:1],
    "*kernel": PATHS[2:3],
    "[be]*/bias": [PATHS[1], PATHS[3]],
    "*": PATHS,
}


def _named(tree, keep):
    return [path for path, leaf in fnopt.errors.leaves_with_names(tree)[0] if keep(leaf)]


def _by_pattern(pattern):
    return _named(fnopt.select(fnopt.by_pattern(pattern), PARAMS), bool)


def _freeze(pattern):
    tx = fnopt.freeze(fnopt.sgd(1.0), pattern)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    return _named(updates, lambda u: not bool(np.any(u)))


def _constraints(pattern):
    # A fixed leaf stays at its start; all others run to 0.
    constraints = {pattern: fnopt.fixed()}
    found = fnopt.least_squares(
        lambda p: jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(p)]),
        PARAMS,
        constraints=constraints,
        max_steps=3,
    )
    return _named(found.params, lambda x: bool(np.all(x == 1)))


def _health(pattern):
    groups = group(PARAMS, (("chosen", (pattern,)),))
    return [PATHS[i] for i in groups.members[groups.names.index("chosen")]]


@pytest.mark.parametrize(("pattern", "paths"), SELECTED.items())
def test_the_dialect(pattern, paths):
    assert [path for path in PATHS if matches(path, pattern)] == paths


@pytest.mark.parametrize("selection", [_by_pattern, _freeze, _constraints, _health])
@pytest.mark.parametrize("pattern", ["encoder", "*/bias", "encoder?"])
def test_every_argument_that_selects_leaves_speaks_it(selection, pattern):
    assert selection(pattern) == SELECTED[pattern]


def test_letters_are_told_apart_by_case_and_the_empty_pattern_is_the_whole_tree():
    assert not matches("Encoder/bias", "encoder")
    assert all(matches(path, "") for path in PATHS)
    assert matches("", "")
    assert matches("", "*")
