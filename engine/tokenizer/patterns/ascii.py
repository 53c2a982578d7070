"""A pattern for the `regex` package as one for `re` that matches the same in a text of ASCII.

Most text is ASCII, and there `re` is twice as fast: classes of Unicode characters become lists of
the few that are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import regex

from engine.tokenizer.patterns.oniguruma import FLAGS

_ASCII = [chr(code) for code in range(128)]

# One piece of a pattern: a class of characters, or what both packages read alike. A pattern with
# anything else (anchors such as \b, nested sets, names for groups, ...) has no twin.
_PIECE = regex.compile(
    r"(?<class>\\[pP](?:\{[^{}]*\}|\pL)|\\[sSdDwW]|\[\^?\]?(?:[^\[\]\\&|~]|\\.|&(?!&)|\|(?!\|)|~(?!~))*\])"
    r"|(?<alike>\\[rntfv]|\\[[:punct:]]|\(\?(?:i?:|<?[=!]|>)|\((?!\?)|\{\d+(?:,\d*)?\}|[^\\\[\](){}]|\))",
    regex.DOTALL,
)

# `re` goes through all the ways to match where `regex` sees that there is none: a pattern that has
# very many must not be given to it.
_MOST_REPEATS = 6


def ascii_twin(pattern: str) -> re.Pattern[str] | None:
    """Return the twin of a pattern as `translated` gives it, None where there is none."""
    if "(?i" in pattern and not pattern.isascii():
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
    twin = "".join(_ascii_class(piece[0]) if piece["class"] else piece[0] for piece in pieces)
    try:
        return re.compile(twin, re.MULTILINE | re.ASCII)
    except re.error:
        return None


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


def _ascii_class(text: str) -> str:
    """Return the class of the ASCII characters that a class matches."""
    matches = regex.compile(text, FLAGS).fullmatch
    members = "".join(re.escape(character) for character in _ASCII if matches(character))
    return f"[{members}]" if members else "(?!)"
