"""Follows an answer through a grammar: which tokens may come next. The grammar library is llguidance.

It works on bytes, so that whatever spells a text the grammar allows is allowed, in each way to cut it into
tokens. Shapes: V is the vocabulary of the model, which may have more ids than the tokenizer has tokens, or
fewer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Set
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import LockstepError, RequestError
from engine.generate.structured import Structure
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_COMPILED = 64  # grammars that are kept for the next request that asks for the same
PATIENCE = 10.0  # seconds that the library may take to read a grammar that might be hard

# Whether a text can match several patterns at once takes the library twice as long with each one more,
# and none of its limits ends that. With this many it took milliseconds in all that was tried.
_EASY = 8
_TRIAL = """
import sys
from llguidance import LLMatcher, LLTokenizer
LLMatcher(LLTokenizer("byte"), sys.stdin.buffer.read().decode(), log_level=0)
"""

# Any way to spell a text may be taken, not just the one that the tokenizer would choose.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

# Each must be a token by itself: patterns and documents are made of them, one by one if need be.
_NEEDED = {bytes([byte]) for byte in range(0x20, 0x7F)}


class GrammarGuide:
    """A Guide: an answer on its way through a grammar.

    `ends` are the tokens that end the answer: they may come where it is complete, and nowhere else.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, ends: Set[int]) -> None:
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
        if self._matcher.is_error():
            raise RequestError(f"the answer cannot go on: {_fault(self._matcher)}")


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

    def _compile(self, structure: Structure) -> LLMatcher:
        name, grammar = type(structure).__name__, structure.grammar + _OPTIONS
        if _is_hard(grammar) and not _read_in_time(grammar):
            raise RequestError(
                f"an answer cannot be held to this {name}: reading it takes too long"
            )
        matcher: LLMatcher = self._library.LLMatcher(self._vocabulary, grammar, log_level=0)
        warnings = matcher.get_grammar_warnings()
        if not matcher.is_error():
            matcher.compute_bitmask()  # some faults show when a token is to be chosen
        if matcher.is_error() or warnings:
            reason = _fault(matcher) if matcher.is_error() else warnings[0]
            raise RequestError(f"an answer cannot be held to this {name}: {reason}")
        return matcher


def _is_hard(grammar: str) -> bool:
    """Whether it may ask of a text that it match more than a few patterns at once."""
    return grammar.count('"pattern"') + grammar.count("&") > _EASY


def _read_in_time(grammar: str) -> bool:
    """Tries it in a process of its own, as the library cannot be interrupted in ours."""
    command = [sys.executable, "-P", "-c", _TRIAL]
    try:
        subprocess.run(
            command, input=grammar.encode(), timeout=PATIENCE, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return True


class _Vocabulary:
    """Tokens as the library takes them: their bytes by id, and none for what spells no text.

    Its end token is one more, behind the model's own: it stands for all that end an answer.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.special_ids
        self.eos_token_id = vocab_size
        self.special_token_ids = [vocab_size]
        self.tokens = [
            b"" if token in special else _bytes(tokenizer, token) for token in range(vocab_size)
        ]
        if missing := _NEEDED.difference(self.tokens):
            raise RequestError(
                "answers cannot be held to a structure with this tokenizer: it has no token for "
                f"{min(missing).decode()!r} alone"
            )
        self.tokens.append(b"<end>")

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


def _fault(matcher: LLMatcher) -> str:
    """Why the library has given up, in one line, without its picture of the place and its own options."""
    lines = [line.strip() for line in matcher.get_error().splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), lines[0])
    if reason == "NoExtensionBias":
        return "nothing can follow that the model's tokens spell and that has an end"
    reason = reason.rpartition("failed to compile JSON schema: ")[2].removeprefix("error: ")
    return reason.partition(". Enable ")[0][:300]
