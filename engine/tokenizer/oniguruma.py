"""Patterns written for Oniguruma, in Ruby's syntax, run by the `regex` package.

Source: the tokenizers library reads every pattern of a tokenizer.json with Oniguruma.
"""

from __future__ import annotations

import regex

Span = tuple[int, int]

# In Ruby's syntax ^ and $ stand at every line.
FLAGS = regex.MULTILINE | regex.VERSION0


def find_spans(pattern: regex.Pattern[str], text: str) -> list[Span]:
    """Return the matches as [start, end), empty ones included where the reference counts them.

    It finds nothing in an empty text, and no empty match just behind another match.
    """
    if not text:
        return []
    spans = [match.span() for match in pattern.finditer(text)]
    if all(start < end for start, end in spans):
        return spans
    # Where an empty match is found the two engines go on differently.
    spans = []
    position, before = 0, -1
    while position <= len(text) and (match := pattern.search(text, position)):
        start, end = match.span()
        if start == end == before:
            position += 1
            continue
        spans.append((start, end))
        position = before = end
    return spans


class UnsupportedPatternError(ValueError):
    """A pattern that the two engines read in different ways, or that neither can read."""


# Constructs that Ruby's syntax, in which these patterns are written, reads in another way.
_FOREIGN = regex.compile(r"\\[hHRXKG]|&&|\(\?[a-z]*m|\[\[:")


def translated(pattern: str) -> str:
    """Return a pattern in the syntax of the `regex` package, for its MULTILINE and VERSION0."""
    if found := _FOREIGN.search(pattern):
        raise UnsupportedPatternError(f"it uses {found[0]}")
    try:
        regex.compile(pattern, FLAGS)
    except regex.error as error:
        raise UnsupportedPatternError(str(error)) from error
    return pattern
