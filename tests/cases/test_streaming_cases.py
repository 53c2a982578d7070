"""The public cases of the theme streaming."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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


def streamed(
    tokenizer: Tokenizer, ids: list[int], skip: bool = False, after: Sequence[int] = ()
) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip, after=after)
    return [*map(stream.push, ids), stream.flush()]


A01_TEXT = "ďábelské 삼겹살 😀👨\u200d👩\u200d👧 é"
# fmt: off
A01 = {
    "qwen3": [145468, 58560, 2010, 74, 963, 127165, 120, 144596, 136999, 90316, 145367, 378, 235, 145233, 378, 235, 145665, 3958],
    "llama3": [102093, 59660, 2053, 103770, 107455, 28740, 117, 108281, 91416, 9468, 239, 101, 102470, 9468, 239, 102, 102470, 9468, 239, 100, 4046],
    "gptoss": [36742, 16886, 1989, 40273, 98643, 4062, 117, 59987, 88038, 28823, 101, 2524, 28823, 102, 2524, 28823, 100, 1212],
    "llama2": [28705, 29365, 25657, 1190, 10641, 28705, 239, 133, 191, 237, 181, 188, 239, 133, 183, 28705, 30575, 243, 162, 148, 171, 29274, 243, 162, 148, 172, 29274, 243, 162, 148, 170, 1233],
    "gemma3": [239712, 19947, 1416, 24050, 58612, 244988, 239536, 163543, 243874, 237243, 243767, 237243, 244814, 1559],
    "deepseek_v3": [61053, 43592, 1713, 33071, 88975, 7435, 120, 110689, 53769, 225, 25730, 104, 46088, 25730, 105, 46088, 25730, 103, 2678],
}
# fmt: on


@pytest.mark.parametrize("name", A01)
def test_a01_characters_spread_over_tokens_are_never_shown_in_half(name: str, load: Load) -> None:
    """Each token turned into text on its own gives replacement characters here."""
    tokenizer = load(name)
    ids = tokenizer.encode(A01_TEXT, add_special_tokens=False)
    assert ids == A01[name]
    # How many tokens are no text of their own: gemma3 has them all, and would reveal nothing.
    apart = sum("\ufffd" in tokenizer.decode([token_id]) for token_id in ids)
    assert apart == {"qwen3": 6, "llama3": 11, "gptoss": 8, "llama2": 21, "gemma3": 0}.get(name, 10)
    stream = tokenizer.stream()
    out = whole = ""
    for count, token_id in enumerate(ids, 1):
        out += stream.push(token_id)
        assert "\ufffd" not in out
        # Every character is out with the token that completes it. The text of byte tokens so far
        # is shorter again while the next character is unfinished.
        whole = max(whole, tokenizer.decode(ids[:count]).rstrip("\ufffd"), key=len)
        assert out == whole
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


@pytest.mark.parametrize(
    ("prompt", "ids", "text"),
    [
        ([1, 415, 7212], [349, 272, 3607], " is the limit"),
        ([1, 415, 7212], [6799], '{"'),
        ([1], [349, 272, 3607], "is the limit"),
        ([], [349, 272, 3607], "is the limit"),
    ],
)
def test_a04_an_answer_keeps_its_first_space(
    prompt: list[int], ids: list[int], text: str, load: Load
) -> None:
    """The decoder strips the first space of a text, which the answer's first token does not begin."""
    tokenizer = load("llama2")
    assert tokenizer.encode("The sky") == [1, 415, 7212]
    assert "".join(streamed(tokenizer, ids, skip=True, after=prompt)) == text
    before, whole = (tokenizer.decode(part, True) for part in (prompt, [*prompt, *ids]))
    assert whole[len(before) :] == text
    assert "".join(map(tokenizer.decode, ([i] for i in ids))) != " is the limit"


def test_a04_without_a_prompt_a_stream_says_what_decode_says(load: Load) -> None:
    tokenizer = load("llama2")
    assert "".join(streamed(tokenizer, [349, 272, 3607])) == "is the limit"
    assert tokenizer.decode([349, 272, 3607]) == "is the limit"


@pytest.mark.parametrize(
    ("name", "ids", "pieces"),
    [
        ("gemma3", [472, 423, 414], ["", "", "깰"]),
        ("llama2", [28705, 237, 188, 179], ["", "", "", "깰"]),
        ("llama2", [28705, 243, 162, 169, 156], ["", "", "", "", "🦙"]),
        ("llama2", [28705, 13], ["", "\n"]),
    ],
)
def test_a05_byte_tokens_are_bytes_and_not_their_spelling(
    name: str, ids: list[int], pieces: list[str], load: Load
) -> None:
    tokenizer = load(name)
    assert tokenizer.decode(ids) == "".join(pieces)
    assert streamed(tokenizer, ids) == [*pieces, ""]


def test_a05_a_newline_in_bytes_follows_a_character_in_bytes(load: Load) -> None:
    tokenizer = load("gemma3")
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "€\n".encode()]
    assert tokenizer.decode([i for i in ids if i is not None]) == "€\n"
    assert streamed(tokenizer, [i for i in ids if i is not None]) == ["", "", "€", "\n", ""]


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
    ("name", "ids", "text"),
    [
        ("llama3", [9468], "\ufffd"),
        ("llama3", [9468, 99], "\ufffd"),
        ("llama3", [9468, 99, 247], "🦙"),
        ("llama3", [9468, 99, 564], "\ufffdok"),
        ("gemma3", [478], "\ufffd"),
        ("gemma3", [478, 397], "\ufffd" * 2),
        ("gemma3", [478, 397, 404], "\ufffd" * 3),
        ("llama2", [28705, 243, 162, 169], "\ufffd" * 3),
    ],
)
def test_a10_a_character_cut_short_is_shown_as_the_decoder_shows_it(
    name: str, ids: list[int], text: str, load: Load
) -> None:
    """A limit on tokens may cut a character: the stream shows what decoding at once shows.

    That is one U+FFFD for the character in byte-level BPE, and one for each byte token elsewhere.
    """
    tokenizer = load(name)
    assert tokenizer.decode(ids) == text
    assert "".join(streamed(tokenizer, ids)) == text
    text.encode()
