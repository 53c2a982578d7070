"""What Oniguruma's escapes and names mean, in the syntax of the `regex` package.

A name that stands in none of these tables is not known to mean the same in both.
Source: read off the tokenizers library by asking it about each character.
"""

from __future__ import annotations

import regex

# Joiners are no word characters; alone, but not in a set, six digits and fractions of Latin 1 are.
WORD_IN_SET = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}"
WORD = rf"{WORD_IN_SET}\xb2\xb3\xb9\xbc-\xbe"
HEX = "0-9A-Fa-f"

SAME_ESCAPES = frozenset("tnrfvadDsSAGK")
OTHER_ESCAPES = {
    "e": r"\x1b",
    "w": f"[{WORD}]",
    "W": f"[^{WORD}]",
    "h": f"[{HEX}]",
    "H": f"[^{HEX}]",
    "b": f"(?:(?<=[{WORD}])(?![{WORD}])|(?<![{WORD}])(?=[{WORD}]))",
    "B": f"(?:(?<=[{WORD}])(?=[{WORD}])|(?<![{WORD}])(?![{WORD}]))",
    "Z": r"(?=\n?\Z)",
    "z": r"\Z",
    "R": r"(?>\r\n|[\n-\r\x85\u2028\u2029])",
    "N": r"[^\n]",
    "O": r"(?s:.)",
}
SET_ESCAPES = {"w": WORD_IN_SET, "W": f"[^{WORD_IN_SET}]", "h": HEX, "H": f"[^{HEX}]"}

POSIX = {
    "alnum": r"\p{Alphabetic}\p{Nd}",
    "alpha": r"\p{Alphabetic}",
    "ascii": r"\x00-\x7f",
    "blank": r"\p{Zs}\t",
    "cntrl": r"\p{Cc}",
    "digit": r"\p{Nd}",
    "graph": "[:graph:]",
    "lower": r"\p{Lowercase}",
    "print": "[:print:]",
    "punct": r"\p{P}\p{S}",
    "space": r"\s",
    "upper": r"\p{Uppercase}",
    "xdigit": HEX,
    "word": WORD_IN_SET,
}

CATEGORIES = frozenset(
    "L Lu Ll Lt LC Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc "
    "Cf Co Letter Uppercase_Letter Lowercase_Letter Titlecase_Letter Cased_Letter Modifier_Letter "
    "Other_Letter Mark Nonspacing_Mark Spacing_Mark Enclosing_Mark Number Decimal_Number "
    "Letter_Number Other_Number Punctuation Connector_Punctuation Dash_Punctuation "
    "Open_Punctuation Close_Punctuation Initial_Punctuation Final_Punctuation Other_Punctuation "
    "Symbol Math_Symbol Currency_Symbol Modifier_Symbol Other_Symbol Separator Space_Separator "
    "Line_Separator Paragraph_Separator Control Format Private_Use "
    "Alnum Alpha Blank Cntrl Digit Graph Lower Print Punct Space Upper ASCII Any Alphabetic "
    "Uppercase Lowercase White_Space Emoji Ideographic".split()
)
SCRIPTS = frozenset(
    "Arabic Armenian Bengali Bopomofo Braille Cherokee Common Coptic Cyrillic Devanagari Ethiopic "
    "Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew Hiragana Inherited Kannada Katakana Khmer "
    "Lao Latin Malayalam Mongolian Myanmar Ogham Oriya Runic Sinhala Syriac Tamil Telugu Thaana "
    "Thai Tibetan Yi".split()
)
# Classes that hold both cases of every letter they hold: case makes no difference to them.
WITHOUT_CASE = frozenset(r"\p{L} \p{N} \p{Nd} \p{P} \p{S} \p{Z} \p{C} \s \d".split()) | {
    WORD_IN_SET
}

CONTROLS = {
    "t": "\t",
    "n": "\n",
    "r": "\r",
    "f": "\f",
    "v": "\v",
    "a": "\a",
    "e": "\x1b",
    "b": "\b",
    "0": "\0",
}


class UnsupportedPatternError(ValueError):
    """A pattern that cannot be said exactly in the other syntax, or is none."""


def property_class(found: regex.Match[str]) -> str:
    """Return the class of a property, found as its sign p or P, `not` and its name."""
    name = found["name"]
    if name not in CATEGORIES and name not in SCRIPTS:
        raise UnsupportedPatternError(f"it uses {found[0]}")
    negated = (found["p"] == "P") != bool(found["not"])
    return f"\\{'P' if negated else 'p'}{{{name}}}"


def punctuation(name: str) -> str:
    """Return the character whose meaning a backslash takes; a letter it gives one, to be known."""
    if not name or name.isalnum() or name == "_":
        raise UnsupportedPatternError(f"it uses \\{name}")
    return name
