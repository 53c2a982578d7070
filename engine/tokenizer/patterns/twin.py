"""A pattern for the `regex` package as one for `re` that matches the same, twice as fast.

Most text is ASCII, and there classes of Unicode characters become lists of the few that are ASCII.
Every other character of a text has a stand-in among 128 more: characters that belong to the same
classes of the pattern have the same one, for the pattern cannot tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import regex

from engine.tokenizer.patterns.oniguruma import FLAGS

_ASCII = "".join(map(chr, range(128)))
_OTHERS = regex.compile("[^\0-\x7f]+")

# One piece of a pattern: a class of characters, or what both packages read alike. A pattern with
# anything else (anchors such as \b, nested sets, names for groups, ...) has no twin.
_PIECE = regex.compile(
    r"(?<class>\\[pP](?:\{[^{}]*\}|\pL)|\\[sSdDwW]|\[\^?\]?(?:[^\[\]\\&|~]|\\.|&(?!&)|\|(?!\|)|~(?!~))*\]|[^\0-\x7F])"
    r"|(?<alike>\\[rntfv]|\\[[:punct:]]|\(\?(?:i?:|<?[=!]|>)|\((?!\?)|\{[0-9]+(?:,[0-9]*)?\}|[^\\\[\](){}]|\))",
    regex.DOTALL,
)

# Some characters beyond ASCII are letters of ASCII in another case, such as the long s.
_WITHOUT_CASE = re.compile(r"\(\?i:")
_LETTERS_WITHOUT_CASE = re.compile(r"\(\?i:[^\\\[()]*\)")
_IN_ANOTHER_CASE = regex.compile("(?i:[a-z])")

# `re` goes through all the ways to match where `regex` sees that there is none: a pattern that has
# very many must not be given to it.
_MOST_REPEATS = 6

#: Which classes of a pattern a character belongs to.
Kind = tuple[bool, ...]


def twin_of(pattern: str) -> Twin | None:
    """Return the twin of a pattern as `translated` gives it, None where there is none."""
    ignores_case = len(_WITHOUT_CASE.findall(pattern))
    if ignores_case > len(_LETTERS_WITHOUT_CASE.findall(pattern)):
        return None
    if ignores_case and not pattern.isascii():
        return None  # without its case a letter elsewhere can be an ASCII one
    pieces: list[regex.Match[str]] = []
    done = 0
    while done < len(pattern):
        piece = _PIECE.match(pattern, done)
        if piece is None:
            return None
        pieces.append(piece)
        done = piece.end()
    if _has_many_ways(piece[0] for piece in pieces):
        return None
    try:
        return Twin(
            [_Class(piece[0]) if piece["class"] else piece[0] for piece in pieces],
            ignores_case=ignores_case > 0,
        )
    except re.error:
        return None


@dataclass(frozen=True)
class _Class:
    """A class of characters, as a pattern for the `regex` package spells it."""

    spelled: str

    def members(self, text: str) -> set[str]:
        """Return the characters of a text that belong to it."""
        return set(regex.findall(self.spelled, text, FLAGS))


@dataclass(frozen=True)
class _Known:
    """The twin's pattern as far as characters beyond ASCII have been met."""

    pattern: re.Pattern[str]
    kinds: Mapping[Kind, str]
    """The stand-in for each kind of character."""
    stand_ins: Mapping[str, str]
    """The stand-in for each character."""


class Twin:
    """The twin of one pattern."""

    #: The upper half of Latin-1, so that a text of stand-ins takes a byte per character.
    FIRST, MOST = 0x80, 0x80
    #: How many characters are remembered.
    LIMIT = 1 << 16

    def __init__(self, pieces: Sequence[str | _Class], ignores_case: bool) -> None:
        """Take a pattern in pieces; raise re.error if `re` does not read it so."""
        self._pieces = pieces
        self._classes = [*dict.fromkeys(piece for piece in pieces if isinstance(piece, _Class))]
        self._in_ascii = [each.members(_ASCII) for each in self._classes]
        self._ignores_case = ignores_case
        self._known = _Known(self._compiled({}), {}, {})

    def cast(self, text: str) -> tuple[re.Pattern[str], str] | None:
        """Return a pattern and a text: its matches stand where those of the twin's pattern stand.

        The text differs from the one given in the characters beyond ASCII alone. None if one of
        them can have no stand-in.
        """
        known = self._known
        if text.isascii():
            return known.pattern, text
        others = set("".join(_OTHERS.findall(text)))
        if not known.stand_ins.keys() >= others:
            met = self._meet(others, known)
            if met is None:
                return None
            self._known = known = met
        stand_ins = known.stand_ins
        cast = _OTHERS.sub(lambda run: "".join([stand_ins[other] for other in run[0]]), text)
        return known.pattern, cast

    def _meet(self, others: set[str], known: _Known) -> _Known | None:
        """Return what is known once these characters are, None if one has no stand-in."""
        stand_ins = {**known.stand_ins} if len(known.stand_ins) < self.LIMIT else {}
        text = "".join(others - stand_ins.keys())
        if self._ignores_case and _IN_ANOTHER_CASE.search(text):
            return None
        members = [each.members(text) for each in self._classes]
        kinds = {**known.kinds}
        for character in text:
            kind = tuple(character in those for those in members)
            stand_ins[character] = kinds.setdefault(kind, chr(self.FIRST + len(kinds)))
        if len(kinds) > self.MOST:
            return None
        pattern = known.pattern if len(kinds) == len(known.kinds) else self._compiled(kinds)
        return _Known(pattern, kinds, stand_ins)

    def _compiled(self, kinds: Mapping[Kind, str]) -> re.Pattern[str]:
        """Return the pattern for ASCII and the stand-ins of some kinds."""
        spelled = {}
        for i, (each, in_ascii) in enumerate(zip(self._classes, self._in_ascii, strict=True)):
            members = in_ascii | {stand_in for kind, stand_in in kinds.items() if kind[i]}
            # One without members is a character that matches nothing.
            spelled[each] = f"[{re.escape(''.join(sorted(members)))}]" if members else r"[^\s\S]"
        whole = "".join(
            spelled[piece] if isinstance(piece, _Class) else piece for piece in self._pieces
        )
        return re.compile(whole, re.MULTILINE | re.ASCII)


def _has_many_ways(pieces: Iterable[str]) -> bool:
    """Whether a branch of the whole pattern repeats often, or anywhere a group is repeated."""
    depth = repeats = 0
    before = ""
    for piece in pieces:
        sign = piece[0]
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            repeats = 0
        if sign in "*+?{":
            repeats += 1
            if repeats > _MOST_REPEATS or (before == ")" and sign != "?"):
                return True
        before = sign
    return False
