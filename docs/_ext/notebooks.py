"""Says at the top of every page that runs code what the page needs, and offers it as a notebook.

The needed packages are read from the imports of the page, and from comments `# pip install NAME`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_CELL = re.compile(r"^```\{code-cell\}.*?^```", re.M | re.S)
_IMPORT = re.compile(r"^ *(?:import|from) (\w+)", re.M)
_COMMENT = re.compile(r"# pip install ([\w-]+)")
_INDEX = re.compile(r"^```\{index\}.*?^```\n", re.M | re.S)
# Where the distribution has another name than the module.
_NAMES = {"haiku": "dm-haiku", "orbax": "orbax-checkpoint", "sklearn": "scikit-learn"}
# JAX brings NumPy and SciPy, and Jupyter brings IPython.
_PRESENT = {*sys.stdlib_module_names, "__future__", "fnopt", "jax", "numpy", "scipy", "IPython"}


def needed(text: str) -> list[str]:
    """The distributions that the code of a page imports, without fnopt and its dependencies."""
    code = "\n".join(_CELL.findall(text))
    modules = set(_IMPORT.findall(code)) - _PRESENT - {"benchmarks"}
    return sorted({_NAMES.get(name, name) for name in modules} | set(_COMMENT.findall(code)))


def needs_repository(text: str) -> bool:
    """Whether the page imports the benchmarks, which only a clone of the repository has."""
    return "benchmarks" in _IMPORT.findall("\n".join(_CELL.findall(text)))


def first_line(name: str, text: str, repository: str) -> str:
    """What the page needs, and links to its notebook; Colab needs the address of the repository."""
    up = "../" * name.count("/")
    packages = ", ".join(f"`{package}`" for package in ["fnopt", *needed(text)])
    clone = " and a clone of the repository" if needs_repository(text) else ""
    links = [
        f"[install]({up}install.md)",
        f"{{download}}`notebook </_build/notebooks/{name}.ipynb>`",
    ]
    if is_known(repository) and not clone:
        colab = repository.replace("https://github.com", "https://colab.research.google.com/github")
        links.append(f"[open in Colab]({colab}/blob/notebooks/{name}.ipynb)")
    return f":::{{div}} needs\nNeeds {packages}{clone} · {' · '.join(links)}\n:::\n"


def is_known(repository: str) -> bool:
    """Whether pyproject.toml has the owner of the repository."""
    return "OWNER" not in repository


def notebook_text(text: str, repository: str) -> str:
    """The page for a notebook: with a cell that installs, without index entries and bare links."""
    packages = [f"git+{repository}"] * is_known(repository) + needed(text)
    cell = f"```{{code-cell}}\n%pip install -q {' '.join(packages)}\n```\n\n" if packages else ""
    text = re.sub(r"\[\]\(([^)\s]*?([\w-]+)\.md)\)", r"[\2](\1)", _INDEX.sub("", text))
    return re.sub(r"^(# .*\n)", rf"\1\n{cell}", text, count=1, flags=re.M)


def add_first_line(app: Any, name: str, source: list[str]) -> None:
    """Writes the notebook of a page, and puts the line below the title."""
    text = source[0]
    if not _CELL.search(text):
        return
    import nbformat
    from myst_nb.core.read import read_myst_markdown_notebook

    repository = app.config.repository
    path = Path(app.srcdir) / "_build" / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = read_myst_markdown_notebook(notebook_text(text, repository))
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    line = first_line(name, text, repository)
    source[0] = re.sub(r"^# .*\n", lambda m: f"{m[0]}\n{line}", text, count=1, flags=re.M)


def setup(app: Any) -> dict[str, Any]:
    """Connects it; the address is the one of `[project.urls]`."""
    project = tomllib.loads((Path(app.srcdir).parent / "pyproject.toml").read_text())["project"]
    app.add_config_value("repository", project["urls"]["Repository"], "env")
    app.connect("source-read", add_first_line)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
