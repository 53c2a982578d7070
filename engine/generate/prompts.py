"""What a caller may give as a prompt, and which tokens end an answer: checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from engine.errors import ModelFileError, RequestError
from engine.generate.checks import shown
from engine.tokenizer import Encoding, Tokenizer

Prompt = str | Sequence[int]
_TEXT_OR_BYTES = str | bytes | bytearray | memoryview


def checked_ids(ids: Any, vocab_size: int) -> list[int]:
    """At least one token id, all of them known; raises RequestError else."""
    if not isinstance(ids, Sequence) or isinstance(ids, _TEXT_OR_BYTES):
        raise RequestError(
            f"a prompt must be a text or a list of token ids, not a {type(ids).__name__}"
        )
    if not ids:
        raise RequestError("the prompt has no tokens; give at least one")
    for token in ids:
        if type(token) is not int:
            raise RequestError(f"{shown(token)} is no token id: ids are integers")
        check_known(token, vocab_size)
    return list(ids)


def check_known(token: int, vocab_size: int) -> None:
    """Raises RequestError where the model has no such token."""
    if not 0 <= token < vocab_size:
        raise RequestError(
            f"token id {shown(token)} is unknown: the model has ids 0 to {vocab_size - 1}"
        )


def prompt_offsets(
    tokenizer: Tokenizer, prompt: Prompt, ids: Sequence[int], parse_special: bool
) -> list[int]:
    """For each token how many characters of the prompt come before its text, or the one it is a part of.

    Of a text they are its own; ids are decoded as an answer is, without special tokens.
    """
    if isinstance(prompt, str):
        encoding = tokenizer.encode_with_offsets(prompt, parse_special=parse_special)
        return _starts(encoding)[-len(ids) :]  # without a second BOS
    stream = tokenizer.stream(skip_special_tokens=True)
    ends = list(accumulate(len(stream.push(token)) for token in ids))
    return [0, *ends[:-1]]


def _starts(encoding: Encoding) -> list[int]:
    """Where tokens begin: where the one before ends, or within its last character.

    Some tokenizers leave the space before a word out of its offsets, and what was added has none.
    """
    starts, end = [], 0
    for (start, stop), added in zip(encoding.offsets, encoding.special_tokens_mask, strict=True):
        starts.append(end if added else min(start, end))
        end = end if added else stop
    return starts


def is_list_of_prompts(prompt: Any) -> bool:
    """A list that holds texts or lists; an empty one holds no prompts, and gives no completions."""
    if isinstance(prompt, _TEXT_OR_BYTES) or not isinstance(prompt, Sequence):
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
