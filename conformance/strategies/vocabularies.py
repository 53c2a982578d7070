"""Small random models of a tokenizer.json: every kind, over units in every usual spelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from conformance.text_vocabularies import byte_alphabet

Json = dict[str, Any]
#: How a vocabulary spells a text: as it is, with ▁ for spaces, in GPT-2's bytes, or with ## inside words.
Spelling = Literal["plain", "metaspace", "bytes", "pieces"]

_LETTERS = [*"abcdehtn", *"AT", *"12½", *" .,'-\n", *"éß\u0301東京한", "ing", "the"]
_UNITS: dict[Spelling, list[str]] = {
    "plain": _LETTERS,
    "metaspace": ["▁", *_LETTERS, "▁▁", "▁a"],
    "bytes": ["Ġ", "Ċ", *"abcdehtnAT12.,'-", *(byte_alphabet()[b] for b in "é東\u0301👍".encode())],
    "pieces": [*_LETTERS, *("##" + letter for letter in _LETTERS)],
}
_UNKNOWN = ("<unk>", "[UNK]")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True)
class Vocabulary:
    """A model of a tokenizer.json and how it spells text."""

    model: Json
    spelling: Spelling

    @property
    def ids(self) -> dict[str, int]:
        """The id of each token; of two that are spelled alike, the later one's."""
        vocab = self.model["vocab"]
        if isinstance(vocab, list):
            return {token: i for i, (token, _) in enumerate(vocab)}
        return dict(vocab)


def vocabularies() -> st.SearchStrategy[Vocabulary]:
    """Models of each kind, with their options; now and then a token is missing that they need."""
    return st.one_of(byte_pairs(), unigrams(), word_pieces(), whole_words())


def _units(spelling: Spelling) -> st.SearchStrategy[list[str]]:
    units = _UNITS[spelling]
    some = st.lists(st.sampled_from(units), unique=True, min_size=1, max_size=8)
    return st.one_of(some, st.just(units))


@st.composite
def _joined(draw: st.DrawFn, tokens: list[str], prefix: str) -> list[list[str]]:
    """Pairs of tokens that merge into new ones, which later pairs may hold in their turn."""
    tokens = list(tokens)
    pairs: list[list[str]] = []
    for first, second in draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12)
    ):
        left, right = tokens[first % len(tokens)], tokens[second % len(tokens)]
        # What stands behind something in a word has the prefix, and gives it up in a merge.
        if not right.startswith(prefix) or [left, right] in pairs:
            continue
        pairs.append([left, right])
        tokens.append(left + right.removeprefix(prefix))
    return pairs


@st.composite
def _numbered(draw: st.DrawFn, tokens: list[str]) -> dict[str, int]:
    """Ids from 0 up in the order of the tokens or another; now and then there are gaps."""
    unique = list(dict.fromkeys(tokens))
    order = draw(st.sampled_from(["as they come", "sorted", "backwards"]))
    if order != "as they come":
        unique.sort(reverse=order == "backwards")
    step = draw(st.sampled_from([1, 1, 1, 2]))
    return {token: i * step for i, token in enumerate(unique)}


def _some_bytes() -> st.SearchStrategy[list[str]]:
    return st.sampled_from([_BYTES, _BYTES, _BYTES[0x80:], _BYTES[:0xC4], []])


@st.composite
def byte_pairs(draw: st.DrawFn) -> Vocabulary:
    """Byte-pair encodings."""
    spelling = draw(st.sampled_from(list(_UNITS)))
    units = list(draw(_units(spelling)))
    prefix = draw(st.sampled_from(["##", "##", ""])) if spelling == "pieces" else ""
    suffix = draw(st.sampled_from(["", "", "</w>"])) if spelling != "bytes" else ""
    if suffix:
        units += [unit + suffix for unit in units]
    merges = draw(_joined(units, prefix))
    tokens = units + [left + right.removeprefix(prefix) for left, right in merges]
    fallback = draw(st.booleans()) and spelling != "bytes"
    if fallback:
        tokens = draw(_some_bytes()) + tokens
    unknown = draw(st.sampled_from([None, *_UNKNOWN]))
    if unknown is not None and draw(st.integers(0, 9)) < 9:
        tokens = [unknown, *tokens]
    spaced = draw(st.booleans()) and not any(" " in token for token in tokens)
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": prefix or draw(st.sampled_from([None, ""])),
        "end_of_word_suffix": suffix or draw(st.sampled_from([None, ""])),
        "fuse_unk": draw(st.booleans()),
        "byte_fallback": fallback,
        "ignore_merges": draw(st.booleans()),
        "vocab": draw(_numbered(tokens)),
        "merges": [" ".join(pair) for pair in merges] if spaced else merges,
    }
    return Vocabulary(model, spelling)


@st.composite
def unigrams(draw: st.DrawFn) -> Vocabulary:
    """Unigram language models; scores are quarters, so that ties are common."""
    spelling = draw(st.sampled_from(list(_UNITS)))
    units = list(draw(_units(spelling)))
    tokens = units + ["".join(pair) for pair in draw(_joined(units, ""))]
    fallback = draw(st.booleans())
    if fallback:
        tokens += draw(_some_bytes())
    tokens = list(dict.fromkeys(["<unk>", *tokens]))
    low = draw(st.sampled_from([-2, -40]))
    scores = draw(st.lists(st.integers(low, 0), min_size=1, max_size=12))
    vocab = [[token, scores[i % len(scores)] / 4] for i, token in enumerate(tokens)]
    unknown = draw(st.sampled_from([0, 0, 0, len(vocab) - 1, None]))
    model = {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": fallback}
    return Vocabulary(model, spelling)


@st.composite
def word_pieces(draw: st.DrawFn) -> Vocabulary:
    """WordPiece: the longest token first, and the whole word unknown if one is missing."""
    spelling: Spelling = draw(st.sampled_from(["pieces", "pieces", "plain", "bytes"]))
    units = list(draw(_units(spelling)))
    prefix = draw(st.sampled_from(["##", "##", "##", "", "▁"]))
    tokens = units + [
        left + right.removeprefix(prefix) for left, right in draw(_joined(units, prefix))
    ]
    unknown = draw(st.sampled_from(_UNKNOWN))
    if draw(st.integers(0, 9)) < 9:
        tokens = [unknown, *tokens]
    model = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": draw(st.sampled_from([100, 100, 8, 1])),
        "vocab": draw(_numbered(tokens)),
    }
    return Vocabulary(model, spelling)


@st.composite
def whole_words(draw: st.DrawFn) -> Vocabulary:
    """WordLevel: a word is a token or is unknown."""
    spelling = draw(st.sampled_from(list(_UNITS)))
    units = list(draw(_units(spelling)))
    tokens = units + ["".join(pair) for pair in draw(_joined(units, ""))]
    unknown = draw(st.sampled_from(_UNKNOWN))
    if draw(st.integers(0, 9)) < 9:
        tokens = [unknown, *tokens]
    model = {"type": "WordLevel", "vocab": draw(_numbered(tokens)), "unk_token": unknown}
    return Vocabulary(model, spelling)
