"""Takes white space away.

White space is the property White_Space of Unicode Standard Annex 44, section 5.7: Python's own
`str.strip` takes four control characters more.
"""

from __future__ import annotations

from dataclasses import dataclass

WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)


@dataclass(frozen=True)
class Strip:
    """A Rewrite that takes the white space at the ends of a text away."""

    left: bool
    right: bool

    def __call__(self, text: str) -> str:
        if self.left:
            text = text.lstrip(WHITE_SPACE)
        return text.rstrip(WHITE_SPACE) if self.right else text

    def sources(self, text: str) -> range:
        start = len(text) - len(text.lstrip(WHITE_SPACE)) if self.left else 0
        return range(start, start + len(self(text)))
