"""Tables of the SciPy keywords that a solver accepts, and checks of calls against them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.errors import check_count
from fnopt.solvers.problem._call import SCHEMES

EXACT = "derivatives are exact in fnopt. To use your own, define fun with jax.custom_jvp"


class ScipyTable(NamedTuple):
    """The keywords of SciPy that a solver accepts."""

    caller: str
    keywords: tuple[str, ...]
    instead: dict[str, str]  # unsupported keywords, and what to do instead
    options: tuple[str, ...] = ()  # keys of the dict `options`
    steps: tuple[str, ...] = ()  # keywords and options that limit the steps

    def read(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Merge the keywords with the entries of `options`, and drop values of None.

        Raises:
            TypeError: If the table doesn't contain a name. The message proposes a replacement.
        """
        caller, options = self.caller, dict(arguments.get("options") or {})
        for name in options:
            if name not in self.options:
                expected = ", ".join(self.options)
                raise TypeError(
                    f"{caller}: unexpected option {name!r}, expected one of {expected}."
                )
        for name in arguments:
            if name not in self.keywords:
                other = f"Expected a documented one, or SciPy's {', '.join(self.keywords)}"
                hint = self.instead.get(name, other)
                raise TypeError(f"{caller}: unexpected keyword {name!r}. {hint}.")
        merged = options | {name: value for name, value in arguments.items() if name != "options"}
        return {name: value for name, value in merged.items() if value is not None}

    def smallest_limit(self, read: dict[str, Any], max_steps: int) -> int:
        """Return the smallest of SciPy's limits on the number of steps, or else `max_steps`."""
        limits = [check_count(read[name], name, self.caller) for name in self.steps if name in read]
        return min(limits, default=max_steps)


def check_jac(caller: str, jac: Any, value: str, other: str = "") -> None:
    """Raise an error if `jac` is a derivative, or True for a function that returns a derivative.

    Args:
        caller: The public function that was called.
        jac: The value of the argument `jac`.
        value: What the user's function has to return, for the message.
        other: Which other values of `jac` the caller accepts, for the message.
    """
    if jac is True:
        raise TypeError(
            f"{caller}: jac = True isn't supported. Leave jac out, and pass a fun that returns "
            f"{value} alone, because {EXACT}."
        )
    if jac is not False and jac not in (None, *SCHEMES):
        raise TypeError(
            f"{caller}: jac = {jac!r}, expected None{other}. Leave jac out, because {EXACT}."
        )


def value_or_option(value: Any, read: dict[str, Any], *names: str) -> Any:
    """Return `value`; if it is None, the first of SciPy's options `names` that is set, or None."""
    return next((read[name] for name in names if name in read), None) if value is None else value
