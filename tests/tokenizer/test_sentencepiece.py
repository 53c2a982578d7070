"""SentencePiece's .model files: the tokens are those of the sentencepiece library."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformance.oracle.pieces import FIXTURES as OPTIONS
from conformance.oracle.pieces import PieceReference, train
from conformance.strategies.texts import texts
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.parts import Definition
from engine.tokenizer.formats.sentencepiece_file import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from tests.tokenizer.definitions import reference, written_out
from tests.tokenizer.pieces import (
    BPE,
    FIXTURES,
    LETTERS,
    SPECIAL,
    UNIGRAM,
    Piece,
    field,
    in_our_hands,
    written,
)

TRAINED: dict[str, dict[str, Any]] = {
    "bpe-nfkc": {"model_type": "bpe", "vocab_size": 400, "user_defined_symbols": ["½", "e\u0301"]},
    "bpe-suffix": {"model_type": "bpe", "vocab_size": 350, "treat_whitespace_as_suffix": True},
    "unigram-nfkc": {"model_type": "unigram", "vocab_size": 350},
    "unigram-bytes": {
        "model_type": "unigram",
        "vocab_size": 500,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "character_coverage": 0.98,
    },
}
NAMES = [*OPTIONS, *TRAINED]


@cache
def model(name: str) -> bytes:
    return train(**TRAINED[name]) if name in TRAINED else (FIXTURES / f"{name}.model").read_bytes()


@cache
def both(name: str) -> tuple[Tokenizer, Definition, PieceReference]:
    return *in_our_hands(model(name)), PieceReference(model(name))


def vocabulary(name: str) -> dict[str, int]:
    definition: Definition = both(name)[1]
    vocab = definition["model"]["vocab"]
    return vocab if isinstance(vocab, dict) else {text: i for i, (text, _) in enumerate(vocab)}


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids as sentencepiece counts: no BOS, and control tokens are plain text."""
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_ids_and_text_are_sentencepieces(name: str, data: st.DataObject) -> None:
    tokenizer, _, expected = both(name)
    text = data.draw(texts(vocabulary(name), ["<sep>", "<unk>", "</s>", "<0x41>"]))
    # A known difference: a text of which the charsmap leaves nothing still gets a suffix there.
    assume(name != "bpe-suffix" or not text or plain(tokenizer, text))
    theirs = expected.encode(text)
    assert plain(tokenizer, text) == theirs.ids
    if 0 not in theirs.ids:  # which the library decodes to a text of its own
        assert tokenizer.decode(theirs.ids) == expected.decode(theirs.ids)


@pytest.mark.parametrize("name", ["bpe-plain", "bpe-bytes"])
@given(data=st.data())
def test_offsets_are_sentencepieces(name: str, data: st.DataObject) -> None:
    """Where it gives a piece characters at all: of several in one character the last has it.

    Left out are texts that hold what stands for a space already, and spaces that become one: the
    tokenizers library, whose convention ours is, counts otherwise there.
    """
    tokenizer, _, expected = both(name)
    text = data.draw(texts(vocabulary(name)))
    assume("▁" not in text and "  " not in text)
    encoding = tokenizer.encode_with_offsets(text, add_special_tokens=False, parse_special=False)
    for ours, theirs in zip(encoding.offsets, expected.encode(text).spans, strict=True):
        if theirs[0] < theirs[1]:
            assert ours == theirs


def test_a_long_text_is_summed_up_as_sentencepiece_does() -> None:
    """In single precision, and from 0 again before sums get too coarse to tell spellings apart."""
    tokenizer, _, expected = both("unigram-bytes")
    text = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=40_000))
    assert plain(tokenizer, text) == expected.encode(text).ids


def pieces() -> st.SearchStrategy[list[Piece]]:
    longer = st.text("▁abc", min_size=2, max_size=5)
    scores = st.sampled_from([-1.0, -1.5, -2.0, -3.25, 0.0]) | st.floats(-9, 2, width=32)
    kinds = st.sampled_from([NORMAL] * 4 + [USER_DEFINED, CONTROL])
    listed = st.lists(st.tuples(longer, scores, kinds), max_size=12, unique_by=lambda p: p[0])
    return listed.map(lambda more: [*SPECIAL, *LETTERS, *more])


@pytest.mark.parametrize("kind", [BPE, UNIGRAM])
@given(data=st.data())
def test_any_scores_give_sentencepieces_tokens(kind: int, data: st.DataObject) -> None:
    """Equal scores of different pieces: the leftmost merge, sums in single precision."""
    spaces: dict[int, int | bytes] = {
        3: data.draw(st.integers(0, 1)),
        4: data.draw(st.integers(0, 1)),
    }
    file = written(data.draw(pieces()), {3: kind}, spaces)
    tokenizer, expected = in_our_hands(file)[0], PieceReference(file)
    for text in data.draw(st.lists(st.text("▁abc d", max_size=30), min_size=1, max_size=5)):
        assert plain(tokenizer, text) == expected.encode(text).ids


