"""Normal forms and where their characters come from, against the tokenizers library."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.texts import CHARACTERS, MARKS
from engine.tokenizer.aligned import Aligned, Chain
from engine.tokenizer.normalize.forms import Form, UnicodeForm
from tests.tokenizer.definitions import BYTES_ONLY, assert_encodes_alike, definition

FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
TEXTS = st.lists(
    st.one_of(
        MARKS,
        st.text(CHARACTERS, max_size=3),
        st.sampled_from(
            ["e", "a\u0323", "ệ", "한", "\u1112\u1161", "\u11ab", "ﬁ", "ﷺ", "½", "\u0344"]
        ),
    ),
    max_size=10,
).map("".join)


def alone(form: Form) -> dict[str, Any]:
    """A tokenizer whose tokens are the bytes of the normalised text."""
    return definition(normalizer={"type": form}, pre_tokenizer=BYTES_ONLY)


@pytest.mark.parametrize("form", FORMS)
def test_characters_come_from_where_the_reference_says(form: Form) -> None:
    @given(TEXTS)
    def compare(text: str) -> None:
        assert_encodes_alike(alone(form), text)

    compare()


@pytest.mark.parametrize("form", FORMS)
@given(text=TEXTS)
def test_there_is_one_source_per_character(form: Form, text: str) -> None:
    """The text is made by unicodedata and the sources are made here: they must fit each other."""
    rewrite = UnicodeForm(form)
    sources = list(rewrite.sources(text))
    assert len(sources) == len(rewrite(text))
    assert all(0 <= source < len(text) for source in sources)
    assert sources == sorted(sources)


def test_a_composed_character_stands_for_the_first_of_its_parts() -> None:
    piece = Aligned.original("ae\u0301b").rewritten(UnicodeForm("NFC"))
    assert (piece.text, list(piece.where)) == ("aéb", [0, 1, 3])


def test_a_sequence_follows_characters_through_every_form() -> None:
    chain = Chain((UnicodeForm("NFD"), UnicodeForm("NFC")))
    assert chain("xée\u0301") == "xéé"
    assert list(chain.sources("xée\u0301")) == [0, 1, 2]
    file = definition(
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]},
        pre_tokenizer=BYTES_ONLY,
    )
    assert_encodes_alike(file, "ﬁe\u0301한\u0344 ½")


def test_no_normalizer_changes_nothing() -> None:
    assert Chain()("e\u0301") == "e\u0301"
    assert list(Chain().sources("e\u0301")) == [0, 1]
