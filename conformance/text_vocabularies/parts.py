"""The parts of a tokenizer.json's object, as the tokenizers library writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def added_token(token_id: int, content: str, **flags: bool) -> Json:
    """An entry of added_tokens: special, and nothing else unless it is given."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **plain, "special": True, **flags}


def numbered(tokens: Iterable[str], first: Sequence[str] = ()) -> dict[str, int]:
    """Ids from 0 up: some tokens first, the others in alphabetical order."""
    return {token: i for i, token in enumerate([*first, *sorted({*tokens} - {*first})])}


def file(
    model: Json,
    vocab: Mapping[str, int],
    added: Sequence[tuple[str, Mapping[str, bool]]],
    *,
    normalizer: Json | None = None,
    pre_tokenizer: Json | None = None,
    post_processor: Json | None = None,
    decoder: Json | None = None,
) -> Json:
    """The whole object; added tokens that the vocabulary lacks get the ids behind it."""
    free = iter(range(len(vocab), len(vocab) + len(added)))
    ids = {content: vocab[content] if content in vocab else next(free) for content, _ in added}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(
            (added_token(ids[content], content, **flags) for content, flags in added),
            key=lambda token: int(token["id"]),
        ),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def sequence(key: str, *steps: Json) -> Json:
    """A chain; `key` is what the format calls the list."""
    return {"type": "Sequence", key: list(steps)}


def replace(pattern: str, content: str, *, kind: str = "String") -> Json:
    """Replace, the normalizer and the decoder."""
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str, behavior: str, *, kind: str = "Regex", invert: bool = False) -> Json:
    """The pre-tokenizer Split."""
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def metaspace(prepend_scheme: str, *, replacement: str = "▁", cut: bool = True) -> Json:
    """Metaspace, the pre-tokenizer and the decoder."""
    return {
        "type": "Metaspace",
        "replacement": replacement,
        "prepend_scheme": prepend_scheme,
        "split": cut,
    }


def byte_level(*, add_prefix_space: bool = False, trim_offsets: bool, use_regex: bool) -> Json:
    """ByteLevel: the pre-tokenizer, the post-processor and the decoder have the same options."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def byte_pairs(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    spaced: bool = True,
    **options: Any,
) -> Json:
    """The model BPE; without options it has no unknown token, and what it lacks leaves no trace."""
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
        "vocab": dict(vocab),
        "merges": [" ".join(pair) if spaced else list(pair) for pair in merges],
    }


def template(single: str, pair: str, specials: Mapping[str, Sequence[tuple[str, int]]]) -> Json:
    """TemplateProcessing. `single` and `pair` are words: $A, $B and names of `specials`, each with
    its type id after a colon (0 is left out), as in "[CLS] $A [SEP] $B:1 [SEP]:1"."""

    def pieces(words: str) -> list[Json]:
        found = []
        for word in words.split():
            name, _, type_id = word.partition(":")
            kind, name = ("Sequence", name[1:]) if name[0] == "$" else ("SpecialToken", name)
            found.append({kind: {"id": name, "type_id": int(type_id or 0)}})
        return found

    return {
        "type": "TemplateProcessing",
        "single": pieces(single),
        "pair": pieces(pair),
        "special_tokens": {
            name: {
                "id": name,
                "ids": [token_id for _, token_id in tokens],
                "tokens": [token for token, _ in tokens],
            }
            for name, tokens in specials.items()
        },
    }
