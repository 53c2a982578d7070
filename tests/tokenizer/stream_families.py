"""One small tokenizer for each kind of decoder that models have, and what their streams must show.

The specification decodes everything again for each question: quadratic, and plain to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from conformance.text_vocabularies import byte_alphabet
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import BYTE_LEVEL, added, definition, ours
from tests.tokenizer.plain_decoders import text_of

_SPECIAL = ["<s>", "</s>"]
_CONTROL = ["<think>"]


@dataclass(frozen=True)
class Family:
    """`byte` is the id of the token of byte 0; those of the others follow. None has no such tokens."""

    tokenizer: Tokenizer
    decoder: dict[str, Any] | None
    tokens: list[str]
    byte: int | None

    @property
    def size(self) -> int:
        """Ids below it are drawn; the last few have no token."""
        return len(self.tokens) + 3

    def text(self, ids: list[int], skip: bool) -> str:
        """What a stream of these ids says in all."""
        tokens = [self.tokens[token_id] for token_id in ids if token_id < len(self.tokens)]
        spoken = [token for token in tokens if not skip or token not in _SPECIAL]
        return text_of(self.decoder, spoken, streamed=True)

    def answer(self, prompt: list[int], ids: list[int], skip: bool) -> str:
        """What a stream of `ids` says after a prompt."""
        whole = self.text([*prompt, *ids], skip)
        return whole[len(_common(self.text(prompt, skip), whole)) :]

    def certain(self, prompt: list[int], ids: list[int], skip: bool) -> str:
        """What all answers that begin with these ids have in common, so far as bytes may follow."""
        ends: list[list[int]] = [[]]
        if self.byte is not None:
            bytes_ = ([0x80], [0x80] * 2, [0x80] * 3, [0xA0, 0x80], [0x90, 0x80, 0x80])
            ends += [[self.byte + byte for byte in more] for more in bytes_]
        return reduce(_common, [self.answer(prompt, [*ids, *end], skip) for end in ends])


def _common(a: str, b: str) -> str:
    """What both begin with."""
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return a[:same]


def family(decoder: dict[str, Any] | None, tokens: list[str], byte: int | None) -> Family:
    tokens = [*tokens, *_SPECIAL, *_CONTROL]
    file = definition(decoder=decoder)
    vocab = {token: i for i, token in enumerate(tokens)}
    file["model"] |= {"vocab": vocab, "merges": []}
    file["added_tokens"] = [added(token, vocab[token], special=True) for token in _SPECIAL]
    file["added_tokens"] += [added(token, vocab[token]) for token in _CONTROL]
    return Family(ours(file), decoder, tokens, byte)


def _from_spaces(*last: dict[str, Any]) -> dict[str, Any]:
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {"type": "Sequence", "decoders": [spaces, *({"type": t} for t in _BYTES), *last]}


_BYTES = ("ByteFallback", "Fuse")
_FALLBACK = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "é", "▁▁", "東"]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
_PIECES = {"type": "WordPiece", "prefix": "##", "cleanup": True}

FAMILIES = {
    "byte-level": family(BYTE_LEVEL, [*byte_alphabet(), "Ġa", "âĤ", "é x", "ðŁ", "ĺĢ"], 0),
    "llama2": family(_from_spaces(_STRIP), _FALLBACK, 0),
    "gemma3": family(_from_spaces(), _FALLBACK, 0),
    "metaspace": family(_METASPACE, ["▁", "▁a", "b", "▁▁", "a▁b", "é", "東"], None),
    "wordpiece": family(_PIECES, ["a", "##b", ".", "##.", "'", "n't", "do not", "東", "#"], None),
    "spaced": family(None, ["a", "b", " ", "é"], None),
}
