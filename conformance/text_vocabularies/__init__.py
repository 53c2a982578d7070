"""Small tokenizer.json in the manner of real ones, and some that hold the rest of the format.

Each vocabulary is trained here, on one text, so that a case is the same wherever it is made. Ids
are dealt out in alphabetical order: whoever merges by id instead of rank is found out.
"""

from conformance.text_vocabularies.byte_level import (
    ascii_only,
    gpt2,
    llama3,
    pieces,
    qwen2,
    smollm2,
)
from conformance.text_vocabularies.chains import (
    inner_pieces,
    letters,
    spelled_bytes,
    wordpiece,
    words,
)
from conformance.text_vocabularies.spaced import gemma, llama2, unigram, unigram_bytes
from conformance.text_vocabularies.training import (
    GPT2_WORDS,
    LLAMA3_WORDS,
    QWEN2_WORDS,
    byte_alphabet,
)

__all__ = [
    "GPT2_WORDS",
    "LLAMA3_WORDS",
    "QWEN2_WORDS",
    "ascii_only",
    "byte_alphabet",
    "gemma",
    "gpt2",
    "inner_pieces",
    "letters",
    "llama2",
    "llama3",
    "pieces",
    "qwen2",
    "smollm2",
    "spelled_bytes",
    "unigram",
    "unigram_bytes",
    "wordpiece",
    "words",
]
