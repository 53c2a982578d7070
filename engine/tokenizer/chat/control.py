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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine.tokenizer.added import AddedToken

#: Returns a string of the users' with a mark behind some of its characters.
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
            if token.special or (token.content in written and not token.content.isspace())
        ]
        self.ids = frozenset(token.id for token in control)
        self._contents = [token.content for token in control if token.content]
        self._special = [token.content for token in control if token.special and token.content]
        self._signs = {sign for content in self._contents for sign in content if _is_sign(sign)}
        # What the template may look for in a message, or the model has written: "</think>".
        self._looked_for = {
            text
            for text in {*literals, *self._contents} - {*self._special}
            if self._signs & {*text}
            and not any(text in special or special in text for special in self._special)
        }

    def markings(self, mark: str) -> list[tuple[Mark, Mark]]:
        """Return ways to mark (the assistant's strings, the others'), the strictest first.

        1. Every sign of a control token, but in the assistant's strings no mark that is not
           special, nor any other text that stands in the template.
        2. The same in all strings, for templates that look for such text in any message.
        3. Special tokens alone, whole or at an end of a string, for templates that look for signs.
        """
        signs = [re.escape(sign) for sign in sorted(self._signs)]
        all_signs = self._marking(mark, self._contents, [], signs)
        spared = self._marking(mark, self._special, [*self._looked_for], signs)
        whole = self._marking(mark, self._special, [], [])
        ends = self._ends(mark)
        return [(spared, all_signs), (spared, spared), *[(lambda s: ends(whole(s)),) * 2]]

    def _marking(
        self, mark: str, tokens: Iterable[str], spared: Iterable[str], signs: Sequence[str]
    ) -> Mark:
        """Mark tokens and signs; what is spared is no sign, unless it is within a token."""
        groups = [_alternatives(tokens), _alternatives(spared), "|".join(signs) or "(?!)"]
        pattern = re.compile("({})|({})|({})".format(*groups), re.DOTALL)
        inner = self._signs

        def marked(found: re.Match[str]) -> str:
            token, spared, sign = found.groups()
            if spared is not None:
                return spared
            if sign is not None:
                return sign + mark
            if not inner & {*token}:
                return token[0] + mark + token[1:]
            return "".join(each + mark if each in inner else each for each in token)

        return lambda text: pattern.sub(marked, text)

    def _ends(self, mark: str) -> Mark:
        """Mark the ends of a string that a special token could be continued from."""
        longest = max(map(len, self._special), default=0)
        begins = {content[:i] for content in self._special for i in range(1, len(content))}
        ends = {content[i:] for content in self._special for i in range(1, len(content))}

        def marked(text: str) -> str:
            if any(text[:i] in ends for i in range(1, longest)):
                text = text[0] + mark + text[1:]
            if any(text[-i:] in begins for i in range(1, longest)):
                text += mark
            return text

        return marked


def _is_sign(character: str) -> bool:
    """Whether a character is no part of names such as those that templates look up."""
    return not (character.isalnum() or character.isspace() or character == "_")


def _alternatives(words: Iterable[str]) -> str:
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
