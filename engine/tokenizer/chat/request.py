"""What is asked of a chat template, made of JSON's types alone, and the message to be continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import RequestError
from engine.tokenizer.chat.control import Mark

# Names a message's reasoning comes under; templates read the first, gpt-oss's reads the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Transformers' own, to the letter: a template may look at what it is given.
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


@dataclass(frozen=True)
class Request:
    """A conversation and all that its template is told; `field` of the last message goes on."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    documents: list[dict[str, Any]] | None
    template: str | None
    add_generation_prompt: bool
    field: str | None
    extra: dict[str, Any]

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        continue_final_message: bool | str = False,
        **extra: Any,
    ) -> Request:
        """Check and copy what a caller gives; raises RequestError."""
        if not messages:
            raise RequestError("a conversation needs at least one message")
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message goes on with the last message and add_generation_prompt "
                "begins a new one: set one of them to false"
            )
        field = "content" if continue_final_message is True else continue_final_message or None
        return cls(
            [_with_reasoning(message) for message in _mappings("a chat message", messages)],
            None if tools is None else _mappings("a tool", tools),
            None if documents is None else _mappings("a document", documents),
            chat_template,
            add_generation_prompt,
            field,
            _plain(extra, str),
        )

    def marked(self, assistant: Mark, others: Mark) -> Request:
        """Return the request with the strings of the assistant's messages and all others marked."""
        return replace(
            self,
            messages=[
                _plain(message, assistant if message.get("role") == "assistant" else others)
                for message in self.messages
            ],
            tools=_plain(self.tools, others),
            documents=_plain(self.documents, others),
            extra=_plain(self.extra, others),
        )

    def variables(self, special_tokens: Mapping[str, str], template: str) -> dict[str, Any]:
        """Return what a template, whose text is `template`, sees."""
        return {
            "tools": self.tools,
            "documents": self.documents,
            **special_tokens,
            **self.extra,
            "messages": self._tagged(template),
            "add_generation_prompt": self.add_generation_prompt,
        }

    def _tagged(self, template: str) -> list[dict[str, Any]]:
        """Return the messages, with a tag at the end of the text that is to be continued."""
        if self.field is None:
            return self.messages
        *before, last = self.messages
        text = last.get(self.field)
        fields = [self.field]
        if self.field in _REASONING:
            fields = [name for name in _REASONING if last.get(name) == text]
        if text is None or not any(name in template for name in fields):
            raise RequestError(
                f"continue_final_message needs {self.field!r} in the last message and in the chat "
                "template"
            )
        if isinstance(text, (list, tuple)):
            parts = [dict(part) if isinstance(part, dict) else part for part in text]
            parts[_last_text(parts)]["text"] += _TAG
            return [*before, {**last, self.field: parts}]
        if not isinstance(text, str):
            raise RequestError(f"continue_final_message cannot go on with {text!r:.60}")
        return [*before, {**last, **dict.fromkeys(fields, text + _TAG)}]

    def cut(self, rendered: str) -> str:
        """Return what a template made of the messages up to the end of the one to be continued."""
        if self.field is None:
            return rendered
        text = self.messages[-1][self.field]
        if isinstance(text, (list, tuple)):
            text = text[_last_text(text)]["text"]
        if text.strip() not in rendered or _TAG.strip() not in rendered:
            raise RequestError(
                "continue_final_message: the chat template does not write the last message out as "
                f"it is: {text.strip()!r:.60}"
            )
        place = rendered.rindex(_TAG.strip())
        before = rendered[:place]
        # A template that trims has taken the blank at the tag's end, and would take others.
        return before if rendered[place:].startswith(_TAG) else before.rstrip()


def _last_text(parts: Sequence[Any]) -> int:
    for place in reversed(range(len(parts))):
        if isinstance(parts[place], dict) and isinstance(parts[place].get("text"), str):
            return place
    raise RequestError("continue_final_message finds no text in the last message's content")


def _mappings(what: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    for value in values:
        if not isinstance(value, Mapping):
            raise RequestError(f"{what} must be a mapping, not {value!r:.60}")
    return [_plain(value, str) for value in values]


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the fields that are None, its reasoning under both its names."""
    message = {name: value for name, value in message.items() if value is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any, write: Mark) -> Any:
    """Return a copy in JSON's own types, so that a template finds no methods but theirs."""
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, str):
        return write(value)
    if isinstance(value, Mapping):
        return {_plain(name, write): _plain(inner, write) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, write) for inner in value]
    if isinstance(value, tuple):
        return tuple(_plain(inner, write) for inner in value)
    raise RequestError(f"a chat template is given JSON's types alone, not {value!r:.60}")
