"""The parts of a tokenizer.json that the readers of other formats put together.

Those formats say less than a tokenizer.json does. What they leave to the library that reads them
is written out here, so that one reader (`definition.py`) makes the stages of every tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.tokenizer.alphabet import CHARACTERS
from engine.tokenizer.models.ranks import TokenRanks

Definition = dict[str, Any]

#: Pairs in rank order, or the ranks of tokens; see `ranked.py`.
Merges = list[list[str]] | TokenRanks

#: A space in SentencePiece's vocabularies.
SPACE = "▁"

# Words of cl100k (tiktoken) as Llama-3 has them.
CL100K_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CAMEL = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+%s"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENGLISH_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Words of o200k (tiktoken) as GPT-4o has them, and Mistral's, without English ends.
O200K_WORDS = _CAMEL % (_ENGLISH_ENDS, _ENGLISH_ENDS, "{1,3}")
TEKKEN_WORDS = _CAMEL % ("", "", "")

_SPELLING = dict(enumerate(CHARACTERS))


def spelled(token: bytes) -> str:
    """Return a token's bytes in the byte alphabet."""
    return token.decode("latin-1").translate(_SPELLING)


def added_token(token_id: int, content: str, special: bool, **flags: bool) -> Definition:
    """Return an entry of added_tokens; `flags` that are not given are false."""
    names = ("single_word", "lstrip", "rstrip", "normalized")
    entry = {"id": token_id, "content": content, "special": special}
    return entry | {name: flags.get(name, False) for name in names}


def around(
    before: Sequence[tuple[int, str]], after: Sequence[tuple[int, str]] = ()
) -> Definition | None:
    """Return the post-processor that puts tokens around every text, None if there are none."""
    if not before and not after:
        return None
    special = {
        token: {"id": token, "ids": [token_id], "tokens": [token]}
        for token_id, token in (*before, *after)
    }

    def one(text: str, type_id: int) -> list[Definition]:
        return [
            *({"SpecialToken": {"id": token, "type_id": type_id}} for _, token in before),
            {"Sequence": {"id": text, "type_id": type_id}},
            *({"SpecialToken": {"id": token, "type_id": type_id}} for _, token in after),
        ]

    return {
        "type": "TemplateProcessing",
        "single": one("A", 0),
        "pair": [*one("A", 0), *one("B", 1)],
        "special_tokens": special,
    }


def sequence(kind: str, steps: Sequence[Definition]) -> Definition | None:
    """Return steps as one component; `kind` is the field that holds them."""
    return {"type": "Sequence", kind: list(steps)} if steps else None


def replace(pattern: Definition, content: str) -> Definition:
    """Return the normalizer or decoder Replace; the pattern is a "String" or a "Regex"."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def split_at(pattern: str) -> Definition:
    """Return the pre-tokenizer that cuts before and after each match of a pattern."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


#: Spells bytes, and splits nothing.
BYTES = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": False,
}


def byte_level(
    model: Definition,
    splits: Sequence[Definition],
    *,
    form: str | None = None,
    added_tokens: Iterable[Definition] = (),
    post_processor: Definition | None = None,
) -> Definition:
    """Return a tokenizer whose tokens are spelled in the byte alphabet.

    The last of the pre-tokenizers spells the text so; `form` is a Unicode normal form.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": {"type": form} if form else None,
        "pre_tokenizer": sequence("pretokenizers", splits),
        "post_processor": post_processor,
        "decoder": BYTES,
        "model": model,
    }


def byte_pairs(vocab: Mapping[str, int], merges: Merges, **options: Any) -> Definition:
    """Return a model of the type BPE; `options` that are not given are off."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": vocab,
        "merges": merges,
    }
