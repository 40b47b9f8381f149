"""Extra arguments: what is needed, what is unknown, and what they are called."""

import inspect

import jax
import jax.numpy as jnp
import optax
import pytest

import fnopt
from fnopt.core import EXTRA_ARGS

PARAMS = {"w": jnp.ones(2)}
ADVERSARY = fnopt.sgd(0.1)
SEARCH = fnopt.scale_by_backtracking_linesearch(4)


def update(tx, **extra_args):
    tx = fnopt.strict(tx)
    return jax.eval_shape(lambda p: tx.update(p, tx.init(p), p, **extra_args)[0], PARAMS)


@pytest.mark.parametrize(
    ("tx", "needs"),
    [
        (fnopt.adamw(0.1), ()),
        (fnopt.chain(fnopt.sgd(0.1), fnopt.reduce_on_plateau()), ("value",)),
        (fnopt.accumulate(fnopt.partition({"a": fnopt.momo()}, "a"), 2), ("value",)),
        (fnopt.chain(fnopt.sophia(0.1), fnopt.reduce_on_plateau()), ("obj_fn", "value")),
        (fnopt.chain(fnopt.sgd(0.1), SEARCH), ("grad", "value", "value_fn")),
        (fnopt.sam(fnopt.sgd(0.1), ADVERSARY), ()),
        (fnopt.sam(fnopt.sgd(0.1), ADVERSARY, opaque_mode=True), ("grad_fn",)),
        (fnopt.levenberg_marquardt(), ("residual_fn",)),
        (fnopt.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), ("value",)),
    ],
    ids=str,
)
def test_needs(tx, needs):
    assert tx.needs == fnopt.strict(tx).needs == needs


def test_unknown_names_are_refused_with_the_near_one():
    plateau = fnopt.chain(fnopt.sgd(0.1), fnopt.reduce_on_plateau())
    message = (
        r"^strict: update got the arguments .*, which no transform reads \(did you mean 'value'"
    )
    with pytest.raises(
        TypeError, match=message + r" for 'vlaue'\?\); needs the missing arguments \['value'\]"
    ):
        update(plateau, vlaue=1.0)
    with pytest.raises(
        TypeError,
        match=r"got the arguments \['value'\], which no transform reads; expected no argument\.",
    ):
        update(fnopt.adam(0.1), value=1.0)
    update(plateau, value=1.0)


def test_all_that_is_missing_is_said_at_once():
    with pytest.raises(
        TypeError, match=r"update needs the missing arguments \['grad', 'value_fn'\]"
    ):
        update(fnopt.chain(fnopt.sgd(0.1), SEARCH), value=1.0)


def test_functions_that_get_the_others():
    search = fnopt.chain(fnopt.sgd(0.1), SEARCH)
    known = {"value": 1.0, "grad": PARAMS}
    update(search, **known, value_fn=lambda p, scale: scale * p["w"].sum(), scale=1.0)
    update(search, **known, value_fn=lambda p, **others: p["w"].sum(), any_name=1.0)
    with pytest.raises(TypeError, match="any_name"):
        update(search, **known, value_fn=lambda p: p["w"].sum(), any_name=1.0)
    now = fnopt.conditionally_mask(fnopt.sgd(0.1), lambda step, loud: loud, forward_extra_args=True)
    update(now, loud=True)


def test_other_libraries_take_what_they_say():
    with pytest.raises(TypeError, match=r"got the arguments \['value'\]"):
        update(fnopt.chain(optax.scale(0.1)), value=1.0)
    update(fnopt.chain(optax.chain(optax.scale(0.1))), anything=1.0)


def test_the_state_is_that_of_the_inner_one():
    tx = fnopt.adam(0.1)
    state = tx.init(PARAMS)
    assert jax.tree.structure(fnopt.strict(tx).init(PARAMS)) == jax.tree.structure(state)
    assert list(fnopt.named(fnopt.strict(tx), state))[1:] == list(fnopt.named(tx, state))


def subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_extra_argument_of_the_library_is_in_the_vocabulary():
    fnopt.levenberg_marquardt, fnopt.distributed, fnopt.monitor  # noqa: B018  (imported on demand)
    ours = {c for c in subclasses(fnopt.Transformation) if c.__module__.startswith("fnopt.")}
    read = {
        p.name
        for c in ours
        for p in inspect.signature(c.update).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    assert read == set(EXTRA_ARGS)


def test_minimize_says_what_it_can_not_give():
    curvature = fnopt.gauss_newton_bartlett_estimator_diag_hessian()
    tx = fnopt.sophia(0.1, hessian_diagonal_fn=curvature)
    with pytest.raises(
        TypeError, match=r"needs the extra arguments \['logits_fn'\], expected only"
    ):
        fnopt.minimize(lambda x: jnp.sum(x**2), jnp.ones(2), method=tx)
