"""Code in tables may break behind an underscore, a dot, a comma, a bracket or an equals sign.

Else a long name widens its table until the last column is out of sight.
"""

from __future__ import annotations

import re
from typing import Any

_CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
_CODE = re.compile(r'(?<=<span class="pre">)[^<]*')
_PLACE = re.compile(r"(?<=[_.,(=])(?=[A-Za-z&])")


def with_breaks(body: str) -> str:
    """A page's HTML with places to break in the code of its tables."""
    return _CELL.sub(lambda cell: _CODE.sub(lambda m: _PLACE.sub("<wbr>", m[0]), cell[0]), body)


def add_breaks(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Rewrites the body of every page."""
    del app, name, template, doctree
    if "body" in context:
        context["body"] = with_breaks(context["body"])


def setup(app: Any) -> dict[str, Any]:
    """Registers what every page gets before it is written."""
    app.connect("html-page-context", add_breaks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
