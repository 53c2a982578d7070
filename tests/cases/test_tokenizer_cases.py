"""The public cases of the theme tokenizer; ids are the reference's."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tokenizer import Tokenizer
from tests.tokenizer import real
from tests.tokenizer.definitions import definition, ours

Load = Callable[[str], Tokenizer]


@pytest.fixture
def load(asset: Callable[[str], Path]) -> Load:
    return lambda name: real.load(asset(f"tokenizer-{name}"))


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["llama3", "llama3_1"])
def test_b01_ignore_merges_takes_words_that_no_merge_reaches(
    name: str, load: Load, asset: Callable[[str], Path]
) -> None:
    """A tokenizer that always merges splits them, and one that never should does not."""
    whole = {" Việt": 101798, " soubor": 127539, " hukuk": 119422, "larından": 105046}
    merged = {
        " Việt": [11655, 26298, 83],
        " soubor": [274, 5599, 269],
        " hukuk": [305, 3178, 3178],
        "larından": [46937, 303, 276],
    }
    for word, token_id in whole.items():
        assert plain(load(name), word) == [token_id]
    file = json.loads((asset(f"tokenizer-{name}") / "tokenizer.json").read_text(encoding="utf-8"))
    file["model"]["ignore_merges"] = False
    always = ours(file)
    assert {word: plain(always, word) for word in whole} == merged


B02 = {
    "qwen3": {
        "café": [924, 58858],
        "cafe\u0301": [924, 58858],
        "\u1112\u1161\u11ab": [23573],
        "한": [23573],
        "\u212b": [144044],
        "Å": [144044],
        "'\u212a\u212a": [6, 50457],
    },
    "llama3": {
        "café": [936, 59958],
        "cafe\u0301": [936, 1897, 54939],
        "\u1112\u1161\u11ab": [157, 226, 240, 157, 227, 94, 157, 228, 104],
        "한": [24486],
        "\u212b": [15284, 104],
        "Å": [106453],
        "'\u212a\u212a": [6, 15284, 103, 15284, 103],
    },
    "gptoss": {
        "café": [66, 103112],
        "cafe\u0301": [66, 6903, 13430],
        "\u1112\u1161\u11ab": [157, 226, 240, 157, 227, 94, 157, 228, 104],
        "한": [3748],
        "\u212b": [10104, 104],
        "Å": [13631],
        "'\u212a\u212a": [6, 10104, 103, 10104, 103],
    },
    "deepseek_v3": {
        "café": [69, 2797, 619],
        "cafe\u0301": [69, 15702, 17793],
        "\u1112\u1161\u11ab": [91669, 243, 160, 230, 97, 77738, 107],
        "한": [5634],
        "\u212b": [10419, 107],
        "Å": [21760],
        "'\u212a\u212a": [9, 10419, 106, 10419, 106],
    },
    "gemma3": {
        "café": [123125, 236859],
        "cafe\u0301": [101727, 238288],
        "\u1112\u1161\u11ab": [246217, 243144, 244186],
        "한": [237384],
        "\u212b": [464, 370, 409],
        "Å": [239685],
        "'\u212a\u212a": [236789, 464, 370, 408, 464, 370, 408],
    },
    "llama2": {
        "café": [28345],
        "cafe\u0301": [7913, 1512, 28949],
        "\u1112\u1161\u11ab": [28705, 228, 135, 149, 228, 136, 164, 228, 137, 174],
        "한": [28705, 29282],
        "\u212b": [28705, 229, 135, 174],
        "Å": [15744],
        "'\u212a\u212a": [464, 229, 135, 173, 229, 135, 173],
    },
}
B03 = {
    "qwen3": {
        "1234567": [16, 17, 18, 19, 20, 21, 22],
        "x²³ ٣٤٥٦ ½": [87, 29456, 43201, 220, 149, 96, 149, 97, 149, 98, 149, 99, 220, 26062],
        "(x):\n": [2075, 982],
        "->": [405],
    },
    "llama3": {
        "1234567": [4513, 10961, 22],
        "x²³ ٣٤٥٦ ½": [87, 30556, 44301, 220, 117413, 124079, 124043, 149, 99, 220, 27154],
        "(x):\n": [2120, 997],
        "->": [405],
    },
    "gptoss": {
        "1234567": [7633, 19354, 22],
        "x²³ ٣٤٥٦ ½": [87, 13848, 45681, 220, 81473, 98713, 97336, 122513, 220, 27124],
        "(x):\n": [4061, 1883],
        "->": [609],
    },
    "deepseek_v3": {
        "1234567": [6895, 18009, 25],
        "x²³ ٣٤٥٦ ½": [90, 1628, 5826, 223, 127056, 152, 100, 152, 101, 152, 102, 223, 23951],
        "(x):\n": [4042, 3395],
        "->": [2105],
    },
    "gemma3": {
        "1234567": [236770, 236778, 236800, 236812, 236810, 236825, 236832],
        "x²³ ٣٤٥٦ ½": [236781, 238131, 239158, 223766, 242090, 242323, 242862, 47041],
        "(x):\n": [236769, 236781, 1473, 107],
        "->": [1160],
    },
    "llama2": {
        "1234567": [28705, 28740, 28750, 28770, 28781, 28782, 28784, 28787],
        "x²³ ٣٤٥٦ ½": [
            *(1318, 28941, 29203, 28705, 220, 166, 220, 167, 220, 168, 220, 169, 28705, 29039)
        ],
        "(x):\n": [325, 28744, 1329, 13],
        "->": [3193],
    },
}
B06 = {
    "<s>uns": [1, 10214],
    "you?</s> I'm": [368, 28804, 2, 28705, 315, 28742, 28719],
    "[INST] a</s>  b": [733, 16289, 28793, 264, 2, 259, 287],
    "</s>Hey": [2, 17162],
    "": [],
    " ": [259],
    " a": [28705, 264],
    "  a": [259, 264],
    "▁a": [28705, 264],
    "Hello  world\n\n  x": [22557, 28705, 1526, 13, 13, 28705, 1318],
}


@pytest.mark.parametrize("name", B02)
def test_b02_the_files_normalizer_is_applied_and_no_other(name: str, load: Load) -> None:
    assert {text: plain(load(name), text) for text in B02[name]} == B02[name]


@pytest.mark.parametrize("name", B03)
def test_b03_the_files_own_pattern_splits_numbers_and_punctuation(name: str, load: Load) -> None:
    assert {text: plain(load(name), text) for text in B03[name]} == B03[name]


@pytest.mark.parametrize(
    ("name", "begins", "length", "raw"),
    [
        ("llama3_1", [128000, 128006, 882, 128007], 11, [128000, 13347]),
        ("qwen3", [151644, 872, 198, 14990], 9, [13048]),
        ("deepseek_v3", [0, 128803, 33310, 128804], 4, [23166]),
        ("gemma3", [2, 105, 2364, 107], 10, [2, 10979]),
    ],
)
def test_b08_a_chat_has_bos_once_and_a_prompt_what_the_file_says(
    name: str, begins: list[int], length: int, raw: list[int], load: Load
) -> None:
    """The template writes BOS; encoding its text like a prompt would add another."""
    tokenizer = load(name)
    ids = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    assert ids[: len(begins)] == begins
    assert len(ids) == length
    assert tokenizer.encode("Hi") == raw


def test_b06_the_dummy_space_stands_before_every_stretch_of_text(load: Load) -> None:
    """Between special tokens too, not at the start alone; and merges go by rank, not by score."""
    assert {text: plain(load("llama2"), text) for text in B06} == B06


@pytest.mark.parametrize(
    ("name", "unit", "repeat", "expected"),
    [
        ("qwen3", "a", 100_000, (12500, 69440, 69440)),
        ("qwen3", "_", 50_000, (782, 46932, 7686)),
        ("qwen3", " ", 50_000, (391, 56940, 97417)),
        ("llama2", "a", 50_000, (6253, 264, 28708)),
        ("gemma3", "ab", 25_000, (12500, 111507, 111507)),
    ],
)
def test_b09_a_run_without_a_split_point_has_the_references_ids(
    name: str, unit: str, repeat: int, expected: tuple[int, int, int], load: Load
) -> None:
    ids = plain(load(name), unit * repeat)
    assert (len(ids), ids[0], ids[-1]) == expected


def test_b09_a_run_of_letters_takes_no_more_than_n_log_n(load: Load) -> None:
    """A merge loop that is quadratic makes minutes of seconds: a cheap way to stop a server."""
    tokenizer, draw = load("qwen3"), random.Random(0)
    text = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(100_000))

    def seconds(piece: str) -> float:
        start = time.process_time()
        plain(tokenizer, piece)
        return time.process_time() - start

    ids = plain(tokenizer, text)
    assert len(ids) == 54099
    assert hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] == "10459cb9a1f42e8f"
    # Taken in turn, so that a neighbour's work on this machine meets both.
    times = [(seconds(text), seconds(text + text)) for _ in range(5)]
    once, twice = map(min, zip(*times, strict=True))
    assert twice / once < 3
    assert once < 15


def test_b10_a_lone_surrogate_counts_as_a_replacement_character(load: Load) -> None:
    """json.loads lets it through; encoding it must not fail deep inside a server."""
    tokenizer = load("qwen3")
    text = json.loads('"a\\ud83db"')
    assert plain(tokenizer, text) == plain(tokenizer, "a\ufffdb") == [64, 5691, 65]
    encoding = tokenizer.encode_with_offsets(text)
    assert encoding.offsets == [(0, 1), (1, 2), (2, 3)]
    pair = json.loads('"\\ud83d\\udc4d"')
    assert tokenizer.decode(plain(tokenizer, pair)) == "👍"


def test_b12_an_id_without_a_token_decodes_to_nothing(load: Load) -> None:
    tokenizer = load("qwen3")
    assert tokenizer.vocab_size == 151669
    assert tokenizer.id_to_token(151800) is None
    assert tokenizer.decode([9707, 151800, 1879]) == "Hello world"
    stream = tokenizer.stream()
    assert [*map(stream.push, [9707, 151800, 1879]), stream.flush()] == ["Hello", "", " world", ""]


@pytest.mark.parametrize("spelling", [list, " ".join])
@pytest.mark.parametrize(
    ("merges", "words"),
    [
        (["aa"], {"aaa": ["aa", "a"], "aaaaa": ["aa", "aa", "a"]}),
        (["ab", "aa", "a|ab"], {"aab": ["aab"], "aaab": ["aa", "ab"]}),
        (["ab", "b|ab", "ba"], {"babab": ["bab", "ab"], "baba": ["bab", "a"]}),
    ],
)
def test_b13_merges_go_by_rank_and_leftmost_first(
    merges: list[str], words: dict[str, list[str]], spelling: Callable[[tuple[str, str]], object]
) -> None:
    """Not by id, not by length; and both spellings of merges load."""
    pairs = [tuple(m.split("|")) if "|" in m else (m[0], m[1]) for m in merges]
    file = definition()
    vocab = {"a": 0, "b": 1, "aa": 2, "ab": 3, "aab": 4, "ba": 5, "bab": 6}
    file["model"] |= {"vocab": vocab, "merges": [spelling(pair) for pair in pairs]}
    tokenizer = ours(file)
    for word, tokens in words.items():
        assert [tokenizer.id_to_token(i) for i in tokenizer.encode(word)] == tokens


def test_llama3_ids_that_are_often_told_wrong(load: Load) -> None:
    """What an article says of Llama-3's tokenizer, and what its file says."""
    tokenizer = load("llama3")
    facts = {
        "Hello\nWorld": [9906, 198, 10343],
        "a\nb": [64, 198, 65],
        "  two  spaces ": [220, 1403, 220, 12908, 220],
        "unhappy": [359, 57621],
        " unhappy": [43251],
    }
    for text, ids in facts.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id("<|eot_id|>") == 128009
    assert tokenizer.id_to_token(128255) == "<|reserved_special_token_250|>"
    assert tokenizer.token_to_id("<|begin_of_text|>") == 128000
    assert tokenizer.token_to_id("<|end_of_text|>") == 128001


def test_bos_is_what_the_post_processor_says(load: Load) -> None:
    assert load("llama3").encode("a") == [64]
    assert load("llama3_1").encode("a") == [128000, 64]


def test_smollm2_prompt(asset: Callable[[str], Path]) -> None:
    tokenizer = real.load(asset("smollm2-135m"))
    ids = [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("The capital of France is") == ids
    assert tokenizer.decode(ids) == "The capital of France is"
