"""What the small vocabularies are trained on, and how: counted in this file, the same everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import regex

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

CORPUS = """\
The unhappy tokenizer merges the pair of lowest rank first, and the happy one does too. They were
there when the others gathered; other authors thought otherwise. It's what we've done, isn't it?
She sells sea shells; the shells she sells are surely seashells. 2024 and 2025, 100 or 1000 times.
def merge(pairs, ranks):
    for left, right in pairs:
        if (left, right) in ranks:
            return left + right
        else:
            return None  # nothing to merge

The café, the naïve façade. über die Brücke, größer, schön. ďábelské kafé. tiếng Việt.
東京は日本の首都です。日本語、中文。 한국어 한글 삼겹살. Ελληνικά κείμενα. русский текст.
aaaa aaaaaaaa    ----    ====    !!! ??? 😀 👍 👨‍👩‍👧 … “quoted” – dashes — more.
"""


def byte_alphabet() -> list[str]:
    """Return GPT-2's spelling of the bytes 0 to 255, written from its rule once more.

    The engine has its own: a case must not share the table that it checks.
    """
    spelled = []
    moved = 256
    for byte in range(256):
        if chr(byte).isspace() or not chr(byte).isprintable():
            spelled.append(chr(moved))
            moved += 1
        else:
            spelled.append(chr(byte))
    return spelled


def train(pattern: str, merges: int, without_digits: bool = False) -> list[tuple[str, str]]:
    """Return the merges that byte-pair training finds among the corpus's words, spelled in bytes."""
    alphabet = byte_alphabet()
    words = (
        tuple(alphabet[byte] for byte in word.encode())
        for word in regex.findall(pattern, CORPUS)
        if not (without_digits and regex.search(r"\p{N}", word))
    )
    return train_on(words, merges)


def train_on(
    words: Iterable[Sequence[str]], merges: int, prefix: str = ""
) -> list[tuple[str, str]]:
    """Return the merges that byte-pair training finds; ties go to the smaller pair.

    `prefix` marks the symbols that do not begin a word; the right one of a pair gives it up.
    """
    counts = Counter(map(tuple, words))
    found = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in counts.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        found.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in counts.items():
            merged[_with_merge(word, best, prefix)] += count
        counts = merged
    return found


def _with_merge(word: Sequence[str], pair: tuple[str, str], prefix: str) -> tuple[str, ...]:
    symbols: list[str] = []
    for symbol in word:
        if symbols and (symbols[-1], symbol) == pair:
            symbols[-1] += symbol.removeprefix(prefix)
        else:
            symbols.append(symbol)
    return tuple(symbols)
