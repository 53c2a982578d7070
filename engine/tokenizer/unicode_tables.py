"""What the reference's older Unicode tables know, as bodies of character sets.

Most of the tokenizers library has the tables of Unicode 16. Three of the libraries that it uses
have not: categories (punctuation, marks, controls) are those of Unicode 8; normal forms, accents
and scripts those of Unicode 9. A younger character has no category, form or script there, and some have
since changed theirs. All of it was read off the library, by asking it about each character.
"""

from __future__ import annotations


def _set(ranges: str) -> str:
    """Return ranges of code points as the body of a set in a pattern."""
    return "".join("-".join(f"\\U{code:08x}" for code in pair) for pair in _bounds(ranges))


def _bounds(ranges: str) -> list[list[int]]:
    return [[int(bound, 16) for bound in part.split("-")] for part in ranges.split()]


# Assigned since Unicode 9, with what is unassigned between.
_SINCE_9 = _set(
    "558 560 588 58b-58c 5c8-5c9 5ef 61d 7fd-7ff 860-89f 8b5 8be-8d3 9fc-9fe a76 afa-aff "
    "b53-b55 c04 c3c c5c-c5d c77 c84 cdc-cdd cf3-d00 d04 d3b-d3c d81 e86 e89 e8c e8e-e93 e98 "
    "ea0 ea8-ea9 eac eba ece 170d 1715-171f 180f 1878 1abf-1af0 1b4c-1b4f 1b7d-1b7f 1c89-1cbf "
    "1cf7 1cfa 1df6-1dfa 208f 209d-209f 20bf-20c4 23ff 2427-2429 2b96-2b97 2bba-2bbc 2bc9 "
    "2bd2-2beb 2bf0-2bff 2c2f 2c5f 2e45-2e63 2ffc-2fff 312e-312f 31bb-31bf 31e4-31ef 32ff "
    "4db6-4dbf 9fd6-9fff a7af a7b8-a7f6 a82c a8fe-a8ff ab66-ab6d e000-f8ff fbc2-fbd2 fd40-fd4f "
    "fd90-fd91 fdc8-fdcf fdfe-fdff 1019c 1032d-1032f 10570-105f3 10780-107bf 10940-10959 "
    "10a34-10a35 10a48 10d00-10d8f 10e80-10ff6 11070-11075 110c2-110cd 11144-11147 111ce-111cf "
    "1123f-11241 1133b 11380-113e2 1145a 1145e-11461 116b8-116b9 116d0-116e3 1171a 11740-1183b "
    "11900-11abf 11b00-11bf9 11d00-11fff 1246f 12475-1247f 12550-12ff2 1342f-143fa 16100-16139 "
    "16a70-16ac9 16d40-16ed3 16f45-16f4f 16f7f-16f87 16fe1-16ff6 187ed-187ff 18af3-1affe "
    "1b002-1b2fb 1cc00-1cfc3 1d127-1d128 1d1e9-1d1ff 1d250-1d2f3 1d372-1d378 1d6a6 1db00-1dfff "
    "1e030-1e7fe 1e94b 1ec71-1ed3d 1f10d-1f10f 1f12f 1f16c-1f16f 1f1ad-1f1ae 1f260-1f265 "
    "1f6d3-1f6df 1f6f7-1f6fc 1f774-1f77f 1f7d5-1f7ff 1f8b0-1f90f 1f91f 1f928-1f92f 1f931-1f932 "
    "1f93f 1f94c-1f94f 1f95f-1f97f 1f992-1f9bf 1f9c1-1fbfa 2a6d7-2a6df 2b735-2b73f 2b81e "
    "2cea2-2ee5d 30000-3fc3f f0000-10fffd "
)

# Of those assigned in Unicode 9: punctuation, marks, and format characters.
_IN_9 = _set(
    "8d4-8e2 1885-1886 1dfb 2e43-2e44 a8c5 a9bd 1123e 11438-1143f 11442-11444 11446 1144b-1144f "
    "1145b 1145d 11660-1166c 11c30-11c36 11c38-11c3d 11c3f 11c41-11c45 11c70-11c71 11c92-11ca7 "
    "11caa-11cb0 11cb2-11cb3 11cb5-11cb6 1e000-1e006 1e008-1e018 1e01b-1e021 1e023-1e024 "
    "1e026-1e02a 1e944-1e94a 1e95e-1e95f "
)

_FORMLESS = (
    "558 58b-58c 5c8-5c9 7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1af0 1df6-1dfa "
    "209d-209f 32ff a7f1-a7f4 a82c ab69 105c9 105e4 10781-10785 10787-107b0 107b2-107bf "
    "10d24-10d27 10d69-10d6d 10eab-10eac 10ecb-10ecf 10ef0-10efb 10efd-10eff 10f46-10f50 "
    "10f82-10f85 11070 1133b 11383 11385 1138e 11391 113c5 113c7-113c8 113ce-113d0 1145e "
    "11839-1183a 11938 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97 "
    "11f41-11f42 16121-16128 1612f 16d68-16d6a 16ff0-16ff1 1b123-1b126 1ccd6-1ccf9 1d127-1d128 "
    "1d250-1d252 1d25b-1d25c 1d25f 1d280-1d281 1d6a6 1df95 1dfcd-1dfff 1e030-1e06d 1e08f "
    "1e130-1e136 1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1f16c "
    "1fbf0-1fbf9 "
    # These begin a pair that a younger normal form makes one character of.
    "105d2 105da 11382 11384 1138b 11390 113c2 11935 1611e 16129 16d63 16d67 "
)
FORMLESS = frozenset(
    chr(code) for pair in _bounds(_FORMLESS) for code in range(pair[0], pair[-1] + 1)
)
"""Characters whose normal form, or whose class as a mark, is younger than Unicode 9."""

SCRIPTLESS = rf"\p{{Cn}}{_SINCE_9}"

ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"

# U+166D and U+111C9 were punctuation once, U+1734 and U+1171E marks that take no space.
PUNCTUATION = rf"[\p{{P}}{ASCII_PUNCTUATION}\u166d\U000111c9](?<![{_SINCE_9}{_IN_9}])"
NOT_PUNCTUATION = rf"[^\s\p{{P}}{ASCII_PUNCTUATION}\u166d\U000111c9]"
MARK_WITHOUT_SPACE = rf"[\p{{Mn}}\u1734\U0001171e](?<![{_SINCE_9}{_IN_9}\U000111c9])"
# U+1CF2 and U+1CF3 were marks once.
MARK = rf"[\p{{M}}\u1cf2\u1cf3](?<![{_SINCE_9}\U000111c9])"
CONTROL = rf"\p{{Co}}|[\p{{Cc}}\p{{Cf}}](?<![{_SINCE_9}\u08e2\t\n\r])"
