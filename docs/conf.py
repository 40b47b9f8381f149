"""How the documentation is built: every page is a notebook that runs, every warning an error."""

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

from tests.quick_compile import compile_quickly  # noqa: E402

# The pages run in kernels of their own, which inherit this environment.
os.environ["JAX_PLATFORMS"] = "cpu"
compile_quickly()  # pages that measure take the flags back
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")
# A profile of their own: nobody's settings change the pages, and kernels only report errors.
profile = HERE / "_build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 'ERROR'\n")
# Kernels start with what makes tests quick, and without a name of it.
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
    "public",
    "thumbnails",
]
exclude_patterns = ["_build", "jupyter_execute", "demo"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 180
nb_merge_streams = True

# Docstrings are written in Google style; single backticks are code, and links where they name
# something public.
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
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "pygments_light_style": "default",
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
}
# Formulas need no network: MathJax comes with a package, whose own Sphinx extension would let
# nothing be read in parallel.
mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
assert mathjax is not None
assert mathjax.origin is not None
mathjax_path = "mathjax/tex-chtml.js"
html_static_path = ["_static", str(Path(mathjax.origin).parent / "static")]
html_css_files = ["style.css"]
html_search_scorer = str(HERE / "_ext" / "scorer.js")
