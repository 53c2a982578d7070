"""An inspection as one self-contained page: a template, its style and scripts, and the document inside.

It loads nothing, from disk or from a network. Texts are the model's and the user's, so none of them is
ever markup: the script puts them in as text, and shows what has no glyph by its number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PARTS = (
    ("tokens", "Tokens"),
    ("shapes", "Shapes"),
    ("attention", "Attention"),
    ("cache", "KV cache"),
    ("choices", "Choices"),
    ("time", "Time and memory"),
)


def page(document: dict[str, Any]) -> str:
    """The page of a document."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("engine", "inspect"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = ["page.js", *(f"{part}.js" for part, _ in PARTS), "start.js"]
    return environment.get_template("page.html").render(
        document=document, parts=PARTS, scripts=scripts
    )


def write_page(document: dict[str, Any], path: Path) -> None:
    """Writes the page."""
    path.write_text(page(document), encoding="utf-8")
