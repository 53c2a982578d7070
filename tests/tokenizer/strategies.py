"""Hypothesis strategies: texts that tokenizers get wrong, and sequences of ids."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from hypothesis import strategies as st

# The reference's tables are of Unicode 16; what is younger it cannot know. U+0295 has since
# changed its class, and U+11938 its decomposition is unknown to the reference's normaliser.
_OTHERWISE_CLASSED = "\u0295\U00011938"

CHARACTERS = st.characters(exclude_categories=("Cs", "Cn"), exclude_characters=_OTHERWISE_CLASSED)
SPACES = st.text(
    st.sampled_from(" \t\n\r\x0b\x0c\x1c\x1d\x85\u00a0\u1680\u2003\u2028\u202f\u3000\u200b\u180e"),
    max_size=6,
)
MARKS = st.text(
    st.sampled_from("\u0301\u0300\u0327\u0323\u0302\u0308\u0345\u05ae\u0315\u3099\u0344"),
    max_size=4,
)
SCRIPTS = st.sampled_from(
    [
        "Hello, world! It's John's; WE'LL don't I'M you'Ve 'tis",
        "def f(x: int) -> str:\n    return f'{x:>10}'  # ok\n\n\tif (a != b) && c[0]++;\r\n",
        "1234567 3.14 -1e9 0x1F ²³ ½ ٣٤٥٦ Ⅷ 12,345",
        "東京は日本の首都です。中文字符，测试！",
        "\u1112\u1161\u11ab 한글 \u1100\u1161\u11a8",
        "👨‍👩‍👧 😀👍🏽 🇫🇷 ✊🏿",
        "Ελληνικά кириллица עברית العربية हिन्दी ไทย",
        "café cafe\u0301 \u212b \u212a's naïve Å A\u030a ﬁ ǅ ſ 'ſ ß",
        "tiếng Việt soubor hukuk larından unhappy  happy",
        "aaaaaaaaaaaa    ----====____!!!???///\\\\",
        "\x00\x01\x04\x06\x1b[0m\x7f\x80\ufeff\ufffd\ufffe\U0010ffff",
    ]
)


def texts(added: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of a few fragments each: any characters, spaces, marks, scripts, added tokens."""
    fragments = [st.text(CHARACTERS, max_size=8), SPACES, MARKS, SCRIPTS, _slices(SCRIPTS)]
    if added:
        tokens = st.sampled_from(added)
        fragments += [tokens, _slices(tokens)]
    return st.lists(st.one_of(fragments), max_size=8).map("".join)


def _slices(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(texts, st.integers(0, 20), st.integers(1, 20)).map(
        lambda cut: cut[0][cut[1] : cut[1] + cut[2]]
    )


def assigned(text: str) -> bool:
    """Whether every character existed when this Python's Unicode tables were made."""
    return all(unicodedata.category(c) != "Cn" and c not in _OTHERWISE_CLASSED for c in text)
