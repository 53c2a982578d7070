"""A pattern for the `regex` package as one for `re` that matches the same in a text of ASCII.

Most text is ASCII, and there `re` is twice as fast: classes of Unicode characters become lists of
the few that are ASCII.
"""

from __future__ import annotations

import re

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
    """Return the twin of a pattern, None where there is none; see `engine.tokenizer.patterns.oniguruma`."""
    if "(?i" in pattern and not pattern.isascii():
        return None  # without its case a letter elsewhere can be an ASCII one
    pieces = []
    done = depth = repeats = 0
    before = ""
    while done < len(pattern):
        piece = _PIECE.match(pattern, done)
        if piece is None:
            return None
        sign = piece[0][0]
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            repeats = 0
        if sign in "*+?{":
            repeats += 1
            if repeats > _MOST_REPEATS or (before == ")" and sign != "?"):
                return None
        before = sign
        pieces.append(_ascii_class(piece[0]) if piece["class"] else piece[0])
        done = piece.end()
    try:
        return re.compile("".join(pieces), re.MULTILINE | re.ASCII)
    except re.error:
        return None


def _ascii_class(text: str) -> str:
    """Return the class of the ASCII characters that a class matches."""
    matches = regex.compile(text, FLAGS).fullmatch
    members = "".join(re.escape(character) for character in _ASCII if matches(character))
    return f"[{members}]" if members else "(?!)"
