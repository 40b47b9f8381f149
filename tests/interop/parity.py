"""Compare fnopt's names with the public names of the installed optax, and write a page.

python -m tests.interop.parity          # writes docs/coming_from/optax_names.md
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import fnopt
from tests.interop.parity_reasons import ANOTHER, DEVIATIONS, NOT_YET, RENAMED

PAGE = Path(fnopt.__file__).parent.parent / "docs" / "coming_from" / "optax_names.md"
PACKAGES = sorted(m.name for m in pkgutil.iter_modules(fnopt.__path__) if m.ispkg)
# Packages in which a name of optax means the same object.
OURS = [p for p in PACKAGES if p not in {"interop", "programs"}]

GROUPS = {
    "losses.": "Losses",
    "projections.": "Projections",
    "tree.": "Trees",
    "tree_utils.": "Trees",
    "contrib.": "Contributed optimizers",
    "schedules.": "Schedules and hyper-parameters",
    "microbatching.": "Batches in parts, aggregation",
    "experimental.": "Batches in parts, aggregation",
    "perturbations.": "Perturbations, assignment, second order",
    "assignment.": "Perturbations, assignment, second order",
    "second_order.": "Perturbations, assignment, second order",
}
# Names of these groups are listed in the group even if optax also exports them at the top level.
SHARED_ROOMS = {"Losses", "Trees", "Schedules and hyper-parameters"}
STATES, TRANSFORMS = "Classes of states", "Optimizers, transforms and the rest"


_STATES_SAID = (
    "`init` creates all states. `fnopt.tree.get(state, ...)` and `fnopt.slots(state)` return "
    "their entries by name. The classes are private, so these classes of optax have no counterpart "
    "in fnopt"
)


class Entry(NamedTuple):
    """A public object of optax."""

    names: tuple[str, ...]  # public paths below `optax`, the shortest first
    thing: Any
    ours: str | None  # path of the counterpart below `fnopt`
    reason: str | None  # reason for the omission, or a difference


def _modules() -> dict[str, ModuleType]:
    """Return public modules keyed by their path below `optax` (`''` for optax)."""
    optax = importlib.import_module("optax")
    modules = {"": optax}
    for info in pkgutil.walk_packages(optax.__path__, "optax."):
        parts = info.name.split(".")[1:]
        if any(p.startswith("_") or p.endswith("_test") for p in parts):
            continue
        modules[".".join(parts)] = importlib.import_module(info.name)
    # A private module may have a public name (`optax.experimental.aggregating`).
    for path, module in [*modules.items()]:
        for name in getattr(module, "__all__", ()):
            with warnings.catch_warnings():  # some of optax's names are deprecated
                warnings.simplefilter("ignore")
                inner = getattr(module, name)
            if isinstance(inner, ModuleType) and "._" in inner.__name__:
                modules[f"{path}.{name}"] = inner
    return modules


def _is_public(path: str, name: str, thing: Any) -> bool:
    if name.startswith("_") or isinstance(thing, ModuleType):
        return False
    home = getattr(thing, "__module__", None)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return str(home).startswith("optax")
    # Type aliases have no module; only aliases at the top level are public.
    return not path and (callable(thing) or typing.get_origin(thing) is not None)


def _objects() -> list[tuple[tuple[str, ...], Any]]:
    paths: dict[int, tuple[list[str], Any]] = {}
    for path, module in _modules().items():
        for name in dir(module):
            thing = getattr(module, name)
            if _is_public(path, name, thing):
                full = f"{path}.{name}" if path else name
                paths.setdefault(id(thing), ([], thing))[0].append(full)
    order = [(tuple(sorted(names, key=lambda n: (len(n), n))), x) for names, x in paths.values()]
    return sorted(order, key=lambda item: item[0][0].lower())


def _lookup(path: str) -> Any:
    """Return the object at a path below `fnopt`, or None."""
    thing: Any = fnopt
    for part in path.split("."):
        thing = getattr(thing, part, None)
    return thing


def _same_name(names: tuple[str, ...]) -> str | None:
    """Return fnopt's path of the same name: in the package of the same name, or elsewhere."""
    for full in names:
        *path, name = full.split(".")
        room = {"tree_utils": "tree"}.get(path[0], path[0]) if path else None
        name = name.removeprefix("tree_") if room == "tree" else name
        if room in OURS and name in _lookup(room).__all__:
            return f"{room}.{name}"
    for full in names:
        name = full.split(".")[-1]
        if name in fnopt._NAMES and name not in PACKAGES:
            return name
        for package in OURS:
            if name in _lookup(package).__all__:
                return f"{package}.{name}"
    return None


