"""Follows a wanted text through another one that arrives character by character.

Source: Knuth, Morris and Pratt 1977. Each character is looked at once, whatever came before it.
"""

from __future__ import annotations


class Progress:
    """How much of one wanted text, at least one character, the text so far ends with."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self.size = len(wanted)
        self.seen = 0
        # Per length: the longest shorter beginning that also ends there.
        self._shorter = [0, 0]
        for end in range(1, self.size):
            self._shorter.append(self._advance(self._shorter[end], wanted[end]))

    def completes_with(self, character: str) -> bool:
        """Take one more character; after a completion set `seen` to 0, or `go_on`, before the next."""
        self.seen = self._advance(self.seen, character)
        return self.seen == self.size

    def go_on(self) -> None:
        """Look for another one, which may begin within the one that was completed."""
        self.seen = self._shorter[self.size]

    def _advance(self, seen: int, character: str) -> int:
        while seen and self._wanted[seen] != character:
            seen = self._shorter[seen]
        return seen + 1 if self._wanted[seen] == character else 0
