"""What a recipe answers to arguments that it doesn't have."""

import dataclasses
import inspect
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


@pytest.mark.parametrize(
    ("make", "given", "hint"),
    [
        (fnopt.adam, {"lr": 0.1}, r"learning_rate=\.\.\."),
        (fnopt.adam, {"betas": (0.9, 0.99)}, r"b1=\.\.\., b2=\.\.\."),
        (fnopt.sgd, {"nestrov": True}, r"nesterov=\.\.\."),
        (fnopt.sgd, {"weight_decay": 0.1}, r"chain\(fnopt\.add_decayed_weights.*fnopt\.sgd"),
        (fnopt.adam, {"amsgrad": True}, r"Write fnopt\.amsgrad\."),
        (fnopt.rmsprop, {"alpha": 0.9}, r"decay=\.\.\."),
    ],
)
def test_arguments_of_other_libraries_are_answered(make, given, hint):
    rate = {} if "lr" in given else {"learning_rate": 0.1}
    with pytest.raises(TypeError, match=f"^{make.__name__}: unknown argument .*{hint}"):
        make(**rate, **given)


def test_errors_from_inside_are_left_alone():
    with pytest.raises(TypeError, match=r"learning_rate = '0\.1' is a str"):
        fnopt.adam("0.1")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="sgd: missing a required argument: 'learning_rate'"):
        fnopt.sgd()  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_rates_that_cannot_be_meant(rate):
    with pytest.raises(ValueError, match="learning_rate = "):
        fnopt.adam(rate)


def test_every_recipe_answers():
    for name in fnopt.optimizers.__all__:
        made = getattr(fnopt, name)
        if inspect.isfunction(made) and "learning_rate" in inspect.signature(made).parameters:
            assert hasattr(made, "__wrapped__"), f"{name}: decorate it with @recipe"
            assert pickle.loads(pickle.dumps(made)) is made


def _recipes():
    for name in fnopt.optimizers.__all__:
        made = getattr(fnopt, name)
        if inspect.isfunction(made) and "learning_rate" in inspect.signature(made).parameters:
            yield made


def test_no_recipe_takes_what_is_negative_or_infinite():
    for made in _recipes():
        parameters = inspect.signature(made).parameters
        names = [n for n in parameters if n.endswith(("learning_rate", "weight_decay"))]
        required = {n: 1.0 for n, p in parameters.items() if p.default is p.empty}
        for name in names:
            for bad in (-0.1, float("-inf"), float("inf"), jnp.asarray(-1.0), np.float32(-1)):
                if name.startswith("max_") and bad == float("inf"):
                    continue
                with pytest.raises(
                    ValueError, match=f"{name.removeprefix('adam_')} = |_rate = |= inf"
                ):
                    made(**{**required, name: bad})


def test_no_recipe_takes_a_flag_that_is_none():
    flags = 0
    for made in _recipes():
        parameters = inspect.signature(made).parameters
        required = {n: 1.0 for n, p in parameters.items() if p.default is p.empty}
        for name, parameter in parameters.items():
            if parameter.annotation == "bool":
                flags += 1
                with pytest.raises(TypeError, match=f"{name} = 'False', expected True or False"):
                    made(**{**required, name: "False"})
    assert flags > 20


@pytest.mark.parametrize("make", [fnopt.prodigy, fnopt.dadapt_adamw])
@pytest.mark.parametrize("bad", [0.9, (0.9,), (0.9, 0.99, 0.999), "ab"])
def test_decays_that_are_given_together_are_two(make, bad):
    with pytest.raises(TypeError, match=f"{make.__name__}: betas = .*, expected a pair"):
        make(betas=bad)


# Limits, which infinity takes away; the seeds, flags and functions aren't numbers.
LIMITS = {
    *("clipping", "clipping_threshold", "clip_threshold", "cooldown", "growth_interval"),
    *("lower_bound", "max_consecutive_errors", "max_delta", "max_learning_rate", "max_norm"),
    *("max_scale", "max_squared_norm", "max_step_size", "patience", "threshold"),
}


def test_only_limits_may_be_infinite():
    fields = {
        (cls.__name__, field.name): field
        for cls in [getattr(fnopt, name) for name in dir(fnopt)]
        if inspect.isclass(cls) and issubclass(cls, (fnopt.Transformation, fnopt.Schedule))
        for field in dataclasses.fields(cls)
        if field.metadata.get("hyper")
    }
    assert len(fields) > 100
    of_solvers = {"radius", "ftol", "xtol", "gtol"}
    wrong = [
        (cls, name)
        for (cls, name), field in fields.items()
        if field.metadata["infinite"] != (name in LIMITS | of_solvers)
        # Infinity stands for the largest rate there.
        and (cls, name) != ("scale_by_backtracking_linesearch", "increase_factor")
    ]
    assert wrong == []


def test_whole_numbers_have_a_least_one():
    missing = {
        f"{cls.__name__}.{field.name}"
        for cls in [getattr(fnopt, name) for name in dir(fnopt)]
        if inspect.isclass(cls) and issubclass(cls, (fnopt.Transformation, fnopt.Schedule))
        for field in dataclasses.fields(cls)
        if field.type in ("int", "int | None")
        and field.metadata["least"] is None
        and not field.metadata["convert"]
        # Axes may count from the end, and bits are 4 or 8.
        and not field.name.endswith(("seed", "axis", "bits"))
    }
    assert missing == set()


def test_a_part_of_a_chain_may_take_away_what_another_adds():
    tx = fnopt.chain(fnopt.sgd(0.5), fnopt.add_decayed_weights(-0.25))
    updates, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2))
    assert updates.tolist() == [-0.75, -0.75]


@pytest.mark.parametrize("method", ["init", "update"])
def test_a_recipe_that_was_not_called_says_so(method):
    with pytest.raises(TypeError, match=rf"Call it first: tx = adam\(\.\.\.\), then tx.{method}"):
        getattr(fnopt.adam, method)({"w": jnp.ones(2)})
    with pytest.raises(TypeError, match="Did you forget to call it"):
        fnopt.chain(fnopt.adam)
