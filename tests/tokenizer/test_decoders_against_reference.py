"""Random chains of decoders against the tokenizers library, and their streams against a plain twin."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st

from engine.tokenizer.decode.decoder import Decoder
from engine.tokenizer.formats.decoders import read_decoder
from tests.tokenizer.definitions import added, definition, ours, reference
from tests.tokenizer.plain_decoders import DECODERS, SINGLE, TOKENS, text_of

LISTS = st.lists(TOKENS, max_size=10)


def file_of(decoder: Any, tokens: list[str], special: list[str]) -> dict[str, Any]:
    """A tokenizer.json whose vocabulary is these tokens."""
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    file = definition(decoder=decoder)
    file["added_tokens"] = [added(token, vocab[token], special=True) for token in special if token]
    file["model"] |= {"vocab": vocab, "merges": []}
    return file


def in_the_reference(file: dict[str, Any], ids: list[int], skip: bool) -> str | None:
    """None where the library panics, as it does where Strip meets a token shorter than it."""
    expected = reference(file)
    try:
        return expected.decode(ids, skip)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def test_any_chain_decodes_as_in_the_reference() -> None:
    """Each step sees the list that the step before it made; an order of their own is a wrong text."""
    seen: Counter[bool] = Counter()

    @given(DECODERS, LISTS, st.data())
    def compare(decoder: Any, tokens: list[str], data: st.DataObject) -> None:
        special = sorted(
            data.draw(st.sets(st.sampled_from(tokens), max_size=2) if tokens else LISTS)
        )
        file = file_of(decoder, tokens, special if tokens else [])
        ids = [file["model"]["vocab"][token] for token in tokens]
        tokenizer = ours(file)
        for skip in (False, True):
            expected = in_the_reference(file, ids, skip)
            text = tokenizer.decode(ids, skip)
            seen[expected is None] += 1
            if expected is None:
                event("the reference panics")
            else:
                assert text == expected

    compare()
    assert seen[True] < 0.2 * seen[False]


@given(DECODERS, LISTS)
def test_the_plain_twin_is_right(decoder: Any, tokens: list[str]) -> None:
    """A specification that is wrong itself proves nothing."""
    assert text_of(decoder, tokens) == read_decoder(decoder, "test")(tokens)


@given(DECODERS, LISTS, st.lists(LISTS, max_size=4))
def test_any_chain_streams_what_it_decodes_and_takes_nothing_back(
    decoder: Any, tokens: list[str], others: list[list[str]]
) -> None:
    stream = read_decoder(decoder, "test").stream()
    out = ""
    for count, token in enumerate(tokens, 1):
        out += stream.push(token)
        for more in ([], tokens[count:], *others, *([token] for token in ("a", "<0x80>", "b"))):
            assert text_of(decoder, tokens[:count] + more, streamed=True).startswith(out)
    assert out + stream.flush() == text_of(decoder, tokens, streamed=True)


@given(DECODERS, LISTS, LISTS)
def test_a_flushed_stream_is_as_new(decoder: Any, first: list[str], second: list[str]) -> None:
    stream = read_decoder(decoder, "test").stream()
    for tokens in (first, second):
        text = "".join([*map(stream.push, tokens), stream.flush()])
        assert text == text_of(decoder, tokens, streamed=True)


SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FALLBACK = [{"type": "ByteFallback"}, {"type": "Fuse"}]
CHAINS = st.one_of(
    DECODERS,
    SINGLE,
    st.sampled_from(
        [
            {"type": "Sequence", "decoders": [*before, *FALLBACK, *after]}
            for before in ([], [SPACES])
            for after in ([], [STRIP], [STRIP, SPACES], [{**STRIP, "stop": 1}])
        ]
    ),
)


def _stripped_once_more(stop: int) -> dict[str, Any]:
    return {
        "type": "Sequence",
        "decoders": [SPACES, *FALLBACK, {**STRIP, "start": 2, "stop": stop}],
    }


@given(CHAINS, LISTS, LISTS)
# The last token of a prompt alone does not tell whether the text has begun, or how it ends.
@example(_stripped_once_more(0), ["▁", "b", ""], ["▁a"])
@example(_stripped_once_more(1), ["b", "▁", ""], ["a"])
def test_after_a_prompt_a_stream_is_where_it_would_be_had_it_said_it(
    decoder: Any, prompt: list[str], tokens: list[str]
) -> None:
    """Of a long prompt only what the text depends on is gone through; nothing else must be missed."""
    assert _rest(read_decoder(decoder, "test"), prompt, tokens) == _rest(
        read_decoder(decoder, "test"), [], [*prompt, *tokens], len(prompt)
    )


def _rest(decoder: Decoder, prompt: list[str], tokens: list[str], start: int = 0) -> list[str]:
    stream = decoder.stream(prompt)
    return [*map(stream.push, tokens), stream.flush()][start:]
