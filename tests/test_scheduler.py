from __future__ import annotations

import ast
import pathlib

import pytest

from tests.contract.registry import CASES

scheduler = pytest.importorskip(
    "tests.scheduler", reason="needs pytest-xdist", exc_type=ImportError
)
unit_of, BATTERY = scheduler.unit_of, scheduler.BATTERY


def test_a_file_is_a_unit():
    assert unit_of("tests/tree/test_tree.py::test_sum[a-b]") == "tests/tree/test_tree.py"
    assert unit_of("fnopt/tree/_sums.py::fnopt.tree._sums.norm") == "fnopt/tree/_sums.py"
    assert unit_of(f"{BATTERY}::test_every_public_optimizer_has_a_case") == BATTERY


@pytest.mark.parametrize("before", ["", "1e-24-", "{'a': None}-", "(1, 1, 2)-", "[]-", "f32-bf16-"])
def test_all_checks_of_a_case_are_a_unit(before):
    assert unit_of(f"{BATTERY}::test_is_a_value[{before}adamw]") == f"{BATTERY}::adamw"


def test_the_names_of_cases_can_be_told_from_other_parameters():
    assert not [case.name for case in CASES if set(case.name) & set("-[]")]


def test_the_case_is_the_last_parameter_of_every_check():
    # pytest names the parameters of the decorator that stands nearest to the function first.
    tree = ast.parse(pathlib.Path(BATTERY).read_text())
    tests = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    of_a_case = [t for t in tests if any(a.arg == "case" for a in t.args.args)]
    assert len(of_a_case) > 20
    for test in of_a_case:
        assert ast.unparse(test.decorator_list[0]) == "every", test.name
