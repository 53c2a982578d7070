"""Random JSON schemas and patterns whose answers are short: what a model of random weights is held to.

Everything is bounded, so that an answer ends by itself: texts and lists have a most, objects no names of
their own but a few, numbers two bounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

NAMES = (
    "a",
    "b",
    "ключ",
    "名前",
    "😀",
    'a"b\\c',
    "new\nline",
    "",
    "a/b~c",
    "\u0001",
    "été",
    "$ref",
)
TEXTS = (*NAMES, "a b", " ", "\u2581", "\x7f", "<|eot|>", "</s>", "null")
PATTERNS = ("^[a-c]{1,3}$", "^x[0-9]{0,2}$", "^(ab|[^a-z ]){2}$", "^.{1,2}é$", "^\\d\\w[^ -~]?$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6")

Schema = dict[str, Any]


def random_schema(rng: Random) -> Schema:
    """A schema of any kind, three levels deep, with definitions that it refers to."""
    definitions = {name: _schema(rng, 2, ()) for name in ("one", "t/w~o")}
    definitions["list"] = {
        "type": "object",
        "properties": {"value": _schema(rng, 3, ()), "next": {"$ref": "#/$defs/list"}},
        "required": ["value"],
        "additionalProperties": False,
    }
    references = ("#/$defs/one", "#/$defs/t~1w~0o", "#/$defs/list")
    return {**_schema(rng, 0, references), "$defs": definitions, "title": "a test"}


def keywords(schema: Any) -> Counter[str]:
    """How often each keyword stands in a schema (and each name in its data: it is for counting alone)."""
    if isinstance(schema, dict):
        return sum(map(keywords, schema.values()), Counter(list(schema)))
    return sum(map(keywords, schema), Counter()) if isinstance(schema, list) else Counter()


def _schema(rng: Random, depth: int, references: tuple[str, ...]) -> Schema:
    kinds: list[Callable[[], Schema]] = [
        lambda: _string(rng),
        lambda: _number(rng),
        lambda: {"type": rng.choice(["boolean", "null", ["boolean", "null"]])},
        lambda: {"const": _value(rng, depth)},
        lambda: {"enum": [_value(rng, depth) for _ in range(rng.randint(1, 4))]},
    ]
    if depth < 3:
        kinds = [
            *kinds[rng.randint(0, 4) :],
            lambda: _array(rng, depth + 1, references),
            lambda: _object(rng, depth + 1, references),
            lambda: _map(rng, depth + 1, references),
            lambda: _combined(rng, depth + 1, references),
        ]
    if references and depth:
        kinds.append(lambda: {"$ref": rng.choice(references)})
    return rng.choice(kinds)()


def _string(rng: Random) -> Schema:
    least = rng.randint(0, 3)
    return rng.choice(
        [
            {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 5)},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"type": "string", "pattern": "[0-9]", "maxLength": 4},
            {"type": "string", "format": rng.choice(FORMATS)},
        ]
    )


def _number(rng: Random) -> Schema:
    least = rng.randint(-1000, 1000)
    most = least + rng.randint(10, 2000)
    bounds = rng.choice(
        [
            {"minimum": least, "maximum": most},
            {"exclusiveMinimum": least, "exclusiveMaximum": most},
            {"minimum": least, "exclusiveMaximum": most, "multipleOf": rng.randint(2, 7)},
        ]
    )
    return {
        "type": "integer" if "multipleOf" in bounds else rng.choice(["integer", "number"]),
        **bounds,
    }


def _value(rng: Random, depth: int) -> Any:
    kinds = [None, True, rng.randint(-99, 99), rng.choice([0.5, -1.25, 1e-3]), rng.choice(TEXTS)]
    if depth < 3:
        kinds.append([_value(rng, depth + 1) for _ in range(rng.randint(0, 2))])
        kinds.append({rng.choice(NAMES): _value(rng, depth + 1) for _ in range(rng.randint(0, 2))})
    return rng.choice(kinds)


def _array(rng: Random, depth: int, references: tuple[str, ...]) -> Schema:
    least = rng.randint(0, 2)
    items = {"items": _schema(rng, depth, references), "minItems": least}
    if rng.random() < 0.3:
        first = [_schema(rng, depth, references) for _ in range(rng.randint(1, 2))]
        return {"type": "array", "prefixItems": first, "minItems": len(first), "items": False}
    return {"type": "array", **items, "maxItems": least + rng.randint(0, 2)}


def _object(rng: Random, depth: int, references: tuple[str, ...]) -> Schema:
    names = rng.sample(NAMES, rng.randint(0, 4))
    required = [name for name in names if rng.random() < 0.6]
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth, references) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _map(rng: Random, depth: int, references: tuple[str, ...]) -> Schema:
    """An object whose names are not known, but for those that it must have."""
    names = rng.sample(NAMES, rng.randint(0, 2))
    others = _schema(rng, depth, references)
    rest = rng.choice(
        [
            {"additionalProperties": others},
            {"patternProperties": {"^x[0-9]$": others}, "additionalProperties": False},
        ]
    )
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth, references) for name in names},
        "required": names,
        "minProperties": len(names) + rng.randint(0, 1),
        "maxProperties": len(names) + rng.randint(1, 2),
        **rest,
    }


def _combined(rng: Random, depth: int, references: tuple[str, ...]) -> Schema:
    schemas = [_schema(rng, depth, references) for _ in range(2)]
    named = _object(rng, depth, references)
    return rng.choice(
        [
            {"anyOf": schemas},
            {"oneOf": [{"type": "null"}, _string(rng), _number(rng)]},
            {"allOf": [named, {"type": "object"}]},
        ]
    )


# -- patterns --------------------------------------------------------------------------------------

_ATOMS = (
    *(
        "a",
        "b",
        "é",
        "名",
        "😀",
        " ",
        '"',
        "/",
        "\\.",
        "\\\\",
        "\\n",
        "[a-c]",
        "[^a-z\\n]",
        "[0-9]",
        "[A-Z_]",
    ),
    *("[é-ü]", ".", "[\\]x]", "\\x41", "<", "\\*", "(?:a*)", "(?:(?:ab)+)"),
)
_TIMES = ("", "", "?", "{2}", "{0,3}", "{1,2}", "{0,2}?")


def random_patterns(rng: Random, n: int) -> Iterator[str]:
    """Patterns that mean the same to Python's `re.fullmatch`, whatever its Unicode tables know."""
    for _ in range(n):
        yield _pattern(rng, 0)


def _pattern(rng: Random, depth: int) -> str:
    if depth == 3 or rng.random() < 0.2:
        return rng.choice(_ATOMS) + rng.choice(_TIMES)
    parts = [_pattern(rng, depth + 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        return f"(?:{'|'.join(parts)}){rng.choice(('', '?', '{1,2}'))}"
    return "".join(parts)
