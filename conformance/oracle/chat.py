"""Transformers' `apply_chat_template` as the reference, for any template and without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE


@cache
def _nobody() -> Any:
    """Return a tokenizer without a vocabulary: templates do not look at it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocab={}, merges=[])))


def apply_template(
    template: str,
    special_tokens: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> str | None:
    """Return a conversation as transformers renders it, None where it raises.

    `special_tokens` maps bos_token, eos_token, ... to their text; `options` are those of
    `apply_chat_template`.
    """
    try:
        text = _nobody().apply_chat_template(
            list(messages),
            chat_template=template,
            tokenize=False,
            **{**special_tokens, **options},
        )
    except Exception:  # a template raises what it likes
        return None
    return str(text)
