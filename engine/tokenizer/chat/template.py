"""Renders a conversation to the text that a model was trained on, by its file's own template.

The definition is `apply_chat_template` of transformers 5.24: the same text for the same arguments,
and an error where it raises one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from engine.errors import ModelFileError, RequestError
from engine.tokenizer.added import AddedToken
from engine.tokenizer.chat.budget import TooMuchError
from engine.tokenizer.chat.control import ControlTokens, read_marks, strings, unused_mark
from engine.tokenizer.chat.request import Request
from engine.tokenizer.chat.sandbox import Program


@dataclass(frozen=True)
class Rendered:
    """A conversation as text, and [start, end) of what its template marks as the assistant's."""

    text: str
    generated: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Guarded:
    """A conversation as text, its control tokens' ids, and the places of the users' characters.

    Only characters that a control token could be put together from are listed. An added token with
    one of `control` as its id is plain text where it has one of `users` in it.
    """

    text: str
    control: frozenset[int]
    users: frozenset[int]

    def allows(self, token: AddedToken, start: int, end: int) -> bool:
        """Return whether an added token counts where it stands; the rule that `find` asks for."""
        return token.id not in self.control or self.users.isdisjoint(range(start, end))


class ChatTemplate:
    """The templates of one tokenizer, by name; "default" serves unless tools ask for "tool_use"."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        source: str,
        added_tokens: Iterable[AddedToken] = (),
    ) -> None:
        """`special_tokens` maps bos_token, eos_token, ... to their text; `source` is for errors."""
        self._templates = templates
        self._special_tokens = special_tokens
        self._source = source
        self._added_tokens = tuple(added_tokens)
        # Some callers give a template of their own with every request.
        self._compiled = lru_cache(maxsize=16)(self._compile)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Rendered:
        """Return the text of a conversation; see `Tokenizer.render_chat` for the options."""
        return self._render(Request.of(messages, **options), _now())

    def render_guarded(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Guarded:
        """Return the text of a conversation, and which of its characters are the users'.

        Raises RequestError where the template does not let the two be told apart.
        """
        request, now = Request.of(messages, **options), _now()
        text = self._render(request, now).text
        program, control = self._program(request)
        given = [*strings((request.messages, request.tools, request.documents, request.extra))]
        mark = unused_mark(text, program.source, *given)
        for of_assistant, of_others in control.markings(mark) if mark else ():
            marked = request.marked(of_assistant, of_others)
            if marked == request:
                return Guarded(text, control.ids, frozenset())
            try:
                same, users = read_marks(self._render(marked, now).text, mark or "")
            except RequestError:  # the template has looked for what is marked now
                continue
            if same == text:
                return Guarded(text, control.ids, users)
        raise RequestError(
            f"the chat template of {self._source} changes the text of these messages so that its "
            "control tokens cannot be told from theirs: take the control tokens out of them, or "
            "ask for parse_special"
        )

    def _render(self, request: Request, now: datetime) -> Rendered:
        program, _ = self._program(request)
        variables = request.variables(self._special_tokens, program.source)
        try:
            text, generated = program.run(variables, now)
        except TooMuchError as reason:
            raise RequestError(
                f"the chat template of {self._source} was stopped on this conversation: it {reason}"
            ) from reason
        except Exception as error:  # a template is a program: whatever it raises is its answer
            raise RequestError(
                f"the chat template of {self._source} refuses this conversation: {error}"
            ) from error
        return Rendered(request.cut(text), tuple(generated))

    def _program(self, request: Request) -> tuple[Program, ControlTokens]:
        name = request.template
        if name is None:
            tools = request.tools is not None and "tool_use" in self._templates
            name = "tool_use" if tools else "default"
            if name not in self._templates:
                raise RequestError(
                    f"{self._source} has no chat template named {name!r} "
                    f"(named: {sorted(self._templates)}): name one or send a plain prompt instead"
                )
        try:
            return self._compiled(self._templates.get(name, name))
        except Exception as error:  # jinja2's own, or what Python's compiler cannot take
            message = f"is no valid jinja: {error}"
            if name in self._templates:
                raise ModelFileError(
                    f"the chat template {name!r} of {self._source} {message}"
                ) from error
            raise RequestError(f"the chat template of this request {message}") from error

    def _compile(self, template: str) -> tuple[Program, ControlTokens]:
        program = Program(template)
        return program, ControlTokens(self._added_tokens, program.literals)


def _now() -> datetime:
    return datetime.now()  # noqa: DTZ005 (transformers' own knows no time zone)
