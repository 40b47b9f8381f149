"""What a recipe answers to arguments that it doesn't have."""

import inspect
import pickle

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
