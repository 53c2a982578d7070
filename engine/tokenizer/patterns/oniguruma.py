"""Patterns written for Oniguruma, in Ruby's syntax, translated for the `regex` package.

Each construct is read, and what the two engines take in different ways is written in another one
that says the same; what is not known, or cannot be said exactly, is refused by its name.
Source: Oniguruma's RE documentation; where that is silent, its answers through the tokenizers
library.
"""

from __future__ import annotations

import unicodedata

import regex

from engine.tokenizer.patterns import names
from engine.tokenizer.patterns.names import UnsupportedPatternError, property_class, punctuation

# In Ruby's syntax ^ and $ stand at every line.
FLAGS = regex.MULTILINE

_INTERVAL = regex.compile(r"\{(?:(?<least>\d+)(?<comma>,(?<most>\d*))?|,(?<most>\d+))\}")
_OPTIONS = regex.compile(r"\(\?(?<on>[im]*)(?:-(?<off>[im]*))?(?<end>[:)])")
_PROPERTY = regex.compile(r"\\(?<p>[pP])\{(?<not>\^?)(?<name>\w+)\}")
_OFTEN = regex.compile(r"[*+?][?+]?")
_CODE_POINT = regex.compile(
    r"\\(?:x\{(?<hex>[0-9A-Fa-f]{1,6})\}|x(?<hex>[0-7]?[0-9A-Fa-f])(?![0-9A-Fa-f])|u(?<hex>[0-9A-Fa-f]{4}))"
)
_POSIX_CLASS = regex.compile(r"\[:(?<not>\^?)(?<name>\w+):\]")
_OPENINGS = regex.compile(r"\(\?(?:[:=!>]|<[=!])")
_NAMED = regex.compile(r"\(\?<[^\W\d]\w*>")
_PLACE = regex.compile(r"[\^$]|\\[AzZbBGK]|\(\?(?:[=!]|<[=!])")
_COMPLEMENT = regex.compile(r"\[\^|\\[PDS]")
_COMMENT = regex.compile(r"\(\?#[^)\\]*\)")

_SPECIAL = frozenset(r"\.^$*+?{}[]()|")

_DOTTED = "\u0130"

# Two letters that are one character in another case, such as "ss" for a sharp s.
_LIGATURES = frozenset(["ss", "ff", "fi", "fl", "st"])
_APOSTROPHES = "\u02bc\u02be"  # so do these with the letter beside them


# Real patterns have some hundred. `regex` writes out what is to stand often, so that a short
# pattern could fill the memory.
_LONGEST = 1 << 14
_MOST_COPIES = 100_000


def translated(pattern: str) -> str:
    """Return a pattern in the syntax of the `regex` package, to be compiled with FLAGS."""
    if len(pattern) > _LONGEST:
        raise UnsupportedPatternError(f"it has {len(pattern)} characters")
    try:
        reader = _Reader(pattern, capture=False)
        result = reader.whole()
        if reader.refers_back:
            result = _Reader(pattern, capture=True).whole()
        regex.compile(result, FLAGS)
    except regex.error as error:
        raise UnsupportedPatternError(str(error)) from error
    except RecursionError as error:
        raise UnsupportedPatternError("it is nested too deeply") from error
    return result


