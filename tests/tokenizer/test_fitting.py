"""Truncation and padding as a file's blocks say, when a caller asks for them, and never otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError, RequestError
from engine.tokenizer.fitting import Truncation
from tests.tokenizer.definitions import added, definition, ours, reference

A, B = ({"Sequence": {"id": text, "type_id": i}} for i, text in enumerate("AB"))
BOS, EOS = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("<s>", "</s>"))
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [BOS, A, EOS],
    "pair": [BOS, A, EOS, B, EOS],
    "special_tokens": {
        name: {"id": name, "ids": [i], "tokens": [name]}
        for name, i in (("<s>", 257), ("</s>", 258))
    },
}
ADDED = [added("<s>", 257, special=True), added("</s>", 258, special=True)]
TEXTS = st.text("ab cé", max_size=12)


def truncation(
    max_length: int, strategy: str = "LongestFirst", direction: str = "Right"
) -> dict[str, Any]:
    return {
        "max_length": max_length,
        "strategy": strategy,
        "direction": direction,
        "stride": 0,
    }


def padding(length: int | None, multiple_of: int | None, direction: str) -> dict[str, Any]:
    return {
        "strategy": "BatchLongest" if length is None else {"Fixed": length},
        "direction": direction,
        "pad_to_multiple_of": multiple_of,
        "pad_id": 7,
        "pad_type_id": 3,
        "pad_token": "[PAD]",
    }


def file(**blocks: Any) -> dict[str, Any]:
    return definition(("a", "b"), added_tokens=ADDED, post_processor=TEMPLATE, **blocks)


@given(
    st.builds(
        truncation,
        st.integers(0, 20),
        st.sampled_from(["LongestFirst", "OnlyFirst", "OnlySecond"]),
        st.sampled_from(["Left", "Right"]),
    )
    | st.none(),
    st.builds(
        padding,
        st.none() | st.integers(0, 20),
        st.none() | st.integers(1, 8),
        st.sampled_from(["Left", "Right"]),
    )
    | st.none(),
    st.lists(TEXTS | st.tuples(TEXTS, TEXTS), min_size=1, max_size=3),
    st.booleans(),
)
def test_fits_as_in_the_reference(
    cut: dict[str, Any] | None,
    fill: dict[str, Any] | None,
    texts: list[str | tuple[str, str]],
    special: bool,
) -> None:
    whole = file(truncation=cut, padding=fill)
    tokenizer = ours(whole)
    fitting = {"truncation": tokenizer.truncation, "padding": tokenizer.padding}
    if cut and special and cut["max_length"] < max(2 if isinstance(t, str) else 3 for t in texts):
        # No room for the special tokens: the library's arithmetic then wraps round to no limit.
        with pytest.raises(RequestError, match="max_length"):
            tokenizer.encode_batch(texts, special, **fitting)
        return
    try:
        expected = reference(whole).fitted(texts, special)
    except Exception:
        with pytest.raises(RequestError, match="cut"):
            tokenizer.encode_batch(texts, special, **fitting)
        return
    got = tokenizer.encode_batch(texts, special, **fitting)
    for encoding, theirs in zip(got, expected, strict=True):
        assert vars(encoding) == vars(theirs)


def test_nothing_is_cut_or_padded_unless_it_is_asked_for() -> None:
    """A prompt cut in silence is a wrong prompt."""
    tokenizer = ours(file(truncation=truncation(3), padding=padding(50, None, "Right")))
    assert len(tokenizer.encode("abcabcabc")) == len(tokenizer.encode_with_offsets("abcabcabc"))
    assert len(tokenizer.encode("abcabcabc")) == 8
    assert [len(e) for e in tokenizer.encode_batch(["abcabcabc"])] == [8]


def test_what_leaves_no_room_for_a_text_is_the_requests_fault() -> None:
    tokenizer = ours(file())
    with pytest.raises(RequestError, match="larger max_length"):
        tokenizer.encode_with_offsets("abc", truncation=Truncation(1))
    with pytest.raises(RequestError, match="only one"):
        tokenizer.encode_with_offsets("abc", truncation=Truncation(3, "OnlySecond"))
    with pytest.raises(RequestError, match="too few"):
        tokenizer.encode_with_offsets("a", pair="ccccccc", truncation=Truncation(5, "OnlyFirst"))


@pytest.mark.parametrize(
    "block",
    [
        {"truncation": truncation(-1)},
        {"truncation": truncation(3, "Middle")},
        {"truncation": truncation(3, direction="Up")},
        {"padding": padding(3, None, "Up")},
        {"padding": {**padding(3, None, "Left"), "strategy": "Never"}},
        {"padding": {**padding(3, 2, "Left"), "pad_to_multiple_of": "2"}},
    ],
)
def test_a_block_that_is_not_known_is_refused_by_name(block: dict[str, Any]) -> None:
    (name,) = block
    with pytest.raises(ModelFileError, match=name):
        ours(file(**block))
