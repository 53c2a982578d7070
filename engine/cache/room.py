"""One sequence's place in a cache, and the new tokens of several sequences."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Room:
    """The place of one sequence in a cache: `length` tokens of it are held, from position 0 on.

    `row` is its row of a cache that has rows, `blocks` are its blocks in order where there are such.
    `read_as`: rope scalings that follow a sequence's length take its first tokens to be part of one so
    long, for a prompt that comes in chunks; None: as long as the forward pass makes it.
    """

    row: int = 0
    blocks: list[int] = field(default_factory=list)
    read_as: int | None = None
    length: int = 0


@dataclass(frozen=True)
class Part:
    """The next `n` tokens of the sequence in `room`, as a part of one forward pass."""

    room: Room
    n: int
