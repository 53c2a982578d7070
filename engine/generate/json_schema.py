"""JSON schemas as the grammar library takes them: what it would pass over is refused, what it reads otherwise is rewritten.

The library (llguidance) refuses much by itself, but not all: a keyword that it has never heard of counts
for nothing, names in `additionalProperties` may come twice, some formats are held to their look alone,
and patterns are read as Rust's. Source of the meaning: JSON Schema 2020-12, and ECMA-262 for patterns.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Set
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from engine.errors import RequestError
from engine.generate.checks import require

#: Drafts whose keywords mean what those of 2020-12 mean, as far as they are taken here.
_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
)
_ANNOTATIONS = frozenset(
    "$comment $schema title description default examples deprecated readOnly writeOnly "
    "contentEncoding contentMediaType contentSchema".split()
)
_SCHEMA = frozenset("items additionalProperties".split())
_SCHEMAS = frozenset("prefixItems anyOf oneOf allOf".split())
_NAMED_SCHEMAS = frozenset("properties patternProperties $defs definitions".split())
_NUMBERS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
_HELD_TO = (_SCHEMA | _SCHEMAS | _NAMED_SCHEMAS | _NUMBERS).union(
    "type enum const required pattern format $ref".split(),
    "minLength maxLength minItems maxItems minProperties maxProperties".split(),
)

#: The library counts remainders: what numbers are multiples of costs time by its size.
MOST_STEPS = 10_000

#: White space between the parts of a document: without a bound a model could write nothing else.
_SPACE = {"whitespace_pattern": r"[ \t\r\n]{1,16}"}

_TOO_DEEP = "the JSON schema is nested too deeply"

_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = (
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"  # Gregorian
)
_DAY = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
#: What a format means beyond its look (RFC 3339, section 5.7): days that are in the calendar, and
#: no leap seconds, which are not in every minute. Other formats are what the library makes of them.
_FORMATS = {
    "date": f"^{_DAY}$",
    "time": "^[0-9]{2}:[0-9]{2}:[0-5]",
    "date-time": f"^{_DAY}[Tt][0-9]{{2}}:[0-9]{{2}}:[0-5]",
    **dict.fromkeys(("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"), ""),
}

# In ECMA-262: WhiteSpace and LineTerminator, as ranges; and what a dot does not match.
_ECMA_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ECMA = {
    ".": r"[^\n\r\u2028\u2029]",
    r"\s": f"[{_ECMA_SPACE}]",
    r"\S": f"[^{_ECMA_SPACE}]",
}
_PART = re.compile(r"\\.|\[\^?\]?|\(\?.?|&&|~~|--|.", re.DOTALL)
# What means something in Rust, and nothing or another thing in ECMA-262.
_RUST_ALONE = (r"\A", r"\z", r"\a", r"\U")
_RUST_IN_CLASS = ("&&", "~~", "--")


def written(schema: Any) -> str:
    """A schema as JSON text, its properties in their order; RequestError where it is no JSON."""
    try:
        return json.dumps(schema, allow_nan=False)
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"the JSON schema is no JSON: {error}") from None


def read(text: str) -> Any:
    """A schema of JSON text; RequestError where it is none."""
    schema, end = read_at(text, len(text) - len(text.lstrip()))
    require(not text[end:].strip(), f"the JSON schema is followed by {text[end:].strip()!r:.60}")
    return schema


def read_at(text: str, start: int) -> tuple[Any, int]:
    """The schema that begins there, and where it ends."""
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except ValueError as error:
        raise RequestError(f"the JSON schema is no JSON: {error}") from None


def prepared(schema: Any) -> str:
    """JSON text for the library, of a schema that was read; RequestError for what cannot be held to as a whole."""
    try:
        return written(_Schemas().rewritten_root(schema))
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None


class _Schemas:
    """Every schema of a document by its JSON pointer, and the references between them."""

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.references: dict[str, str] = {}
        self.steps: set[Fraction] = set()  # of numbers: what they are multiples of

    def rewritten_root(self, schema: Any) -> Any:
        rewritten = self.rewritten(schema, "#")
        for place, reference in self.references.items():
            require(
                unquote(reference) in self.places,
                f"the JSON schema refers to {reference!r:.80} at {place}, where it has no schema; "
                "a reference begins with # and stays within the document",
            )
        require(
            _lcm(self.steps) <= MOST_STEPS,
            f"the multipleOf of the JSON schema have no common multiple up to {MOST_STEPS:,} of their "
            "last place, which takes too long to follow",
        )
        if rewritten is True:
            rewritten = {}
        return {**rewritten, "x-guidance": _SPACE} if isinstance(rewritten, dict) else rewritten

    def rewritten(self, schema: Any, place: str) -> Any:
        """One schema of the document, and all within it, as the library is to have them."""
        self.places.add(place)
        if isinstance(schema, bool):
            return schema
        require(
            isinstance(schema, Mapping) and all(isinstance(key, str) for key in schema),
            f"a JSON schema is an object, true or false, got {schema!r:.60} at {place}",
        )
        known = _HELD_TO | _ANNOTATIONS | ({"$id"} if place == "#" else set())
        if unknown := sorted(schema.keys() - known):
            raise RequestError(
                f"the JSON schema has {', '.join(map(repr, unknown)):.200} at {place}, which an answer "
                f"cannot be held to; what it can be held to is {', '.join(sorted(_HELD_TO))}"
            )
        _check_values(schema, place)
        new = {key: self._value(key, value, place) for key, value in schema.items()}
        new.pop("$schema", None)  # all are read as 2020-12
        new.pop("$id", None)
        if "$ref" in schema:
            self.references[place] = schema["$ref"]
        if "multipleOf" in schema:
            self.steps.add(Fraction(str(schema["multipleOf"])))
        if narrower := _FORMATS.get(schema.get("format", ""), ""):
            new["allOf"] = [*new.get("allOf", ()), {"pattern": narrower}]
        return new

    def _value(self, key: str, value: Any, place: str) -> Any:
        place = f"{place}/{key}"
        if key in _SCHEMA:
            return self.rewritten(value, place)
        if key in _SCHEMAS:
            require(isinstance(value, list | tuple), f"{place} must be a list of JSON schemas")
            return [self.rewritten(each, f"{place}/{i}") for i, each in enumerate(value)]
        if key in _NAMED_SCHEMAS:
            require(isinstance(value, Mapping), f"{place} must map names to JSON schemas")
            named = {
                name: self.rewritten(each, f"{place}/{_escaped(str(name))}")
                for name, each in value.items()
            }
            if key != "patternProperties":
                return named
            return {_as_rust(str(name), place): each for name, each in named.items()}
        return _as_rust(value, place) if key == "pattern" else value


def _check_values(schema: Mapping[str, Any], place: str) -> None:
    """Raises RequestError for values that the library would pass over or take for others."""
    draft = schema.get("$schema", _DRAFTS[0])
    require(
        isinstance(draft, str) and draft.rstrip("#") in _DRAFTS,
        f"the JSON schema follows {draft!r:.60}; drafts that are known are {', '.join(_DRAFTS)}",
    )
    for key in _NUMBERS & schema.keys():
        value = schema[key]
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        require(
            is_number and not isinstance(value, bool),
            f"{place}/{key} must be a number, got {value!r:.60}",
        )
    for key in ("const", "enum", *_NUMBERS):
        _check_exact(schema.get(key), f"{place}/{key}")
    for key in ("format", "pattern", "$ref"):
        value = schema.get(key, "")
        require(isinstance(value, str), f"{place}/{key} must be a string, got {value!r:.60}")
    if "format" in schema:
        require(
            schema["format"] in _FORMATS,
            f"the format {schema['format']!r:.60} at {place} cannot be held to; "
            f"those that can are {', '.join(_FORMATS)}",
        )
    if "minProperties" in schema:
        required = schema.get("required", ())
        certain = len(set(required)) if isinstance(required, list | tuple) else 0
        least = schema["minProperties"]
        # The library lets the names of other properties come twice: for a reader they are one.
        require(
            isinstance(least, int) and least <= certain + 1,
            f"minProperties at {place} cannot be held to; name the properties and list them as required",
        )


def _check_exact(value: Any, place: str) -> None:
    """Raises RequestError for whole numbers that a double would round: the library has no others."""
    match value:
        case int():
            require(
                value == _rounded(value),
                f"{place} has {value!r:.40}, which is too large to be exact",
            )
        case list() | tuple():
            for each in value:
                _check_exact(each, place)
        case Mapping():
            for each in value.values():
                _check_exact(each, place)


def _lcm(steps: Set[Fraction]) -> int:
    """The least common multiple, in units of the last place that any of them has, without zeros at its end."""
    unit = math.lcm(*(step.denominator for step in steps))
    multiple = math.lcm(*(abs(int(step * unit)) for step in steps))
    while multiple and multiple % 10 == 0:
        multiple //= 10
    return multiple


def _rounded(value: int) -> int | None:
    try:
        return int(float(value))
    except OverflowError:
        return None


def _as_rust(pattern: str, place: str) -> str:
    """A pattern of ECMA-262 in the library's syntax; RequestError for what means another thing there."""
    out, in_class = [], False
    for part in _PART.findall(pattern):
        if in_class:
            means_other = part in _RUST_IN_CLASS or part.startswith("[")
        else:
            means_other = part in ("[]", "[^]") or (part.startswith("(?") and part != "(?:")
        require(
            not means_other and part not in _RUST_ALONE,
            f"the pattern {pattern!r:.80} at {place} cannot be held to: it has {part}",
        )
        out.append(part if in_class and part == "." else _ECMA.get(part, part))
        in_class = part != "]" if in_class else part.startswith("[")
    return "".join(out)


def _escaped(name: str) -> str:
    """A name as a JSON pointer has it (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
