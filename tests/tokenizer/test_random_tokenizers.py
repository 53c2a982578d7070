"""Random tokenizer.json files against the library: every component, in any chain, on texts and ids.

No text and no file is left out. What the library itself raises on a text, and the three kinds of files
that cannot be compared, are counted, and each kind is known.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.oracle.text import Reference, ReferenceEncoding
from conformance.strategies import texts, token_ids, tokenizer_files
from conformance.strategies.components import SINGLE
from conformance.strategies.tokenizers import vocabulary_of
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.encoding import Encoding
from tests.tokenizer.definitions import ours, scale

#: Files in the CI profile, of these for each component, texts and sequences of ids for each file: more
#: than 3,000 of the 5,000 texts (see test_against_reference), and more than 300 chains once those that
#: are refused are taken off.
FILES, FILES_OF_EACH, TEXTS, SEQUENCES = 350, 2, 10, 5

#: Chance may leave one out, so that files with each are asked for.
COMPONENTS = {
    "model": "BPE Unigram WordPiece WordLevel",
    "normalizer": "None NFC NFD NFKC NFKD Lowercase Strip StripAccents Replace Prepend Precompiled "
    "ByteLevel BertNormalizer Sequence",
    "pre_tokenizer": "None Split ByteLevel Metaspace Digits Punctuation Whitespace WhitespaceSplit "
    "CharDelimiterSplit BertPreTokenizer UnicodeScripts Sequence",
    "post_processor": "None TemplateProcessing ByteLevel BertProcessing RobertaProcessing Sequence",
    "decoder": "None ByteLevel ByteFallback Fuse Strip Replace Metaspace WordPiece BPEDecoder Sequence",
}

#: What this engine refuses by name: bytes of an affix stand for no place in the text.
REFUSES = "the BPE model's byte_fallback is not supported together with a prefix or suffix"
#: Of two added tokens that the normalizer makes one, the library takes another each time it is asked.
AT_RANDOM = "two added tokens are spelled alike"
#: Where the normalizer leaves nothing of an added token, the library looks for the others without end
#: (tokenizers 0.23.3: the text "e" of a file whose normalizer strips, with " " and "eing" added), until
#: the memory is full.
ENDLESS = "an added token is nothing, and there are others"

#: What the library raises on a text: an unknown token that the file lacks, and its own faults. It
#: panics where a normalised text grew at its end, where an added token begins before the one before
#: it ends, where the decoder Strip takes more than a token has, and at a letter of several bytes
#: where an added token is nothing once it is normalised.
RAISES = (
    r"Encountered an unknown token but `unk_id` is missing",
    r"Unk token `.*` not found in the vocabulary",
    r"Word(Piece|Level) error: Missing .* token from the vocabulary",
    r"PanicException: index out of bounds: .*",
    r"PanicException: AddedVocabulary bad split",
    r"PanicException: slice index starts at \d+ but ends at \d+",
    r"PanicException: (start|end) byte index \d+ is not a char boundary.*",
)

T = TypeVar("T")


@dataclass
class Tally:
    """What was compared, and what the library raised instead of answering."""

    files: int = 0
    texts: int = 0
    uncompared: Counter[str] = field(default_factory=Counter)
    components: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)

    def answer(self, ask: Callable[[], T]) -> T | None:
        """Return what the library answers, None where it raises what is known of it."""
        try:
            return ask()
        except BaseException as error:
            kind = type(error).__name__
            said = f"{kind}: {error}" if kind != "Exception" else str(error)
            known = [pattern for pattern in RAISES if re.fullmatch(pattern, said, re.DOTALL)]
            if not known:
                raise
            self.raised[known[0]] += 1
            return None


def compare_text(tally: Tally, tokenizer: Tokenizer, reference: Reference, text: str) -> None:
    tally.texts += 1
    for special in (True, False):
        expected = tally.answer(partial(reference.encode, text, special))
        if expected is None:
            return
        assert_same(tokenizer.encode_with_offsets(text, special), expected)
        assert tokenizer.encode(text, special) == expected.ids
        compare_ids(tally, tokenizer, reference, expected.ids)


def compare_pair(
    tally: Tally, tokenizer: Tokenizer, reference: Reference, first: str, second: str
) -> None:
    expected = tally.answer(partial(reference.encode, first, pair=second))
    if expected is not None:
        assert_same(tokenizer.encode_with_offsets(first, pair=second), expected)
        assert tokenizer.encode(first, pair=second) == expected.ids
        assert_same(tokenizer.encode_batch([(first, second)])[0], expected)


def compare_ids(tally: Tally, tokenizer: Tokenizer, reference: Reference, ids: list[int]) -> None:
    for skip in (True, False):
        text = tally.answer(partial(reference.decode, ids, skip))
        assert text is None or tokenizer.decode(ids, skip) == text


def assert_same(encoding: Encoding, expected: ReferenceEncoding) -> None:
    assert encoding.ids == expected.ids
    assert encoding.tokens == expected.tokens
    assert encoding.offsets == expected.offsets
    assert encoding.type_ids == expected.type_ids
    assert encoding.special_tokens_mask == expected.special_tokens_mask


def components(file: Mapping[str, Any]) -> Counter[str]:
    """Return how often each component stands in a file, chains opened."""
    found = Counter([f"model {file['model']['type']}"])

    def look(stage: str, spec: Any) -> None:
        found[f"{stage} {spec['type'] if spec else None}"] += 1
        for key in ("normalizers", "pretokenizers", "processors", "decoders"):
            for step in (spec or {}).get(key, ()):
                look(stage, step)

    for stage in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        look(stage, file[stage])
    return found


def files_with(stage: str, name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Files that have this component: put there where few would have it, else those that do."""
    files = tokenizer_files()
    if (component := SINGLE.get(stage, {}).get(name)) is not None:
        return st.builds(lambda file, put: {**file, stage: put}, files, component)
    return files.filter(lambda file: components(file)[f"{stage} {name}"] > 0)