@pytest.mark.parametrize("name", ["bpe-plain", "unigram-bytes"])
def test_the_tokenizer_json_that_comes_nearest_is_a_real_one(name: str) -> None:
    """The reference takes it, and gives the same tokens where nothing is user-defined."""
    tokenizer, definition, _ = both(name)
    file = written_out(definition)
    for text in ("The shells she sells", " 365 days, où? ", "aaaa abab\tЖ", ""):
        theirs = reference(file).encode(text)
        ours = tokenizer.encode_with_offsets(text)
        assert (ours.ids, ours.tokens, ours.offsets) == (theirs.ids, theirs.tokens, theirs.offsets)


def folder(tmp_path: Path, **config: Any) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(model("bpe-bytes"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_bos_comes_first_unless_the_folder_says_otherwise(tmp_path: Path) -> None:
    alone = FIXTURES / "bpe-bytes.model"
    inner = Tokenizer.load(alone).encode("the", add_special_tokens=False)
    assert Tokenizer.load(alone).encode("the") == [1, *inner]
    without = Tokenizer.load(folder(tmp_path, add_bos_token=False, add_eos_token=True))
    assert without.encode("the") == [*inner, 2]
    assert (without.bos_id, without.eos_ids) == (1, (2,))


def test_a_folder_may_add_tokens_and_say_which_are_special(tmp_path: Path) -> None:
    decoder = {"3": {"content": "<sep>", "special": True}, "999": {"content": "<x>"}}
    (tmp_path / "added_tokens.json").write_text('{"<y>": 1000}', encoding="utf-8")
    tokenizer = Tokenizer.load(folder(tmp_path, added_tokens_decoder=decoder))
    ids = tokenizer.encode("<sep>a<x><y>", add_special_tokens=False)
    assert (ids[0], ids[-2:]) == (3, [999, 1000])
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<x>"


def test_a_control_token_in_a_text_is_one_only_if_that_is_asked() -> None:
    tokenizer = both("unigram-nfkc")[0]
    assert tokenizer.encode("</s>", add_special_tokens=False) == [2]
    assert 2 not in tokenizer.encode("</s>", add_special_tokens=False, parse_special=False)


GOOD = [*SPECIAL, *LETTERS]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (written(GOOD, {3: 3}, {}), "'word'"),
        (written(GOOD, {3: 4}, {}), "'char'"),
        (written(GOOD, {3: 9}, {}), "'9'"),
        (written(GOOD, {3: BPE}, {}) + field(5, field(2, b"x")), "denormalizer"),
        (written([*GOOD, ("x", 0.0, UNUSED)], {3: BPE}, {}), "unused"),
        (written([*GOOD, ("x", 0.0, 7)], {3: BPE}, {}), "type 7"),
        (written([*GOOD, ("a", 0.0, NORMAL)], {3: BPE}, {}), "twice"),
        (written([*GOOD, ("", 0.0, NORMAL)], {3: BPE}, {}), "empty"),
        (written(GOOD[1:], {3: BPE}, {}), "unknown"),
        (written([*GOOD, ("<u>", 0.0, UNKNOWN)], {3: UNIGRAM}, {}), "unknown"),
        (written([*GOOD, ("ax", 0.0, NORMAL)], {3: BPE}, {}), "'ax'"),
        (written(GOOD, {3: UNIGRAM}, {2: b"\xff\xff\xff\x7f"}), "charsmap"),
        (written(GOOD, {3: BPE}, {})[:-1], "sound"),
        (written(GOOD, {3: BPE}, {}) + b"\x80" * 11, "sound"),
        (written(GOOD, {3: BPE}, {}) + b"\x0b", "sound"),
        (field(1, field(1, b"\xff\xff")), "sound"),
        (field(1, field(1, b"a") + field(2, 1)), "sound"),
        (field(1, field(1, b"a") + field(2, b"\0")), "sound"),
        (field(1, field(1, b"a")) + field(2, 1), "sound"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(file: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        in_our_hands(file)


@given(cut=st.integers(4, 4018))
def test_a_file_cut_off_anywhere_is_a_smaller_one_or_an_error(cut: int) -> None:
    """A length that points past the end must not be believed."""
    whole = both("unigram-rules")[0]
    with suppress(ModelFileError):
        assert in_our_hands(model("unigram-rules")[:cut])[0].vocab_size <= whole.vocab_size


def test_a_piece_of_a_byte_stands_for_no_text() -> None:
    """With its score of 0 it would be the best spelling of its own name."""
    bytes_ = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    file = written([*GOOD, *bytes_], {3: UNIGRAM, 35: 1}, {3: 0, 4: 0})
    text = "<0x41>"
    assert plain(in_our_hands(file)[0], text) == PieceReference(file).encode(text).ids
