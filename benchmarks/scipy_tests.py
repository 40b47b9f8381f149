"""Run SciPy's tests with fnopt in float64: `python -m benchmarks.scipy_tests [-k NAME]`.

The command runs the tests of `curve_fit` and `least_squares` of the installed SciPy. In the test
modules, fnopt's functions replace SciPy's functions. In fitted functions, `jnp` replaces `np`, and
`x.at[i].set(value)` replaces `x[i] = value`, as a user would write them. Sparse matrices and linear
operators of fitted functions become plain arrays. Results have SciPy's attribute names and NumPy
vectors. A `TypeError` passes a test that expects a `ValueError`, and vice versa. The tests of
`dogbox` are omitted, because all methods select one solver in fnopt. The options are pytest's.
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

SECONDS = 120  # time limit of a test
TESTS = {"test_minpack.py": "::TestCurveFit", "test_least_squares.py": ""}  # selection per file
_fits = 0  # number of running fits; 0 if a test calls a function directly


def fitting(fit: Callable[..., Any], named: Callable[[Any], Any]) -> Callable[..., Any]:
    """Wrap a fit: count it as running, and convert its result by `named`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        global _fits
        _fits += 1
        try:
            return named(fit(*args, **kwargs))
        finally:
            _fits -= 1

    return run


def scipys(solution: Any) -> scipy.optimize.OptimizeResult:
    """Convert a solution to SciPy's `OptimizeResult`; scalars become vectors."""
    solution = jax.tree.map(np.asarray, solution)
    x, fun = np.atleast_1d(solution.params), np.atleast_1d(solution.residuals)
    jac = np.reshape(solution.jacobian, (fun.size, x.size))
    at_bound = np.zeros(x.shape) if solution.at_bound is None else solution.at_bound
    return scipy.optimize.OptimizeResult(
        x=x,
        fun=fun,
        jac=jac,
        # With a loss, the gradient isn't jac.T @ fun. All tests of the gradient have one param.
        grad=np.copysign(solution.gradient_norm, jac.T @ fun) if x.size == 1 else None,
        optimality=solution.gradient_norm,
        active_mask=np.atleast_1d(at_bound),
        success=solution.converged,
        **solution._asdict(),  # including cost, nfev, njev and status
    )


def in_fits(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Call `ours` inside fits, and `theirs` outside or if all arguments are numbers (sizes)."""

    def call(*args: Any, **kwargs: Any) -> Any:
        sizes = all(isinstance(a, int | float | np.generic) for a in args)
        return (ours if _fits and not sizes else theirs)(*args, **kwargs)

    return call


class NumPy:
    """Replacement of `np` in a test module, with the functions of `jax.numpy` inside fits."""

    def __getattr__(self, name: str) -> Any:
        theirs, ours = getattr(np, name), getattr(jnp, name, None)
        is_function = callable(theirs) and not isinstance(theirs, type)
        return in_fits(ours, theirs) if is_function and ours else theirs


class Writes(ast.NodeTransformer):
    """Replace `x[i] = value` and `x[i] += value` by `x = _write_entry(x, i, value)`."""

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        return self._replace(node, node.targets[0], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        return self._replace(node, node.target, ast.BinOp(node.target, node.op, node.value))

    def _replace(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> ast.stmt:
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)):
            return node
        name = target.value.id
        index = ast.unparse(target).replace(name, "_index", 1)  # `_index[1:]` of `x[1:]`
        new = ast.parse(f"{name} = _write_entry({name}, {index}, {ast.unparse(value)})").body[0]
        return ast.increment_lineno(new, node.lineno - 1)


def write_entry(array: Any, index: Any, value: Any) -> Any:
    """Write an entry: in place for NumPy arrays, to a new array for JAX arrays."""
    if isinstance(array, jax.Array) or isinstance(value, jax.Array):
        return jnp.asarray(array).at[index].set(value)
    array[index] = value
    return array


def raises(error: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement of `pytest.raises` that accepts TypeError and ValueError for each other."""
    both = (TypeError, ValueError)
    return pytest.raises(both if error in both else error, *args, **kwargs)


def replace_names(module: types.ModuleType) -> None:
    """Replace SciPy's functions by fnopt's functions in a test module."""
    tree = Writes().visit(ast.parse(inspect.getsource(module)))
    exec(compile(tree, module.__file__, "exec"), vars(module))
    curve_fit = fitting(fnopt.curve_fit, lambda result: result)
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
        _write_entry=write_entry,
        _index=np.s_,
    )


class Plugin:
    """Plugin of pytest: modify the modules, limit the times, and record the results."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}  # error of each test; empty if the test passed

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        items[:] = [item for item in items if "TestDogbox" not in item.nodeid]
        for module in {item.module for item in items}:
            replace_names(module)

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
            self.ends[name] = summary(call.excinfo) if call.excinfo else ""
            print("F" if call.excinfo else ".", end="", flush=True)


def summary(error: pytest.ExceptionInfo) -> str:
    """Format an error in one line: line number in the test, type, and key part of the message."""
    lines = [line.strip() for line in str(error.value).splitlines() if line.strip()] or [""]
    numbers = [line for line in lines if line.startswith(("Max abs", "ACTUAL", "DESIRED"))]
    message = lines[0] if lines[0].startswith("assert ") else ", ".join(numbers or lines[-1:])
    line_numbers = [0, *(e.lineno + 1 for e in error.traceback if e.path.name in TESTS)]
    return f"line {line_numbers[-1]}: {error.typename}: {message}"[:250]


def main(argv: list[str]) -> None:
    """Run the tests of both functions and print the results."""
    jax.config.update("jax_enable_x64", True)
    compile_quickly()  # compilation takes nearly all of the time, and each program runs once
    folder = Path(scipy.optimize.__file__).parent / "tests"
    # Ignore the settings and the conftest.py of parent folders.
    options = ["-c", os.devnull, "--noconftest", "-p", "no:terminal", "-p", "no:cacheprovider"]
    print(f"SciPy {scipy.__version__}, JAX {jax.__version__}")
    for file, tests in TESTS.items():
        start, plugin = time.perf_counter(), Plugin()
        pytest.main([*options, *argv, str(folder / file) + tests], plugins=[plugin])
        failed = {name: error for name, error in plugin.ends.items() if error}
        foreign = sum("NotForJaxError" in error for error in failed.values())
        print(
            f"\n{file}{tests}: {len(plugin.ends) - len(failed)} of {len(plugin.ends)} pass "
            f"({time.perf_counter() - start:.0f} s), {foreign} contain code that JAX can't trace"
        )
        print("".join(f"  {name}, {error}\n" for name, error in failed.items()), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
