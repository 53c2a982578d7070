"""Calls of tools in what a model says.

A model that was trained to call tools writes <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as its
chat template tells it to; that form, of tools that were offered, is read as calls. Other forms stay text. Where
a call is demanded, the whole answer is held to be the JSON of one, whatever the template says.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from engine.errors import RequestError
from engine.generate.structured import JsonSchema
from engine.server.conversation import Tool
from engine.server.schema import json_schema

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BEGINNINGS = "|".join(re.escape(_OPEN[:n]) for n in range(len(_OPEN) - 1, 0, -1))
#: Blanks before a call, and what may yet become one. Blanks are looked at from their first alone: from each
#: of them, a run of thousands would take seconds.
_CALL = re.compile(rf"(?<!\s)\s*+{_OPEN}")
_HELD = re.compile(rf"(?<!\s)\s*+(?:{_BEGINNINGS})?\Z")


@dataclass(frozen=True)
class Called:
    """A tool that the model calls, with arguments that are a JSON object, as text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    @property
    def document(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


Said = str | Called


class Reader(Protocol):
    """Takes an answer's text in pieces of any size, and tells calls from text."""

    def push(self, text: str) -> list[Said]:
        """What is certain now."""

    def flush(self) -> list[Said]:
        """The rest, when no text follows."""


class PlainReader:
    """Of an answer that is text."""

    def push(self, text: str) -> list[Said]:
        return [text] if text else []

    def flush(self) -> list[Said]:
        return []


class TaggedReader:
    """Of an answer that may have calls between tags; blanks beside those are no text.

    What is between the tags and no call of a tool named in `names` is text, tags and all. With `one`,
    calls after the first are left out.
    """

    def __init__(self, names: Set[str], one: bool) -> None:
        self._names, self._one = names, one
        self._held, self._inside, self._called = "", False, False

    def push(self, text: str) -> list[Said]:
        self._held += text
        said: list[Said] = []
        while self._advance(said):
            pass
        return said

    def flush(self) -> list[Said]:
        said: list[Said] = []
        if self._inside:  # the end may have come in the place of the last tag
            self._finish(said, self._held, "")
        elif self._held.strip() or not self._called:
            said = [self._held] if self._held else []
        self._held = ""
        return said

    def _advance(self, said: list[Said]) -> bool:
        """One step through what is held; False where more has to come first."""
        if self._inside:
            body, close, rest = self._held.partition(_CLOSE)
            if not close:
                return False
            self._held, self._inside = rest, False
            self._finish(said, body, close)
            return True
        if found := _CALL.search(self._held):
            end, begin = found.start(), found.end()
            self._inside = True
        else:
            held = _HELD.search(self._held)
            end = begin = held.start() if held else len(self._held)
        if end:
            said.append(self._held[:end])
        self._held = self._held[begin:]
        return self._inside

    def _finish(self, said: list[Said], body: str, close: str) -> None:
        call = _call(body, self._names)
        if call is None:
            said.append(_OPEN + body + close)
        elif not (self._one and self._called):
            said.append(call)
            self._called = True


class ForcedReader:
    """Of an answer that is one call, and nothing else; cut short it is text."""

    def __init__(self, names: Set[str]) -> None:
        self._names, self._text = names, ""

    def push(self, text: str) -> list[Said]:
        self._text += text
        return []

    def flush(self) -> list[Said]:
        return [_call(self._text, self._names) or self._text]


def call_schema(tools: Sequence[Tool]) -> JsonSchema:
    """What a call of one of the tools looks like; RequestError where arguments cannot be held to theirs."""
    shared: dict[str, Any] = {}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": _arguments(tool, shared),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return json_schema({**shared, "anyOf": calls})


def _arguments(tool: Tool, shared: dict[str, Any]) -> dict[str, Any]:
    """A tool's parameters; what they refer to by name moves to the root of the schema, where it is found."""
    schema = {"type": "object", **tool.function.parameters}
    schema.pop("$schema", None)
    for key in ("$defs", "definitions"):
        if not isinstance(schema.get(key), dict):
            continue  # where it is anything else it is refused with the schema
        for name, definition in schema.pop(key).items():
            known = shared.setdefault(key, {}).setdefault(name, definition)
            if known != definition:
                raise RequestError(
                    f"two tools define {name!r:.60} in different ways, and calls cannot be held to both"
                )
    return schema


def _call(text: str, names: Set[str]) -> Called | None:
    """The call that a text is, if it is one."""
    try:
        call = json.loads(text, parse_constant=_refused)
        name, arguments = call["name"], call["arguments"]
        if name in names and isinstance(arguments, dict):
            return Called(name, json.dumps(arguments, allow_nan=False))
    except (ValueError, TypeError, LookupError, RecursionError):
        pass  # whatever else a model wrote is text
    return None


def _refused(name: str) -> NoReturn:
    raise ValueError(name)
