"""Every page that runs code says what it needs, and its notebook installs that."""

import importlib.util
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "_ext" / "notebooks.py")
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)

ADDRESS = "https://github.com/someone/fnopt"
PAGE = """# Title

```{index} ! words
```

See [](guides/cost.md).

```{code-cell}
:tags: [remove-cell]
import jax.numpy as jnp
from sklearn.datasets import load_digits
```
"""


def test_first_line_names_packages_and_links_the_notebook():
    line = notebooks.first_line("guides/some_page", PAGE, ADDRESS)
    assert "Needs `fnopt`, `scikit-learn` ·" in line
    assert "(../install.md)" in line
    assert "</_build/notebooks/guides/some_page.ipynb>" in line
    assert "github/someone/fnopt/blob/notebooks/guides/some_page.ipynb" in line
    assert "Colab" not in notebooks.first_line("page", PAGE, "https://github.com/OWNER/fnopt")


def test_notebook_installs_and_has_no_markup_of_the_documentation():
    text = notebooks.notebook_text(PAGE, ADDRESS)
    assert "%pip install -q git+https://github.com/someone/fnopt scikit-learn" in text
    assert "{index}" not in text
    assert "[cost](guides/cost.md)" in text


def test_packages_of_all_pages_are_dependencies_of_the_documentation():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    declared = {re.split("[<>=]", requirement)[0] for requirement in groups["docs"]}
    pages = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    needed = {package for page in pages for package in notebooks.needed(page)}
    assert needed
    assert needed <= declared
