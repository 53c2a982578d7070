"""Reads the object of a tokenizer.json into stages.

Anything that is not known is refused by name.
Source: the format as the tokenizers library 0.23 writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.added import AddedToken
from engine.tokenizer.formats.decoders import read_decoder
from engine.tokenizer.formats.faults import damaged
from engine.tokenizer.formats.fitting import read_padding, read_truncation
from engine.tokenizer.formats.models import LARGEST_ID, read_model
from engine.tokenizer.formats.normalizers import read_normalizer
from engine.tokenizer.formats.post_processors import read_post_processor
from engine.tokenizer.formats.splitters import read_splitter
from engine.tokenizer.stages import Stages

# Real files have some 100,000; each becomes part of a pattern, which takes a thousandfold.
_MOST_CHARACTERS = 1_000_000


def stages_from_json(data: Mapping[str, Any], source: str) -> Stages:
    """Return the stages that the object of a tokenizer.json describes; `source` is for errors."""
    try:
        return _stages(data, source)
    except RecursionError as error:
        raise ModelFileError(f"{source}: its components are nested too deeply") from error


def _stages(data: Mapping[str, Any], source: str) -> Stages:
    model = read_model(data.get("model"), source)
    return Stages(
        added_tokens=read_added_tokens(data.get("added_tokens"), model.vocab, source),
        normalizer=read_normalizer(data.get("normalizer"), source),
        splitter=read_splitter(data.get("pre_tokenizer"), source),
        model=model,
        post_processor=read_post_processor(data.get("post_processor"), source),
        decoder=read_decoder(data.get("decoder"), source),
        truncation=read_truncation(data.get("truncation"), source),
        padding=read_padding(data.get("padding"), source),
    )


def read_added_tokens(specs: Any, vocab: Mapping[str, int], source: str) -> tuple[AddedToken, ...]:
    """Return the added tokens of a file; `source` is for errors.

    No two of them, nor one and a token of the vocabulary, share an id or have two.
    """
    if specs is None:
        return ()
    if not isinstance(specs, list):
        raise damaged(source, "list of added_tokens", f"{specs!r:.60} is none")
    tokens = tuple(_added_token(spec, source) for spec in specs)
    if sum(len(token.content) for token in tokens) > _MOST_CHARACTERS:
        raise ModelFileError(
            f"{source}: the added_tokens have more than {_MOST_CHARACTERS} characters together, "
            "which is not supported"
        )
    ids = dict(vocab)
    contents = {token_id: content for content, token_id in vocab.items()}
    for token in tokens:
        known = ids.setdefault(token.content, token.id)
        if known != token.id:
            raise ModelFileError(
                f"{source}: the added token {token.content!r:.60} has the id {token.id}, "
                f"but the vocab or another entry gives it {known}"
            )
        other = contents.setdefault(token.id, token.content)
        if other != token.content:
            raise ModelFileError(
                f"{source}: the added token {token.content!r:.60} has the id {token.id}, "
                f"which belongs to {other!r:.60}"
            )
    return tuple(token for token in tokens if token.content)


def _added_token(spec: Any, source: str) -> AddedToken:
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    match spec:
        case {"id": int(token_id), "content": str(content)} if (
            type(token_id) is int
            and 0 <= token_id <= LARGEST_ID
            and all(isinstance(spec.get(flag), bool) for flag in flags)
        ):
            return AddedToken(token_id, content, **{flag: spec[flag] for flag in flags})
    raise damaged(
        source,
        "list of added_tokens",
        f"{spec!r:.200} has no id, no content, or not all of {', '.join(flags)}",
    )
