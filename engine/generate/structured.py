"""What an answer may be asked to look like: a JSON document, a pattern, a choice, or a grammar.

Each is checked when it is made, as far as that can be said without a vocabulary, and is in the end a
grammar in the dialect of the library that follows it (llguidance's of Lark); see `engine.generate.guide`.
Held to is what the tokens add to the prompt's text: of a prompt that has none, such as a BOS alone, some
decoders take a space off the answer's beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import RequestError
from engine.generate.checks import items, require, shown
from engine.generate.json_schema import prepared, read, read_at, written

MOST_CHARACTERS = 1_000_000  # of a schema, a pattern, a grammar, or all options of a choice


@dataclass(frozen=True)
class JsonSchema:
    """A JSON document that is valid under a schema (2020-12), which is a mapping, true or false, or JSON text.

    Properties come in the schema's order. Those that it does not name may follow, and of two with one
    name a reader has the second. Up to 16 white spaces may stand between the parts.
    RequestError where the schema has anything that an answer cannot be held to.
    """

    schema: Mapping[str, Any] | str | bool

    def __post_init__(self) -> None:
        text = self.schema if isinstance(self.schema, str) else written(self.schema)
        _check_text("a JSON schema", text)
        prepared(read(text))
        object.__setattr__(self, "schema", text)

    @property
    def grammar(self) -> str:
        return f"start: %json {prepared(read(str(self.schema)))}"


@dataclass(frozen=True)
class JsonObject:
    """Any JSON object."""

    @property
    def grammar(self) -> str:
        return JsonSchema({"type": "object"}).grammar


@dataclass(frozen=True)
class Regex:
    """A text that a pattern matches as a whole; its syntax is that of Rust's regex, without anchors inside."""

    pattern: str

    def __post_init__(self) -> None:
        _check_text("a pattern", self.pattern)

    @property
    def grammar(self) -> str:
        # Between slashes, on one line.
        written = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
        return "start: /" + _ESCAPED.sub(lambda m: written.get(m[0], m[0]), self.pattern) + "/"


@dataclass(frozen=True)
class Choice:
    """One of some texts."""

    options: Sequence[str]

    def __post_init__(self) -> None:
        options = items("the options of a choice", self.options)
        require(
            bool(options) and not isinstance(self.options, str), "a choice needs a list of options"
        )
        for option in options:
            _check_text("an option of a choice", option)
        require(sum(map(len, options)) <= MOST_CHARACTERS, _too_long("a choice"))
        object.__setattr__(self, "options", options)

    @property
    def grammar(self) -> str:
        # One pattern: of alternatives in a grammar the library follows no more than 2,000 at once.
        options = (_NO_WORD.sub(lambda m: rf"\x{{{ord(m[0]):x}}}", each) for each in self.options)
        return f"start: /{'|'.join(options)}/"


@dataclass(frozen=True)
class Grammar:
    """A text of a context-free grammar in llguidance's dialect of Lark, whose first rule is `start`.

    JSON schemas in it (`%json`) are held to as JsonSchema says. Refused is what is about tokens and not
    about text: special tokens, limits and temperatures of rules, lexemes that are taken back.
    """

    text: str

    def __post_init__(self) -> None:
        _check_text("a grammar", self.text)
        _with_prepared_schemas(self.text)

    @property
    def grammar(self) -> str:
        return _with_prepared_schemas(self.text)


Structure = JsonSchema | JsonObject | Regex | Choice | Grammar

_NO_WORD = re.compile(r"[^\w ]")  # what may mean something in a pattern
_ESCAPED = re.compile(r"\\.|[/\n]", re.DOTALL)
#: What a grammar's text is made of where these characters mean something: strings, patterns, comments.
_PARTS = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|\#[^\n]*|/(?:\\.|[^/\\\n])+/|%[a-z]+|[a-z_]+\s*=|.', re.DOTALL
)
_ABOUT_TOKENS = re.compile(r"<|@|%llguidance|%lark|(stop|stop_capture|max_tokens|temperature)\s*=")


def _with_prepared_schemas(text: str) -> str:
    """A grammar with its JSON schemas as the library is to have them; RequestError for what is about tokens."""
    out, done = [], 0
    while found := _PARTS.match(text, done):
        part, done = found[0], found.end()
        require(
            not _ABOUT_TOKENS.fullmatch(part),
            f"a grammar cannot have {part!r:.40} here: an answer is held to a text, not to tokens",
        )
        out.append(part)
        if part == "%json":
            schema, done = read_at(text, len(text) - len(text[done:].lstrip()))
            out.append(f" {prepared(schema)}")
    return "".join(out)


def _check_text(name: str, text: Any) -> None:
    require(isinstance(text, str), f"{name} must be a string, got {shown(text)}")
    require(text != "", f"{name} must not be empty")
    require(len(text) <= MOST_CHARACTERS, _too_long(name))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} has half of a character, a lone surrogate") from None


def _too_long(name: str) -> str:
    return f"{name} can have at most {MOST_CHARACTERS:,} characters"
