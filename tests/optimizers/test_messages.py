"""What people type wrong, and what they are told: what came, what was expected, what to do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fnopt

PARAMS = {"kernel": np.ones((3, 2), np.float32), "bias": np.zeros(2, np.float32)}
ADAM = fnopt.adam(1e-3)


@dataclasses.dataclass
class Plain:
    """A dataclass that nobody told JAX of."""

    w: object


def updated(tx, grads=PARAMS, state=None, params=PARAMS, **extras):
    state = tx.init(params) if state is None else state
    return tx.update(grads, state, params, **extras)


def scheduled(fn):
    return fnopt.sgd(fnopt.schedule(fn))


WRONG = {
    # arguments of recipes, and those of their members under another name
    "momentum": (lambda: fnopt.sgd(0.1, 1.5), "sgd: trace: decay = 1.5, expected decay >= 0 and"),
    "flag": (lambda: fnopt.sgd(0.1, True), "sgd: trace: decay = True is a bool, expected a number"),
    "params": (
        lambda: fnopt.adam(PARAMS),
        r"learning_rate = {'kernel': float32\[3, 2\], .*} is a dict, .* Pass params to tx.init",
    ),
    "list": (lambda: fnopt.adam([0.1]), r"= \[0.1\] is a list, expected a number, an array or a"),
    # masks and labels
    "mask": (
        lambda: fnopt.adamw(0.1, mask=lambda p: p),
        r"adamw: add_decayed_weights: mask = .*<lambda> is a function, .* mask=fn\(params\)",
    ),
    "floats": (lambda: fnopt.adamw(0.1, mask=PARAMS), r"leaf 'bias' is float32\[2\], expected a b"),
    "pattern": (
        lambda: fnopt.select("*/bias", PARAMS),
        r"labels = '\*/bias' looks like a pattern, expected .* fnopt.by_pattern\({'\*/bias'",
    ),
    "masked": (lambda: fnopt.masked(ADAM, lambda p: p), "^masked: mask = .*<lambda> is a func"),
    "key": (
        lambda: fnopt.add_gradient_noise(0.1, 0.5, key="a"),
        "^add_gradient_noise: key = 'a', ",
    ),
    "recipe": (
        lambda: fnopt.param_groups(ADAM, {"bias": {}}),
        r"recipe is chain\([\s\S]*expected a function that makes an optimizer, followed",
    ),
    # states
    "optax": (
        lambda: updated(ADAM, state=optax.adam(1e-3).init(PARAMS)),
        r"optax's ScaleByAdamState, expected ScaleByAdamState\. .* fnopt.tree.restore copies",
    ),
    "applied": (
        lambda: fnopt.apply_updates(PARAMS, ADAM.init(PARAMS)),
        "updates lack .*'bias', 'kernel'.*; updates have .*'0/count', .*, which params lack, exp",
    ),
    "slots": (lambda: fnopt.slots(ADAM), "got an optimizer, expected its state, which tx.init"),
    "swapped": (
        lambda: fnopt.slot_names(PARAMS, ADAM),
        r"tx is {'kernel': float32\[3, 2\], .*, expected an opti",
    ),
    "rates": (lambda: fnopt.hyperparams((), ADAM), r"hyperparams: tx is \(\), expected an opti"),
    "named": (lambda: fnopt.named((), ADAM), r"named: tx is \(\), expected an optimizer"),
    # gradients
    "value": (
        lambda: updated(ADAM, (1.0, PARAMS)),
        r"the pair \(value, grads\) of jax.value_and_grad, expected grads. Write value, grads =",
    ),
    "None": (
        lambda: updated(ADAM, PARAMS | {"bias": None}),
        r"gradients lack \['bias'\]; expected equal structures. Compute the gradient with respect",
    ),
    "examples": (
        lambda: updated(ADAM, jax.tree.map(lambda x: x[None], PARAMS)),
        r"leaf 'bias': gradients have shape \(1, 2\), params have shape \(2,\), expected equal",
    ),
    "complex gradient": (
        lambda: updated(ADAM, PARAMS | {"bias": 1j * np.ones(2)}),
        r"leaf 'bias': the gradient is complex\d+\[2\], the parameter is float\d+\[2\], expected a "
        r"real gradient for a real parameter. Pass the real part, jnp.real\(gradient\)",
    ),
    # leaves
    "dataclass": (
        lambda: ADAM.init(Plain(jnp.ones(2))),
        "the only leaf is Plain, expected a floating array. .*jax.tree_util.register_dataclass",
    ),
    "module": (
        lambda: updated(ADAM, state=ADAM.init(PARAMS), params=PARAMS | {"act": jnp.tanh}),
        r"gradients lack \['act'\]; expected equal structures. Remove leaves that aren't arrays",
    ),
    "complex": (
        lambda: updated(fnopt.clip(1.0), {"w": 1j * np.ones(2)}, params={"w": 1j * np.ones(2)}),
        r"leaf 'w' is complex\d+\[2\], expected a real array, because .*clip_by_global_norm",
    ),
    # values
    "loss": (
        lambda: updated(fnopt.polyak_sgd(), value=np.ones(2)),
        r"the value of the loss is float\d+\[2\], expected one real number. Sum or average",
    ),
    "word": (
        lambda: updated(fnopt.reduce_on_plateau(), value="low"),
        "the value of the loss is str, expected one real number",
    ),
    # schedules
    "nothing": (lambda: updated(scheduled(lambda t: None)), "returned NoneType, expected one"),
    "several": (lambda: updated(scheduled(lambda t: [0.1])), "returned list, expected one real"),
    "imaginary": (lambda: updated(scheduled(lambda t: 1j)), "returned complex, expected one"),
    "no count": (lambda: fnopt.schedule(lambda: 0.1), r"<lambda> can't be called as fn\(count\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_says_what_to_do(name):
    attempt, text = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=text):
        attempt()


@pytest.mark.parametrize("fn", [lambda t: 0.1 if t < 9 else 0.01, lambda t: np.cos(t)])
def test_a_schedule_that_reads_the_traced_count_says_so(fn):
    with pytest.raises(jax.errors.JAXTypeError) as raised:
        jax.eval_shape(fnopt.schedule(fn), jnp.int32(0))
    assert any("the count is traced. Write jnp.where" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fnopt.cosine_decay_schedule(lr=1e-3), "unknown argument 'lr'.*Write init_value="),
        (lambda: fnopt.constant_schedule(learning_rate=1.0), r"expected \(value\). Write value="),
        (lambda: fnopt.warmup_cosine_decay_schedule(lr=1.0), "Write peak_value="),
        (lambda: fnopt.scale_by_adam(beta1=0.9), r"scale_by_adam: .*Write b1=\.\.\."),
        (lambda: fnopt.clip_by_global_norm(), "missing a required argument: 'max_norm'"),
        (lambda: fnopt.levenberg_marquardt(x_tol=1e-3), "Write xtol="),
        (lambda: fnopt.rmsprop(0.1, alpha=0.9), r"Write decay=\.\.\.\.$"),
    ],
)
def test_classes_of_values_name_the_argument_to_write(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_errors_inside_of_a_class_stay_as_they_are():
    class odd(fnopt.Schedule):
        slope: float = 1.0

        def __post_init__(self):
            super().__post_init__()
            raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        odd(2.0)
