"""Random tokenizer.json files: small vocabularies with random chains of every component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from conformance.strategies.components import (
    decoders,
    normalizers,
    post_processors,
    pre_tokenizers,
)
from conformance.strategies.vocabularies import Json, vocabularies

_CONTENTS = (
    "<s>", "</s>", "[CLS]", "[SEP]", "<|im_end|>", "<|a b|>", "<naïve 東>", "▁x", " ", "  ", "\n\n",
    "é", "e\u0301", "E", "the", "ing", "a", "ab", "##a", "Ġthe", "①", "<0x41>", "-", ".",
)  # fmt: skip
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

_truncation = st.fixed_dictionaries(
    {
        "direction": st.sampled_from(["Right", "Left"]),
        "max_length": st.integers(0, 8),
        "strategy": st.sampled_from(["LongestFirst", "OnlyFirst", "OnlySecond"]),
        "stride": st.just(0),
    }
)
_padding = st.fixed_dictionaries(
    {
        "strategy": st.one_of(
            st.just("BatchLongest"), st.integers(0, 8).map(lambda n: {"Fixed": n})
        ),
        "direction": st.sampled_from(["Right", "Left"]),
        "pad_to_multiple_of": st.sampled_from([None, 4]),
        "pad_id": st.just(0),
        "pad_type_id": st.just(0),
        "pad_token": st.just("[PAD]"),
    }
)


@st.composite
def tokenizer_files(draw: st.DrawFn) -> dict[str, Any]:
    """The object of a tokenizer.json of any model, normalizer, pre-tokenizer, post-processor, decoder.

    Nearly all are files that the tokenizers library reads. It refuses a few (a byte-pair encoding
    whose unknown token is missing is one), and others raise on some texts: let it load and encode
    before you compare.
    """
    vocabulary = draw(vocabularies())
    added = draw(_added_tokens(vocabulary.ids))
    ids = {**vocabulary.ids, **{token["content"]: token["id"] for token in added}}
    return {
        "version": "1.0",
        "truncation": draw(st.one_of(st.none(), st.none(), st.none(), _truncation)),
        "padding": draw(st.one_of(st.none(), st.none(), st.none(), _padding)),
        "added_tokens": added,
        "normalizer": draw(normalizers(vocabulary.spelling)),
        "pre_tokenizer": draw(pre_tokenizers(vocabulary.spelling)),
        "post_processor": draw(post_processors(ids)),
        "decoder": draw(decoders(vocabulary.spelling)),
        "model": vocabulary.model,
    }


@st.composite
def _added_tokens(draw: st.DrawFn, ids: Mapping[str, int]) -> list[Json]:
    """Added tokens with any flags; those that the vocabulary lacks get the ids behind it."""
    known = st.sampled_from(sorted(ids)) if ids else st.nothing()
    contents = st.one_of(st.sampled_from(_CONTENTS), st.sampled_from(_CONTENTS), known)
    # Behind a vocabulary with gaps the library deals out ids that are taken.
    gaps = len(ids) <= max(ids.values(), default=0)
    tokens: list[Json] = []
    for content in draw(st.lists(known if gaps else contents, unique=True, max_size=5)):
        token_id = ids.get(content, len(ids) + sum(t["content"] not in ids for t in tokens))
        flags = {flag: draw(st.booleans()) for flag in _FLAGS}
        tokens.append({"id": token_id, "content": content, **flags})
    return sorted(tokens, key=lambda token: int(token["id"]))


def vocabulary_of(file: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token of a tokenizer.json's object, added ones included."""
    vocab = file["model"]["vocab"]
    pairs = [(token, i) for i, (token, _) in enumerate(vocab)] if isinstance(vocab, list) else vocab
    return {**dict(pairs), **{token["content"]: token["id"] for token in file["added_tokens"]}}
