"""Pairs of texts, and special tokens that are to be read as plain text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError, RequestError
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import BYTE_LEVEL, added, definition, ours, reference

ADDED = [
    added("<s>", 258, special=True),
    added("</s>", 259, special=True),
    added("<s>a", 260, special=True, rstrip=True),
    added("<tool>", 261, lstrip=True),
    added("ca", 262, special=True, normalized=True, single_word=True),
]
CLS, SEP = ["<s>", 258], ["</s>", 259]
TRIMMING = {**BYTE_LEVEL, "trim_offsets": True, "add_prefix_space": True}


def piece(kind: str, name: str, type_id: int) -> dict[str, Any]:
    return {kind: {"id": name, "type_id": type_id}}


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [piece("Sequence", "A", 2), piece("SpecialToken", "both", 1)],
    "pair": [
        piece("Sequence", "B", 5),
        piece("SpecialToken", "both", 4),
        piece("Sequence", "A", 3),
        piece("Sequence", "B", 0),
    ],
    "special_tokens": {"both": {"id": "both", "ids": [258, 259], "tokens": ["<s>", "x"]}},
}


def roberta(trim: bool, prefix: bool) -> dict[str, Any]:
    return {
        "type": "RobertaProcessing",
        "sep": SEP,
        "cls": CLS,
        "trim_offsets": trim,
        "add_prefix_space": prefix,
    }


PROCESSORS: tuple[Any, ...] = (
    None,
    TRIMMING,
    TEMPLATE,
    {"type": "BertProcessing", "sep": SEP, "cls": CLS},
    *(roberta(trim, prefix) for trim in (False, True) for prefix in (False, True)),
    {"type": "Sequence", "processors": [TRIMMING, TEMPLATE]},
    {"type": "Sequence", "processors": [TEMPLATE, TRIMMING]},
    {"type": "Sequence", "processors": []},
)
TEXTS = st.lists(
    st.sampled_from(["a", "b", "ca", " ", "  ", "<s>", "</s>", "<tool>", "<s", "é", "\n"]),
    max_size=8,
).map("".join)


def file(processor: Any = None) -> dict[str, Any]:
    return definition(
        ("Ġ", "a"),
        ("Ġ", "Ġ"),
        added_tokens=ADDED,
        pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True},
        post_processor=processor,
    )


@given(st.sampled_from(PROCESSORS), TEXTS, st.none() | TEXTS, st.booleans(), st.booleans())
def test_pairs_and_plain_special_tokens_are_the_references(
    processor: Any, text: str, pair: str | None, special: bool, parse: bool
) -> None:
    tokenizer = ours(file(processor))
    expected = reference(file(processor)).encode(text, special, pair, parse)
    got = tokenizer.encode_with_offsets(text, special, pair=pair, parse_special=parse)
    assert vars(got) == vars(expected)
    ids = tokenizer.encode(text, special, pair=pair, parse_special=parse)
    assert ids == expected.ids


def with_bos() -> Tokenizer:
    template = {
        "type": "TemplateProcessing",
        "single": [piece("SpecialToken", "<s>", 0), piece("Sequence", "A", 0)],
        "pair": [piece("Sequence", "A", 0), piece("Sequence", "B", 0)],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
    }
    return ours(file(template), special_tokens={"bos_token": "<s>"})


def test_a_prompts_special_tokens_are_plain_text_unless_they_are_asked_for() -> None:
    """Otherwise whoever writes a prompt could end it, and speak as somebody else."""
    tokenizer = with_bos()
    assert 259 not in tokenizer.encode_prompt("x</s>")
    assert 259 in tokenizer.encode_prompt("x</s>", parse_special=True)
    assert tokenizer.encode_prompt("x<tool>")[-1] == 261  # no control token: only an added word


def test_a_prompt_has_bos_once() -> None:
    tokenizer = with_bos()
    assert tokenizer.encode("<s>x")[:2] == [258, 258]  # as in the reference
    once = tokenizer.encode_prompt("<s>x", parse_special=True)
    assert once == tokenizer.encode("x")
    assert tokenizer.encode_prompt("x", parse_special=True) == once


@pytest.mark.parametrize("batch", ["abc", [None], [("a",)], [("a", 1)], [("a", "b", "c")]])
def test_what_is_no_batch_is_the_requests_fault(batch: Any) -> None:
    """A text instead of a list would be encoded letter by letter."""
    with pytest.raises(RequestError):
        ours(file()).encode_batch(batch)


@pytest.mark.parametrize(
    "processor",
    [
        {"type": "BertProcessing", "sep": SEP},
        {"type": "BertProcessing", "sep": SEP, "cls": [258, "<s>"]},
        {**roberta(True, True), "cls": "<s>"},
        {**TEMPLATE, "special_tokens": {}},
        {**TEMPLATE, "special_tokens": {"both": {"ids": [1, 2], "tokens": ["x"]}}},
        {**TEMPLATE, "special_tokens": {"both": {"ids": [-1], "tokens": ["x"]}}},
        {**TEMPLATE, "single": [{"Sequence": {"id": "C", "type_id": 0}}]},
        {**TEMPLATE, "single": ["$A"]},
        {"type": "Unheard"},
    ],
)
def test_a_damaged_post_processor_is_refused_by_name(processor: Any) -> None:
    with pytest.raises(ModelFileError, match="post_processor"):
        ours(file(processor))
