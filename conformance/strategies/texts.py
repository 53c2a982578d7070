"""Texts and ids that tokenizers get wrong, and ways to cut either into pieces.

No text holds a character that is younger than this Python's Unicode tables, nor one of the two
below: the tables of an engine, of its pattern library and of the reference are seldom of one
version, and what is said of such a character tells the versions apart and nothing else. This is
the only exclusion.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from hypothesis import strategies as st

from conformance.text_vocabularies import byte_alphabet

# The class of U+0295 has changed since Unicode 16, and U+11938 got its decomposition in 13.
_OTHERWISE_CLASSED = "\u0295\U00011938"

#: Unassigned for good: beside the surrogates, in Arabic Presentation Forms, at the ends of planes.
NONCHARACTERS = "\ud7ff\ufdd0\ufdef\ufffe\uffff\U0001fffe\U0010ffff"

CHARACTERS = st.one_of(
    st.characters(exclude_categories=("Cs", "Cn"), exclude_characters=_OTHERWISE_CLASSED),
    st.sampled_from(NONCHARACTERS + "\ue000\ufffd\ufeff\x00"),
)

# All that Unicode calls White_Space, what only Python calls so (1C to 1F), and three that nobody does.
_SPACES = (
    " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u200b\u180e\u2060"
)
SPACES = st.one_of(
    st.text(st.sampled_from(_SPACES), max_size=6), st.sampled_from(["\r\n", "  ", " \n ", "   "])
)
MARKS = st.text(
    st.sampled_from(
        "\u0301\u0300\u0327\u0323\u0302\u0308\u0345\u05ae\u0315\u3099\u0344\u093c\u20dd"
    ),
    max_size=4,
)
SCRIPTS = st.sampled_from(
    [
        "Hello, world! It's John's; WE'LL don't I'M you'Ve 'tis",
        "def f(x: int) -> str:\n    return f'{x:>10}'  # ok\n\n\tif (a != b) && c[0]++;\r\n",
        "1234567 3.14 -1e9 0x1F ²³ ½ ٣٤٥٦ Ⅷ 12,345",
        "東京は日本の首都です。中文字符，测试！ー〇",
        "\u1112\u1161\u11ab 한글 \u1100\u1161\u11a8",
        "👨‍👩‍👧 😀👍🏽 🇫🇷 ✊🏿 👩🏾‍❤️‍💋‍👨🏻 🏴󠁧󠁢󠁳󠁣󠁴󠁿 1️⃣",
        "Ελληνικά ΑΣ ΑΣ. кириллица עברית العربية हिन्दी ไทย",
        "café cafe\u0301 \u212b \u212a's naïve Å A\u030a ﬁ ǅ ſ 'ſ ß İ ı ŉ",
        "tiếng Việt soubor hukuk larından unhappy  happy",
        "aaaaaaaaaaaa    ----====____!!!???///\\\\",
        "\x00\x01\x04\x06\x1b[0m\x7f\x80\ufeff\ufffd\ufffe\U0010ffff",
        "∑_{i=1}^∞ 1/i² = π²⁄6; ∀x∈ℝ: ‖x‖≥0",
    ]
)


def texts(
    vocabulary: Iterable[str] = (), added: Iterable[str] = (), max_fragments: int = 8
) -> st.SearchStrategy[str]:
    """Texts of a few fragments, each a known troublemaker or a few characters of any script.

    With a `vocabulary`, tokens as its file spells them: also those, their halves and two of them
    joined, so that words end where merges do. With `added` tokens: also those, parts of them, and
    white space around them. A fragment may be a run of up to 300.
    """
    fragments = [
        st.text(CHARACTERS, max_size=6), SPACES, MARKS, SCRIPTS, _parts(SCRIPTS), _runs(CHARACTERS)
    ]  # fmt: skip
    if tokens := [*dict.fromkeys(vocabulary)]:
        token = st.sampled_from(tokens).map(as_text)
        fragments += [token, _parts(token), st.tuples(token, token).map("".join), _runs(token)]
    if tokens := [*dict.fromkeys(added)]:
        token = st.sampled_from(tokens)
        fragments += [token, _parts(token), st.tuples(SPACES, token, SPACES).map("".join)]
    return st.lists(st.one_of(fragments), max_size=max_fragments).map("".join)


def as_text(token: str) -> str:
    """Return what a vocabulary's token stands for in a text, as far as its spelling says."""
    if all(character in _BYTE_OF for character in token):
        token = bytes(map(_BYTE_OF.__getitem__, token)).decode("utf-8", errors="ignore")
    return token.replace("▁", " ").removeprefix("##").removesuffix("</w>")


_BYTE_OF = {character: byte for byte, character in enumerate(byte_alphabet())}


def _parts(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """The beginning of a text, its end, or what lies between."""

    def part(text: str, place: int, which: str) -> str:
        at = place % (len(text) + 1)
        return {"before": text[:at], "behind": text[at:], "within": text[at : at + 3]}[which]

    return st.builds(
        part, texts, st.integers(0, 99), st.sampled_from(["before", "behind", "within"])
    )


def _runs(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    count = st.one_of(st.integers(1, 6), st.integers(1, 300))
    return st.tuples(texts, count).map(lambda run: (run[0] * run[1])[:300])


def assigned(text: str) -> bool:
    """Whether a text from elsewhere holds none of the characters that the strategies leave out."""
    return all(
        c in NONCHARACTERS or (unicodedata.category(c) != "Cn" and c not in _OTHERWISE_CLASSED)
        for c in text
    )


def token_ids(
    vocabulary: Mapping[str, int], special: Collection[int] = (), max_size: int = 30
) -> st.SearchStrategy[list[int]]:
    """Ids in any order: tokens, special ones, ids that no token has, and broken characters.

    Broken are runs of tokens that stand for one byte from 0x80 up, in GPT-2's spelling or as
    `<0x80>`; by chance they make a whole character.
    """
    broken = [i for token, i in vocabulary.items() if _byte(token) >= 0x80]
    known = sorted({*vocabulary.values(), *special})
    top = max(known, default=0)
    kinds = [st.integers(0, top + 300).map(lambda i: [i])]
    kinds += [st.sampled_from(some).map(lambda i: [i]) for some in (known, sorted(special)) if some]
    if broken:
        kinds.append(st.lists(st.sampled_from(broken), min_size=1, max_size=6))
        whole = CHARACTERS.map(lambda c: [i for b in c.encode() for i in by_byte.get(b, ())])
        by_byte: dict[int, list[int]] = {}
        for token, i in vocabulary.items():
            by_byte.setdefault(_byte(token), [i])
        kinds.append(whole)
    return st.lists(st.one_of(kinds), max_size=max_size).map(
        lambda groups: [i for group in groups for i in group][:max_size]
    )


def _byte(token: str) -> int:
    """Return the byte that a token stands for, -1 if it is another kind of token."""
    if len(token) == 1:
        return _BYTE_OF.get(token, -1)
    spelled = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return int(spelled[1], 16) if spelled else -1


T = TypeVar("T", bound=Sequence[object])


def partitions(whole: T) -> st.SearchStrategy[list[T]]:
    """Every way to cut a text or a list into pieces that are not empty; one piece first."""
    if len(whole) < 2:
        return st.just([whole] if len(whole) else [])

    def pieces(cuts: set[int]) -> list[T]:
        at = [0, *sorted(cuts), len(whole)]
        return [whole[a:b] for a, b in pairwise(at)]  # type: ignore[misc]

    return st.sets(st.integers(1, len(whole) - 1)).map(pieces)
