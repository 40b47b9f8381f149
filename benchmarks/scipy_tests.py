"""`python -m benchmarks.scipy_tests [-k NAME]`: SciPy's own tests, asked of fnopt, in float64.

Runs the tests of `scipy.optimize.curve_fit` and `least_squares` that the installed SciPy ships,
after their modules got fnopt's functions for SciPy's, and what a user would write into a function
of a fit: `jnp` for `np` and `x.at[i].set(value)` for `x[i] = value`. A sparse matrix or an operator
that a function makes is a plain array. Results are read by SciPy's names, as NumPy's vectors.
Either of TypeError and ValueError counts as the other. The class of tests of dogbox is left out:
all methods are one solver here. Options are those of pytest.
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse.linalg

import fnopt
from tests.quick_compile import compile_quickly

SECONDS = 120  # after which a test counts as not finished
TESTS = {"test_minpack.py": "::TestCurveFit", "test_least_squares.py": ""}  # by file
_fits = 0  # how many are running: functions are called by them, or by a test


def fitting(fit: Callable[..., Any], named: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same function, that says while it runs that it does, with its result in other words."""

    def run(*args: Any, **kwargs: Any) -> Any:
        global _fits
        _fits += 1
        try:
            return named(fit(*args, **kwargs))
        finally:
            _fits -= 1

    return run


def scipys(solution: Any) -> scipy.optimize.OptimizeResult:
    """A solution by SciPy's names, with vectors where a single number was fitted."""
    solution = jax.tree.map(np.asarray, solution)
    x, fun = np.atleast_1d(solution.params), np.atleast_1d(solution.residuals)
    jac = np.reshape(solution.jacobian, (fun.size, x.size))
    at_bound = np.zeros(x.shape) if solution.at_bound is None else solution.at_bound
    return scipy.optimize.OptimizeResult(
        x=x,
        fun=fun,
        jac=jac,
        # With a loss it isn't jac.T @ fun here. Every test that reads it has one param.
        grad=np.copysign(solution.gradient_norm, jac.T @ fun) if x.size == 1 else None,
        optimality=solution.gradient_norm,
        active_mask=np.atleast_1d(at_bound),
        success=solution.converged,
        **solution._asdict(),  # cost, nfev, njev and status among them
    )


def in_fits(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """One function in a fit, another outside, or where numbers alone may be sizes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        sizes = all(isinstance(a, int | float | np.generic) for a in args)
        return (ours if _fits and not sizes else theirs)(*args, **kwargs)

    return call


class NumPy:
    """`np` of a test module: its functions are those of `jax.numpy` in a fit."""

    def __getattr__(self, name: str) -> Any:
        theirs, ours = getattr(np, name), getattr(jnp, name, None)
        is_function = callable(theirs) and not isinstance(theirs, type)
        return in_fits(ours, theirs) if is_function and ours else theirs


class Writes(ast.NodeTransformer):
    """Makes `x = _written(x, i, value)` of `x[i] = value`, and of `x[i] += value` likewise."""

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        return self._written(node, node.targets[0], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        return self._written(node, node.target, ast.BinOp(node.target, node.op, node.value))

    def _written(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> ast.stmt:
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)):
            return node
        name = target.value.id
        index = ast.unparse(target).replace(name, "_index", 1)  # `_index[1:]` of `x[1:]`
        new = ast.parse(f"{name} = _written({name}, {index}, {ast.unparse(value)})").body[0]
        return ast.increment_lineno(new, node.lineno - 1)


def written(array: Any, index: Any, value: Any) -> Any:
    """What an array is after an entry was written."""
    if isinstance(array, jax.Array) or isinstance(value, jax.Array):
        return jnp.asarray(array).at[index].set(value)
    array[index] = value
    return array


def raises(error: Any, *args: Any, **kwargs: Any) -> Any:
    """As `pytest.raises`; TypeError and ValueError count as each other."""
    both = (TypeError, ValueError)
    return pytest.raises(both if error in both else error, *args, **kwargs)


def ask_fnopt(module: types.ModuleType) -> None:
    """Changes the names that the tests of a module look up."""
    tree = Writes().visit(ast.parse(inspect.getsource(module)))
    exec(compile(tree, module.__file__, "exec"), vars(module))
    curve_fit = fitting(fnopt.curve_fit, lambda found: found)
    vars(module).update(
        np=NumPy(),
        curve_fit=curve_fit,
        least_squares=fitting(fnopt.least_squares, scipys),
        OptimizeWarning=fnopt.curves.OptimizeWarning,
        optimize=types.SimpleNamespace(curve_fit=curve_fit),
        pytest=types.SimpleNamespace(raises=raises, warns=pytest.warns),
        assert_raises=raises,
        lil_array=in_fits(jnp.zeros, scipy.sparse.lil_array),
        aslinearoperator=in_fits(lambda array: array, scipy.sparse.linalg.aslinearoperator),
        _written=written,
        _index=np.s_,
    )


class Plugin:
    """What pytest calls: changes modules, limits times, and keeps how the tests end."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}  # the error of every test, empty where it passed

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        items[:] = [item for item in items if "TestDogbox" not in item.nodeid]
        for module in {item.module for item in items}:
            ask_fnopt(module)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"not finished in {SECONDS} s"))
        signal.alarm(SECONDS)
        try:
            return (yield)
        finally:
            signal.alarm(0)

    def pytest_runtest_makereport(self, item: pytest.Function, call: pytest.CallInfo) -> None:
        if call.when == "call" or call.excinfo:
            name = item.nodeid.split("::", 1)[1]
            self.ends[name] = what(call.excinfo) if call.excinfo else ""
            print("F" if call.excinfo else ".", end="", flush=True)


def what(found: pytest.ExceptionInfo) -> str:
    """An error in one line: where in the test, its type, and what says most of its message."""
    lines = [line.strip() for line in str(found.value).splitlines() if line.strip()] or [""]
    numbers = [line for line in lines if line.startswith(("Max abs", "ACTUAL", "DESIRED"))]
    says = lines[0] if lines[0].startswith("assert ") else ", ".join(numbers or lines[-1:])
    places = [0, *(entry.lineno + 1 for entry in found.traceback if entry.path.name in TESTS)]
    return f"line {places[-1]}: {found.typename}: {says}"[:250]


def main(argv: list[str]) -> None:
    """Runs the tests of both functions and prints how they end."""
    jax.config.update("jax_enable_x64", True)
    compile_quickly()  # nearly all of the time, for programs that run once
    folder = Path(scipy.optimize.__file__).parent / "tests"
    # neither the settings nor the conftest.py of a folder above
    options = ["-c", os.devnull, "--noconftest", "-p", "no:terminal", "-p", "no:cacheprovider"]
    print(f"SciPy {scipy.__version__}, JAX {jax.__version__}")
    for file, tests in TESTS.items():
        start, plugin = time.perf_counter(), Plugin()
        pytest.main([*options, *argv, str(folder / file) + tests], plugins=[plugin])
        failed = {name: error for name, error in plugin.ends.items() if error}
        foreign = sum("NotForJaxError" in error for error in failed.values())
        print(
            f"\n{file}{tests}: {len(plugin.ends) - len(failed)} of {len(plugin.ends)} pass "
            f"({time.perf_counter() - start:.0f} s), {foreign} hold what isn't written for JAX"
        )
        print("".join(f"  {name}, {error}\n" for name, error in failed.items()), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
