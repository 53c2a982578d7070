"""Hypothesis strategies for anybody's engine: what goes wrong at a tokenizer's and a cache's borders.

`texts`, `token_ids`, `partitions` and `tokenizer_files` are for tokenizers and streams; `ids`,
`splits`, `schedules`, `requests` and `llama_configs` for the runs of a model. `architectures` draws
whole models of any family, and `respell` writes their checkpoints as the hub has them.
"""

from conformance.strategies.architectures import FAMILIES, architectures
from conformance.strategies.positions import follows_length
from conformance.strategies.runs import ids, llama_configs, requests, schedules, splits
from conformance.strategies.spellings import RESPELLINGS, respell
from conformance.strategies.texts import partitions, texts, token_ids
from conformance.strategies.tokenizers import tokenizer_files

__all__ = [
    "FAMILIES",
    "RESPELLINGS",
    "architectures",
    "follows_length",
    "ids",
    "llama_configs",
    "partitions",
    "requests",
    "respell",
    "schedules",
    "splits",
    "texts",
    "token_ids",
    "tokenizer_files",
]
