"""BPE of the formats that rank tokens, and not pairs: SentencePiece, tiktoken, tekken, GGUF.

In the definitions of their tokenizers the merges are `TokenRanks`, of which the stages are made at
once. `written_out` gives the list of merges that stands for them in a tokenizer.json.
"""

from __future__ import annotations

from dataclasses import replace

from engine.tokenizer.formats.definition import stages_from_json
from engine.tokenizer.formats.parts import Definition
from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.models.characters import Unknown
from engine.tokenizer.models.ranks import TokenRanks
from engine.tokenizer.stages import Stages


def stages_of(definition: Definition, source: str) -> Stages:
    """Return the stages of a definition; `source` is for errors."""
    spec = definition["model"]
    ranks = spec.get("merges")
    if not isinstance(ranks, TokenRanks):
        return stages_from_json(definition, source)
    stages = stages_from_json({**definition, "model": {**spec, "merges": []}}, source)
    unknown = Unknown(spec["unk_token"], spec["fuse_unk"], spec["byte_fallback"])
    model = BytePairModel(stages.model.vocab, ranks, spec["ignore_merges"], unknown)
    return replace(stages, model=model)


def written_out(definition: Definition) -> Definition:
    """Return a definition as any reader of a tokenizer.json can take it.

    Every way to make a token of two others is a merge then. Their order does not matter: two
    neighbours that make a token were themselves made by what lies between the token's own ends,
    which is the same wherever it stands, so that one of the ways alone is ever used. What a list
    cannot say is that tokens share a rank: those are in the order of their ids.
    """
    spec = definition["model"]
    if not isinstance(spec.get("merges"), TokenRanks):
        return definition
    ranks = spec["merges"].ranks
    merges = [
        [token[:i], token[i:]]
        for token in sorted(ranks, key=lambda token: (ranks[token], spec["vocab"][token]))
        for i in range(1, len(token))
        if token[:i] in ranks and token[i:] in ranks
    ]
    return {**definition, "model": {**spec, "merges": merges}}
