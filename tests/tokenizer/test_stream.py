"""The streaming detokenizer: its pieces are the whole text, and none of them is half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.text_vocabularies import byte_alphabet
from engine.errors import RequestError
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import added, definition, ours
from tests.tokenizer.stream_families import FAMILIES, Family

#: Every byte is a token, whose id is the byte; then merges, added tokens, and ids without a token.
MERGES = (("Ð", "Ł"), ("Ġ", "Ð"), ("ð", "Ł"), ("t", "h"))
TOKENIZER: Tokenizer = ours(
    definition(
        *MERGES,
        added_tokens=[
            added("<|end|>", 260, special=True),
            added("<think>", 261),
            added("é x", 262),
        ],
    )
)
IDS = st.lists(
    st.one_of(
        st.integers(0, 270), st.integers(0x80, 0xF4), st.sampled_from([0xF0, 0x9F, 0x98, 0x80])
    ),
    max_size=40,
)


def of_bytes(value: bytes) -> list[int]:
    """The ids of the byte tokens; in the vocabulary of these tests an id is its byte."""
    return list(value)


def pieces(ids: list[int], skip: bool = False) -> list[str]:
    stream = TOKENIZER.stream(skip)
    return [*map(stream.push, ids), stream.flush()]


def test_byte_tokens_have_the_ids_of_their_bytes() -> None:
    assert [TOKENIZER.token_to_id(token) for token in byte_alphabet()] == list(range(256))


@given(IDS, st.booleans())
def test_pieces_add_up_to_the_whole_text(ids: list[int], skip: bool) -> None:
    assert "".join(pieces(ids, skip)) == TOKENIZER.decode(ids, skip)


@given(st.binary(max_size=40))
def test_bad_bytes_are_replaced_as_python_replaces_them(value: bytes) -> None:
    assert TOKENIZER.decode(of_bytes(value)) == value.decode("utf-8", errors="replace")


@given(IDS)
def test_no_more_than_three_bytes_are_held_back(ids: list[int]) -> None:
    """What is out after each id is all of the text so far but for an unfinished character."""
    stream = TOKENIZER.stream()
    out = ""
    for count, token_id in enumerate(ids, 1):
        out += stream.push(token_id)
        so_far = TOKENIZER.decode(ids[:count])
        assert so_far.startswith(out)
        assert so_far[len(out) :].strip("\ufffd") == ""
        assert len(so_far) - len(out) <= 3


@given(st.text(max_size=20))
def test_a_character_is_shown_by_the_token_that_completes_it(text: str) -> None:
    stream = TOKENIZER.stream()
    for character in text:
        *first, last = of_bytes(character.encode())
        assert [stream.push(token_id) for token_id in first] == [""] * len(first)
        assert stream.push(last) == character
    assert stream.flush() == ""


def test_a_cut_character_is_flushed_once_and_the_stream_is_new() -> None:
    stream = TOKENIZER.stream()
    assert stream.push(0xF0) == stream.push(0x9F) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(0x41) == "A"


def test_only_tokens_called_special_are_skipped() -> None:
    assert TOKENIZER.decode([260, 261, 0x41], skip_special_tokens=True) == "<think>A"
    assert TOKENIZER.decode([260, 261, 0x41]) == "<|end|><think>A"


def test_a_skipped_token_does_not_cut_the_character_around_it() -> None:
    first, *rest = of_bytes("é".encode())
    assert "".join(pieces([first, 260, *rest], skip=True)) == "é"
    assert "".join(pieces([first, 260, *rest])) == "\ufffd<|end|>\ufffd"


def test_an_id_without_a_token_gives_no_text() -> None:
    """Models have more rows than tokenizers have tokens, and may well sample one of them."""
    assert pieces([0x41, 999_999, 0x42]) == ["A", "", "B", ""]
    assert TOKENIZER.id_to_token(999_999) is None


@pytest.mark.parametrize("token_id", [-1, 1.0, "1", None, True])
def test_what_is_no_id_is_the_requests_fault(token_id: object) -> None:
    with pytest.raises(RequestError, match="token id"):
        TOKENIZER.decode([token_id])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="token id"):
        TOKENIZER.stream().push(token_id)  # type: ignore[arg-type]


def drawn_ids(family: Family, max_size: int) -> st.SearchStrategy[list[int]]:
    """Any ids; where bytes are tokens, mostly those that characters of several bytes begin with."""
    kinds = [st.integers(0, family.size - 1), st.integers(max(0, family.size - 20), family.size)]
    if family.byte is not None:
        first = family.byte
        kinds += [st.integers(first + 0x80, first + 0xF4)]
        kinds += [st.sampled_from([first + byte for byte in (0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x41)])]
    return st.lists(st.one_of(kinds), max_size=max_size)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FAMILIES)
def test_streams_of_every_family_keep_all_laws(name: str) -> None:
    """They add up; what is certain is out, nothing else is; nothing is taken back."""
    family = FAMILIES[name]

    is_nightly = settings.get_current_profile_name() == "nightly"

    @settings(max_examples=20_000 if is_nightly else settings().max_examples)
    @given(drawn_ids(family, 12), drawn_ids(family, 4), st.booleans())
    def check(ids: list[int], prompt: list[int], skip: bool) -> None:
        stream = family.tokenizer.stream(skip, after=prompt)
        out = ""
        for count, token_id in enumerate(ids, 1):
            out += stream.push(token_id)
            assert out == family.certain(prompt, ids[:count], skip)
        assert out + stream.flush() == family.answer(prompt, ids, skip)

    check()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stream_says_what_decode_says_but_in_a_bad_run_of_byte_tokens(name: str) -> None:
    """The one deviation lies between the texts beside the run, which are alike."""
    family = FAMILIES[name]
    bad_runs = 0

    @given(drawn_ids(family, 12), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        nonlocal bad_runs
        stream = family.tokenizer.stream(skip)
        said = "".join([*map(stream.push, ids), stream.flush()])
        text = family.tokenizer.decode(ids, skip)
        assert said == family.text(ids, skip)
        if said != text:
            assert "\ufffd" in said
            assert "\ufffd" in text
            bad_runs += 1

    check()
    assert (bad_runs > 0) == (name in ("llama2", "gemma3"))


@pytest.mark.parametrize(
    ("tokens", "text", "said"),
    [
        (["▁a", "<0x41>", "<0xE2>", "<0x41>", "b"], "a\ufffd\ufffd\ufffdb", "aA\ufffd\ufffdb"),
        (["<0xE2>", "<0x82>", "<0xAC>", "<0xFF>"], "\ufffd" * 4, "€\ufffd"),
        (["<0xE2>", "<0x82>", "b"], "\ufffd\ufffdb", "\ufffd\ufffdb"),
        (["<0xE2>", "</s>", "<0x82>", "<0xAC>"], "€", "€"),
    ],
)
def test_a_bad_run_keeps_the_characters_that_were_out(
    tokens: list[str], text: str, said: str
) -> None:
    family = FAMILIES["llama2"]
    ids = [family.tokens.index(token) for token in tokens]
    stream = family.tokenizer.stream(True)
    assert family.tokenizer.decode(ids, True) == text
    assert "".join([*map(stream.push, ids), stream.flush()]) == said


@pytest.mark.parametrize(
    ("name", "prompt", "ids", "said"),
    [
        pytest.param("llama2", ["▁a"], ["▁a"], " a", id="a space within the text is kept"),
        pytest.param("llama2", [], ["▁a"], "a", id="the first one is not"),
        pytest.param("llama2", ["<s>"], ["▁a"], "a", id="nor behind what does not show"),
        pytest.param(
            "llama2", ["▁a", "</s>"], ["▁a"], " a", id="what does not show changes nothing"
        ),
        pytest.param("metaspace", ["b"], ["▁a"], " a", id="metaspace"),
        pytest.param("wordpiece", ["a"], ["a", "##b"], " ab", id="wordpiece"),
        pytest.param("spaced", ["a"], ["b"], " b", id="no decoder"),
        pytest.param("byte-level", ["âĤ"], ["¬"], "€", id="a character that the prompt begins"),
        pytest.param("byte-level", ["âĤ"], ["Ġa"], " a", id="one that the prompt breaks"),
        pytest.param("byte-level", ["âĤ"], ["</s>", "¬"], "€", id="one with a marker within"),
        pytest.param("llama2", ["<0xE2>", "<0x82>"], ["<0xAC>"], "€", id="in hexadecimal"),
        pytest.param("llama2", ["▁a", "<0xE2>", "<0x82>"], ["<0xAC>"], "€", id="and behind a text"),
        pytest.param("byte-level", ["Ġa", "â", "Ĥ"], ["¬"], "€", id="in bytes behind a text"),
        pytest.param("llama2", ["<0xE2>", "<0x82>"], ["b"], "b", id="and broken"),
        pytest.param("llama2", ["<0xE2>"], ["<0x82>", "b"], "\ufffdb", id="and broken later"),
    ],
)
def test_what_is_said_after_a_prompt(
    name: str, prompt: list[str], ids: list[str], said: str
) -> None:
    """A stream that begins with the answer glues it to the prompt, or loses a character."""
    family = FAMILIES[name]
    asked, given_ids = ([family.tokens.index(token) for token in part] for part in (prompt, ids))
    stream = family.tokenizer.stream(True, after=asked)
    assert "".join([*map(stream.push, given_ids), stream.flush()]) == said


@pytest.mark.parametrize("name", ["byte-level", "llama2", "gemma3"])
def test_a_long_prompt_costs_no_more_than_reading_its_ids(name: str) -> None:
    family = FAMILIES[name]
    prompt = list(range(0x20, len(family.tokens) - 3)) * 40
    pushed = family.tokenizer.decoder.stream()
    calls = 0

    class Counting(type(pushed)):  # type: ignore[misc]
        def push(self, token: str) -> str:
            nonlocal calls
            calls += 1
            return str(super().push(token))

    from engine.tokenizer.decode import sequence

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "_StepStream", Counting)
        stream = family.tokenizer.stream(after=prompt)
        assert calls < 10
        assert stream.push(family.tokens.index("<s>")) == "<s>"


def test_what_is_no_id_in_a_prompt_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="token id"):
        TOKENIZER.stream(after=[-1])
