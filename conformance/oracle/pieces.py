"""SentencePiece and tiktoken as references, and tiny SentencePiece models trained for tests.

    python -m conformance.oracle.pieces tests/tokenizer/fixtures

trains the models that are committed, with the version of the library in constraints.txt.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sentencepiece
import tiktoken

CORPUS = (
    "The quick brown fox jumps over the lazy dog, and then it sleeps.",
    "Pack my box with five dozen liquor jugs; how vexingly quick daft zebras jump!",
    "In 2024 there were 365 days + 1, i.e. 366; that is 8,784 hours.",
    "for i in range(10):  print(i, end='')  # a comment, twice indented",
    "She sells sea shells on the sea shore, the shells she sells are sea shells.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Portez ce vieux whisky au juge blond qui fume; où est le garçon naïf?",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "いろはにほへと ちりぬるを わかよたれそ つねならむ",
    "天地玄黄 宇宙洪荒 日月盈昃 辰宿列张",
    "다람쥐 헌 쳇바퀴에 타고파 다람쥐 헌 쳇바퀴",
    "the then there these they them theme thesis other another mother bother",
    "aa aaa aaaa aaaaa ab aba abab ababa abba baab bb bbb bbbb",
)

_RULES = (
    "FF21\t41\nFF22\t42\n2026\t2E 2E 2E\n65 301\tE9\n61 301 323\t1EA1 301\nAD\t\n9\t20\nA\t20\n"
)

#: What `python -m conformance.oracle.pieces` trains, by the name of the file.
FIXTURES: dict[str, dict[str, Any]] = {
    "bpe-bytes": {
        "model_type": "bpe",
        "vocab_size": 520,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<sep>", "▁▁", "\n"],
        "character_coverage": 0.98,
    },
    "bpe-plain": {
        "model_type": "bpe",
        "vocab_size": 300,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
        "character_coverage": 0.98,
    },
    "unigram-rules": {
        "model_type": "unigram",
        "vocab_size": 330,
        "rules": _RULES,
        "user_defined_symbols": ["<sep>", "…"],
        "character_coverage": 0.98,
    },
}


def train(*, rules: str | None = None, **options: Any) -> bytes:
    """Return a model trained on `CORPUS`; `rules` are those of a normalizer, in its own form."""
    written = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        if rules is not None:
            (Path(folder) / "rules.tsv").write_text(rules, encoding="utf-8")
            options["normalization_rule_tsv"] = str(Path(folder) / "rules.tsv")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_writer=written,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
            **options,
        )
    return written.getvalue()


@dataclass(frozen=True)
class PieceEncoding:
    """Ids, pieces and [start, end) characters, as SentencePiece gives them.

    Of the pieces that share a character the last one has it, the others are empty.
    """

    ids: list[int]
    pieces: list[str]
    spans: list[tuple[int, int]]


class PieceReference:
    """One SentencePiece model in the library's hands."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def encode(self, text: str) -> PieceEncoding:
        found = self._processor.encode(text, return_type="offset_mapping")
        return PieceEncoding(found["ids"], found["pieces"], list(map(tuple, found["offsets"])))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode(list(ids)))


class RankReference:
    """One vocabulary of ranks in tiktoken's hands; no file of tiktoken's is fetched."""

    def __init__(
        self, ranks: Mapping[bytes, int], pattern: str, special_tokens: Mapping[str, int]
    ) -> None:
        self._encoding = tiktoken.Encoding(
            "ranks",
            pat_str=pattern,
            mergeable_ranks=dict(ranks),
            special_tokens=dict(special_tokens),
        )

    def encode(self, text: str, parse_special: bool = True) -> list[int]:
        if parse_special:
            return list(self._encoding.encode(text, allowed_special="all"))
        return list(self._encoding.encode(text, disallowed_special=()))

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode(list(ids))


def tiktoken_pattern(name: str) -> str:
    """Return the pattern of one of tiktoken's encodings."""
    return str(_tiktoken(name)["pat_str"])


def tiktoken_special_tokens(name: str) -> dict[str, int]:
    """Return the special tokens of one of tiktoken's encodings."""
    return dict(_tiktoken(name)["special_tokens"])


def _tiktoken(name: str) -> dict[str, Any]:
    """Return what tiktoken says of an encoding, without fetching its vocabulary."""
    from tiktoken_ext import openai_public

    with patch.object(openai_public, "load_tiktoken_bpe", lambda *_, **__: {}):
        return dict(getattr(openai_public, name)())


def main(folder: str) -> None:
    """Write the models of `FIXTURES` into a folder."""
    for name, options in FIXTURES.items():
        (Path(folder) / f"{name}.model").write_bytes(train(**options))


if __name__ == "__main__":
    main(sys.argv[1])
