"""Small letters in the place of capitals."""

from __future__ import annotations

from collections.abc import Sequence


class Lowercase:
    """A Rewrite into small letters, one character at a time: a sigma at a word's end is as any."""

    def __call__(self, text: str) -> str:
        # A capital sigma is the one letter that `str.lower` looks at the neighbours of.
        return text.replace("\u03a3", "\u03c3").lower()

    def sources(self, text: str) -> Sequence[int]:
        if len(self(text)) == len(text):  # some become two characters, and none becomes none
            return range(len(text))
        return [i for i, character in enumerate(text) for _ in character.lower()]
