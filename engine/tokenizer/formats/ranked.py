"""BPE of the formats that rank tokens, and not pairs: SentencePiece, tiktoken, tekken, GGUF.

In the definitions of their tokenizers the merges are `TokenRanks`, which no tokenizer.json can
hold: the reader of those makes the other stages, and the model is made here.
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
