"""What a caller may give as a prompt, and which tokens end an answer: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import ModelFileError, RequestError

Prompt = str | Sequence[int]


def checked_ids(ids: Any, vocab_size: int) -> list[int]:
    """At least one token id, all of them known; raises RequestError else."""
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise RequestError(
            f"a prompt must be a text or a list of token ids, not a {type(ids).__name__}"
        )
    if not ids:
        raise RequestError("the prompt has no tokens; give at least one")
    for token in ids:
        if type(token) is not int:
            raise RequestError(f"{token!r:.60} is no token id: ids are integers")
        check_known(token, vocab_size)
    return list(ids)


def check_known(token: int, vocab_size: int) -> None:
    """Raises RequestError where the model has no such token."""
    if not 0 <= token < vocab_size:
        raise RequestError(f"token id {token} is unknown: the model has ids 0 to {vocab_size - 1}")


def is_list_of_prompts(prompt: Any) -> bool:
    """A list that holds texts or lists; an empty one holds no prompts, and gives no completions."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence):
        return False
    return all(isinstance(item, Sequence) for item in prompt)


def end_ids(config: Mapping[str, Any], where: str) -> frozenset[int]:
    """The end tokens that a config names; ModelFileError, which begins with `where`, if they are none."""
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise ModelFileError(
            f"{where}: eos_token_id must be an id or a list of ids, got {value!r:.60}"
        )
    return frozenset(ids)
