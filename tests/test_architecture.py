"""The rules of the layout, read from the source: layers, dependencies, sizes, documentation."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import fnopt

ROOT = Path(fnopt.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Which packages a package may import from, besides itself. Read from left to right:
# sharding < numerics < errors < core < programs < taps, gradients, jacobians, costs;
# gradients, jacobians < curvature;
# core < schedules < transforms < manifolds < residuals;
# gradients, curvature, transforms < optimizers;
# jacobians < linear < residuals < solvers < curves; curvature < residuals; optimizers < solvers.
# What may import core may import the packages that core rests on.
LAYERS = {
    "sharding": set(),
    "numerics": {"sharding"},
    "errors": {"numerics"},
    "core": {"sharding", "numerics", "errors"},
    "programs": {"core"},
    "schedules": {"core"},
    "transforms": {"core", "schedules"},
    "optimizers": {"core", "schedules", "transforms", "gradients", "curvature"},
    "gradients": {"core", "programs"},
    "jacobians": {"core", "programs", "manifolds"},
    "curvature": {"core", "programs", "gradients", "jacobians"},
    "taps": {"core", "programs", "jacobians"},
    "costs": {"core", "programs"},
    "manifolds": {"core", "transforms"},
    "linear": {"core", "jacobians"},
    "residuals": {"core", "programs", "jacobians", "linear", "curvature", "manifolds"},
    "solvers": {
        *("core", "programs", "jacobians", "curvature", "linear", "residuals", "manifolds"),
        *("schedules", "transforms", "optimizers", "tree"),
    },
    "models": {"core"},
    "curves": {"core", "programs", "jacobians", "linear", "residuals", "solvers", "manifolds"},
    "losses": {"core", "projections"},
    "tree": {"core"},
    "projections": {"core"},
    "discrete": {"core"},
    "monitor": {"core"},
    "distributed": {"core", "programs", "transforms"},
    "interop": {
        *("core", "gradients", "jacobians", "monitor", "optimizers", "schedules", "transforms"),
        *("manifolds", "tree"),
    },
}
RUNTIME = {"fnopt", "jax", "numpy", "scipy", *sys.stdlib_module_names}  # JAX requires both
LONGEST_FILE = 350
PACKAGES = sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists())


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(_tree(path)))


def _package(path: Path) -> str:
    """The layer that a file belongs to; '' for fnopt/__init__.py, which re-exports all of them."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def _modules(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names = [alias.name for alias in node.names]
            # `from fnopt import core` names a package, `from fnopt.core import x` a thing in one.
            yield from [f"fnopt.{n}" for n in names] if node.module == "fnopt" else [node.module]


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
            yield from _outside_functions(node)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_point_one_way(path):
    layer = _package(path)
    if not layer:
        return
    for module in _modules(_nodes(path)):
        if module.startswith("fnopt."):
            other = module.split(".")[1]
            beneath = LAYERS["core"] if "core" in LAYERS[layer] else set()
            allowed = {layer, *LAYERS[layer], *beneath}
            assert other in allowed, f"{layer} must not import {module}"
        else:
            assert module != "fnopt", f"{layer} must not import the whole of fnopt"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_package_is_imported_by_its_front_door(path):
    # Private modules are an affair of their own package.
    layer = _package(path)
    for module in _modules(_nodes(path)):
        parts = module.split(".")
        private = parts[0] == "fnopt" and any(p.startswith("_") for p in parts)
        assert not private or parts[1] == layer, f"{_name(path)} reaches into {module}"


@functools.cache
def _used_of_packages() -> dict[str, set[str]]:
    """The names that files of `fnopt` use of each package, besides the package's own files."""
    used: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for path in FILES:
        packages = {}
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("fnopt"):
                names = [alias.name for alias in node.names]
                if node.module == "fnopt":
                    packages |= {a.asname or a.name: a.name for a in node.names}
                elif node.module.removeprefix("fnopt.") in used:
                    used[node.module.removeprefix("fnopt.")].update(names)
        for node in _nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.get(packages.get(node.value.id, ""), set()).add(node.attr)
    return used


