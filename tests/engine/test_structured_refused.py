"""What an answer cannot be held to as a whole is refused before anything is computed, in one sentence."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from conformance.golden import REPOSITORY_GOLDENS
from engine import SamplingParams
from engine.errors import RequestError
from engine.generate import guide
from engine.generate.beam_params import BeamSearch
from engine.generate.guide import Grammars
from engine.generate.structured import (
    MOST_CHARACTERS,
    Choice,
    Grammar,
    JsonSchema,
    Regex,
    Structure,
)
from engine.tokenizer import Tokenizer


@cache
def grammars() -> Grammars:
    return Grammars(Tokenizer.load(REPOSITORY_GOLDENS / "text-llama3"), 500)


def accepts(structure: Structure, text: str) -> bool:
    """Whether an answer may be this text, spelled in single bytes where its characters have any."""
    following = grammars().guide(structure, {492})
    tokenizer = grammars_tokenizer()
    for token in tokenizer.encode(text, add_special_tokens=False, parse_special=False):
        if not following.mask()[token]:
            return False
        following.push(token)
    return bool(following.mask()[492])


@cache
def grammars_tokenizer() -> Tokenizer:
    return Tokenizer.load(REPOSITORY_GOLDENS / "text-llama3")


def pattern(text: str) -> dict[str, Any]:
    return {"type": "string", "pattern": text}


SCHEMAS: list[tuple[Any, str]] = [
    # Keywords that the library does not know of, or knows and does not have.
    ({"type": "string", "nullable": True}, "'nullable' at #"),
    ({"properties": {"a": {"minLenght": 3}}}, "'minLenght' at #/properties/a"),
    ({"anyOf": [{}, {"discriminator": {}}]}, "'discriminator' at #/anyOf/1"),
    ({"$defs": {"a": {"x-order": 1}}}, r"'x-order' at #/\$defs/a"),
    ({"x-guidance": {"lenient": True}, "type": "string"}, "'x-guidance' at #"),
    ({"properties": {"a": {"$id": "b"}}}, "'\\$id' at #/properties/a"),
    *(
        ({key: value}, re.escape(f"{key!r} at #"))
        for key, value in {
            "not": {},
            "if": {},
            "uniqueItems": True,
            "contains": {},
            "propertyNames": {},
            "dependentRequired": {},
            "dependentSchemas": {},
            "unevaluatedProperties": False,
            "unevaluatedItems": False,
            "additionalItems": False,
            "$dynamicRef": "#a",
            "$anchor": "a",
        }.items()
    ),
    # Formats and drafts.
    ({"type": "string", "format": "regex"}, "the format 'regex' at # cannot be held to"),
    ({"format": "unknown"}, "the format 'unknown' at # cannot be held to"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "drafts that are known are"),
    ({"items": [{"type": "null"}]}, "a JSON schema is an object, true or false"),
    ({"minimum": 3, "exclusiveMinimum": True}, "#/exclusiveMinimum must be a number"),
    # Patterns.
    (pattern("a(?=b)"), r"it has \(\?="),
    (pattern("(?<!a)b"), r"it has \(\?<"),
    (pattern("(?i)a"), r"it has \(\?i"),
    (pattern(r"(a)\1"), "backreferences are not supported"),
    (pattern(r"\bx"), "lookarounds not supported"),
    (pattern(r"\Aa"), r"it has \\A"),
    (pattern("[[:alpha:]]"), r"it has \["),
    (pattern("[a-z&&[aeiou]]"), "it has &&"),
    (pattern("[^]"), r"it has \[\^\]"),
    (pattern("("), "unclosed group"),
    ({"patternProperties": {"(?=a)": {}}}, r"at #/patternProperties cannot be held to"),
    ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "not disjoint"),
    # Values that no answer has, or that the library has not exactly.
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf constraints are not supported$"),
    ({"const": 2**53 + 1}, "#/const has 9007199254740993, which is too large"),
    ({"enum": [{"a": [-(2**60) - 1]}]}, "#/enum has .* too large"),
    ({"type": "integer", "minimum": 10**400}, "too large to be exact"),
    ({"type": "integer", "multipleOf": 999983}, "takes too long to follow"),
    ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 0.09967}]}, "takes too long to follow"),
    ({"type": "integer", "multipleOf": 0}, "invalid multiple of"),
    ({"type": "object", "minProperties": 2}, "minProperties at # cannot be held to"),
    (
        {"properties": {"a": {}}, "minProperties": 1, "type": "object"},
        "only supported when all keys",
    ),
    (False, "schema is false"),
    ({"enum": []}, "anyOf is empty"),
    (
        {"type": "integer", "minimum": 3, "maximum": 2},
        r"minimum \(3\) is greater than maximum \(2\)",
    ),
    ({"type": "string", "minLength": 5, "pattern": "^a$"}, "Regex is empty"),
    # References.
    ({"$ref": "https://example.com/a"}, "stays within the document"),
    ({"$ref": "#/$defs/missing"}, "where it has no schema"),
    ({"examples": [{"type": "string"}], "$ref": "#/examples/0"}, "where it has no schema"),
    ({"$ref": "#"}, "nothing can follow"),
    # What is no schema.
    (3, "a JSON schema is an object, true or false"),
    ("[1", "is no JSON"),
    ("{} {}", "is followed by"),
    ({"enum": [float("nan")]}, "is no JSON"),
    ('{"const": NaN}', "is no JSON"),
    ('{"multipleOf": NaN}', "#/multipleOf must be a number"),
    ('{"maximum": 1e999}', "#/maximum must be a number"),
    ({"enum": [{1, 2}]}, "is no JSON"),
    ({"enum": ["\ud800"]}, "failed to parse"),
    ({"type": "nope"}, "Invalid type: nope"),
    ({"minLength": -1}, "Expected positive integer"),
    ({"required": "a"}, "Expected array"),
    ({"properties": []}, "must map names to JSON schemas"),
    ({"anyOf": {}}, "must be a list of JSON schemas"),
    ({"type": "string", "pattern": 3}, "#/pattern must be a string"),
    ({"description": "x" * MOST_CHARACTERS}, "can have at most 1,000,000 characters"),
]

OTHERS: list[tuple[Any, Any, str]] = [
    (Regex, "a(?=b)", "look-ahead and look-behind, is not supported"),
    (Regex, r"(a)\1", "backreferences are not supported"),
    (Regex, r"\bx", "lookarounds not supported"),
    (Regex, "a$b", "lookarounds not supported"),
    (Regex, "(", "unclosed group"),
    (Regex, "", "a pattern must not be empty"),
    (Regex, None, "a pattern must be a string"),
    (Regex, "\ud800", "a pattern has half of a character"),
    (Choice, [], "a choice needs a list of options"),
    (Choice, "ab", "a choice needs a list of options"),
    (Choice, [1], "an option of a choice must be a string"),
    (Choice, ["a", ""], "an option of a choice must not be empty"),
    (Grammar, 'start: "a', "lexer error"),
    (Grammar, "start: a", 'unknown name: "a"'),
    (Grammar, 'other: "a"', "no start rule found"),
    (Grammar, "start: start", "nothing can follow"),
    (Grammar, "start: /a(?=b)/", "look-ahead and look-behind, is not supported"),
    (Grammar, 'start: <|eot|> "a"', "a grammar cannot have '<' here"),
    (Grammar, "start: <[5]>", "a grammar cannot have '<' here"),
    (Grammar, "start: @other", "a grammar cannot have '@' here"),
    (Grammar, 'start[temperature=0.5]: "a"', "a grammar cannot have 'temperature=' here"),
    (Grammar, 'start: a "c"\na[stop="b"]: /.*/', "a grammar cannot have 'stop=' here"),
    (Grammar, "start[max_tokens=3]: /a+/", "a grammar cannot have 'max_tokens=' here"),
    (Grammar, '%llguidance {}\nstart: "a"', "a grammar cannot have '%llguidance' here"),
    (Grammar, 'start: %json {"nullable": true}', "'nullable' at #"),
    (Grammar, "start: %json {", "is no JSON"),
]


@pytest.mark.parametrize(("schema", "message"), SCHEMAS)
def test_a_schema_that_cannot_be_held_to_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        grammars().guide(JsonSchema(schema), set())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("kind", "asked", "message"), OTHERS)
def test_what_else_cannot_be_held_to_is_refused(kind: Any, asked: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        grammars().guide(kind(asked), set())
    assert "\n" not in str(refused.value)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="nested too deeply"):
        JsonSchema(deep)
    with pytest.raises(RequestError, match="nested too deeply"):
        JsonSchema('{"items":' * 100_000)
    deep = {}
    for _ in range(200):
        deep = {"items": deep}
    with pytest.raises(RequestError, match="recursion limit exceeded"):
        grammars().guide(JsonSchema(deep), set())


OPTIONS = [
    *(
        "a/b",
        "\\",
        "\\n",
        "(",
        "[a]",
        "|",
        "^$.*+?",
        "{1}",
        "&&",
        "~",
        "#x",
        "// c",
        "<a>",
        '"',
        "'",
    ),
    *("a\nb", "\t", "\r\n", "\x00", "\x7f", "\u2028", " a  b ", "é", "e\u0301", "😀"),
]


@pytest.mark.parametrize("options", [[option] for option in OPTIONS] + [OPTIONS], ids=str)
def test_an_option_is_taken_literally(options: list[str]) -> None:
    for option in OPTIONS:
        assert accepts(Choice(options), option) == (option in options)


def test_there_may_be_many_options() -> None:
    options = [f"v{i}" for i in range(100_000)]
    assert accepts(Choice(options), "v99999")
    assert not accepts(Choice(options), "v100000")


def test_what_the_library_does_not_get_done_with_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether texts match all of these patterns takes it twice as long with each one more."""
    monkeypatch.setattr(guide, "PATIENCE", 1.0)
    many = [pattern(f"^.*[a-m].{{{n}}}$") for n in range(60)]
    kinds = " & ".join(f"/.*[a-m].{{{n}}}/" for n in range(60))
    chain = {f"a{n}": {**many[n], "$ref": f"#/$defs/a{n + 1}"} for n in range(59)}
    refers = {"$ref": "#/$defs/a0", "$defs": {**chain, "a59": many[59]}}
    for hard in (JsonSchema({"allOf": many}), JsonSchema(refers), Grammar(f"start: A\nA: {kinds}")):
        with pytest.raises(
            RequestError, match=f"held to this {type(hard).__name__}: .* takes too long"
        ):
            grammars().guide(hard, set())


