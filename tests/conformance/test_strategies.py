"""The public strategies give what they promise: nothing passes because nothing was drawn."""

from __future__ import annotations

import unicodedata
from itertools import chain
from typing import Any

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from conformance.charsmap import charsmap
from conformance.oracle.text import Reference
from conformance.strategies import partitions, texts, token_ids, tokenizer_files
from conformance.strategies.texts import as_text
from conformance.strategies.tokenizers import vocabulary_of

VOCABULARY = {"Ġun": 0, "happy": 1, "Ã": 2, "©": 3, "▁the": 4, "##ing": 5, "<0xE2>": 6, "</s>": 7}
_settings = settings(max_examples=2000, phases=[Phase.generate])


def found(strategy: st.SearchStrategy[Any], has: Any) -> Any:
    return find(strategy, has, settings=_settings)


def test_a_token_is_written_as_a_text_would_have_it() -> None:
    spelled = [as_text(token) for token in ("Ġun", "Ã©", "Ã", "▁the", "##ing", "happy</w>")]
    assert spelled == [" un", "é", "", " the", "ing", "happy"]


def test_texts_hold_tokens_joined_and_halved() -> None:
    drawn = texts(["Ġun", "happy"], ["<|im_end|>"])
    assert found(drawn, lambda text: " unhappy" in text)
    assert found(drawn, lambda text: "happ" in text and "happy" not in text)
    assert found(drawn, lambda text: "<|im" in text and "<|im_end|>" not in text)


def test_texts_hold_what_tokenizers_get_wrong() -> None:
    drawn = texts()
    assert found(drawn, lambda text: any(unicodedata.combining(c) for c in text))
    assert found(drawn, lambda text: "\u200d" in text)
    assert found(drawn, lambda text: "\ud7ff" in text or "\ue000" in text)
    assert found(drawn, lambda text: any(c.isspace() and not c.isascii() for c in text))
    assert found(drawn, lambda text: len(text) > 250 and len({*text}) == 1)


def test_ids_hold_special_unknown_and_broken_ones() -> None:
    drawn = token_ids(VOCABULARY, [7])
    assert found(drawn, lambda ids: 7 in ids)
    assert found(drawn, lambda ids: max(ids, default=0) > 7)
    assert found(drawn, lambda ids: ids == [2, 3])
    assert found(drawn, lambda ids: 6 in ids)


@given(st.data(), st.one_of(st.text(), st.lists(st.integers())))
def test_a_partition_adds_up_and_holds_nothing_empty(data: st.DataObject, whole: Any) -> None:
    pieces = data.draw(partitions(whole))
    assert all(pieces)
    assert "".join(pieces) == whole if isinstance(whole, str) else [*chain(*pieces)] == whole


@given(tokenizer_files())
def test_the_library_reads_every_file_and_gives_added_tokens_the_ids_in_it(
    file: dict[str, Any],
) -> None:
    reference = Reference(file)
    for token, token_id in vocabulary_of(file).items():
        assert reference.token_to_id(token) == token_id


def test_a_table_of_characters_does_what_it_says_in_the_library() -> None:
    table = charsmap({"ﬁ": "fi", "e\u0301": "é", "\u200b": "", "東": "East", "ab": "never whole"})
    model = {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}
    parts = dict.fromkeys(("truncation", "padding", "pre_tokenizer", "post_processor", "decoder"))
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    reference = Reference({**parts, "added_tokens": [], "normalizer": normalizer, "model": model})
    # Letter by letter: what a table says of two letters in a row the library does not see.
    assert reference.normalize("oﬁ e\u0301\u200b東京 ab") == "ofi éEast京 ab"