@pytest.mark.parametrize("package", PACKAGES)
def test_a_front_door_has_public_names_and_those_of_other_packages(package):
    # A name outside `__all__` is internal: a package hands it on only where another one needs it.
    # `fnopt/__init__.py` gets `interop.suggest_name` by `importlib`.
    path = ROOT / package / "__init__.py"
    imported = {
        alias.asname or alias.name
        for node in _tree(path).body
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"fnopt.{package}")
        for alias in node.names
    }
    public = set(importlib.import_module(f"fnopt.{package}").__all__)
    unused = imported - public - _used_of_packages()[package] - {"suggest_name"}
    assert not unused, f"remove {sorted(unused)} from fnopt.{package}, or make the names public"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_only_jax_numpy_and_the_standard_library_at_run_time(path):
    nodes = _outside_functions(_tree(path)) if _package(path) == "interop" else _nodes(path)
    foreign = {m for m in _modules(nodes) if m.split(".")[0] not in RUNTIME}
    assert not foreign, f"{_name(path)} imports {sorted(foreign)}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_files_are_short(path):
    lines = path.read_text().count("\n")
    assert lines <= LONGEST_FILE, f"{_name(path)} has {lines} lines: does it hide two ideas?"


def test_every_package_has_a_layer():
    assert set(PACKAGES) <= set(LAYERS), "say in LAYERS what the new package may import"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_is_public(package):
    module = importlib.import_module(f"fnopt.{package}")
    assert module.__doc__
    assert not [name for name in module.__all__ if not hasattr(module, name)]


def _imports(path: Path) -> set[Path]:
    """The files that a file imports when it is loaded, packages' front doors followed."""
    found = set()
    for node in _outside_functions(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fnopt"):
            base = ROOT.parent.joinpath(*node.module.split("."))
            for target in [base, *(base / alias.name for alias in node.names)]:
                found |= {
                    f for f in (target.with_suffix(".py"), target / "__init__.py") if f.exists()
                }
    return found


def _check_no_circle(graph: dict[Path, set[Path]]) -> None:
    done: set[Path] = set()

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        circle = [_name(p) for p in trail[trail.index(path) :]] if path in trail else []
        assert not circle, f"a circle of imports: {circle}"
        if path not in done:
            for other in graph[path]:
                visit(other, (*trail, path))
            done.add(path)

    for path in graph:
        visit(path, ())


# What is imported for type checkers only counts too. Front doors are left out: a file of a
# package never imports its own.
GRAPH = {p: {q for q in _imports(p) if q.name != "__init__.py"} for p in FILES}


def test_no_files_import_each_other_in_a_circle():
    _check_no_circle(GRAPH)


def test_no_folders_beside_each_other_import_each_other_in_a_circle():
    folders: dict[Path, set[Path]] = {p.parent: set() for p in FILES}
    for path, others in GRAPH.items():
        beside = {q.parent for q in others if q.parent.parent == path.parent.parent}
        folders[path.parent] |= beside - {path.parent}
    _check_no_circle(folders)


def test_no_package_has_the_name_of_a_function():
    # The one that is imported last would hide the other.
    functions = {name for name, _ in PUBLIC if name.count(".") == 1}
    assert not {f"fnopt.{package}" for package in PACKAGES} & functions


def test_the_name_of_a_class_means_one_thing():
    # Where a name stands twice, a reader looks into the wrong file. (interop has optax's names.)
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and _package(path) != "interop":
                found.setdefault(node.name, []).append(_name(path))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


@functools.cache
def _calls(path: Path) -> set[str]:
    attributes = {n.attr for n in _nodes(path) if isinstance(n, ast.Attribute)}
    names = {n.id for n in _nodes(path) if isinstance(n, ast.Name)}
    return attributes | names


def test_one_place_flattens_a_tree_to_a_vector():
    assert not [_name(p) for p in FILES if "ravel_pytree" in _calls(p)], "use fnopt.jacobians.ravel"


# Parameters of the equations that hold programs; JAX renames them now and then.
CONTROL_FLOW = {
    *("num_consts", "num_carry", "ft_in", "ft_out", "_split_transpose"),
    *("cond_jaxpr", "cond_nconsts", "body_jaxpr", "body_nconsts"),
    *("branches", "jaxpr", "call_jaxpr", "fun_jaxpr"),
}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_one_room_knows_the_parameters_of_control_flow(path):
    if _package(path) == "programs":
        return
    keys = {
        n.slice.value
        for n in _nodes(path)
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)
    }
    assert not keys & CONTROL_FLOW, "use fnopt.programs.control_view"
    private = {"num_consts", "num_carry", "cond_nconsts", "body_nconsts", "ft_in", "ft_out"}
    assert not private & _calls(path), "use fnopt.programs.control_view"


