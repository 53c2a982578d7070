"""The public cases of the theme streaming that concern byte-level BPE and stop strings."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from engine.generate.stop import StopMatcher
from engine.tokenizer import Tokenizer
from tests.tokenizer import real

Load = Callable[[str], Tokenizer]


@pytest.fixture
def load(asset: Callable[[str], Path]) -> Load:
    return lambda name: real.load(asset(f"tokenizer-{name}"))


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool = False) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip)
    return [*map(stream.push, ids), stream.flush()]


A01_TEXT = "ďábelské 삼겹살 😀👨\u200d👩\u200d👧 é"
# fmt: off
A01 = {
    "qwen3": [145468, 58560, 2010, 74, 963, 127165, 120, 144596, 136999, 90316, 145367, 378, 235, 145233, 378, 235, 145665, 3958],
    "llama3": [102093, 59660, 2053, 103770, 107455, 28740, 117, 108281, 91416, 9468, 239, 101, 102470, 9468, 239, 102, 102470, 9468, 239, 100, 4046],
    "gptoss": [36742, 16886, 1989, 40273, 98643, 4062, 117, 59987, 88038, 28823, 101, 2524, 28823, 102, 2524, 28823, 100, 1212],
    "deepseek_v3": [61053, 43592, 1713, 33071, 88975, 7435, 120, 110689, 53769, 225, 25730, 104, 46088, 25730, 105, 46088, 25730, 103, 2678],
}
# fmt: on


@pytest.mark.parametrize("name", A01)
def test_a01_characters_spread_over_tokens_are_never_shown_in_half(name: str, load: Load) -> None:
    """Each token turned into text on its own gives replacement characters here."""
    tokenizer = load(name)
    ids = tokenizer.encode(A01_TEXT, add_special_tokens=False)
    assert ids == A01[name]
    stream = tokenizer.stream()
    out = ""
    for count, token_id in enumerate(ids, 1):
        out += stream.push(token_id)
        assert "\ufffd" not in out
        # Every character is out with the token that completes it.
        assert out == tokenizer.decode(ids[:count]).rstrip("\ufffd")
    assert out + stream.flush() == A01_TEXT


def test_a03_invalid_bytes_are_released_as_they_come_in_linear_time(load: Load) -> None:
    """A window that stays open for a run of bad bytes shows nothing, and costs the square."""
    tokenizer = load("qwen3")
    bad = tokenizer.token_to_id("Ģ")
    assert bad == 222
    end = tokenizer.encode(" end", add_special_tokens=False)

    def seconds(count: int) -> float:
        start = time.process_time()
        pieces = streamed(tokenizer, [bad] * count + end)
        spent = time.process_time() - start
        assert pieces[:count] == ["\ufffd"] * count
        assert "".join(pieces) == "\ufffd" * count + " end"
        return spent

    few = min(seconds(1500) for _ in range(5))
    many = min(seconds(6000) for _ in range(5))
    assert many / few < 6


A07 = [
    ("The quick brown fox jumps", ["own fox"], "The quick br"),
    ("A\nUser: hi", ["\nUser:"], "A"),
    ("stop... now", [".."], "stop"),
    ("aaab", ["aab"], "a"),
    ("abcabd", ["abd"], "abc"),
    ("x\n\n\ny", ["\n\n"], "x"),
    ("done 👍🏽!", ["👍🏽"], "done "),
    ("one two three", ["three", "two"], "one "),
    ("abcd", ["bcd", "bc"], "a"),
    ("xabc", ["bc", "abc"], "x"),
]


@pytest.mark.parametrize(("text", "stops", "shown"), A07)
def test_a07_a_stop_string_is_found_however_the_text_is_cut(
    text: str, stops: list[str], shown: str
) -> None:
    """It may begin in one token and end in another; nothing of it, and nothing after it, gets out."""
    cuts = list(product([False, True], repeat=min(len(text) - 1, 10)))
    assert len(cuts) >= 8
    for cut in cuts:
        matcher = StopMatcher(stops)
        out, piece = "", ""
        for i, character in enumerate(text):
            piece += character
            if i < len(cut) and cut[i]:
                out += matcher.push(piece)
                piece = ""
        out += matcher.push(piece) + matcher.flush()
        assert (out, matcher.matched) == (shown, True)


@pytest.mark.parametrize(
    ("ids", "stop", "shown"),
    [
        ([785, 3974, 13876, 38835, 34208], "own fox", "The quick br"),
        ([32, 198, 1474, 25, 15588], "\nUser:", "A"),
        ([9495, 1112, 1431], "..", "stop"),
        ([5305, 370], "aab", "a"),
    ],
)
def test_a07_a_stop_string_across_or_inside_real_tokens(
    ids: list[int], stop: str, shown: str, load: Load
) -> None:
    matcher = StopMatcher([stop])
    out = "".join(matcher.push(piece) for piece in streamed(load("qwen3"), ids))
    assert (out + matcher.flush(), matcher.matched) == (shown, True)


def test_a09_markers_that_are_not_special_are_shown(load: Load) -> None:
    """Thinking and tool calls are added tokens that clients need; only <|im_end|> is to go."""
    ids = [151667, 198, 6023, 198, 151668, 198, 151657, 198, 4913, 606, 788, 330, 69, 16707, 151658]
    shown = '<think>\nhi\n</think>\n<tool_call>\n{"name": "f"}\n</tool_call>'
    tokenizer = load("qwen3")
    assert "".join(streamed(tokenizer, [*ids, 151645], skip=True)) == shown
    assert "".join(streamed(tokenizer, [*ids, 151645])) == shown + "<|im_end|>"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([9468], "\ufffd"),
        ([9468, 99], "\ufffd"),
        ([9468, 99, 247], "🦙"),
        ([9468, 99, 564], "\ufffdok"),
    ],
)
def test_a10_a_character_cut_short_is_one_replacement_character(
    ids: list[int], text: str, load: Load
) -> None:
    """A limit on tokens may cut a character: the stream shows what decoding at once shows."""
    tokenizer = load("llama3")
    assert tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids)) == text
    text.encode()
