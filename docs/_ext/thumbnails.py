"""The directive `{thumbnail} page`: the picture that the page drew when it ran.

The gallery shows the pictures of the executed pages, so no copies of them are stored. Without
execution the title of the page stands in place of its picture.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

LOGGER = logging.getLogger(__name__)


class thumbnail(nodes.General, nodes.Element):
    """The place of a picture, until all pages are read."""


class Thumbnail(SphinxDirective):
    """`{thumbnail} page number`: the page from the root, and the number of its picture, from 1."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Leaves the place."""
        page, number = [*self.arguments, "1"][:2]
        place = thumbnail(page=page, number=int(number))
        self.set_source_info(place)
        return [place]


def put_pictures(app: Any, doctree: nodes.document, name: str) -> None:
    """Replaces every place by a picture of its page."""
    del name
    for place in list(doctree.findall(thumbnail)):
        found = [
            image
            for image in app.env.get_doctree(place["page"]).findall(nodes.image)
            if image["uri"].endswith(".png")
        ]
        title = app.env.titles[place["page"]].astext()
        if len(found) < place["number"]:
            if app.config.nb_execution_mode != "off":
                message = f"thumbnail: {place['page']} has {len(found)} pictures"
                LOGGER.warning("%s, number %d expected", message, place["number"], location=place)
            place.replace_self(nodes.paragraph("", title))
            continue
        uri = found[place["number"] - 1]["uri"]
        image = nodes.image(uri=uri, alt=title, classes=["thumbnail"])
        image["candidates"] = {"image/png": image["uri"]}
        place.replace_self(image)


def setup(app: Any) -> dict[str, Any]:
    """Connects it."""
    app.add_node(thumbnail)
    app.add_directive("thumbnail", Thumbnail)
    app.connect("doctree-resolved", put_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
