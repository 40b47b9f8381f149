"""Models of several data sets with shared params."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import static
from fnopt.errors import where
from fnopt.models._model import Bounds, Model


class Datasets(Model):
    """A model of several data sets, with shared and separate params.

    Fit the model to a tuple of x arrays and the concatenated data. A separate param `a` is named
    `a_0`, `a_1` and so on; a shared param keeps its name.

    Args:
        model: The model of one data set.
        count: Number of data sets.
        shared: The names of the shared params, or one name.

    Raises:
        ValueError: If the model has no param of a shared name, or if there aren't `count` x arrays.

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
                f"{where()}Datasets: shared = {unknown}, expected names of {self.model.names}."
            )

    def _names_of(self, i: int) -> list[str]:
        return [name if name in self.shared else f"{name}_{i}" for name in self.model.names]

    def _check(self, x: Any) -> None:
        count = len(x) if isinstance(x, (tuple, list)) else (*jnp.shape(x), None)[0]
        if count != self.count:
            given = "one number" if count is None else f"{count} entries"
            raise ValueError(
                f"{where()}Datasets: xdata has {given}, expected {self.count}: a tuple with the "
                "positions of each set."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the params of all data sets; shared params occur once."""
        return tuple(dict.fromkeys(n for i in range(self.count) for n in self._names_of(i)))

    @property
    def bounds(self) -> Bounds:
        """Bounds of the model, for every data set."""
        sets = [zip(self._names_of(i), self.model.names, strict=True) for i in range(self.count)]
        known = self.model.bounds
        return {new: known[old] for pairs in sets for new, old in pairs if old in known}

    def values(self, x: Any, *values: Any) -> jax.Array:
        """Values of all data sets, concatenated."""
        self._check(x)
        params = dict(zip(self.names, values, strict=True))
        each = [[params[name] for name in self._names_of(i)] for i in range(self.count)]
        return jnp.concatenate(
            [jnp.ravel(self.model(xi, *p)) for xi, p in zip(x, each, strict=True)]
        )

    def guess(self, x: Any, y: Any) -> dict[str, jax.Array]:
        """Initial guesses for all data sets; for a shared param, the mean over the data sets."""
        self._check(x)
        ends = np.cumsum([np.size(xi) for xi in x])[:-1].tolist()
        guesses = [self.model.guess(*pair) for pair in zip(x, jnp.split(y, ends), strict=True)]
        found: dict[str, list[jax.Array]] = {}
        for i, guess in enumerate(guesses):
            for new, old in zip(self._names_of(i), self.model.names, strict=True):
                found.setdefault(new, []).append(guess[old])
        return {name: jnp.mean(jnp.stack(values)) for name, values in found.items()}
