"""Configuration of the documentation: pages are notebooks that run, warnings are errors."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from jupyter_cache import get_cache
from jupyter_cache.cache.main import JupyterCacheBase

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from execution_key import execution_key, installed  # noqa: E402

import fnopt  # noqa: E402
from tests.quick_compile import compile_quickly  # noqa: E402

# Each page runs in its own kernel, which inherits this environment.
os.environ["JAX_PLATFORMS"] = "cpu"
compile_quickly()  # pages that measure time remove these flags
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")
# The kernels use this IPython profile, so a user's settings don't change the pages.
profile = HERE / "_build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 'ERROR'\n")
# Kernels compile as quickly as tests do. The start-up code leaves no name in the page's namespace.
quickly = f"""import sys
sys.path.insert(0, {str(HERE.parent)!r})
from tests.quick_compile import collect_rarely, compile_quickly
del sys.path[0]
compile_quickly()
collect_rarely()"""
(profile / "startup").mkdir(exist_ok=True)
(profile / "startup" / "quickly.py").write_text(f"exec({quickly!r}, {{}})\n")
os.environ["IPYTHONDIR"] = str(profile.parent)

project = "fnopt"
author = "The fnopt authors"
copyright = author
release = version = fnopt.__version__
extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "breaks",
    "dealt",
    "keywords",
    "notebooks",
    "public",
    "thumbnails",
]
exclude_patterns = ["_build", "jupyter_execute", "demo"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Outputs are kept page by page, so an interrupted build goes on where it stopped. A page runs again
# when its code changed, and all pages run again when the key did.
executed = HERE / "_build" / "executed"
key = execution_key(HERE.parent, installed())
for other in executed.glob("*"):
    if other.name != key:
        shutil.rmtree(other, ignore_errors=True)
get_cache(executed / key).db  # noqa: B018  (creates the tables before several processes open it)
# After each page, the cache deletes the oldest of more than 1,000 entries. It lists all entries
# twice, and deletes an entry that another process adds between the two lists.
JupyterCacheBase.truncate_caches = lambda self: None
nb_execution_mode = "cache"  # `make docs-quick` sets it to "off"
nb_execution_cache_path = str(executed / key)
# A failure is a warning with the traceback: the other pages still run, then the build fails.
nb_execution_raise_on_error = False
nb_execution_show_tb = True
# Seconds for a cell. It only ends cells that hang: 180 s was too short on two loaded cores.
nb_execution_timeout = 1200
nb_merge_streams = True

# Docstrings are in Google style. Single backticks are code; a public name in them is a link.
default_role = "named"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # they are in the signature
napoleon_custom_sections = ["Reference"]
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 80

html_theme = "sphinx_book_theme"
html_title = "fnopt"
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "default",
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
}
# MathJax comes from a package, so formulas need no network. The package's own Sphinx extension is
# not used, because it disables parallel reading.
mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
assert mathjax is not None
assert mathjax.origin is not None
mathjax_path = "mathjax/tex-chtml.js"
html_static_path = ["_static", str(Path(mathjax.origin).parent / "static")]
html_css_files = ["style.css"]
html_search_scorer = str(HERE / "_ext" / "scorer.js")
