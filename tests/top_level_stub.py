"""Write the type stub `fnopt/__init__.pyi`: `python -m tests.top_level_stub`."""

from __future__ import annotations

import pathlib

import fnopt

STUB = pathlib.Path(fnopt.__file__).with_suffix(".pyi")
AT_ONCE = ("optimizers", "schedules", "transforms")


def _order(name: str) -> tuple[bool, str]:
    """Sort key of ruff for imported names: classes before functions."""
    return name[0].islower(), name


def stub() -> str:
    """Return the text of the stub."""
    later: dict[str, tuple[str, ...]] = fnopt._LATER
    lines = [
        "# Made by `python -m tests.top_level_stub` of the list in __init__.py; a test holds that",
        "# it is current.",
        "",
    ]
    lines += [f"from fnopt import {p} as {p}" for p in sorted([*later, *AT_ONCE])]
    for package in sorted([*later, *AT_ONCE]):
        if package in AT_ONCE:
            lines.append(f"from fnopt.{package} import *")
        names = sorted(later.get(package, ()), key=_order)
        lines += [f"from fnopt.{package} import {n} as {n}" for n in names]
    starred = ["__all__ = ["] + [f'    "{name}",' for name in fnopt.__all__] + ["]"]
    return "\n".join([*lines, "", *starred, "", "__version__: str", ""])


if __name__ == "__main__":
    STUB.write_text(stub())
