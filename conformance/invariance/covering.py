"""A pairwise covering array: few cells in which any two values that can meet do meet.

Greedy, one cell at a time, after Cohen, Dalal, Fredman and Patton 1997 (The AETG system): a cell begins
with a pair that is missing, and each further axis takes the value that brings the most missing pairs,
of equals the one that met the others least. Nothing is drawn at random, so that it is always the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

from conformance.invariance.axes import AXES, COSTLY, Cell, Pair, reason_against

Axes = Mapping[str, Sequence[str]]
_Value = tuple[str, str]  # with its axis

_PLACE = {axis: n for n, axis in enumerate(AXES)}


def covering(at_least: int = 1, axes: Axes = AXES) -> list[Cell]:
    """At least so many cells: a round that covers every possible pair, then rounds of other, cheap cells.

    `axes` may leave out values, not axes.
    """
    array = _Array(axes)
    array.cover()
    array.axes = {a: [v for v in axes[a] if (a, v) not in COSTLY] for a in axes}
    while len(array.cells) < at_least and array.cover():
        pass
    return list(array.cells)


def possible_pairs(axes: Axes = AXES) -> list[Pair]:
    """Any two values of two axes that some cell has both of."""
    pairs = (
        ((a, x), (b, y)) for a, b in combinations(axes, 2) for x, y in product(axes[a], axes[b])
    )
    return [pair for pair in pairs if next(_completions(pair, axes, _as_they_are), None)]


class _Array:
    """The cells so far, how often values met in them, and the pairs that a round still lacks."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.cells: dict[Cell, None] = {}  # a set that keeps its order, as the next
        self.missing: dict[Pair, None] = {}
        self.met: Counter[Pair] = Counter()

    def cover(self) -> int:
        """A round: new cells until every possible pair was in one of them; how many it found."""
        before = len(self.cells)
        self.missing = dict.fromkeys(possible_pairs(self.axes))
        for pair in list(self.missing):
            if pair in self.missing:
                cells = _completions(pair, self.axes, self._best_first)
                if cell := next((cell for cell in cells if cell not in self.cells), None):
                    self._add(cell)
        return len(self.cells) - before

    def _add(self, cell: Cell) -> None:
        self.cells[cell] = None
        for pair in cell.pairs:
            self.met[pair] += 1
            self.missing.pop(pair, None)

    def _best_first(self, taken: Sequence[_Value], values: Sequence[_Value]) -> list[_Value]:
        def worth(value: _Value) -> tuple[int, int]:
            pairs = [_in_order(other, value) for other in taken]
            return -sum(pair in self.missing for pair in pairs), sum(self.met[p] for p in pairs)

        return sorted(values, key=worth)


def _completions(
    taken: Sequence[_Value],
    axes: Axes,
    order: Callable[[Sequence[_Value], Sequence[_Value]], Sequence[_Value]],
) -> Iterator[Cell]:
    """All cells with the values `taken` that no rule forbids; `order` says which values to try first."""
    if len(taken) == 2 and reason_against((taken[0], taken[1])):
        return
    known = dict(taken)
    axis = next((axis for axis in axes if axis not in known), None)
    if axis is None:
        yield Cell(tuple(known[axis] for axis in AXES))
        return
    allowed = [
        (axis, value)
        for value in axes[axis]
        if not any(reason_against(_in_order(other, (axis, value))) for other in taken)
    ]
    for value in order(taken, allowed):
        yield from _completions((*taken, value), axes, order)


def _as_they_are(taken: Sequence[_Value], values: Sequence[_Value]) -> Sequence[_Value]:
    return values


def _in_order(one: _Value, other: _Value) -> Pair:
    return (one, other) if _PLACE[one[0]] < _PLACE[other[0]] else (other, one)
