"""Follows an answer through a grammar: which tokens may come next. The grammar library is llguidance.

It works on bytes, so that whatever spells a text the grammar allows is allowed, in each way to cut it into
tokens. Shapes: V is the vocabulary of the model, which may have more ids than the tokenizer has tokens, or
fewer.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import LockstepError, RequestError
from engine.generate.structured import Structure
from engine.tokenizer import Tokenizer

MOST_COMPILED = 64  # grammars that are kept for the next request that asks for the same

# Any way to spell a text may be taken, not just the one that the tokenizer would choose.
_OPTIONS = '%llguidance {"no_forcing": true}\n'


class GrammarGuide:
    """A Guide: an answer on its way through a grammar.

    `ends` are the tokens that end the answer: they may come where it is complete, and nowhere else.
    """

    def __init__(self, matcher: Any, vocab_size: int, ends: Set[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._ends = torch.tensor(
            [end for end in sorted(ends) if end < vocab_size], dtype=torch.long
        )

    @property
    def done(self) -> bool:
        return bool(self._matcher.is_stopped())

    def mask(self) -> Tensor:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()
        mask, complete = allowed[: self._vocab_size], allowed[self._vocab_size]
        mask[self._ends] = complete
        return mask

    def push(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        """Raises RequestError once the library has given up, as it does where a grammar costs too much."""
        if self._matcher.is_error():
            raise RequestError(
                f"the answer cannot be followed any further: {_sentence(self._matcher.get_error())}"
            )


class Grammars:
    """The grammars that answers in one vocabulary are held to, compiled when first asked for.

    LockstepError without the library, RequestError where tokens have no bytes of their own.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._library = _library()
        self._vocabulary = self._library.LLTokenizer(
            self._library.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size))
        )
        self._compiled = lru_cache(MOST_COMPILED)(self._compile)

    def guide(self, structure: Structure, ends: Set[int]) -> GrammarGuide:
        """One for an answer that begins; RequestError where the library cannot follow the structure."""
        return GrammarGuide(self._compiled(structure).deep_copy(), self.vocab_size, ends)

    def _compile(self, structure: Structure) -> Any:
        name = type(structure).__name__
        matcher = self._library.LLMatcher(
            self._vocabulary, _OPTIONS + structure.grammar, log_level=0
        )
        warnings = [] if matcher.is_error() else matcher.get_grammar_warnings()
        if not matcher.is_error():
            matcher.compute_bitmask()  # some endless grammars are found out at the first token
        if matcher.is_error() or warnings:
            reason = matcher.get_error() or warnings[0]
            raise RequestError(f"an answer cannot be held to this {name}: {_sentence(reason)}")
        return matcher


class _Vocabulary:
    """Tokens as the library takes them: their bytes by id, and none for what spells no text.

    Its end token is one more, behind the model's own: it stands for all that end an answer.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.special_ids
        self.eos_token_id = vocab_size
        self.tokens = [
            b"" if token in special else _bytes(tokenizer, token) for token in range(vocab_size)
        ]
        self.tokens.append(b"<end of the answer>")

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def _bytes(tokenizer: Tokenizer, token: int) -> bytes:
    if tokenizer.id_to_token(token) is None:
        return b""
    spelled = tokenizer.token_bytes(token)
    if spelled is None:
        raise RequestError(
            "answers cannot be held to a structure with this tokenizer: what a token spells depends on "
            "the tokens beside it"
        )
    return spelled


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise LockstepError(
            "holding an answer to a structure needs the package llguidance: "
            "pip install 'lockstep-llm[structured]'"
        ) from error
    return llguidance


def _sentence(message: str) -> str:
    """The reason that the library gives, without the place and the picture of it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), lines[0])
    return reason.rpartition("failed to compile JSON schema: ")[2].removeprefix("error: ")[:300]
