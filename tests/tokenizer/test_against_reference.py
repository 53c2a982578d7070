"""Real tokenizers against the tokenizers library: ids, tokens, offsets and text, on many texts.

One test per tokenizer, so that each is loaded once, in our hands and in the library's; that takes
longer than the texts. Random files are in test_random_tokenizers.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.golden import REPOSITORY_GOLDENS, verify_hashes
from conformance.oracle.text import Reference
from conformance.strategies import texts, token_ids
from conformance.strategies.texts import assigned
from conformance.tokens import TOKENS_CASES, TokensCase, findings_of
from engine.tokenizer import Tokenizer
from tests.tokenizer import real
from tests.tokenizer.bytes_law import assert_bytes_are_the_text
from tests.tokenizer.definitions import scale

#: Texts for each tokenizer in the CI profile: 2,000 of the 5,000.
TEXTS = 200

#: transformers takes a minute to convert this one. Its ids are those of another file.
SAME_IDS = {"gemma3-270m": "tokenizer-gemma3"}


@lru_cache(maxsize=1)
def reference_of(path: Path) -> Reference:
    return Reference.of_gguf(path) if path.suffix == ".gguf" else Reference.load(path)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", TOKENS_CASES, ids=lambda case: case.asset)
def test_a_real_tokenizer_answers_as_the_reference(
    case: TokensCase, asset: Callable[[str], Path]
) -> None:
    path = asset(case.asset)
    tokenizer = real.load(path)
    assert_golden(case, tokenizer)
    reference = reference_of(asset(SAME_IDS.get(case.asset, case.asset)))
    # That file calls other tokens special; what is skipped is in the golden.
    skips = (False,) if case.asset in SAME_IDS else (False, True)
    assert_any_text(tokenizer, reference, skips)
    assert_any_ids(tokenizer, reference, skips)
    assert_source_files(tokenizer, reference)
    assert_bytes_are_the_text(tokenizer, of_texts=50)


def assert_golden(case: TokensCase, tokenizer: Tokenizer) -> None:
    folder = REPOSITORY_GOLDENS / case.name
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    verify_hashes(folder, manifest)
    assert findings_of(tokenizer, folder, manifest) == []


def assert_any_text(tokenizer: Tokenizer, reference: Reference, skips: tuple[bool, ...]) -> None:
    """Nothing is left out: whatever is drawn has the reference's answers."""
    seen = set()

    @settings(max_examples=scale(TEXTS), suppress_health_check=list(HealthCheck), database=None)
    @given(texts(tokenizer.model.vocab, reference.added_tokens), texts(max_fragments=2))
    def compare(text: str, other: str) -> None:
        expected = reference.encode(text)
        encoding = tokenizer.encode_with_offsets(text)
        assert encoding.ids == expected.ids
        assert encoding.tokens == expected.tokens
        assert encoding.offsets == expected.offsets
        assert tokenizer.encode(text) == expected.ids
        pair = reference.encode(text, False, pair=other)
        assert tokenizer.encode(text, add_special_tokens=False, pair=other) == pair.ids
        for skip in skips:
            assert tokenizer.decode(expected.ids, skip) == reference.decode(expected.ids, skip)
        seen.add((text, other))

    compare()
    assert len(seen) > 0.8 * scale(TEXTS)


def assert_any_ids(tokenizer: Tokenizer, reference: Reference, skips: tuple[bool, ...]) -> None:
    """Random ids are often broken characters, with unknown and special ids between."""
    special = list(reference.added_tokens.values())

    @settings(max_examples=scale(100), suppress_health_check=list(HealthCheck))
    @given(token_ids(tokenizer.model.vocab, special[:50]), st.sampled_from(skips))
    def compare(ids: list[int], skip: bool) -> None:
        assert tokenizer.decode(ids, skip) == reference.decode(ids, skip)
        stream = tokenizer.stream(skip)
        shown = "".join([*map(stream.push, ids), stream.flush()])
        assert shown == reference.streamed(ids, skip)

    compare()


def assert_source_files(tokenizer: Tokenizer, reference: Reference) -> None:
    """Every fortieth module of the standard library, so that it takes seconds and not minutes."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    sources = [path.read_bytes().decode("utf-8", errors="replace") for path in files[::40]]
    sources = [source for source in sources if assigned(source)]
    assert len(sources) > 20
    for source, expected in zip(sources, reference.encode_batch(sources), strict=True):
        assert tokenizer.encode(source, add_special_tokens=False) == expected.ids