class _Reader:
    """Reads one pattern from left to right and writes it anew."""

    def __init__(self, pattern: str, capture: bool) -> None:
        """`capture` keeps groups to be referred to; without it they only hold together."""
        self.refers_back = False
        self._pattern = pattern
        self._at = 0
        self._capture = capture
        self._any_case = False
        self._letter = ""  # the letter before, where its case does not matter
        self._nested = False  # whether sets stand in sets, which is the syntax of version 1
        self._behind = 0  # how many lookbehinds are open
        self._copies = 0  # how many atoms there are once each is written as often as it must stand

    def whole(self) -> str:
        result = self._branches()
        if self._at < len(self._pattern):
            raise UnsupportedPatternError("it closes a group that is not open")
        return f"(?V1){result}" if self._nested else result

    def _next(self, size: int = 1) -> str:
        return self._pattern[self._at : self._at + size]

    def _take(self, form: regex.Pattern[str]) -> regex.Match[str] | None:
        found = form.match(self._pattern, self._at)
        if found:
            self._at = found.end()
        return found

    def _branches(self) -> str:
        """Read to the end of a group, or of the pattern."""
        parts = []
        while (character := self._next()) and character != ")":
            if character == "|":
                self._at += 1
                self._letter = ""
                parts.append(character)
            elif (options := _OPTIONS.match(self._pattern, self._at)) and options["end"] == ")":
                self._at = options.end()
                parts.append(self._with_options(options))  # to the end of the group, | and all
            elif not self._take(_COMMENT):
                parts.append(self._repeated())
        return "".join(parts)

    def _with_options(self, options: regex.Match[str]) -> str:
        """Read what follows under options, up to the group's end."""
        on, off = options["on"], options["off"] or ""
        outside = self._any_case
        self._any_case = ("i" in on or self._any_case) and "i" not in off
        body = self._branches()
        self._any_case = outside
        # What is "m" in Ruby is "s" elsewhere.
        flags = (on + "-" + off if off else on).replace("m", "s")
        return f"(?{flags}:{body})"

    def _repeated(self) -> str:
        """Read an atom and how often it stands."""
        start = self._at
        before = self._copies
        atom = self._atom()
        self._copies += 1
        source = self._pattern[start : self._at]
        while self._take(_COMMENT):
            pass
        if found := self._take(_OFTEN):
            often = str(found[0])
            if often in ("*+", "++", "?+"):
                self._check_direction(often)
        elif interval := self._take(_INTERVAL):
            often = self._interval(interval)
            self._copies += (self._copies - before) * max(int(interval["least"] or 0) - 1, 0)
            if self._copies > _MOST_COPIES:
                raise UnsupportedPatternError("it repeats too much too often")
            if often.endswith("}?") and not interval["comma"] and interval["least"]:
                atom, often = f"(?:{atom}{often[:-1]})", "?"  # an exact number knows no laziness
            elif self._next() == "+":
                self._at += 1
                atom, often = f"(?:{atom}{often})", "+"
        else:
            return atom
        if _PLACE.match(source):
            raise UnsupportedPatternError(f"it repeats {source}, which is a place")
        if self._take(_OFTEN) or self._take(_INTERVAL):
            raise UnsupportedPatternError(f"it repeats {source} twice")
        self._letter = ""
        return atom + often

    def _interval(self, interval: regex.Match[str]) -> str:
        least = interval["least"] or "0"
        most = interval["most"]
        if interval["comma"] is None and interval["least"]:
            often = f"{{{least}}}"
        else:
            often = f"{{{least},{most or ''}}}"
        if max(int(least), int(most or 0)) > 100_000 or (most and int(most) < int(least)):
            raise UnsupportedPatternError(f"it repeats something {interval[0]} times")
        if self._next() == "?":
            self._at += 1
            often += "?"
        return often

    def _atom(self) -> str:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "\\":
            return self._escape()
        if character == "[":
            self._letter = ""
            found = self._set()
            return self._cased_set(found) if self._any_case else found
        if character in "*+?":
            raise UnsupportedPatternError(f"nothing stands before its {character}")
        if character in "^$.":
            self._at += 1
            self._letter = ""
            # At the very end of a text no line begins.
            return r"^(?!\Z)" if character == "^" else character
        if _INTERVAL.match(self._pattern, self._at):
            raise UnsupportedPatternError("nothing stands before its {")
        self._at += 1
        return self._literal(character)

    def _group(self) -> str:
        behind = False
        if opening := self._take(_OPENINGS):
            start = opening[0]
            behind = start.startswith("(?<")
            if start == "(?>":
                self._check_direction(start)
        elif options := self._take(_OPTIONS):
            result = self._with_options(options)
            self._close()
            return result
        elif self._take(_NAMED):
            if self._capture:
                raise UnsupportedPatternError("it refers back to a group, and names groups")
            start = "(?:"
        elif self._next(2) == "(?":
            raise UnsupportedPatternError(f"it uses {self._next(3)}")
        else:
            self._at += 1
            start = "(" if self._capture else "(?:"
        outside = self._any_case
        self._behind += behind
        result = f"{start}{self._branches()})"
        self._behind -= behind
        self._any_case = outside
        self._close()
        return result

    def _check_direction(self, construct: str) -> None:
        """Raise for what comes out differently when it is read backwards, as `regex` does it."""
        if self._behind:
            raise UnsupportedPatternError(f"it uses {construct} in what it looks back at")

    def _close(self) -> None:
        if self._next() != ")":
            raise UnsupportedPatternError("it opens a group and does not close it")
        self._at += 1

    def _escape(self) -> str:
        """Read what begins with a backslash, outside of sets."""
        if found := self._take(_PROPERTY):
            self._letter = ""
            name = property_class(found)
            # A class is no letter, and has no other case.
            return f"(?-i:{name})" if self._any_case and name not in names.WITHOUT_CASE else name
        if character := self._code_point():
            return self._literal(character)
        name = self._next(2)[1:]
        self._at += 2
        if name in names.SAME_ESCAPES and name:
            self._letter = ""
            return f"\\{name}"
        if name in names.OTHER_ESCAPES:
            self._letter = ""
            if name == "R":
                self._check_direction(r"\R")
            return names.OTHER_ESCAPES[name]
        if name in "123456789" and name and not self._next().isdecimal():
            self.refers_back = True
            self._letter = ""
            if self._any_case:
                raise UnsupportedPatternError(f"it uses \\{name} without regard to case")
            return f"\\{name}"
        return self._literal(punctuation(name))

    def _code_point(self) -> str:
        """Read a character given by its number, if one stands here."""
        found = self._take(_CODE_POINT)
        return chr(int(found["hex"], 16)) if found and int(found["hex"], 16) < 0x110000 else ""

    def _literal(self, character: str) -> str:
        """Write one character that stands for itself."""
        before, self._letter = self._letter, ""
        if self._any_case:
            _check_case(character)
            if before + character.lower() in _LIGATURES:
                raise UnsupportedPatternError(
                    f"it uses {before + character!r} without regard to case"
                )
            self._letter = character.lower()
            if character in "iI":
                return "(?-i:[iI])"  # a dotted capital is another letter there
        return f"\\{character}" if character in _SPECIAL else character

    def _cased_set(self, text: str) -> str:
        """Write a set where case does not matter, so that a dotted capital i is a letter apart."""
        held = regex.fullmatch(text, _DOTTED, FLAGS)
        if bool(held) == bool(regex.fullmatch(text, _DOTTED, FLAGS | regex.IGNORECASE)):
            return text
        alone = f"(?-i:{_DOTTED})"
        return f"(?:{alone}|{text})" if held else f"(?:(?!{alone}){text})"

    def _set(self) -> str:
        """Read a set, from its bracket to the one that closes it."""
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        operands: list[list[str]] = [[]]
        first = True
        while (character := self._next()) != "]" or first:
            first = False
            if not character:
                raise UnsupportedPatternError("it opens a set and does not close it")
            if self._next(2) == "&&":
                self._at += 2
                operands.append([])
            else:
                operands[-1].append(self._member())
        self._at += 1
        if not all(operands):
            raise UnsupportedPatternError("it has an empty set")
        body = "".join(operands[0])
        if len(operands) > 1:
            body = "&&".join(self._inner(f"[{''.join(members)}]") for members in operands)
        if negated and _COMPLEMENT.search(body):
            return f"(?:(?![{body}])(?s:.))"  # `regex` gets some of these sets wrong
        return f"[{'^' if negated else ''}{body}]"

    def _member(self) -> str:
        """Read one member of a set: a class, another set, a character or a range of them."""
        if found := self._take(_POSIX_CLASS):
            name = found["name"]
            if name not in names.POSIX:
                raise UnsupportedPatternError(f"it uses {found[0]}")
            return self._class(f"[^{names.POSIX[name]}]" if found["not"] else names.POSIX[name])
        if self._next() == "[":
            return self._inner(self._set())
        if self._next() == "\\":
            if found := self._take(_PROPERTY):
                return self._class(property_class(found))
            name = self._next(2)[1:]
            if name and name in "dDsS":
                self._at += 2
                return self._class(f"\\{name}")
            if name in names.SET_ESCAPES:
                self._at += 2
                return self._class(names.SET_ESCAPES[name])
        low = self._character()
        if self._next() != "-" or self._next(2)[1:] in ("]", ""):
            return _in_set(low)
        self._at += 1
        if self._next() == "[" or self._next(2) == "&&":
            raise UnsupportedPatternError("it has a range that ends in a set")
        high = self._character()
        if high < low:
            raise UnsupportedPatternError(f"it has a range from {low!r} down to {high!r}")
        if self._any_case:
            for code in range(ord(low), ord(high) + 1):
                _check_case(chr(code))
        following = self._next(2)
        if following[:1] == "-" and following != "-]":
            raise UnsupportedPatternError("it has a range of ranges")
        return f"{_in_set(low)}-{_in_set(high)}"

    def _inner(self, text: str) -> str:
        """Return a set that stands in another one."""
        if self._any_case:
            raise UnsupportedPatternError("it has a set in a set without regard to case")
        self._nested = True
        return text

    def _class(self, text: str) -> str:
        """Return a class, behind which no range may begin."""
        if self._next() == "-" and self._next(2) != "-]":
            raise UnsupportedPatternError("it has a range that begins with a class")
        if self._any_case and text not in names.WITHOUT_CASE:
            raise UnsupportedPatternError(f"it uses {text} in a set without regard to case")
        return self._inner(text) if text.startswith("[^") else text

    def _character(self) -> str:
        """Read one character of a set."""
        if self._next() != "\\":
            character = self._next()
            self._at += 1
        elif not (character := self._code_point()):
            name = self._next(2)[1:]
            self._at += 2
            character = names.CONTROLS.get(name) or punctuation(name)
        if self._any_case:
            _check_case(character)
        return character


def _in_set(character: str) -> str:
    if character in r"\]^-[&|~":
        return f"\\{character}"
    known = {"\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f", "\v": r"\v"}
    return known.get(character) or (character if character.isprintable() else _code(character))


def _code(character: str) -> str:
    return f"\\U{ord(character):08x}"


def _check_case(character: str) -> None:
    """Raise for a character beyond ASCII that has another case, alone or with its neighbours."""
    if not character.isascii() and (
        character.casefold() != character
        or character.upper() != character
        or character in _APOSTROPHES
        or unicodedata.category(character).startswith("M")
    ):
        raise UnsupportedPatternError(f"it uses {character!r} without regard to case")
