"""Finds the matches of a pattern, the empty ones as the reference's engine counts them."""

from __future__ import annotations

import regex

Span = tuple[int, int]


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
