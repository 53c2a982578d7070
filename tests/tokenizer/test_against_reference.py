"""Real tokenizers against the tokenizers library: ids, tokens, offsets and text, on many texts."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.tokenizer import Tokenizer
from tests.tokenizer import real
from tests.tokenizer.strategies import assigned, texts

if TYPE_CHECKING:
    from conformance.oracle.text import Reference

# Name: how many texts; the first three are the ones this project is measured by.
EXAMPLES = {
    "smollm2-135m": 10_000,
    "tokenizer-llama3": 10_000,
    "tokenizer-qwen3": 10_000,
    "tokenizer-llama3_1": 1_000,
    "tokenizer-gptoss": 1_000,
    "tokenizer-deepseek_v3": 1_000,
}


@pytest.fixture(scope="module", params=EXAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def both(name: str, asset: Callable[[str], Path]) -> tuple[Tokenizer, Reference]:
    """Our tokenizer and the reference's for one file."""
    from conformance.oracle.text import Reference

    path = asset(name)
    read = Reference.of_gguf if path.suffix == ".gguf" else Reference.load
    return real.load(path), read(path)


def added_tokens(tokenizer: Tokenizer) -> list[str]:
    """Some of the added tokens, as a text would spell them."""
    found = [
        token
        for token_id in range(tokenizer.vocab_size)
        if (token := tokenizer.id_to_token(token_id)) and tokenizer.added(token) == [token_id]
    ]
    return found[:40] + found[-10:]


def assert_equal(tokenizer: Tokenizer, reference: Reference, text: str) -> None:
    expected = reference.encode(text)
    encoding = tokenizer.encode_with_offsets(text)
    assert encoding.ids == expected.ids
    assert encoding.tokens == expected.tokens
    assert encoding.offsets == expected.offsets
    assert tokenizer.encode(text) == expected.ids
    assert tokenizer.encode(text, add_special_tokens=False) == (
        reference.encode(text, add_special_tokens=False).ids
    )
    for skip in (False, True):
        assert tokenizer.decode(expected.ids, skip) == reference.decode(expected.ids, skip)


@pytest.mark.timeout(1200)
def test_any_text_encodes_and_decodes_as_in_the_reference(
    name: str, both: tuple[Tokenizer, Reference]
) -> None:
    tokenizer, reference = both
    seen = set()

    @settings(
        max_examples=EXAMPLES[name],
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(texts(added_tokens(tokenizer)))
    def compare(text: str) -> None:
        assert_equal(tokenizer, reference, text)
        seen.add(text)

    compare()
    assert len(seen) > EXAMPLES[name] * 0.9


def test_any_ids_decode_as_in_the_reference(both: tuple[Tokenizer, Reference]) -> None:
    """Random ids are mostly broken characters, with unknown and special ids between."""
    tokenizer, reference = both

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, tokenizer.vocab_size + 300), max_size=30), st.booleans())
    def compare(ids: list[int], skip: bool) -> None:
        text = reference.decode(ids, skip)
        assert tokenizer.decode(ids, skip) == text
        stream = tokenizer.stream(skip)
        assert "".join([*map(stream.push, ids), stream.flush()]) == text

    compare()


def test_source_files_encode_as_in_the_reference(both: tuple[Tokenizer, Reference]) -> None:
    """Every eighth module of the standard library, so that it takes seconds and not minutes."""
    tokenizer, reference = both
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    sources = [path.read_bytes().decode("utf-8", errors="replace") for path in files[::8]]
    sources = [source for source in sources if assigned(source)]
    assert len(sources) > 100
    for source, expected in zip(sources, reference.encode_batch(sources), strict=True):
        assert tokenizer.encode(source, add_special_tokens=False) == expected.ids
