"""The directive `{public} fnopt.package`: reference entries for everything in its `__all__`.

The list is read from the package, so that nothing public can be missing from the reference.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def _home(name: str, thing: object, package: str) -> str:
    """The shortest name that a user writes: `fnopt.adam`, not `fnopt.optimizers.adam`."""
    import fnopt

    return f"fnopt.{name}" if getattr(fnopt, name, None) is thing else f"{package}.{name}"


def _is_callable(thing: object) -> bool:
    return inspect.isclass(thing) or inspect.isfunction(thing)


def _entry(name: str, thing: object) -> list[str]:
    if inspect.isfunction(thing):
        return [f".. autofunction:: {name}", ""]
    if inspect.isclass(thing):
        # A base class is there to be overridden, so its methods are part of the reference.
        base = thing.__name__ in {"Transformation", "Schedule"}
        options = ["   :members:", "   :special-members: __call__"] if base else []
        return [f".. autoclass:: {name}", *options, ""]
    return [f".. autodata:: {name}", "   :no-value:", ""]


def _order(item: tuple[str, Any]) -> tuple[bool, str]:
    """What is called comes first, states and results and types after it."""
    name, thing = item
    return (not _is_callable(thing) or name[0].isupper(), name.lower())


class Public(SphinxDirective):
    """Documents a package."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A line-by-line source for autodoc, parsed in place."""
        package: ModuleType = importlib.import_module(self.arguments[0])
        things = {n: getattr(package, n) for n in package.__all__}
        chosen = {n: t for n, t in things.items() if not isinstance(t, ModuleType)}
        lines = [
            line
            for name, thing in sorted(chosen.items(), key=_order)
            for line in _entry(_home(name, thing, self.arguments[0]), thing)
        ]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, "public"), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("public", Public)
    return {"parallel_read_safe": True}