def test_parameters_take_structures_alone() -> None:
    with pytest.raises(RequestError, match="structured must be a JsonSchema"):
        SamplingParams(structured={"type": "object"})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="beam search cannot be structured"):
        SamplingParams(structured=Choice(["a"]), beams=BeamSearch(2))
    with pytest.raises(RequestError, match="structured answer cannot begin with a forced token"):
        SamplingParams(structured=Choice(["a"]), forced_bos_token_id=1)
    assert hash(SamplingParams(structured=JsonSchema({"enum": [[1]]})))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        # ECMA-262, which JSON Schema asks for: digits and letters are ASCII's, lines end in four ways.
        (pattern(r"^\d$"), ["1"], ["٣"]),
        (pattern(r"^\w$"), ["a", "_"], ["é"]),
        (pattern(r"^\s$"), ["\u00a0", "\ufeff", "\u2028"], ["\u0085", "\u200b"]),
        (pattern(r"^\S$"), ["a", "\u0085"], ["\u00a0", "\ufeff"]),
        (pattern(r"^[\s\d]$"), ["\ufeff", "1"], ["a"]),
        (pattern("^.$"), ["a", "\u0085"], ["\n", "\r", "\u2028", "\u2029"]),
        (pattern("^[.]$"), ["."], ["a"]),
        (pattern("^a|b$"), ["ax", "xb"], ["xa"]),
        (pattern("a"), ["xa\ny"], ["x"]),
        # Formats: the calendar, and the clock.
        (
            {"format": "date"},
            ["2024-02-29", "2000-02-29", "2023-12-31"],
            ["2023-02-29", "1900-02-29"],
        ),
        ({"format": "date"}, ["0004-02-29"], ["2023-04-31", "0000-01-01", "2023-2-1"]),
        (
            {"format": "time"},
            ["23:59:59Z", "00:00:00.5+01:30"],
            ["23:59:60Z", "24:00:00Z", "01:00:00"],
        ),
        ({"format": "date-time"}, ["2024-02-29T23:59:59Z"], ["2023-02-29T00:00:00Z"]),
        ({"format": "ipv4"}, ["1.2.3.255"], ["1.2.3.256", "01.2.3.4"]),
        # Characters are counted, not bytes or escapes.
        ({"type": "string", "maxLength": 1}, ["😀", "\n", '"'], ["ab", "é" * 2]),
    ],
)
def test_a_schema_means_what_it_means_in_json_schema(
    schema: Any, valid: list[str], invalid: list[str]
) -> None:
    held_to = JsonSchema({"type": "string", **schema})
    assert [
        text for text in valid if not accepts(held_to, json.dumps(text, ensure_ascii=False))
    ] == []
    assert [
        text for text in invalid if accepts(held_to, json.dumps(text, ensure_ascii=False))
    ] == []
