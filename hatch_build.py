"""Metadata hook: links of README.md are absolute in the metadata that a package index shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A target of a link or picture in Markdown that is neither a URL nor a heading of the same page.
TARGET = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)\s]+)\)")


def absolute_links(text: str, repository: str) -> str:
    """Text with links to files of the repository at its address; pictures as raw files."""
    form = {"": f"{repository}/blob/main/", "!": f"{repository}/raw/main/"}
    return TARGET.sub(lambda m: f"{m[1]}{m[2]}({form[m[1]]}{m[3]})", text)


class AbsoluteReadme(MetadataHookInterface):
    """Sets `readme` from README.md, with the address from `[project.urls]`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the metadata of pyproject.toml."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
