"""Reads the model of a tokenizer.json."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.alphabet import CHARACTERS
from engine.tokenizer.formats.faults import damaged, unsupported
from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.models.model import Model


def read_model(spec: Any, source: str) -> Model:
    """Return the model that a file describes; `source` is for errors."""
    # Files of GPT-2's time leave the type out.
    if isinstance(spec, dict) and spec.get("type", "BPE") == "BPE" and "merges" in spec:
        return _byte_pair_model(spec, source)
    raise unsupported(source, "model", spec)


def _byte_pair_model(spec: dict[str, Any], source: str) -> BytePairModel:
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if spec.get(option):
            raise ModelFileError(
                f"{source}: the BPE option {option} is not supported in byte-level BPE"
            )
    vocab = _vocab(spec.get("vocab"), source)
    if spec.get("unk_token") and not all(character in vocab for character in CHARACTERS):
        raise ModelFileError(
            f"{source}: the BPE option unk_token is not supported in a vocabulary that lacks bytes"
        )
    try:
        merges = [_merge(entry) for entry in spec["merges"]]
        return BytePairModel(vocab, merges, bool(spec.get("ignore_merges")))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(source, "list of merges", error) from error


def _vocab(spec: Any, source: str) -> dict[str, int]:
    if not isinstance(spec, dict) or not all(
        type(token_id) is int and token_id >= 0 for token_id in spec.values()
    ):
        raise ModelFileError(f"{source}: the vocab must map tokens to ids from 0 up")
    return spec


def _merge(entry: Any) -> tuple[str, str]:
    left, right = entry.split(" ") if isinstance(entry, str) else entry
    return left, right
