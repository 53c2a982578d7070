"""What always holds of structured answers, each as a check of its own, which planted faults must fail.

Shared are two tiny models of random weights with tokenizers that spell bytes: in GPT-2's alphabet, and as
tokens of single bytes beside pieces that have U+2581 for a space. A model of random weights says anything,
so what its answers have in common is what they were held to.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine import Engine, SamplingParams
from engine.errors import RequestError
from engine.generate.answer import Completion
from engine.generate.guide import GrammarGuide, Grammars
from engine.generate.request import completions
from engine.generate.structured import Choice, JsonObject, JsonSchema, Regex, Structure
from engine.tokenizer import Tokenizer
from tests.engine import tiny
from tests.engine.random_structures import random_patterns, random_schema
from tests.tokenizer.bytes_law import added_text

#: Goldens with tokenizers of the two kinds, and two tokens that end an answer in each.
VOCABULARIES = {"text-llama3": (492, 491), "text-gemma": (1, 2)}


@cache
def engine(name: str) -> Engine:
    """A model that has room for long answers, and more ids than its tokenizer has tokens."""
    with tempfile.TemporaryDirectory() as folder:
        made = tiny.text_folder(Path(folder), name, vocab_size=502, max_position_embeddings=4096)
        loaded = Engine.load(made)
        assert loaded.tokenizer and loaded.eos_ids is not None  # read before the folder goes
    return loaded


def answers(
    name: str, structures: Sequence[Structure], max_tokens: int = 3000, **params: Any
) -> list[Completion]:
    """One answer for each, all made together at temperature 1; quotes are likelier, so that names end."""
    model = engine(name)
    quote = model.tokenizer.encode('"', add_special_tokens=False)[-1]
    requests = [
        model.request(
            [40, 41 + seed % 60],
            SamplingParams(
                max_tokens=max_tokens,
                temperature=1.0,
                seed=seed,
                structured=structure,
                logit_bias={quote: 3.0},
                stop_token_ids=VOCABULARIES[name],
                **params,
            ),
        )
        for seed, structure in enumerate(structures)
    ]
    for _ in model._service(requests).pieces(requests):
        pass
    return [answer for request in requests for answer in completions(request)]


def check_document(schema: Any, text: str) -> None:
    """Raises where a text is no JSON, or not valid under the schema, formats and all."""
    document = json.loads(text)
    checker = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(schema, format_checker=checker).validate(document)


# -- masks -----------------------------------------------------------------------------------------

_TEXTS = (
    "a",
    "ab",
    " a",
    "the",
    " the",
    "é",
    "😀",
    "  ",
    "\n",
    "x<|eot|>",
    "<0x41>",
    "▁",
    "</s>",
    "0",
)


def masks_are_those_of_a_naive_run() -> None:
    """Of a choice, whose texts can be looked at: a token may come just if a text goes on with its bytes."""
    seen: Counter[str] = Counter()
    for name, ends in VOCABULARIES.items():
        tokenizer, n = engine(name).tokenizer, engine(name).spec.vocab_size
        text_token = tokenizer.encode("a", add_special_tokens=False)[-1]
        grammars = Grammars(tokenizer, n)
        for seed in range(30):
            rng = Random(seed)
            options = {
                "".join(rng.choices(_TEXTS, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 4))
            }
            stops = {*ends, text_token} if seed % 3 == 0 else {*ends}
            guide = grammars.guide(Choice(sorted(options)), stops)
            _walk(guide, tokenizer, n, {option.encode() for option in options}, stops, rng, seen)
    assert min(seen[what] for what in ("tokens", "complete", "parts of characters")) >= 10, seen


def _walk(
    guide: GrammarGuide,
    tokenizer: Tokenizer,
    n: int,
    options: Set[bytes],
    stops: Set[int],
    rng: Random,
    seen: Counter[str],
) -> None:
    """Down one way through the choice, each mask compared."""
    spelled = {
        token: _spelled(tokenizer, token)
        for token in range(n)
        if tokenizer.id_to_token(token) is not None and token not in tokenizer.special_ids
    }
    so_far = b""
    while True:
        allowed = {
            token
            for token, data in spelled.items()
            if data and token not in stops and any(o.startswith(so_far + data) for o in options)
        }
        complete = so_far in options
        expected = allowed | stops if complete else allowed
        mask = guide.mask()
        assert mask.shape == (n,)
        assert set(mask.nonzero().flatten().tolist()) == expected, (so_far, options)
        seen["complete"] += complete
        assert guide.done == (
            complete and all(o == so_far or not o.startswith(so_far) for o in options)
        )
        if not allowed:
            return
        token = rng.choice(sorted(allowed))
        guide.push(token)
        so_far += spelled[token]
        seen["tokens"] += 1
        seen["parts of characters"] += spelled[token] >= b"\x80"


def _spelled(tokenizer: Tokenizer, token: int) -> bytes:
    """What a stream shows of a token; its bytes where those are no characters."""
    text = added_text(tokenizer, [token])
    return (tokenizer.token_bytes(token) or b"") if "\ufffd" in text else text.encode()


def an_end_token_is_no_text() -> None:
    """Whatever its name is, and whatever the text may be."""
    for name, ends in VOCABULARIES.items():
        grammars = Grammars(engine(name).tokenizer, engine(name).spec.vocab_size)
        guide = grammars.guide(Regex("(?s:.{3,20})"), {*ends})
        mask = guide.mask()
        assert mask.sum() > 300
        assert not mask[list(ends)].any()


# -- answers ---------------------------------------------------------------------------------------


def documents_are_valid_under_their_schemas(n: int = 12) -> None:
    for name in VOCABULARIES:
        schemas = [random_schema(Random(seed)) for seed in range(n)]
        made = answers(name, [JsonSchema(schema) for schema in schemas])
        assert [answer.finish_reason for answer in made] == ["stop"] * n
        for schema, answer in zip(schemas, made, strict=True):
            check_document(schema, answer.text)


def patterns_match_their_answers(n: int = 20) -> None:
    for name in VOCABULARIES:
        patterns = list(random_patterns(Random(name), n))
        made = answers(name, [Regex(pattern) for pattern in patterns], max_tokens=500)
        assert [answer.finish_reason for answer in made] == ["stop"] * n
        for pattern, answer in zip(patterns, made, strict=True):
            assert re.fullmatch(pattern, answer.text), (pattern, answer.text)


def each_of_n_answers_follows_its_own() -> None:
    for name in VOCABULARIES:
        made = answers(name, [Choice(["a", "ab", "cd e"]), Regex("[0-9]{3,6}x")], n=4)
        assert len(made) == 8
        assert all(answer.text in ("a", "ab", "cd e") for answer in made[:4])
        assert all(re.fullmatch("[0-9]{3,6}x", answer.text) for answer in made[4:])
        assert len({answer.text for answer in made}) > 4


def answers_end_where_nothing_can_follow() -> None:
    """Without an end token too; and where something could, they go on until there is no room."""
    for name, ends in VOCABULARIES.items():
        model = engine(name)
        closed = SamplingParams(structured=Regex("[ab]{3}"), ignore_eos=True, max_tokens=9)
        assert model.generate([40], closed).finish_reason == "stop"
        open_ = SamplingParams(structured=Regex("a*"), ignore_eos=True, max_tokens=9)
        assert model.generate([40], open_).finish_reason == "length"
        ended = SamplingParams(
            structured=Regex("a*"),
            max_tokens=50,
            stop_token_ids=ends,
            logit_bias=dict.fromkeys(ends, 2.0),
            temperature=1.0,
            seed=3,
            n=12,
        )
        made: Any = model.generate([40], ended)
        last = {answer.token_ids[-1] for answer in made}
        assert last == set(ends), "each of the end tokens ends some answer"


def an_answer_may_be_told_to_be_longer_than_it_can() -> None:
    """What leaves no token is the error that it always is."""
    model = engine("text-llama3")
    params = SamplingParams(structured=Choice(["a"]), min_tokens=3, max_tokens=5)
    with pytest.raises(RequestError, match="no token is left"):
        model.generate([40], params)


def a_day_is_in_the_calendar() -> None:
    """Of a hundred years 24 or 25 have a 29th of February."""
    for name in VOCABULARIES:
        februaries = JsonSchema({"type": "string", "format": "date", "pattern": "-02-29$"})
        for answer in answers(name, [februaries] * 12):
            check_document({"format": "date"}, answer.text)


def any_object_is_one() -> None:
    for name in VOCABULARIES:
        made = answers(name, [JsonObject()] * 6, max_tokens=400)
        ended = [answer for answer in made if answer.finish_reason == "stop"]
        assert ended
        assert all(isinstance(json.loads(answer.text), dict) for answer in ended)


LAWS: dict[str, Callable[..., None]] = {
    law.__name__: law
    for law in (
        masks_are_those_of_a_naive_run,
        an_end_token_is_no_text,
        documents_are_valid_under_their_schemas,
        patterns_match_their_answers,
        each_of_n_answers_follows_its_own,
        answers_end_where_nothing_can_follow,
        an_answer_may_be_told_to_be_longer_than_it_can,
        a_day_is_in_the_calendar,
        any_object_is_one,
    )
}
