"""The directive `.. public:: fnopt.package`: reference entries for everything in its `__all__`.

The list is read from the package, so that nothing public can be missing from the reference. The
role `named`, which single backticks in docstrings have, makes public names links to their entries,
and so does a transform with code on pages that begins with one: `fnopt.adam(1e-3)`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective


def _home(name: str, thing: object, package: str) -> str:
    """The shortest name that a user writes: `fnopt.adam`, not `fnopt.optimizers.adam`."""
    import fnopt

    return f"fnopt.{name}" if getattr(fnopt, name, None) is thing else f"{package}.{name}"


def _is_callable(thing: object) -> bool:
    return inspect.isclass(thing) or inspect.isfunction(thing)


def _entry(name: str, thing: object, doc: list[str]) -> list[str]:
    # What several packages offer is indexed where it is defined.
    package = ".".join(name.split(".")[:2])
    elsewhere = name.count(".") > 1 and package not in getattr(thing, "__module__", package)
    options = ["   :no-index:"] if elsewhere else []
    if inspect.isfunction(thing):
        return [f".. autofunction:: {name}", *options, ""]
    if inspect.isclass(thing):
        # A base class is there to be overridden, so its methods are part of the reference.
        base = thing.__name__ in {"Transformation", "Schedule"}
        options += ["   :members:", "   :special-members: __call__"] if base else []
        return [f".. autoclass:: {name}", *options, ""]
    return [f".. py:data:: {name}", "", *(f"   {line}" for line in doc), ""]


def _data_docs(package: ModuleType) -> dict[str, list[str]]:
    """The strings below assignments, which a name loses when it is imported elsewhere."""
    docs: dict[str, list[str]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        found = ModuleAnalyzer.for_module(module.name).find_attr_docs()
        docs |= {name: lines for (owner, name), lines in found.items() if not owner}
    return docs


def _order(item: tuple[str, Any]) -> tuple[bool, str]:
    """What is called comes first, states and results and types after it."""
    name, thing = item
    return (not _is_callable(thing) or name[0].isupper(), name.lower())


@functools.cache
def _entries() -> dict[str, str]:
    """Where the entry of a name is: of `adam` and `fnopt.adam`, if only one thing is called so."""
    import fnopt

    homes: dict[str, set[str]] = {}
    for module in pkgutil.iter_modules(fnopt.__path__, "fnopt."):
        package = importlib.import_module(module.name)
        for name in package.__all__:
            thing = getattr(package, name)
            if not isinstance(thing, ModuleType):
                home = _home(name, thing, module.name)
                homes.setdefault(name, set()).add(home)
                homes[home] = {home}
    return {name: found.pop() for name, found in homes.items() if len(found) == 1}


def _named(
    role: str,
    rawtext: str,
    text: str,
    line: int,
    inliner: Any,
    options: Any = None,
    content: Any = (),
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    code = nodes.literal(rawtext, text)
    home = _entries().get(text)
    if home is None:
        return [code], []
    return [_link(code, home, inliner.document.settings.env.docname)], []


def _link(code: nodes.literal, home: str, page: str) -> addnodes.pending_xref:
    target = {"refdomain": "py", "reftype": "obj", "reftarget": home, "refdoc": page}
    return addnodes.pending_xref(code.rawsource, code, refexplicit=True, **target)


class LinkedCode(SphinxTransform):
    """Makes code on a page a link, if it begins with a public name that can't be another word."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        """Only in running text: not in headings, and not where there is a link already."""
        for code in [*self.document.findall(nodes.literal)]:
            home = _begins_with(code.astext())
            if home and not isinstance(code.parent, _LINKED_ALREADY):
                code.replace_self(_link(code.deepcopy(), home, self.env.docname))


_LINKED_ALREADY = (nodes.title, nodes.reference, addnodes.pending_xref)


def _begins_with(text: str) -> str | None:
    """Where the entry is of the name that code begins with: `fnopt.adam`, `params_ema(0.9)`."""
    match = re.match(r"(fnopt\.)?([\w.]+)(\()?", text)
    if match is None:
        return None
    prefix, name, called = match.groups()
    # Of the words without a prefix: a slot is called `trace` too, and a member `chain(...)` isn't
    # what a line is about.
    plain = not prefix and name != "chain" and ("_" in name or called)
    return _entries().get(f"{prefix}{name}" if prefix else name if plain else "")


class Public(SphinxDirective):
    """Documents a package."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A line-by-line source for autodoc, parsed in place."""
        package: ModuleType = importlib.import_module(self.arguments[0])
        things = {n: getattr(package, n) for n in package.__all__}
        chosen = {n: t for n, t in things.items() if not isinstance(t, ModuleType)}
        docs = _data_docs(package)
        lines = [
            line
            for name, thing in sorted(chosen.items(), key=_order)
            for line in _entry(_home(name, thing, package.__name__), thing, docs.get(name, []))
        ]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, "public"), self.content_offset, node)
        return [node]


def _escaped(match: re.Match[str]) -> str:
    code, letter = match.groups()
    return f"{code}\\ {letter}" if letter else code


def _plural_code(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]):
    """Lets docstrings say `Node`s: a letter right after code is markup in their language."""
    lines[:] = [re.sub(r"(`[^`]+`)(\w?)", _escaped, line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("public", Public)
    app.add_role("named", _named)
    app.add_transform(LinkedCode)
    app.connect("autodoc-process-docstring", _plural_code)
    return {"parallel_read_safe": True}
