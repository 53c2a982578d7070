"""Stop strings, against a twin that looks at the whole text: any pieces, any stops."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.generate.stop import StopMatcher

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("ab\n", max_size=4), max_size=20)


def whole(text: str, stops: list[str], include: bool = False) -> tuple[str, bool]:
    """Look at every end in turn: the match that completes first, of those the earliest start."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: end if include else min(starts)], True
    return text, False


def streamed(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, bool]:
    matcher = StopMatcher(stops, include)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.flush(), matcher.matched


@given(PIECES, STOPS, st.booleans())
def test_any_pieces_show_what_the_whole_text_shows(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    assert streamed(pieces, stops, include) == whole("".join(pieces), stops, include)


@given(PIECES, STOPS)
def test_what_was_shown_is_never_taken_back(pieces: list[str], stops: list[str]) -> None:
    """However the text goes on, what is out already is the beginning of the answer."""
    matcher = StopMatcher(stops)
    shown, text = "", ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        for more in ("", "a", "b\n", "ab", *stops, *(stop[1:] for stop in stops)):
            assert whole(text + more, stops)[0].startswith(shown)


@given(PIECES, STOPS)
def test_no_more_is_held_back_than_could_become_a_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown, text = "", ""
    for piece in pieces:
        text += piece
        shown += matcher.push(piece)
        if matcher.matched:
            break
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_the_first_to_complete_wins_and_ties_go_to_the_earliest_start() -> None:
    assert whole("abcd", ["bcd", "bc"]) == streamed(["abcd"], ["bcd", "bc"]) == ("a", True)
    assert streamed(["xabc"], ["c", "abc", "bc"]) == ("x", True)
    assert streamed(list("xabc"), ["c", "abc", "bc"]) == ("x", True)


def test_a_stop_that_is_to_be_shown_is_shown_when_it_is_complete_and_nothing_behind_it() -> None:
    matcher = StopMatcher(["abc", "bcd"], include=True)
    assert [matcher.push(piece) for piece in ("xa", "b", "cd", "e")] == ["x", "", "abc", ""]
    assert (matcher.matched, matcher.flush()) == (True, "")
    assert streamed(["xab"], ["abc"], include=True) == ("xab", False)


def test_many_long_stops_that_overlap_are_all_followed() -> None:
    stops = ["a" * size + "b" for size in range(1, 60)] + ["ba" * 30, "c" * 100]
    assert streamed(list("x" + "a" * 70 + "b"), stops) == ("x" + "a" * 11, True)
    assert streamed(["c" * 99, "ca"], stops) == ("", True)
    assert streamed(list("c" * 99), stops) == ("c" * 99, False)


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["b"])
    assert (matcher.push("abc"), matcher.matched) == ("a", True)
    assert (matcher.push("more"), matcher.matched) == ("", True)
    assert matcher.flush() == ""


def test_without_stops_everything_passes_at_once() -> None:
    matcher = StopMatcher([])
    assert (matcher.push("abc"), matcher.matched) == ("abc", False)
    assert matcher.flush() == ""


def test_an_empty_stop_is_refused() -> None:
    """It matches before the first character, and would end every answer unseen."""
    with pytest.raises(RequestError, match="empty"):
        StopMatcher(["a", ""])


def test_time_is_linear_in_the_text() -> None:
    """A buffer that is searched again with each piece is quadratic."""
    stop = "a" * 500 + "b"

    def seconds(length: int) -> float:
        best = float("inf")
        for _ in range(3):
            matcher = StopMatcher([stop])
            start = time.process_time()
            for _ in range(length):
                matcher.push("aa")
            best = min(best, time.process_time() - start)
        return best

    assert seconds(8_000) / seconds(2_000) < 8
