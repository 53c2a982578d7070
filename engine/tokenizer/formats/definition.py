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
from engine.tokenizer.formats.fitting import read_padding, read_truncation
from engine.tokenizer.formats.models import read_model
from engine.tokenizer.formats.normalizers import read_normalizer
from engine.tokenizer.formats.post_processors import read_post_processor
from engine.tokenizer.formats.splitters import read_splitter
from engine.tokenizer.stages import Stages


def stages_from_json(data: Mapping[str, Any], source: str) -> Stages:
    """Return the stages that the object of a tokenizer.json describes; `source` is for errors."""
    model = read_model(data.get("model"), source)
    return Stages(
        added_tokens=read_added_tokens(data.get("added_tokens") or [], model.vocab, source),
        normalizer=read_normalizer(data.get("normalizer"), source),
        splitter=read_splitter(data.get("pre_tokenizer"), source),
        model=model,
        post_processor=read_post_processor(data.get("post_processor"), source),
        decoder=read_decoder(data.get("decoder"), source),
        truncation=read_truncation(data.get("truncation"), source),
        padding=read_padding(data.get("padding"), source),
    )


def read_added_tokens(specs: Any, vocab: Mapping[str, int], source: str) -> tuple[AddedToken, ...]:
    """Return the added tokens of a file; `source` is for errors."""
    try:
        tokens = tuple(
            AddedToken(
                id=int(spec["id"]),
                content=str(spec["content"]),
                special=bool(spec["special"]),
                normalized=bool(spec["normalized"]),
                lstrip=bool(spec["lstrip"]),
                rstrip=bool(spec["rstrip"]),
                single_word=bool(spec["single_word"]),
            )
            for spec in specs
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{source}: the added_tokens are damaged ({error}): fetch the file again"
        ) from error
    for token in tokens:
        if token.id < 0 or vocab.get(token.content, token.id) != token.id:
            raise ModelFileError(
                f"{source}: the added token {token.content!r} has the id {token.id}, "
                f"but the vocab gives it {vocab.get(token.content)}"
            )
    return tuple(token for token in tokens if token.content)
