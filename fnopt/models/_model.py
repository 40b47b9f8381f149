"""Base classes of models: functions of x with named params, their sums and products."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import Value, static
from fnopt.errors import count_text, missing_attribute, where
from fnopt.numerics import default_float

Bounds = dict[str, tuple[float | None, float | None]]


# Attributes of lmfit's models, and the expressions that replace them in fnopt.
_ELSEWHERE = {
    "fit": "fnopt.curve_fit(model, x, y)",
    "make_params": "a dict, p0={'center': 2.0}",
    "param_names": "model.names",
    "eval": "model(x, params)",
    "eval_components": "model.components(x, params)",
}


class Model(Value):
    """Function of x with named params, bounds, and an initial guess from data.

    Call a model as `model(x, **params)`, `model(x, params)` or `model(x, *values)`. Models can be
    added and multiplied: `Gaussian("a_") + Linear("b_")`, `sum(models)`. Pass a model as the
    function `f` of :func:`fnopt.curve_fit`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.models import Gaussian, Linear
        >>> model = Gaussian("peak_") + Linear()
        >>> model.names
        ('peak_amplitude', 'peak_center', 'peak_sigma', 'slope', 'intercept')
        >>> model.bounds
        {'peak_sigma': (0.0, None)}
    """

    if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any attribute
        __getattr__ = missing_attribute("a model", _ELSEWHERE)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params, in the order of the arguments of :meth:`values`."""
        raise NotImplementedError

    @property
    def bounds(self) -> Bounds:
        """Lower and upper bound of each bounded param, by name; None is no bound."""
        return {}

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Evaluate the model at `x`, with the params in the order of `names`."""
        raise NotImplementedError

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Guess the params from data, as a dict keyed by name."""
        raise ValueError(
            f"{where()}{self!r} can't guess initial values, expected p0. Pass p0 as a dict with "
            f"the keys {self.names}."
        )

    @property
    def is_peak(self) -> bool:
        """Whether the model is near zero far from its center, so that a sum guesses it last."""
        return False

    def parts(self) -> tuple[Model, ...]:
        """The terms of a sum, or the model itself if it isn't a sum."""
        return (self,)

    def components(self, x: Any, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Evaluate every term of a sum, as a dict keyed by prefix or class name."""
        return {
            getattr(part, "prefix", "") or type(part).__name__: part(x, params)
            for part in self.parts()
        }

    def __call__(self, x: Any, *values: Any, **params: Any) -> jax.Array:
        if len(values) == 1 and isinstance(values[0], dict):
            values, params = (), values[0]
        missing = [name for name in self.names if name not in params]
        if not values and not missing:
            values = tuple(params[name] for name in self.names)
        elif params or len(values) != len(self.names):
            passed = sorted(params) if params else count_text(len(values), "number")
            raise TypeError(
                f"{where()}{self!r} got {passed}, expected the params {list(self.names)}."
            )
        return self.values(x, *values)

    def __add__(self, other: Model) -> Model:
        return _combine(self, other, is_product=False)

    def __radd__(self, other: Any) -> Model:
        is_start_of_sum = isinstance(other, int) and other == 0  # `sum` adds to 0
        return self if is_start_of_sum else _combine(self, other, is_product=False)

    def __mul__(self, other: Model) -> Model:
        return _combine(self, other, is_product=True)

    __rmul__ = __mul__


class Component(Model):
    """Model of a single function, whose arguments after x are the params.

    Args:
        prefix: Prefix of the names of the params.
    """

    prefix: str = static(default="")
    curve: ClassVar[Callable[..., jax.Array]]  # function of x and the params
    positive: ClassVar[tuple[str, ...]] = ()  # names of the params with the lower bound 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params, in the order of the function's arguments."""
        return tuple(
            self.prefix + name for name in list(inspect.signature(self.curve).parameters)[1:]
        )

    @property
    def bounds(self) -> Bounds:
        """Lower bound 0 for the params in `positive`."""
        return {self.prefix + name: (0.0, None) for name in self.positive}

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Evaluate the function at `x`."""
        return self.curve(jnp.asarray(x), *values)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Guess the params from data, in the order of `names`."""
        del x, y
        raise NotImplementedError

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Guess the params from data, as a dict keyed by name."""
        x, y = (jnp.asarray(v, default_float()) for v in (x, y))
        if x.shape != y.shape:
            raise ValueError(
                f"{where()}{self!r}: x has shape {x.shape} and y has shape {y.shape}, expected "
                "equal shapes for a guess of the params. Pass one x for each y, or pass p0."
            )
        try:
            start = self.start(x, y)
        except NotImplementedError:  # the class doesn't define a guess
            return super().guess(x, y)
        return {n: jnp.asarray(v, y.dtype) for n, v in zip(self.names, start, strict=True)}


class Function(Component):
    """Model of a user's function."""

    fn: Callable[..., Any] = static(default=None)

    @property
    def curve(self) -> Callable[..., jax.Array]:  # pyright: ignore
        """The user's function."""
        return self.fn


def model(fn: Callable[..., Any], prefix: str = "") -> Model:
    """Make a model from a function, for example to add it to other models.

    Args:
        fn: `fn(x, a, b, ...)`, written with `jax.numpy`. The names of its arguments after x are the
            names of the params.
        prefix: Prefix of the names of the params.

    Returns:
        The model. It can't guess its params, so pass `p0` to a fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.models import Constant, model
        >>> wave = model(lambda x, height, k: height * jnp.sin(k * x), "w_") + Constant()
        >>> wave.names
        ('w_height', 'w_k', 'c')
    """
    return Function(prefix, fn)


class Combined(Model):
    """Sum or product of two models."""

    left: Model
    right: Model
    is_product: bool = static(default=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params of both models."""
        return self.left.names + self.right.names

    @property
    def bounds(self) -> Bounds:
        """Bounds of both models."""
        return self.left.bounds | self.right.bounds

    @property
    def is_peak(self) -> bool:
        """Whether one of the models is a peak."""
        return self.left.is_peak or self.right.is_peak

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Evaluate the sum or the product of both models."""
        n = len(self.left.names)
        left, right = self.left(x, *values[:n]), self.right(x, *values[n:])
        return left * right if self.is_product else left + right

    def parts(self) -> tuple[Model, ...]:
        """The terms of a sum, or the model itself if it is a product."""
        return (self,) if self.is_product else self.left.parts() + self.right.parts()

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Guess every term from the data minus the previous terms, with peaks last."""
        if self.is_product:
            return super().guess(x, y)
        guess, remainder = {}, jnp.asarray(y, default_float())
        for part in sorted(self.parts(), key=lambda part: part.is_peak):
            start = part.guess(x, remainder)
            guess |= start
            remainder = remainder - part(x, start)
        return guess


def _combine(left: Model, right: Any, is_product: bool) -> Model:
    if not isinstance(right, Model):
        raise TypeError(
            f"{where()}{right!r:.60} can't be combined with a model, expected a model. Use "
            "fnopt.models.model(fn) for a function, and Constant() for a number."
        )
    common = sorted(set(left.names) & set(right.names))
    if common:
        raise ValueError(
            f"{where()}both models have the params {common}, expected different names. Use a "
            f"prefix for one model, such as {type(right).__name__}('b_')."
        )
    return Combined(left, right, is_product)
