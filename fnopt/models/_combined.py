"""Model of several data sets with shared params."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import static
from fnopt.errors import count_text, where
from fnopt.models._model import Bounds, Model


class Datasets(Model):
    """Model of several data sets, with shared and separate params.

    Fit the model to a tuple of x arrays and the concatenated data. A separate param `a` has the
    names `a_0`, `a_1` and so on. A shared param keeps its name.

    Args:
        model: The model of one data set.
        count: Number of data sets.
        shared: The names of the shared params, or one name.

    Raises:
        ValueError: If `shared` contains a name that isn't a param of the model, or if there aren't
            `count` x arrays.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.models import Datasets, Exponential
        >>> x = (jnp.arange(6.0), jnp.arange(4.0))
        >>> y = jnp.concatenate([3 * jnp.exp(-x[0] / 2), 5 * jnp.exp(-x[1] / 2)])
        >>> fit = fnopt.curve_fit(Datasets(Exponential(), 2, ("decay",)), x, y)
        >>> {name: round(float(value), 3) for name, value in sorted(fit.params.items())}
        {'amplitude_0': 3.0, 'amplitude_1': 5.0, 'decay': 2.0}
    """

    model: Model
    count: int = static(least=1)
    shared: tuple[str, ...] = static(convert=lambda x: (x,) if isinstance(x, str) else tuple(x))

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(set(self.shared) - set(self.model.names))
        if unknown:
            raise ValueError(
                f"{where()}Datasets: shared = {unknown}, expected some of {self.model.names}."
            )

    def _names_of(self, i: int) -> list[str]:
        return [name if name in self.shared else f"{name}_{i}" for name in self.model.names]

    def _check(self, x: Any) -> None:
        count = len(x) if isinstance(x, (tuple, list)) else (*jnp.shape(x), None)[0]
        if count != self.count:
            entries = count_text(count, "entry", "entries")
            size = "is one number" if count is None else f"has {entries}"
            raise ValueError(
                f"{where()}Datasets: xdata {size}, expected a tuple of "
                f"{count_text(self.count, 'array')}, the x values of each data set."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params of all data sets, with shared params once."""
        return tuple(dict.fromkeys(n for i in range(self.count) for n in self._names_of(i)))

    @property
    def bounds(self) -> Bounds:
        """Bounds of the params of all data sets."""
        sets = [zip(self._names_of(i), self.model.names, strict=True) for i in range(self.count)]
        bounds = self.model.bounds
        return {new: bounds[old] for pairs in sets for new, old in pairs if old in bounds}

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Concatenated values of the model for all data sets."""
        self._check(x)
        params = dict(zip(self.names, values, strict=True))
        set_params = [[params[name] for name in self._names_of(i)] for i in range(self.count)]
        return jnp.concatenate(
            [jnp.ravel(self.model(xi, *p)) for xi, p in zip(x, set_params, strict=True)]
        )

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Guess the params from each data set, and average guesses of shared params."""
        self._check(x)
        ends = np.cumsum([np.size(xi) for xi in x]).tolist()
        if jnp.shape(y) != (ends[-1],):
            raise ValueError(
                f"{where()}Datasets: ydata have shape {jnp.shape(y)}, expected {(ends[-1],)}, one "
                "datum for each x. Concatenate the data sets: jnp.concatenate(ydata)."
            )
        parts = jnp.split(y, ends[:-1])
        guesses = [self.model.guess(*pair) for pair in zip(x, parts, strict=True)]
        by_name: dict[str, list[jax.Array]] = {}
        for i, guess in enumerate(guesses):
            for new, old in zip(self._names_of(i), self.model.names, strict=True):
                by_name.setdefault(new, []).append(guess[old])
        return {name: jnp.mean(jnp.stack(values)) for name, values in by_name.items()}