def both(tally: Tally, file: dict[str, Any]) -> tuple[Tokenizer, Reference] | None:
    """Return the file in our hands and in the library's, None where there is nothing to compare."""
    normalized = [t["content"] for t in file["added_tokens"] if t["normalized"]]
    reference = tally.answer(partial(Reference, file))  # it may fail to normalize an added token
    if reference is None:
        return None
    if (fault := fault_of_search([*map(reference.normalize, normalized)])) is not None:
        tally.uncompared[fault] += 1
        return None
    try:
        tokenizer = ours(file)
    except ModelFileError as error:
        if REFUSES not in str(error):
            raise
        tally.uncompared[REFUSES] += 1
        return None
    tally.files += 1
    tally.components += components(file)
    return tokenizer, reference


def fault_of_search(sought: list[str]) -> str | None:
    """Return why the library does not find these normalized added tokens as it should, if so."""
    if len({*sought}) < len(sought):
        return AT_RANDOM
    return ENDLESS if "" in sought and len(sought) > 1 else None


@pytest.mark.timeout(7200)
def test_any_file_encodes_and_decodes_as_in_the_reference() -> None:
    """What was counted is logged: `pytest --log-level INFO -o log_cli=true` shows it."""
    tally = Tally()

    def compare(file: dict[str, Any], data: st.DataObject) -> None:
        found = both(tally, file)
        if found is None:
            return
        added = [token["content"] for token in file["added_tokens"]]
        special = [token["id"] for token in file["added_tokens"] if token["special"]]
        vocabulary = vocabulary_of(file)
        some = texts(vocabulary, added, max_fragments=5)
        drawn = data.draw(st.lists(some, min_size=TEXTS, max_size=TEXTS), "texts")
        for text in drawn:
            compare_text(tally, *found, text)
        compare_pair(tally, *found, *drawn[:2])
        ids = token_ids(vocabulary, special)
        for each in data.draw(st.lists(ids, min_size=SEQUENCES, max_size=SEQUENCES), "ids"):
            compare_ids(tally, *found, each)

    each = [(stage, name) for stage, names in COMPONENTS.items() for name in names.split()]
    rest = FILES - FILES_OF_EACH * len(each)
    for n, files in [
        *((FILES_OF_EACH, files_with(stage, name)) for stage, name in each),
        (rest, tokenizer_files()),
    ]:
        some = settings(
            max_examples=scale(n), suppress_health_check=list(HealthCheck), database=None
        )
        some(given(files, st.data())(compare))()
    logging.getLogger(__name__).info("%s", tally)
    assert tally.files >= scale(300)
    assert tally.texts >= scale(3_000)
    assert tally.uncompared.total() < tally.files * 0.15, tally.uncompared
    assert tally.raised.total() < tally.texts * 0.2, tally.raised
    assert [kind for kind in each if not tally.components[" ".join(kind)]] == []
