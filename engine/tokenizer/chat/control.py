"""Tells the control tokens that a chat template writes from those that stand in its messages.

A control token is an added token that the file calls special, or one that the template writes
itself; a blank one ("\\n\\n" in some vocabularies) is text. A conversation is rendered twice, the
second time with a mark behind each character of the users' strings that a control token could be
put together from. Where the texts agree, the marks say which characters are the users'; a control
token that has one of those in it is no control token, be it whole in one message, in pieces in
several, or come about because the template cut something out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from engine.tokenizer.added import AddedToken

#: Returns a string of the users' with a mark behind some of its characters, or none.
Mark = Callable[[str], str]

# Braille patterns are printable, so that `repr` leaves them alone, and neither letters nor spaces.
_MARKS = range(0x2801, 0x2900)


class ControlTokens:
    """The control tokens of one template."""

    def __init__(self, tokens: Iterable[AddedToken], literals: Sequence[str]) -> None:
        """`literals` is all text that stands in the template."""
        written = "\0".join(literals)
        control = [
            token
            for token in tokens
            if token.content
            and (token.special or (token.content in written and not token.content.isspace()))
        ]
        self.ids = frozenset(token.id for token in control)
        self._contents = [token.content for token in control]
        self._special = [token.content for token in control if token.special]
        self._signs = {sign for content in self._contents for sign in content if _is_sign(sign)}
        self._longest = max(map(len, self._special), default=0)
        self._beginnings = {text[:i] for text in self._special for i in range(1, len(text) + 1)}
        self._ends = {text[-i:] for text in self._special for i in range(1, len(text) + 1)}
        self._looked_for = [text for text in {*literals, *self._contents} if self._is_apart(text)]

    def markings(self, mark: str) -> Iterator[tuple[Mark, Mark]]:
        """Yield ways to mark (the assistant's strings, the others'), the strictest first.

        1. Every sign of a control token, but in the assistant's strings no mark that is not
           special, nor any other text that stands in the template.
        2. The same in all strings, for templates that look for such text in any message.
        3. Special tokens alone, whole or begun at a string's end, for those that look for signs.
        """
        letters = self._without_signs(self._special)
        all_signs = self._marking(mark, self._all_marked, letters)
        but_text = self._marking(mark, self._all_but_text, letters)
        whole = self._marking(mark, self._whole, self._special)
        yield but_text, all_signs
        yield but_text, but_text
        yield whole, whole

    def _marking(self, mark: str, pattern: re.Pattern[str], ends: Sequence[str]) -> Mark:
        """Return what marks a pattern, and ends of strings that some tokens could go on from."""
        beginnings = {token[:i] for token in ends for i in range(1, len(token))}
        lengths = range(1, max(map(len, ends), default=0))

        def marked(text: str) -> str:
            begun = any(text[-i:] in beginnings for i in lengths)
            return pattern.sub(partial(self._marked, mark), text) + mark * begun

        return marked

    @cached_property
    def _all_marked(self) -> re.Pattern[str]:
        return _pattern([], [*self._without_signs(self._contents), *self._signs])

    @cached_property
    def _all_but_text(self) -> re.Pattern[str]:
        return _pattern(self._looked_for, [*self._without_signs(self._special), *self._signs])

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return _pattern([], self._special)

    def _without_signs(self, tokens: Iterable[str]) -> list[str]:
        return [token for token in tokens if self._signs.isdisjoint(token)]

    def _is_apart(self, text: str) -> bool:
        """Whether a text has signs, and shares no character with a special token beside it.

        What a template may look for in a message, or the model has written: "</think>".
        """
        lengths = range(1, self._longest + 1)
        return (
            not self._signs.isdisjoint(text)
            and not any(text in special or special in text for special in self._special)
            and not any(text[-i:] in self._beginnings or text[:i] in self._ends for i in lengths)
        )

    def _marked(self, mark: str, found: re.Match[str]) -> str:
        """Return what a pattern has found with marks behind its signs, or its first letter."""
        spared, token = found.groups()
        if spared is not None:
            return str(spared)
        if self._signs.isdisjoint(token):
            return f"{token[0]}{mark}{token[1:]}"
        return "".join(each + mark if each in self._signs else each for each in token)


def _pattern(spared: Iterable[str], marked: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of two groups: what to leave as it is, and what to mark."""
    return re.compile(f"({_alternatives(spared)})|({_alternatives(marked)})")


def _is_sign(character: str) -> bool:
    """Whether a character is no part of names such as those that templates look up."""
    return not (character.isalnum() or character.isspace() or character == "_")


def _alternatives(words: Iterable[str]) -> str:
    """Return a pattern of any of some words, the longest first; of none, what matches nothing."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True))) or "(?!)"


def unused_mark(*texts: str) -> str | None:
    """Return a mark that occurs in none of some texts, however JSON writes it; None if all do."""
    for code in _MARKS:
        if not any(chr(code) in text or f"\\u{code:04x}" in text for text in texts):
            return chr(code)
    return None


def read_marks(text: str, mark: str) -> tuple[str, frozenset[int]]:
    """Return a text without its marks, and the places of the characters that they stood behind."""
    pieces = re.split(f"{mark}|\\\\u{ord(mark):04x}", text)
    places, length = set(), 0
    for piece in pieces[:-1]:
        length += len(piece)
        places.add(length - 1)
    return "".join(pieces), frozenset(places)


def strings(value: Any) -> Iterable[str]:
    """Yield all strings in a value made of JSON's types, the names of fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings(name)
            yield from strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from strings(inner)