def _is_state(names: tuple[str, ...], thing: Any) -> bool:
    is_listed = any(n in RENAMED or n in DEVIATIONS for n in names)
    return inspect.isclass(thing) and issubclass(thing, tuple) and not is_listed


def entries() -> list[Entry]:
    """Return all public objects of the installed optax with their counterparts."""
    rows = []
    for names, thing in _objects():
        reason = next((DEVIATIONS[n] for n in names if n in DEVIATIONS), None)
        ours = next((RENAMED[n] for n in names if n in RENAMED), None)
        if _is_state(names, thing):
            reason = STATES
        elif not (ours or reason or {*names} & ANOTHER):
            ours = _same_name(names)
        rows.append(Entry(names, thing, ours and _shortest(ours), reason))
    return rows


def _shortest(path: str) -> str:
    """Return `clip` for `transforms.clip` if both are the same object."""
    name = path.split(".")[-1]
    return name if getattr(fnopt, name, None) is _lookup(path) else path


def _parameters(thing: Any) -> dict[str, Any] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return {
        p.name: p.default for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }


def _same_default(a: Any, b: Any) -> bool:
    """Whether two defaults are equal; functions and objects count as equal."""
    if callable(a) or callable(b) or hasattr(a, "init"):
        return True
    try:
        return bool(a == b)
    except ValueError:
        return False


def differences(entry: Entry) -> str:
    """Describe the differences of the arguments; `''` if there are none."""
    mine = _parameters(_lookup(entry.ours)) if entry.ours else None
    theirs = _parameters(entry.thing)
    if mine is None or theirs is None:
        return ""
    lack = [f"`{name}`" for name in theirs if name not in mine]
    other = [
        f"`{name}={mine[name]!r}`"
        for name, default in theirs.items()
        if name in mine and default is not inspect.Parameter.empty
        if not _same_default(default, mine[name])
    ]
    text = [f"without {', '.join(lack)}"] if lack else []
    return "; ".join(text + ([f"default {', '.join(other)}"] if other else []))


def _group(entry: Entry) -> str:
    if entry.reason is STATES:
        return STATES
    by_first = [g for p, g in GROUPS.items() if entry.names[0].startswith(p)]
    rooms = [g for p, g in GROUPS.items() if any(n.startswith(p) for n in entry.names)]
    return [*by_first, *(g for g in rooms if g in SHARED_ROOMS), TRANSFORMS][0]


def status(entry: Entry) -> str:
    """Return `'have'`, `'deviation'` or `'not yet'`."""
    if entry.ours:
        return "have"
    return "deviation" if entry.reason else "not yet"


def _row(entry: Entry) -> str:
    kind = status(entry)
    name = f"`{entry.names[0]}`"
    if kind == "have":
        note = "; ".join(x for x in (differences(entry), entry.reason or "") if x)
        return f"| {name} | `fnopt.{entry.ours}` | {note} |"
    if kind == "deviation":
        return f"| {name} | omitted | {entry.reason} |"
    return f"| {name} | not yet | {NOT_YET.get(entry.names[0], '')} |"


def page() -> str:
    """Return the text of the page."""
    optax = importlib.import_module("optax")
    found = entries()
    kinds = Counter(map(status, found))
    lines = [
        "# optax's names",
        "",
        "<!-- made by `python -m tests.interop.parity`; a test checks that it is current -->",
        "",
        f"Of the {len(found)} public objects of optax {optax.__version__}, fnopt has "
        f"{kinds['have']}, omits {kinds['deviation']} deliberately, and lacks "
        f"{kinds['not yet']}. Arguments have the same names, order and defaults "
        "unless a row lists a difference.",
        "",
    ]
    for group in [TRANSFORMS, *dict.fromkeys(GROUPS.values())]:
        rows = [_row(e) for e in found if _group(e) == group]
        if rows:
            lines += [f"## {group}", "", "| optax | fnopt | |", "|---|---|---|", *rows, ""]
    states = ", ".join(f"`{e.names[0]}`" for e in found if _group(e) == STATES)
    lines += [f"## {STATES}", "", f"{_STATES_SAID}: {states}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
