"""The text's part of an inspection: tokens of the prompt with how they came about, and of the answer.

Tokens are named by their ids; what an id is spelled like, and which bytes it stands for, is said once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from engine.generate.answer import Piece
from engine.tokenizer import Tokenizer
from engine.tokenizer.added import allowed_tokens
from engine.tokenizer.models.bpe import Merging
from engine.tokenizer.steps import Added, Word, steps
from engine.tokenizer.stream import TokenStream


def prompt_words(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], parse_special: bool
) -> dict[str, Any]:
    """The tokens of a text that was encoded as `ids`, the words they spell, and how those were cut.

    A token that the file's template puts around the text belongs to no word.
    """
    encoding = tokenizer.encode_with_offsets(text, parse_special=parse_special)
    encoding = encoding[len(encoding) - len(ids) :]  # a BOS that was there already is not added
    words = [_word(each) for each in steps(tokenizer, text, allowed_tokens(parse_special))]
    owners = [number for number, word in enumerate(words) for _ in word["ids"]]
    own = iter(owners)
    return {
        "text": text,
        "normalised": _normalised(tokenizer, text),
        "tokens": [
            {
                "id": token,
                "start": start,
                "end": end,
                "word": None if added else next(own),
            }
            for token, (start, end), added in zip(
                ids, encoding.offsets, encoding.special_tokens_mask, strict=True
            )
        ],
        "words": words,
        "special": sorted(tokenizer.special_ids.intersection(ids)),
    }


def _normalised(tokenizer: Tokenizer, text: str) -> str | None:
    """What the normalizer makes of the whole text, where that is another one."""
    normal = tokenizer.normalizer(text)
    return None if normal == text else normal


def _word(each: Word | Added) -> dict[str, Any]:
    if isinstance(each, Added):
        return {
            "text": each.text,
            "start": each.start,
            "end": each.end,
            "ids": [each.id],
            "how": "added",
        }
    return {
        "text": each.text,
        "start": each.start,
        "end": each.end,
        "ids": [part.id for part in each.parts],
        "how": "merged" if each.merging else "scored" if each.scores is not None else "looked up",
        "scores": each.scores,
        "rule": None if each.rule is None else asdict(each.rule),
        "pieces": [_piece(piece) for piece in each.merging],
    }


def _piece(piece: Merging) -> dict[str, Any]:
    return {
        "text": piece.text,
        "symbols": piece.symbols,
        "merges": None if piece.merges is None else [list(merge) for merge in piece.merges],
    }


def spellings(tokenizer: Tokenizer, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Of each id the token as the file spells it, the text and the bytes that it adds to a text."""
    found = {}
    for token in sorted(set(ids)):
        spelled = tokenizer.id_to_token(token)
        added = tokenizer.token_bytes(token)
        found[token] = {
            "spelled": spelled,
            "text": spelled if added is None else added.decode(errors="replace"),
            "bytes": None if added is None else added.hex(" "),
        }
    return found


class Streamed:
    """The answer as it was streamed: per token what came out, and what was held back and why.

    `text` is the answer's own, `decoder` a second stream of the same tokens that knows no stop strings.
    """

    def __init__(self, decoder: TokenStream | None) -> None:
        self._decoder = decoder
        self._decoded = self._out = 0
        self.rows: list[dict[str, Any]] = []

    def push(self, piece: Piece, ended: bool) -> None:
        """Takes the piece of one token; an end token has no text."""
        (token,) = piece.token_ids
        certain = "" if self._decoder is None or ended else self._decoder.push(token)
        if piece.finish_reason is not None and self._decoder is not None:
            certain += self._decoder.flush()
        self._decoded += len(certain)
        self._out += len(piece.text)
        self.rows.append(
            {
                "id": token,
                "certain": certain,
                "out": piece.text,
                "held": self._decoded - self._out,
                "finish": piece.finish_reason,
                "end": ended,
            }
        )
