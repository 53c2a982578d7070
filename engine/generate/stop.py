"""Finds stop strings in text that arrives in pieces of any size; knows nothing of tokens.

The match that completes first wins; of those that complete together, the one that starts first.
Each character is looked at once per stop string.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import RequestError
from engine.matching import Progress


class StopMatcher:
    """Passes text through until a stop string; neither it nor any beginning of it gets out.

    With `include` it does once it is complete. `matched` says whether one was found.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """Raise RequestError if a stop string is empty."""
        if not all(stops):
            raise RequestError("a stop string must not be empty")
        # The longest first, so that of the matches that end together the earliest start wins.
        self._stops = [Progress(stop) for stop in sorted(set(stops), key=lambda s: (-len(s), s))]
        self._include = include
        self._held = ""
        self.matched = False

    def push(self, text: str, armed: bool = True) -> str:
        """Return the text that is now safe to show; after a match there is none.

        Unless `armed`, a stop string that is completed here is text like any other.
        """
        if self.matched:
            return ""
        held = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            # A list, not a generator: every stop string must see every character.
            found = [stop for stop in self._stops if stop.completes_with(character)]
            if found and armed:
                self.matched = True
                self._held = ""
                return held[: end if self._include else end - found[0].size]
            for stop in found:
                stop.go_on()
        safe = len(held) - max((stop.seen for stop in self._stops), default=0)
        self._held = held[safe:]
        return held[:safe]

    def flush(self) -> str:
        """Return what was held back once no text follows."""
        held, self._held = self._held, ""
        return held
