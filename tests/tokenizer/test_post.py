"""Post-processing, against the tokenizers library: templates and trimmed offsets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.texts import SPACES
from engine.errors import ModelFileError
from engine.tokenizer.formats.post_processors import read_post_processor
from tests.tokenizer.definitions import BYTE_LEVEL, added, assert_encodes_alike, definition, ours

TRIMMING = {**BYTE_LEVEL, "trim_offsets": True}
A = {"Sequence": {"id": "A", "type_id": 0}}
B = {"Sequence": {"id": "B", "type_id": 1}}


def special(name: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def template(*pieces: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": list(pieces),
        "pair": [A, B],
        "special_tokens": {
            "<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]},
            "</s>": {"id": "</s>", "ids": [259, 260], "tokens": ["</s>", "end"]},
        },
    }


def sequence(*processors: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "processors": list(processors)}


PROCESSORS: tuple[Any, ...] = (
    None,
    TRIMMING,
    {**TRIMMING, "add_prefix_space": True},
    template(special("<s>"), A),
    template(A, special("</s>")),
    template(special("<s>"), special("</s>"), A, special("<s>")),
    sequence(TRIMMING, template(special("<s>"), A)),
    sequence(template(special("<s>"), A), {**TRIMMING, "add_prefix_space": True}),
)
ADDED = [added("<s>", 258), added("</s>", 259), added("end", 260), added(" <m> ", 261)]


@given(
    st.sampled_from(PROCESSORS),
    st.booleans(),
    st.lists(st.one_of(SPACES, st.sampled_from(["a", "b", " <m> ", "<s>", "é"])), max_size=8),
)
def test_processes_as_in_the_reference(processor: Any, prefix: bool, parts: list[str]) -> None:
    file = definition(
        ("Ġ", "a"),
        ("Ġ", "Ġ"),
        added_tokens=ADDED,
        pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": prefix},
        post_processor=processor,
    )
    assert_encodes_alike(file, "".join(parts))


def test_special_tokens_come_only_when_they_are_wanted() -> None:
    file = definition(added_tokens=ADDED, post_processor=template(special("<s>"), A))
    tokenizer = ours(file)
    assert tokenizer.encode("a") == [258, *tokenizer.encode("a", add_special_tokens=False)]
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.encode_with_offsets("a").offsets == [(0, 0), (0, 1)]


def test_two_templates_are_refused() -> None:
    """The reference ignores the second one without a word."""
    both = sequence(template(special("<s>"), A), template(A, special("</s>")))
    with pytest.raises(ModelFileError, match="more than one"):
        ours(definition(post_processor=both))


@pytest.mark.parametrize("pieces", [(special("<s>"),), (B,), (A, B), (special("<x>"), A)])
def test_a_template_of_one_text_holds_that_text(pieces: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(ModelFileError, match="TemplateProcessing"):
        ours(definition(post_processor=template(*pieces)))


ENDS = {"sep": ["</s>", 259], "cls": ["<s>", 258]}
ROBERTA = {"type": "RobertaProcessing", **ENDS, "trim_offsets": True, "add_prefix_space": True}


@pytest.mark.parametrize(
    ("processor", "named"),
    [
        ({"type": "Odd"}, "Odd"),
        ({**TRIMMING, "odd": 1}, "odd"),
        ({**TRIMMING, "trim_offsets": None}, "trim_offsets"),
        ({**TRIMMING, "add_prefix_space": "no"}, "add_prefix_space"),
        ({**template(A), "odd": 1}, "odd"),
        ({"type": "TemplateProcessing", "single": [A], "special_tokens": {}}, "pair"),
        ({"type": "BertProcessing", **ENDS, "odd": 1}, "odd"),
        ({"type": "BertProcessing", **ENDS, "sep": ["</s>", True]}, "</s>"),
        ({"type": "BertProcessing", **ENDS, "cls": ["<s>"]}, "<s>"),
        ({**ROBERTA, "odd": 1}, "odd"),
        (
            {name: value for name, value in ROBERTA.items() if name != "trim_offsets"},
            "trim_offsets",
        ),
        ({"type": "Sequence"}, "processors"),
    ],
)
def test_what_is_unknown_or_damaged_is_refused_by_name(
    processor: dict[str, Any], named: str
) -> None:
    """The reference takes a Roberta without trim_offsets for a Bert, without a word."""
    with pytest.raises(ModelFileError, match=f"^test: .*{named}"):
        read_post_processor(processor, "test")
