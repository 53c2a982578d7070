"""Small letters in the place of capitals."""

from __future__ import annotations

from engine.tokenizer.normalize.changes import CharacterWise


class Lowercase(CharacterWise):
    """A Rewrite into small letters, one character at a time: a sigma at a word's end is as any."""

    def __call__(self, text: str) -> str:
        # A capital sigma is the one letter that `str.lower` looks at the neighbours of.
        return text.replace("\u03a3", "\u03c3").lower()
