"""Options that say what an answer has to look like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Option

from engine.cli.shared import unicode
from engine.errors import RequestError


@dataclass(frozen=True)
class Structured:
    """What the answer has to look like: one of these at most."""

    panel: ClassVar = "What the answer looks like"

    json_schema: Annotated[
        str | None, Option(metavar="FILE|TEXT", help="JSON that is valid under this schema.")
    ] = None
    json_object: Annotated[bool, Option("--json-object", help="Any JSON object.")] = False
    regex: Annotated[str | None, Option(help="A text that this pattern matches as a whole.")] = None
    choice: Annotated[
        list[str] | None, Option(metavar="TEXT", help="One of the texts; may be repeated.")
    ] = None
    grammar: Annotated[
        str | None, Option(metavar="FILE|TEXT", help="A text of this grammar (llguidance's Lark).")
    ] = None

    def asked(self) -> dict[str, Any]:
        given = [name for name, value in vars(self).items() if value not in (None, False, [])]
        if len(given) > 1:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise RequestError(f"an answer can be held to one thing, and {names} were given")
        return {"structured": self._structure() if given else None}

    def _structure(self) -> Any:
        from engine.generate import structured

        if self.json_schema is not None:
            return structured.JsonSchema(_text(self.json_schema, r"\s*([{[]|true$|false$)"))
        if self.regex is not None:
            return structured.Regex(unicode(self.regex))
        if self.choice:
            return structured.Choice([unicode(option) for option in self.choice])
        if self.grammar is not None:
            return structured.Grammar(_text(self.grammar, r"(?s).*\bstart\s*[:[]"))
        return structured.JsonObject()


def _text(given: str, looks: str) -> str:
    """What was given if it looks like that, else what the file of this name holds."""
    if re.match(looks, given):
        return unicode(given)
    try:
        return Path(given).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RequestError(f"{given} is not valid UTF-8") from None