# `tap` defines a primitive; `is_traced` has an answer where a release lacks the name.
INTERPRETERS = {"taps/_tap.py", "numerics/_dtypes.py"}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_one_room_uses_the_internals_of_jax(path):
    text = path.read_text()
    assert "jax._src" not in text
    assert "jax.interpreters" not in text or _name(path) in INTERPRETERS
    evaluation = {"eval_jaxpr", "get_bind_params", "jvp_jaxpr_fun", "source_info"}
    assert _package(path) == "programs" or not evaluation & _calls(path), "use fnopt.programs"


DERIVATIVES = {"grad", "value_and_grad", "jacfwd", "jacrev", "jvp", "vjp", "linearize", "hessian"}


@pytest.mark.parametrize("layer", ["linear", "solvers", "curves"])
def test_derivatives_are_taken_in_residuals_only(layer):
    users = {_name(p): _from_jax(p) & DERIVATIVES for p in FILES if _package(p) == layer}
    assert not {name: found for name, found in users.items() if found}


def _from_jax(path: Path) -> set[str]:
    """The names that a file takes from `jax` itself, as attributes or by an import."""
    attributes = {
        n.attr
        for n in _nodes(path)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "jax"
    }
    imports = [n for n in _nodes(path) if isinstance(n, ast.ImportFrom) and n.module == "jax"]
    return attributes | {alias.name for n in imports for alias in n.names}


def _public() -> list[tuple[str, object]]:
    """Everything in an `__all__`, by its dotted name; packages and plain aliases excepted."""
    found = {}
    for package in ["fnopt", *(f"fnopt.{p}" for p in PACKAGES)]:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found[f"{thing.__module__}.{thing.__qualname__}"] = (f"{package}.{name}", thing)
    return list(found.values())


PUBLIC = _public()


def _is_data(thing: object) -> bool:
    """States, results and protocols are read, not called: a sentence says what they are."""
    return inspect.isclass(thing) and (
        issubclass(thing, tuple) or not issubclass(thing, fnopt.core.Value)
    )


@pytest.mark.parametrize(("name", "thing"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_every_public_name_is_documented(name, thing):
    doc = (vars(thing)["__doc__"] if inspect.isclass(thing) else thing.__doc__) or " "
    assert doc.splitlines()[0].endswith("."), f"{name} has no summary line"
    # The one-line tools for authors of transforms and solvers need no example of their own.
    tools = {*LAYERS["core"], "core", "linear", "residuals", "programs"}
    tool = name.split(".")[1] in tools
    if not _is_data(thing) and ("Args:" in doc or not tool):
        assert "Example:" in doc, f"{name} has no Example"


def test_everything_useful_is_in_fnopt_itself():
    # A user finds all that a training loop calls without its package.
    packages = {"optimizers", "transforms", "schedules"}
    for package in sorted(packages & set(PACKAGES)):
        module = importlib.import_module(f"fnopt.{package}")
        values = {n: getattr(module, n) for n in module.__all__ if n[0].islower()}
        missing = [n for n, value in values.items() if getattr(fnopt, n, None) is not value]
        assert not missing, f"fnopt lacks {missing} of fnopt.{package}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_in_the_api_reference(package):
    # The page's `public` directive reads the package's __all__, so that no name can be missing.
    api = ROOT.parent / "docs" / "api"
    assert f".. public:: fnopt.{package}\n" in (api / f"{package}.rst").read_text()
    assert f"\n{package}\n" in (api / "index.md").read_text()
