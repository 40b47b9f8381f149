"""SciPy's keywords: one table for each solver, and functions that read a call by the table."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.errors import check_count
from fnopt.solvers.problem._call import SCHEMES

EXACT = "derivatives are exact here. If yours are cheaper, give fun a jax.custom_jvp"


class ScipyTable(NamedTuple):
    """The keywords of SciPy that a solver accepts."""

    caller: str
    keywords: tuple[str, ...]
    instead: dict[str, str]  # rejected keywords, with their replacement
    options: tuple[str, ...] = ()  # keys of the dict `options`
    steps: tuple[str, ...] = ()  # keywords and options that limit the steps

    def read(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords and the entries of `options` that aren't None.

        Raises:
            TypeError: If the table doesn't contain a name; the message names the replacement.
        """
        caller, options = self.caller, dict(given.get("options") or {})
        for name in options:
            if name not in self.options:
                expected = ", ".join(self.options)
                raise TypeError(f"{caller}: unexpected option {name!r}, expected {expected}.")
        for name in given:
            if name not in self.keywords:
                other = f"Expected one documented, or SciPy's {', '.join(self.keywords)}"
                hint = self.instead.get(name, other)
                raise TypeError(f"{caller}: unexpected keyword {name!r}. {hint}.")
        both = options | {name: value for name, value in given.items() if name != "options"}
        return {name: value for name, value in both.items() if value is not None}

    def most_steps(self, read: dict[str, Any], max_steps: int) -> int:
        """Return the smallest of all limits on the number of steps."""
        limits = [check_count(read[name], name, self.caller) for name in self.steps if name in read]
        return min(limits, default=max_steps)


def check_jac(caller: str, jac: Any, value: str, other: str = "") -> None:
    """Raise an error for a derivative, or a function that returns its value and its derivative.

    Args:
        caller: The function that is called.
        jac: The value of the argument `jac`.
        value: What the user's function has to return, for the message.
        other: What the caller accepts instead, for the message.
    """
    if jac is True:
        raise TypeError(
            f"{caller}: jac = True, expected a function that returns {value} alone: {EXACT}."
        )
    if jac is not False and jac not in (None, *SCHEMES):
        raise TypeError(f"{caller}: jac = {jac!r}, expected none{other}: {EXACT}.")


def first(read: dict[str, Any], *names: str, given: Any = None) -> Any:
    """Return `given`, or the value of the first name in `read`."""
    return next((read[name] for name in names if name in read), None) if given is None else given
