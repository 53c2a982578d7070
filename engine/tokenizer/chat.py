"""Renders a conversation to the text that a model was trained on, by its file's own template.

Templates come with the model and are not trusted: they run in jinja2's immutable sandbox, set up
as Hugging Face's templates expect (blocks trimmed, loop controls, `tojson` without HTML escapes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import LockstepError, ModelFileError, RequestError


class ChatTemplate:
    """The templates of one tokenizer, by name; "default" serves unless tools ask for "tool_use"."""

    def __init__(
        self, templates: Mapping[str, str], special_tokens: Mapping[str, str], source: str
    ) -> None:
        """`special_tokens` maps bos_token, eos_token, ... to their text; `source` is for errors."""
        self._templates = templates
        self._special_tokens = special_tokens
        self._source = source
        self._compiled: dict[str, jinja2.Template] = {}

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool, **extra: Any
    ) -> str:
        """Return the text of a conversation.

        Fields of a message that are None count as absent. `extra` reaches the template as it is:
        tools, documents and the template's own switches.
        """
        for message in messages:
            if not isinstance(message, Mapping):
                raise RequestError(f"a chat message must be a mapping, not {message!r:.60}")
        variables = {"tools": None, "documents": None, **self._special_tokens, **extra}
        variables["messages"] = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        variables["add_generation_prompt"] = add_generation_prompt
        name = "tool_use" if extra.get("tools") and "tool_use" in self._templates else "default"
        try:
            return self._template(name).render(variables)
        except LockstepError:
            raise
        except Exception as error:  # a template is a program: whatever it raises is its answer
            raise RequestError(
                f"the chat template of {self._source} refuses this conversation: {error}"
            ) from error

    def _template(self, name: str) -> jinja2.Template:
        if name not in self._templates:
            raise RequestError(
                f"{self._source} has no chat template named {name!r}: send a plain prompt instead"
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = _environment().from_string(self._templates[name])
            except jinja2.TemplateSyntaxError as error:
                raise ModelFileError(
                    f"the chat template {name!r} of {self._source} is no valid jinja: {error}"
                ) from error
        return self._compiled[name]


class _Generation(Extension):
    """The tag {% generation %}, which marks the assistant's words for training: here a no-op."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
