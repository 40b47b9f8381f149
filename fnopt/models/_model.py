"""A model: a function of x with named params."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import Value, static
from fnopt.errors import missing_attribute, where
from fnopt.numerics import default_float

Bounds = dict[str, tuple[float | None, float | None]]


# Attributes of lmfit's models, and what replaces them.
_ELSEWHERE = {
    "fit": "fnopt.curve_fit(model, x, y)",
    "make_params": "a dict, p0={'center': 2.0}",
    "param_names": "model.names",
    "eval": "model(x, params)",
    "eval_components": "model.components(x, params)",
}


class Model(Value):
    """A function of x with named params, bounds, and an initial guess from data.

    Call a model as `model(x, **params)`, `model(x, params)` or `model(x, *values)`. Add and
    multiply models: `Gaussian("a_") + Linear("b_")`, `sum(models)`. :func:`fnopt.curve_fit`
    takes a model as its function.

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
        """Names of the params, in the order of `values`."""
        raise NotImplementedError

    @property
    def bounds(self) -> Bounds:
        """Lower and upper bound of each bounded param; None for no bound."""
        return {}

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Values of the model, with params in the order of `names`."""
        raise NotImplementedError

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Guess of the params, by name."""
        raise ValueError(
            f"{where()}{self!r} can't guess initial values; pass p0, a dict with {self.names}."
        )

    @property
    def is_peak(self) -> bool:
        """Whether the model vanishes far from its center; the guess of a sum treats peaks last."""
        return False

    def parts(self) -> tuple[Model, ...]:
        """Terms of a sum."""
        return (self,)

    def components(self, x: Any, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Values of every term of a sum, keyed by prefix, or by class name without a prefix."""
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
            given = sorted(params) if params else f"{len(values)} numbers"
            raise TypeError(
                f"{where()}{self!r} takes the params {list(self.names)}, but got {given}."
            )
        return self.values(x, *values)

    def __add__(self, other: Model) -> Model:
        return _combine(self, other, is_product=False)

    def __radd__(self, other: Any) -> Model:
        is_start_of_sum = isinstance(other, int) and other == 0
        return self if is_start_of_sum else _combine(self, other, is_product=False)

    def __mul__(self, other: Model) -> Model:
        return _combine(self, other, is_product=True)

    __rmul__ = __mul__


class Component(Model):
    """Model of a single function; the function's arguments after x are the params.

    Args:
        prefix: Prefix of the names of the params.
    """

    prefix: str = static(default="")
    curve: ClassVar[Callable[..., jax.Array]]  # function of x and the params
    positive: ClassVar[tuple[str, ...]] = ()  # params with the lower bound 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params, in the order of the function's arguments."""
        return tuple(
            self.prefix + name for name in list(inspect.signature(self.curve).parameters)[1:]
        )

    @property
    def bounds(self) -> Bounds:
        """Lower bound 0 for scales."""
        return {self.prefix + name: (0.0, None) for name in self.positive}

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Values of the function."""
        return self.curve(jnp.asarray(x), *values)

    def start(self, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        """Initial guess, in the order of `names`."""
        del x, y
        raise NotImplementedError

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Guess of the params, by name."""
        x, y = (jnp.asarray(v, default_float()) for v in (x, y))
        if x.shape != y.shape:
            raise ValueError(
                f"{where()}{self!r} guesses initial values from x of shape {x.shape} and "
                f"y of shape {y.shape}, expected the same shape. Do x and y have the same "
                "length?"
            )
        try:
            found = self.start(x, y)
        except NotImplementedError:  # the model defines no guess of its own
            return super().guess(x, y)
        return {n: jnp.asarray(v, y.dtype) for n, v in zip(self.names, found, strict=True)}


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
        fn: `fn(x, a, b, ...)`, written with `jax.numpy`; its arguments name the params.
        prefix: Prefix of the names of the params.

    Returns:
        The model, without an initial guess: pass `p0` for its params.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.models import Constant, model
        >>> wave = model(lambda x, height, k: height * jnp.sin(k * x), "w_") + Constant()
        >>> wave.names
        ('w_height', 'w_k', 'c')
    """
    return Function(prefix, fn)


class Combined(Model):
    """The sum or product of two models."""

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
        """Whether the model vanishes far away."""
        return self.left.is_peak or self.right.is_peak

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Sum or product of the values of both models."""
        n = len(self.left.names)
        left, right = self.left(x, *values[:n]), self.right(x, *values[n:])
        return left * right if self.is_product else left + right

    def parts(self) -> tuple[Model, ...]:
        """Terms of a sum."""
        return (self,) if self.is_product else self.left.parts() + self.right.parts()

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Initial guess of every term from the data minus previous terms, with peaks last."""
        if self.is_product:
            return super().guess(x, y)
        found, rest = {}, jnp.asarray(y, default_float())
        for part in sorted(self.parts(), key=lambda part: part.is_peak):
            start = part.guess(x, rest)
            found |= start
            rest = rest - part(x, start)
        return found


def _combine(left: Model, right: Any, is_product: bool) -> Model:
    if not isinstance(right, Model):
        raise TypeError(
            f"{where()}{right!r:.60} can't be combined with a model, expected a model. Write "
            "fnopt.models.model(fn) for a function, Constant() for a number."
        )
    twice = sorted(set(left.names) & set(right.names))
    if twice:
        raise ValueError(
            f"{where()}both models have params {twice}. Give one a prefix: {type(right).__name__}"
            "('b_')."
        )
    return Combined(left, right, is_product)
