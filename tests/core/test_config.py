import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fnopt


def halve(updates: Any, params: Any) -> Any:
    return updates


class odd(fnopt.Transformation):
    numbers: Any
    dtype: Any = fnopt.static(default=None)

    def update(self, updates, state, params=None, **extra_args):
        return updates, state


VALUES = [
    fnopt.adam(1e-3, mu_dtype=jnp.bfloat16),
    fnopt.chain(("a", fnopt.clip(math.inf)), ("b", fnopt.adam(fnopt.constant_schedule(0.1)))),
    fnopt.stateless(halve),
    odd({"a": 1.0, "type": (2.0, None)}, dtype=jnp.dtype("float16")),
    odd(jnp.asarray([1.5, -0.1], jnp.bfloat16)),
    odd((fnopt.identity(), fnopt.clip(1.0))),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_round_trip_through_json(value):
    text = json.dumps(fnopt.to_config(value), allow_nan=False)
    assert fnopt.from_config(json.loads(text)) == value


def test_names_are_the_public_ones():
    assert fnopt.to_config(fnopt.clip(1.0)) == {"type": "fnopt.clip", "max_delta": 1.0}


def test_local_functions_and_foreign_transforms_have_no_config():
    optax = pytest.importorskip("optax")
    with pytest.raises(TypeError, match=r"fn = <function .*lambda.* has no plain description"):
        fnopt.to_config(fnopt.stateless(lambda u, p: u))
    with pytest.raises(TypeError, match=r"transforms\[1\]\.\w+_fn = .* has no plain description"):
        fnopt.to_config(fnopt.chain(fnopt.identity(), optax.adam(1.0)))


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"type": "fnopt.clipp"}, ValueError, "unknown type 'fnopt.clipp'. Did you mean .*clip"),
        ({"type": "mine.thing"}, ValueError, "unknown type 'mine.thing'"),
        ({"type": "fnopt.clip", "delta": 1.0}, ValueError, "fnopt.clip has no field 'delta'"),
        ({"type": "fnopt.clip"}, ValueError, "fnopt.clip lacks the field 'max_delta'"),
        ({"type": "fnopt.clip", "max_delta": "1"}, TypeError, "clip: max_delta = '1' is a str"),
        ({"type": "fnopt.clip", "max_delta": -1}, ValueError, "expected max_delta >= 0"),
        ({"max_delta": 1.0}, TypeError, "expected a dict with a 'type'"),
        ("fnopt.clip", TypeError, "'fnopt.clip' is a str, expected a dict"),
        (
            {"type": "fnopt.stateless", "fn": {"type": "function", "name": "nowhere:f"}},
            ValueError,
            "no function 'nowhere:f'; import its module first",
        ),
    ],
)
def test_bad_config(config, error, text):
    with pytest.raises(error, match=text):
        fnopt.from_config(config)


def test_a_config_imports_nothing():
    config = {"type": "fnopt.stateless", "fn": {"type": "function", "name": "antigravity:f"}}
    with pytest.raises(ValueError, match="no function"):
        fnopt.from_config(config)


def test_a_traced_number_has_no_config():
    with pytest.raises(TypeError, match=r"transforms\[1\]\.learning_rate is traced"):
        jax.make_jaxpr(lambda rate: fnopt.to_config(fnopt.adam(rate)))(0.1)


def test_near_names_are_compared_without_their_package():
    with pytest.raises(ValueError, match=r"Did you mean .*fnopt\.scale_by_adam"):
        fnopt.from_config({"type": "scale_by_adm"})
    with pytest.raises(ValueError, match="adam is a function"):
        fnopt.from_config({"type": "adam"})
