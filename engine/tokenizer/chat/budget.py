"""What one rendering of a template may cost: processor time, text put out, text and lists made.

A template is a program from a file that nobody vouches for. Each of its steps is counted before
it is done, on the thread that renders: there is nothing to kill afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

#: Processor time of the rendering thread, so that a busy machine refuses nothing. A thousand
#: messages take a tenth of a second.
SECONDS = 10.0
#: Characters of a rendered conversation, and of any text or list on the way: four times what a
#: context of a million tokens holds.
TEXT = 1 << 24
#: Characters made on the way, in all: templates take a message apart and put it together a few
#: times. A character takes at most four bytes, so a rendering takes at most half a gigabyte.
MADE = 8 * TEXT
#: Lists within lists; what is deeper overflows the stack of whoever prints or hashes it.
DEPTH = 200
#: Bits of an integer; beyond some fourteen thousand Python itself refuses to print it.
BITS = 1 << 13
#: What a place in a list counts for, in characters.
PLACE = 32


class TooMuchError(Exception):
    """A template has asked for more than it may have; the message says of what."""


class Size(NamedTuple):
    """How much there is of a value, if it were written out: a list in two places counts twice."""

    text: int
    places: int
    depth: int


_LISTS = (list, tuple, set, frozenset, Mapping)
_NOTHING = Size(0, 0, 0)


class Budget:
    """Counts what one rendering uses."""

    def __init__(self) -> None:
        self._until = time.thread_time() + SECONDS
        self._made = 0

    def step(self) -> None:
        """Count one step: a turn of a loop, a statement, a call."""
        if time.thread_time() > self._until:
            raise TooMuchError(f"works for more than {SECONDS:g} seconds")

    def steps(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield some values, each of which is a step."""
        for value in values:
            self.step()
            yield value

    def room_for(self, size: int) -> None:
        """Refuse a text or list of so many characters before it is made."""
        if size > TEXT:
            raise TooMuchError(f"makes a text or list of more than {TEXT >> 20} million characters")

    def room_for_bits(self, size: int) -> None:
        """Refuse an integer of so many bits before it is made."""
        if size > BITS:
            raise TooMuchError(f"makes an integer of more than {BITS} bits")

    def spend(self, size: int) -> None:
        """Count characters that were made."""
        self._made += size
        if self._made > MADE:
            raise TooMuchError(f"makes more than {MADE >> 20} million characters on the way")

    def made(self, value: Any) -> Any:
        """Count what a step has made, and return it."""
        if isinstance(value, (str, bytes)):
            self.room_for(len(value))
            self.spend(len(value))
        elif isinstance(value, (list, tuple, dict, set, frozenset)):
            self.spend(PLACE * self.size(value).places)
        return value

    def size(self, value: Any) -> Size:
        """Return how much there is of a value; raises TooMuchError beyond `TEXT` or `DEPTH`."""
        return self._size(value, {}, 0)

    def _size(self, value: Any, seen: dict[int, Size], above: int) -> Size:
        """Return the same; a list in several places is looked through once."""
        if isinstance(value, (str, bytes)):
            return Size(len(value), 0, 0)
        if not isinstance(value, _LISTS):
            return _NOTHING
        if above >= DEPTH:
            raise TooMuchError(f"nests lists more than {DEPTH} deep")
        text, places, deepest = 0, 1 + len(value), 0
        for inner in chain(value, value.values()) if isinstance(value, Mapping) else value:
            if isinstance(inner, str):
                text += len(inner)
            elif isinstance(inner, (bytes, *_LISTS)):
                size = seen.get(id(inner)) or self._size(inner, seen, above + 1)
                seen[id(inner)] = size
                text, places = text + size.text, places + size.places
                deepest = max(deepest, size.depth)
        self.room_for(text + PLACE * places)
        return Size(text, places, 1 + deepest)

    def weight(self, value: Any) -> int:
        """Return the characters that a value counts for."""
        size = self.size(value)
        return size.text + PLACE * size.places
