"""Hypothesis strategies for anybody's engine: what goes wrong at a tokenizer's and a cache's borders.

`texts`, `token_ids`, `partitions` and `tokenizer_files` are for tokenizers and streams; `ids`,
`splits`, `schedules`, `requests` and `llama_configs` for the runs of a model.
"""

from conformance.strategies.runs import ids, llama_configs, requests, schedules, splits
from conformance.strategies.texts import partitions, texts, token_ids
from conformance.strategies.tokenizers import tokenizer_files

__all__ = [
    "ids",
    "llama_configs",
    "partitions",
    "requests",
    "schedules",
    "splits",
    "texts",
    "token_ids",
    "tokenizer_files",
]
