"""Finds added tokens in a text, before anything else looks at it.

The leftmost match wins, then the longest. Tokens with `normalized=False` are looked for in the
raw text; the others afterwards, in what lies between, once it is normalised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import NamedTuple

import regex

_WORD_CHARACTER = regex.compile(r"\w")
_SPACES = regex.compile(r"\s*")
_SPACES_AT_END = regex.compile(r"(?r)\s*")


@dataclass(frozen=True)
class AddedToken:
    """A token that is written out in the text, such as "<|im_end|>".

    `special` hides it when decoding asks for that; `lstrip` and `rstrip` make it swallow the
    white space beside it; `single_word` refuses it inside a word.
    """

    id: int
    content: str
    special: bool
    normalized: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Match(NamedTuple):
    """A stretch [start, end) of a text: an added token's id, or None for plain text."""

    id: int | None
    start: int
    end: int


#: Whether a token counts where it stands at [start, end), white space that it swallows aside.
Allows = Callable[[AddedToken, int, int], bool]


def every_token(token: AddedToken, start: int, end: int) -> bool:
    """The rule of the reference: an added token counts wherever it stands."""
    del token, start, end
    return True


def allowed_tokens(parse_special: bool) -> Allows:
    """Which tokens count in a text: every one, or those alone that are not special."""
    return every_token if parse_special else _not_special


def _not_special(token: AddedToken, start: int, end: int) -> bool:
    del start, end
    return not token.special


class AddedTokens:
    """The tokens of one kind; `spell` is how their content appears in the text searched."""

    def __init__(
        self, tokens: Iterable[AddedToken], spell: Callable[[str], str] = lambda content: content
    ) -> None:
        self._tokens: dict[str, AddedToken] = {}
        for token in tokens:
            self._tokens.setdefault(spell(token.content), token)  # the first of two spelled alike
        pattern = _pattern(sorted(filter(None, self._tokens)))
        # What the normalizer makes nothing of is found between any two characters, as in the
        # reference: nothing is there to become a token, but the text is cut.
        self._pattern = re.compile(f"{pattern}|" if "" in self._tokens else pattern)

    def __call__(self, text: str) -> list[int | str]:
        """Return the text as ids of added tokens and the plain text between them."""
        return [
            text[match.start : match.end] if match.id is None else match.id
            for match in self.find(text)
        ]

    def find(self, text: str, allows: Allows = every_token) -> list[Match]:
        """Return the stretches of a text in order; none is empty.

        A token that the rule does not allow is plain text, and no other begins within it.
        """
        if not self._tokens:
            return [Match(None, 0, len(text))] if text else []
        matches = []
        done = 0
        for found in self._pattern.finditer(text):
            token = self._tokens[found[0]]
            start, end = found.span()
            if not allows(token, start, end):
                continue
            if token.single_word and not _stands_alone(text, start, end):
                continue
            if token.lstrip:
                start = max(done, _start_of_spaces(text, start))
            if token.rstrip:
                end = _end_of_spaces(text, end)
            if start >= end:  # the token before has swallowed this one
                if not found[0] and done < start:
                    matches.append(Match(None, done, start))
                    done = start
                continue
            if done < start:
                matches.append(Match(None, done, start))
            matches.append(Match(token.id, start, end))
            done = end
        if done < len(text):
            matches.append(Match(None, done, len(text)))
        return matches


# How many groups stand in one another. Real files have runs of some 30 spaces, each a token.
_DEEPEST = 64


def _pattern(words: Sequence[str], depth: int = 0) -> str:
    """Return a pattern that matches the longest of some sorted words, each character read once.

    Words with the same first character share a branch: some files add thousands of tokens, and an
    alternative for each would be tried at every character of a text.
    """
    if depth == _DEEPEST:
        return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    branches = []
    for _, group in groupby(words, key=lambda word: word[0]):
        alike = list(group)
        # Of sorted words the first and the last differ the earliest.
        same = takewhile(lambda pair: pair[0] == pair[1], zip(alike[0], alike[-1], strict=False))
        shared = "".join(character for character, _ in same)
        tails = [word.removeprefix(shared) for word in alike]
        rest = _pattern([tail for tail in tails if tail], depth + 1)
        optional = "?" if "" in tails else ""
        branches.append(re.escape(shared) + (f"(?:{rest}){optional}" if rest else ""))
    return "|".join(branches)


def _stands_alone(text: str, start: int, end: int) -> bool:
    neighbours = text[max(start - 1, 0) : start] + text[end : end + 1]
    return not _WORD_CHARACTER.search(neighbours)


def _start_of_spaces(text: str, end: int) -> int:
    return int(_SPACES_AT_END.match(text, 0, end).start())


def _end_of_spaces(text: str, start: int) -> int:
    return int(_SPACES.match(text, start).end())
