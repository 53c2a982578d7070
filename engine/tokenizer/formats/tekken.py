"""Reads Mistral's tekken.json into the object of a tokenizer.json.

Its vocabulary is tiktoken's: the rank of a token is the order of merging. Special tokens have the
first ids, and the id of every other token is its rank after them.
Source: the files of Mistral's models from 2024-07 on, and mistral-common, which reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import damaged
from engine.tokenizer.formats.parts import Definition, added_token, around
from engine.tokenizer.formats.tiktoken import decoded, ranked

_VERSIONS = ("v3", "v7", "v11", "v13", "v15")
# Files up to version 7 may leave the list of special tokens to their reader.
_WITHOUT_LIST = ("v3", "v7")
_FIRST_SPECIALS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_BOS = "<s>"


def is_tekken(data: Mapping[str, Any]) -> bool:
    """Whether the object of a JSON file is a tekken.json's, and not a tokenizer.json's."""
    return "config" in data and "vocab" in data and "model" not in data


def definition_from_tekken(data: Mapping[str, Any], source: str) -> Definition:
    """Return the tokenizer that the object of a tekken.json describes; `source` is for errors."""
    config = data.get("config")
    if not isinstance(config, dict) or not isinstance(data.get("vocab"), list):
        raise damaged(source, "tekken.json", "it must have a config and a vocab")
    version = config.get("version")
    if version not in _VERSIONS:
        raise ModelFileError(
            f"{source}: the tekken version {version!r:.60} is not supported; "
            f"{', '.join(_VERSIONS)} are"
        )
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise damaged(source, "config", "it has no pattern")
    n_specials = _count(config, "default_num_special_tokens", source)
    n_tokens = _count(config, "default_vocab_size", source) - n_specials
    if not 0 <= n_tokens <= len(data["vocab"]):
        raise damaged(
            source, "config", f"it wants {n_tokens} tokens of a vocab of {len(data['vocab'])}"
        )
    specials = _specials(data.get("special_tokens"), n_specials, version, source)
    ranks: dict[bytes, int] = {}
    for entry in data["vocab"]:
        rank, token = _entry(entry, source)
        if rank < n_tokens and ranks.setdefault(token, rank) != rank:
            raise damaged(source, "vocab", f"the token of rank {rank} appears twice")
    if missing := set(range(n_tokens)) - set(ranks.values()):
        raise damaged(source, "vocab", f"the rank {min(missing)} is missing")
    return ranked(
        ranks,
        pattern,
        source,
        first_id=n_specials,
        added_tokens=[added_token(i, token, special=True) for i, token in enumerate(specials)],
        post_processor=around([(specials.index(_BOS), _BOS)] if _BOS in specials else []),
    )


def _count(config: Mapping[str, Any], key: str, source: str) -> int:
    value = config.get(key)
    if type(value) is not int or not 0 <= value < 1 << 24:
        raise damaged(source, "config", f"{key} is {value!r:.60}")
    return value


def _entry(entry: Any, source: str) -> tuple[int, bytes]:
    match entry:
        case {"rank": int(rank), "token_bytes": str(text)} if rank >= 0:
            return rank, decoded(text, source)
    raise damaged(source, "vocab", f"the entry {entry!r:.60}")


def _specials(entries: Any, count: int, version: str, source: str) -> list[str]:
    """Return the special tokens by id; ids that the list does not reach have made-up names."""
    if entries is None and version not in _WITHOUT_LIST:
        raise ModelFileError(
            f"{source}: a tekken.json of version {version} must list its special_tokens"
        )
    if entries is None:
        entries = [{"rank": i, "token_str": token} for i, token in enumerate(_FIRST_SPECIALS)]
    names: dict[Any, Any] = {i: f"<SPECIAL_{i}>" for i in range(count)}
    try:
        names |= {entry["rank"]: entry["token_str"] for entry in entries}
    except (KeyError, TypeError) as error:
        raise damaged(source, "list of special_tokens", error) from error
    specials = list(names.values())
    if list(names) != list(range(count)) or not {str} >= set(map(type, specials)):
        raise damaged(source, "list of special_tokens", f"it must name the ids 0 to {count - 1}")
    if len(set(specials)) < len(specials):
        raise damaged(source, "list of special_tokens", "a token appears twice")
    return specials
