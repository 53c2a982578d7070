"""Small tokenizer.json objects for tests, in our hands and in the reference's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hypothesis import settings

from conformance.text_vocabularies import byte_alphabet
from conformance.text_vocabularies.parts import byte_level, byte_pairs
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.definition import stages_from_json
from engine.tokenizer.models.ranks import TokenRanks
from engine.tokenizer.stages import Surroundings

if TYPE_CHECKING:
    from conformance.oracle.text import Reference

BYTE_LEVEL = byte_level(trim_offsets=False, use_regex=True)
BYTES_ONLY = byte_level(trim_offsets=False, use_regex=False)


def definition(*merges: tuple[str, str], **stages: Any) -> dict[str, Any]:
    """A byte-level tokenizer with these merges; `stages` replace parts of the file."""
    tokens = [*byte_alphabet(), *dict.fromkeys(left + right for left, right in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": byte_pairs(vocab, merges, spaced=False),
        **stages,
    }


def added(content: str, token_id: int, **flags: bool) -> dict[str, Any]:
    """An entry of added_tokens; every flag is false unless it is given."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": token_id, "content": content, **dict.fromkeys(names, False), **flags}


def ours(file: Mapping[str, Any], **surroundings: Any) -> Tokenizer:
    return Tokenizer(stages_from_json(file, "test"), Surroundings(**surroundings), "test")


def written_out(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition of another format as the reference can take it: with a list of merges.

    Every way to make a token of two others is a merge then. Their order does not matter: two
    neighbours that make a token were themselves made by what lies between the token's own ends,
    which is the same wherever it stands, so that one of the ways alone is ever used. What a list
    cannot say is that tokens share a rank: those are in the order of their ids.
    """
    spec = definition["model"]
    if isinstance(spec.get("merges"), TokenRanks):
        ranks = spec["merges"].ranks
        merges = [
            [token[:i], token[i:]]
            for token in sorted(ranks, key=lambda token: (ranks[token], spec["vocab"][token]))
            for i in range(1, len(token))
            if token[:i] in ranks and token[i:] in ranks
        ]
        spec = {**spec, "merges": merges}
    file: dict[str, Any] = json.loads(json.dumps({**definition, "model": spec}))
    return file


def reference(file: Mapping[str, Any]) -> Reference:
    from conformance.oracle.text import Reference

    return Reference(file)


def assert_encodes_alike(file: Mapping[str, Any], text: str) -> None:
    """Ids, tokens and offsets are the reference's, with special tokens and without."""
    tokenizer, expected = ours(file), reference(file)
    for special in (True, False):
        theirs = expected.encode(text, special)
        encoding = tokenizer.encode_with_offsets(text, special)
        assert encoding.ids == theirs.ids == tokenizer.encode(text, special)
        assert encoding.tokens == theirs.tokens
        assert encoding.offsets == theirs.offsets


def scale(count: int) -> int:
    """Return how many of `count` examples the profile draws: all, and twenty times that nightly."""
    return count * min(20, max(1, settings.default.max_examples // 100))
