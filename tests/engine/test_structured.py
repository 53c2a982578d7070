"""Structured answers: what they were held to they are, however they are made, and nothing else is changed."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from conformance.golden import REPOSITORY_GOLDENS
from engine import Choice, Engine, Grammar, JsonSchema, Regex, SamplingParams
from engine.cache import PagedCache
from engine.errors import LockstepError, RequestError
from engine.generate.guide import Grammars
from engine.generate.request import completions
from engine.generate.scheduler import Scheduler
from engine.generate.speculation import PromptLookup
from engine.tokenizer import Tokenizer
from tests.engine import structured_laws as laws
from tests.engine import tiny
from tests.engine.random_structures import keywords, random_schema
from tests.engine.structured_laws import VOCABULARIES, answers, engine
from tests.test_architecture import OTHER_ENGINES, REFERENCE, loaded_after

one_thread = tiny.one_thread  # for this module
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "é"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SUM = 'start: NUMBER (("+" | "*") NUMBER){1,3}\nNUMBER: /[1-9][0-9]{0,2}/\n'


def draw(seed: int, **params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=200, temperature=1.0, seed=seed, **params)


@pytest.mark.parametrize("law", laws.LAWS)
def test_law_holds(law: str) -> None:
    """Those of random schemas and patterns on more of them than faults are shown."""
    hundred = law in ("documents_are_valid_under_their_schemas", "patterns_match_their_answers")
    laws.LAWS[law](*[100] * hundred)


# -- what the answers are --------------------------------------------------------------------------


def test_the_random_schemas_have_every_keyword_that_answers_are_held_to() -> None:
    used = sum((keywords(random_schema(Random(seed))) for seed in range(100)), keywords({}))
    for keyword in (
        *("anyOf", "oneOf", "allOf", "$ref", "const", "enum", "items", "prefixItems", "maxItems"),
        *("properties", "patternProperties", "additionalProperties", "required", "maxProperties"),
        *("minLength", "pattern", "format", "minimum", "exclusiveMaximum", "multipleOf"),
    ):
        assert used[keyword] >= 5, keyword


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_grammar_holds(name: str) -> None:
    made = answers(name, [Grammar(SUM)] * 8)
    assert len({answer.text for answer in made}) == 8
    for answer in made:
        assert answer.finish_reason == "stop"
        assert isinstance(ast.parse(answer.text, mode="eval").body, ast.BinOp)


def test_a_schema_inside_of_a_grammar_is_held_to() -> None:
    grammar = Grammar('start: "<<" %json {"type": "string", "format": "date"} ">>"\n')
    for answer in answers("text-gemma", [grammar] * 4):
        assert answer.text.startswith("<<") and answer.text.endswith(">>")
        laws.check_document({"format": "date"}, answer.text[2:-2])


@pytest.mark.parametrize("spelling", [json.dumps(RECORD), RECORD])
def test_a_schema_may_be_given_as_text(spelling: Any) -> None:
    made = [answer.text for answer in answers("text-llama3", [JsonSchema(spelling)] * 3)]
    assert made == [answer.text for answer in answers("text-llama3", [JsonSchema(RECORD)] * 3)]


def test_smollm2_is_held_to_schemas_and_patterns(asset: Callable[[str], Path]) -> None:
    model = Engine.load(asset("smollm2-135m"))
    small = {**RECORD, "properties": {**RECORD["properties"], "tags": {"const": ["a"]}}}
    structures = [
        JsonSchema(small),
        JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 4}),
    ]
    for seed in range(2):
        for structure, check in zip(structures, (small, {"type": "array"}), strict=True):
            params = draw(seed, structured=structure)
            answer = model.generate("A person as JSON:", params)
            assert answer.finish_reason == "stop"
            laws.check_document(check, answer.text)
    named = SamplingParams(max_tokens=8, structured=Choice(["London", "Paris", "Rome"]))
    assert model.generate("The capital of France is ", named).text == "Paris"


# -- how they are made -----------------------------------------------------------------------------


def test_streams_and_generates_the_same() -> None:
    params = draw(5, structured=JsonSchema(RECORD), n=2)
    whole: Any = engine("text-gemma").generate([40, 41], params)
    pieces = list(engine("text-gemma").stream([40, 41], params))
    for index, answer in enumerate(whole):
        assert "".join(piece.text for piece in pieces if piece.index == index) == answer.text


def test_requests_beside_it_change_nothing_and_are_not_changed() -> None:
    """With a structure and without, in one pass: each says what it says alone."""
    model = engine("text-llama3")
    asked = [
        draw(seed, structured=[None, JsonSchema(RECORD), Regex("[a-z ]{5,9}")][seed % 3])
        for seed in range(9)
    ]
    requests = [model.request([40, 41 + i], params) for i, params in enumerate(asked)]
    for _ in model._service(requests).pieces(requests):
        pass
    for i, (request, params) in enumerate(zip(requests, asked, strict=True)):
        alone: Any = model.generate([40, 41 + i], params)
        assert completions(request)[0].token_ids == alone.token_ids


def test_who_is_put_back_goes_on_where_the_structure_was() -> None:
    """A cache with room for one and a half: the younger request is computed anew, its guide is not."""
    model = engine("text-llama3")
    params = replace(draw(2, structured=Regex("([0-9]{2}@){24}")), max_tokens=80)
    cache = PagedCache(model.spec, 7, 16)
    scheduler = Scheduler(model.decoder, cache)
    requests = [model.request([40, 41 + i], params) for i in range(2)]
    for request in requests:
        scheduler.submit(request)
    while not scheduler.idle:
        scheduler.step()
    assert scheduler.counters.preempted
    for i, request in enumerate(requests):
        alone: Any = model.generate([40, 41 + i], params)
        assert completions(request)[0].token_ids == alone.token_ids


def test_drafts_change_nothing(tmp_path: Path) -> None:
    folder = tiny.text_folder(tmp_path, "text-llama3", vocab_size=500, max_position_embeddings=1024)
    plain, drafting = Engine.load(folder), Engine.load(folder, speculation=PromptLookup())
    for seed in range(4):
        params = draw(seed, structured=JsonSchema({"const": ["ab ab ab ab", "ab ab ab ab"]}))
        assert drafting.generate([40], params).token_ids == plain.generate([40], params).token_ids
    assert drafting.counters.accepted


def test_other_options_hold_as_well() -> None:
    """Bad words, biases and penalties choose among what the structure allows."""
    model = engine("text-llama3")
    options = Choice(["x1", "y1", "z1"])
    y, z = (model.tokenizer.encode(c, add_special_tokens=False)[-1] for c in "yz")
    params = SamplingParams(structured=options, bad_words_ids=[[z]], logit_bias={y: 50.0})
    assert model.generate([40], params).text == "y1"


def test_what_leaves_no_token_ends_that_request_alone() -> None:
    model = engine("text-llama3")
    banned = model.tokenizer.encode("a", add_special_tokens=False)
    scheduler = Scheduler(model.decoder, model.new_cache(64, 2))
    params = SamplingParams(max_tokens=8, structured=Choice(["ba"]))
    good = model.request([40], params)
    bad = model.request([40], replace(params, bad_words_ids=[banned]))
    said = []
    scheduler.submit(bad)
    scheduler.submit(good)
    while not scheduler.idle:
        said += scheduler.step()
    (error,) = [what for who, what in said if who is bad and isinstance(what, LockstepError)]
    assert "no token is left" in str(error)
    assert completions(good)[0].text == "ba"


def test_a_vocabulary_larger_or_smaller_than_the_models(tmp_path: Path) -> None:
    for n in (485, 1000):
        folder = tiny.text_folder(tmp_path / str(n), "text-llama3", vocab_size=n)
        made: Any = Engine.load(folder).generate([40], draw(1, structured=Regex("[ -~]{9}"), n=8))
        assert all(len(answer.text) == 9 and max(answer.token_ids) < n for answer in made)


# -- what is missing -------------------------------------------------------------------------------


def test_a_vocabulary_without_bytes_of_its_own_is_refused() -> None:
    for name in ("text-wordpiece", "text-words"):
        with pytest.raises(RequestError, match="cannot be held to a structure with this tokenizer"):
            Grammars(Tokenizer.load(REPOSITORY_GOLDENS / name), 300)


def test_what_no_token_spells_is_refused_before_anything_is_computed() -> None:
    """Its vocabulary lacks the bytes of characters beyond U+FFFF."""
    grammars = Grammars(Tokenizer.load(REPOSITORY_GOLDENS / "text-llama2"), 480)
    grammars.guide(Choice(["é名"]), set())
    with pytest.raises(RequestError, match="nothing can follow that the model's tokens spell"):
        grammars.guide(Choice(["😀"]), set())


def test_a_model_without_a_tokenizer_refuses(tmp_path: Path) -> None:
    model = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    with pytest.raises(RequestError, match="has no tokenizer"):
        model.generate([1], SamplingParams(structured=Choice(["a"])))


def test_without_the_library_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    tokenizer = engine("text-llama3").tokenizer
    with pytest.raises(LockstepError, match=r"pip install 'lockstep-llm\[structured\]'"):
        Grammars(tokenizer, 500)


def test_the_library_is_imported_when_it_is_used_and_brings_no_reference() -> None:
    assert "llguidance" not in loaded_after("import engine.generate, engine.generate.guide")
    assert not loaded_after("import llguidance") & (REFERENCE | OTHER_ENGINES)


def test_a_mask_is_made_anew_each_time() -> None:
    """Whoever writes into one changes nothing."""
    guide = Grammars(engine("text-gemma").tokenizer, 500).guide(Choice(["ab"]), {1})
    first = guide.mask()
    kept = first.clone()
    first[:] = True
    assert torch.equal(guide.mask(), kept)
