"""Rewrites of single characters by the class they belong to: accents, controls, odd spaces."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from engine.tokenizer.aligned import Chain, Rewrite
from engine.tokenizer.normalize.case import Lowercase
from engine.tokenizer.normalize.forms import UnicodeForm
from engine.tokenizer.unicode_tables import CONTROL, MARK, MARK_WITHOUT_SPACE


class Substitute:
    """A Rewrite that puts `template` in the place of every character that a pattern matches."""

    def __init__(self, character: str, template: str) -> None:
        """The pattern matches one character at a time; `template` is that of `regex.sub`."""
        self._pattern = regex.compile(character)
        self._template = template

    def __call__(self, text: str) -> str:
        return str(self._pattern.sub(self._template, text))

    def sources(self, text: str) -> Sequence[int]:
        sources: list[int] = []
        done = 0
        for match in self._pattern.finditer(text):
            start, end = match.span()
            sources.extend(range(done, start))
            sources.extend([start] * len(match.expand(self._template)))
            done = end
        if not done:
            return range(len(text))
        sources.extend(range(done, len(text)))
        return sources


STRIP_ACCENTS = Substitute(MARK, "")

# SentencePiece's rule "nmt": it drops control characters, and knows more spaces than Unicode.
NMT = Chain(
    (
        Substitute(r"[\x01-\x08\x0b\x0e-\x1f\x7f\x8f\x9f]", ""),
        Substitute(r"[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]", " "),
    )
)

# BERT's idea of a Chinese character: Devlin et al. 2018, the tokenizer published with BERT; the
# last but two of the ranges begins later there.
_CHINESE = (
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f"
    r"\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)


def bert_normalizer(clean: bool, chinese: bool, strip_accents: bool, lowercase: bool) -> Chain:
    """Return BERT's clean-up: controls and odd spaces, spaces around Chinese, accents, capitals."""
    steps: list[Rewrite] = []
    if clean:
        steps += [Substitute(rf"[\x00\ufffd]|{CONTROL}", ""), Substitute(r"\s", " ")]
    if chinese:
        steps += [Substitute(_CHINESE, r" \g<0> ")]
    if strip_accents:
        steps += [UnicodeForm("NFD"), Substitute(MARK_WITHOUT_SPACE, "")]
    if lowercase:
        steps += [Lowercase()]
    return Chain(tuple(steps))
