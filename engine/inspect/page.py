"""An inspection as one self-contained page: a template, its style and scripts, and the document inside.

It loads nothing, from disk or from a network. Texts are the model's and the user's, so none of them is
ever markup: the script puts them in as text, and shows what has no glyph by its number.
"""

from __future__ import annotations

from typing import Any

from engine.generate.engine import Engine
from engine.generate.params import SamplingParams
from engine.generate.prompts import Prompt
from engine.inspect.gather import inspected

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


def inspect_page(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams | None = None,
    *,
    parse_special: bool = False,
) -> str:
    """The page of a prompt and its answer; raises RequestError as `inspected` does.

    Other requests to the engine may run meanwhile.
    """
    return page(inspected(engine, prompt, params, parse_special=parse_special))
