"""Models of random small vocabularies against the tokenizers library: ids, tokens and offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.tokenizer.formats.models import read_model
from tests.tokenizer.definitions import definition, ours, reference

ALPHABET = "ab▁é東😀<"
TEXTS = st.lists(
    st.one_of(
        st.text(ALPHABET + "#w☃ ", min_size=1, max_size=8),
        st.sampled_from(["<unk>", "<0xC3>", "a▁" * 20, "☃" * 3, "ab" * 40, "a☃é" * 12]),
    ),
    min_size=1,
    max_size=4,
).map("".join)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def pieces(*affixes: str) -> st.SearchStrategy[str]:
    return st.tuples(
        st.sampled_from(["", *affixes]), st.text(ALPHABET, min_size=1, max_size=4)
    ).map("".join)


def some_bytes(draw: st.DrawFn) -> list[str]:
    """All byte tokens, or all but one of a character that texts hold."""
    missing = draw(st.sampled_from([None, None, 0xC3, 0x98]))
    return [token for byte, token in enumerate(BYTES) if byte != missing]


@st.composite
def byte_pair_models(draw: st.DrawFn) -> dict[str, Any]:
    prefix = draw(st.sampled_from([None, "", "#", "##", "é"]))
    suffix = draw(st.sampled_from([None, "", "w"]))
    unk = draw(st.sampled_from([None, "<unk>", "a", "éé"]))
    # The library places the bytes of an affix outside the word; such files are refused.
    byte_fallback = not prefix and not suffix and draw(st.booleans())
    characters = draw(st.lists(st.sampled_from(ALPHABET + "#w"), unique=True, min_size=1))
    inside = draw(st.booleans())
    affixed = [
        before + character + after
        for character in characters
        for before in {"", prefix or ""}
        for after in {"", suffix or ""}
    ]
    tokens = dict.fromkeys(affixed if inside else characters)
    if unk and draw(st.booleans()):
        tokens[unk] = None
    parts = list(tokens)
    if byte_fallback and draw(st.booleans()):
        tokens |= dict.fromkeys(some_bytes(draw))
        # Byte tokens may be merged like any others.
        parts += draw(st.sampled_from([[], ["<0xE2>", "<0x98>", "<0x83>"]]))
        parts = [part for part in parts if part in tokens]
    merges = []
    for _ in range(draw(st.integers(0, 15))):
        left, right = draw(st.sampled_from(parts)), draw(st.sampled_from(parts))
        dropped = len((prefix or "").encode())
        inner = right.encode()[dropped:].decode(errors="replace")
        # The library panics where it cannot drop so many bytes.
        if "\ufffd" in inner or len(right.encode()) < dropped or len(left + inner) > 20:
            continue
        merges.append([left, right])
        tokens[left + inner] = None
        parts.append(left + inner)
    merges = draw(st.permutations(merges))
    ids = draw(st.permutations(range(len(tokens)))) if len(tokens) < 60 else range(len(tokens))
    spaced = all(" " not in token for token in tokens) and draw(st.booleans())
    return {
        "type": "BPE",
        "dropout": draw(st.sampled_from([None, 0.0])),
        "unk_token": unk,
        "continuing_subword_prefix": prefix,
        "end_of_word_suffix": suffix,
        "fuse_unk": draw(st.booleans()),
        "byte_fallback": byte_fallback,
        "ignore_merges": draw(st.booleans()),
        "vocab": dict(zip(tokens, ids, strict=True)),
        "merges": [" ".join(pair) for pair in merges] if spaced else merges,
    }


@st.composite
def unigram_models(draw: st.DrawFn) -> dict[str, Any]:
    """Scores are often equal, so that ties are met."""
    found = draw(st.lists(pieces(), min_size=1, max_size=20))
    known = draw(st.lists(st.sampled_from(ALPHABET)))
    tokens = list(dict.fromkeys([*draw(st.sampled_from([[], ["<unk>"]])), *found, *known]))
    byte_fallback = draw(st.booleans())
    if byte_fallback and draw(st.booleans()):
        tokens += [token for token in some_bytes(draw) if token not in tokens]
    score = st.one_of(st.integers(-3, 0), st.floats(-12, 2))
    scores = draw(st.lists(score, min_size=1, max_size=9))
    return {
        "type": "Unigram",
        "unk_id": draw(st.sampled_from([None, 0, 0, len(tokens) // 2])),
        "byte_fallback": byte_fallback,
        "vocab": [[token, scores[i % len(scores)]] for i, token in enumerate(tokens)],
    }


@st.composite
def word_models(draw: st.DrawFn) -> dict[str, Any]:
    prefix = draw(st.sampled_from(["##", "", "é"]))
    tokens = draw(st.lists(pieces(prefix), max_size=25)) + draw(
        st.sampled_from([[], ["[U]"], ["[U]"]])
    )
    model = {"vocab": {token: i for i, token in enumerate(dict.fromkeys(tokens))}}
    if draw(st.booleans()):
        return {"type": "WordLevel", "unk_token": "[U]", **model}
    longest = draw(st.sampled_from([0, 3, 100]))
    affix = {"continuing_subword_prefix": prefix, "max_input_chars_per_word": longest}
    return {"type": "WordPiece", "unk_token": "[U]", **affix, **model}


def assert_models_alike(model: Mapping[str, Any], text: str) -> None:
    """The whole text is one word. Where the reference raises, so do we, and the event is counted."""
    file = definition(model=model, pre_tokenizer=None, decoder=None)
    try:
        expected = reference(file).encode(text)
    except Exception as error:  # the library raises nothing narrower
        event(f"the reference raises: {str(error)[:40]}")
        expected = None
    if expected is None:
        reading = read_model(model, "test")
        for encode in (reading, reading.parts):
            with pytest.raises(RequestError, match="no token"):
                encode(text)
        return
    event(f"tokens per character: {len(expected.ids) / len(text):.1f}")
    tokenizer = ours(file)
    encoding = tokenizer.encode_with_offsets(text)
    assert encoding.ids == expected.ids == tokenizer.encode(text)
    assert encoding.tokens == expected.tokens
    assert encoding.offsets == expected.offsets


@given(byte_pair_models(), TEXTS)
def test_byte_pair_encoding(model: Mapping[str, Any], text: str) -> None:
    assert_models_alike(model, text)


@given(unigram_models(), TEXTS)
def test_unigram(model: Mapping[str, Any], text: str) -> None:
    assert_models_alike(model, text)


@given(word_models(), TEXTS)
def test_word_piece_and_word_level(model: Mapping[str, Any], text: str) -> None:
    assert_models_alike(model, text)
