"""The law of a token's bytes: joined, those of some ids are the text that the stream shows after a prompt."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from conformance.strategies import texts, token_ids
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import scale


def added_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """What the stream shows of them after a text."""
    stream = tokenizer.stream(after=tokenizer.encode("a", add_special_tokens=False))
    return "".join([*map(stream.push, ids), stream.flush()])


def assert_bytes_are_the_text(tokenizer: Tokenizer, of_texts: int) -> None:
    """Of texts, and of ids in any order whose bytes are UTF-8 (of others decoders show U+FFFD each in its way)."""
    seen = {"texts": 0, "ids": 0, "parts of characters": 0}
    relaxed = settings(
        max_examples=scale(of_texts), suppress_health_check=list(HealthCheck), database=None
    )

    def spelled(ids: list[int]) -> list[bytes]:
        return [tokenizer.token_bytes(i) or b"" for i in ids]

    @relaxed
    @given(texts(tokenizer.model.vocab))
    def of_text(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(spelled(ids)).decode() == added_text(tokenizer, ids)
        seen["texts"] += 1
        seen["parts of characters"] += not all(map(_whole, spelled(ids)))

    @relaxed
    @given(token_ids(tokenizer.model.vocab))
    def of_ids(ids: list[int]) -> None:
        if _whole(data := b"".join(spelled(ids))):
            assert data.decode() == added_text(tokenizer, ids)
            seen["ids"] += 1

    of_text()
    of_ids()
    assert seen["texts"] and seen["ids"]
    has_parts = not all(map(_whole, spelled(list(tokenizer.model.vocab.values()))))
    assert bool(seen["parts of characters"]) == has_parts


def _whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
