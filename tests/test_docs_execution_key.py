"""Executed pages are kept until something that they run changes."""

import importlib.util
from pathlib import Path

PATH = Path(__file__).parent.parent / "docs" / "_ext" / "execution_key.py"


def _module():
    spec = importlib.util.spec_from_file_location("execution_key", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_key_follows_sources_and_versions(tmp_path):
    key = _module().execution_key
    source = tmp_path / "fnopt" / "optimizers" / "_sgd.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1")
    first = key(tmp_path, ["jax==0.10"])
    assert key(tmp_path, ["jax==0.10"]) == first
    assert key(tmp_path, ["jax==0.11"]) != first
    (tmp_path / "README.md").write_text("text")
    assert key(tmp_path, ["jax==0.10"]) == first  # no page runs it
    source.write_text("a = 2")
    second = key(tmp_path, ["jax==0.10"])
    assert second != first
    source.rename(source.with_name("_adam.py"))
    assert key(tmp_path, ["jax==0.10"]) != second
