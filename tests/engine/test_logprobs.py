"""Where log-probabilities stand in the text, and what is listed among them.

Offsets are held against decoding everything again for each token, on every kind of vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import texts
from engine import Engine, SamplingParams, Tokenizer
from engine.command import json_text
from engine.generate.answer import TokenLogprob
from engine.generate.prompts import prompt_offsets
from tests.engine import tiny
from tests.engine.test_streaming import script
from tests.tokenizer.stream_families import FAMILIES, Family

GOLDENS = Path(__file__).parents[2] / "golden"


def slices(text: str, offsets: Sequence[int]) -> list[str]:
    """The text of each token: from where it begins to where the next one does."""
    assert offsets[0] == 0
    assert list(offsets) == sorted(offsets)
    return [text[a:b] for a, b in pairwise([*offsets, len(text)])]


# -- of answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@tiny.examples(40)
@given(data=st.data())
def test_entries_of_an_answer_stand_where_its_text_does(
    engine: Engine, name: str, data: st.DataObject
) -> None:
    """One for each token, streamed or not; what is held back, for UTF-8 or a stop string, moves none."""
    family = FAMILIES[name]
    answer = data.draw(st.lists(st.integers(0, family.size - 1), min_size=1, max_size=12))
    prompt = data.draw(st.lists(st.integers(0, family.size - 1), min_size=1, max_size=4))
    whole = family.answer(prompt, answer, skip=True)
    stop = [whole[i : i + 3] for i in data.draw(st.lists(st.integers(0, len(whole)), max_size=1))]
    asked = SamplingParams(
        max_tokens=len(answer), stop=[s for s in stop if s], ignore_eos=True, logprobs=2
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "tokenizer", family.tokenizer)
        patch.setattr(engine, "_limit", lambda ids, params: params.max_tokens)
        script(patch, engine, answer)
        done = engine.generate(prompt, asked)
        pieces = list(engine.stream(prompt, asked))
    assert done.logprobs is not None
    assert [entry.token_id for entry in done.logprobs] == done.token_ids
    assert [[entry.token_id] for piece in pieces for entry in piece.logprobs] == [
        list(piece.token_ids) for piece in pieces
    ]
    assert [entry for piece in pieces for entry in piece.logprobs] == done.logprobs
    offsets = [entry.text_offset for entry in done.logprobs]
    assert offsets == _certain(family, prompt, done.token_ids)
    assert "".join(slices(done.text, offsets)) == done.text


def _certain(family: Family, prompt: list[int], ids: list[int]) -> list[int]:
    """How many characters were certain before each token."""
    return [len(family.certain(prompt, ids[:n], skip=True)) for n in range(len(ids))]


EMOJI = "a🦙é"


@pytest.mark.parametrize(
    ("golden", "shown"),
    [
        ("text-llama3", ["a", "", "", "🦙", "é"]),
        ("text-gemma", ["a", "", "", "", "🦙", "é"]),
    ],
)
def test_tokens_of_a_character_stand_where_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: str, shown: list[str]
) -> None:
    """In the answer and in the prompt, as text and as ids."""
    engine = Engine.load(tiny.text_folder(tmp_path, golden))
    ids = engine.tokenizer.encode(EMOJI, add_special_tokens=False)
    answer = SamplingParams(max_tokens=len(ids), logprobs=0, ignore_eos=True)
    prompt = SamplingParams(max_tokens=1, prompt_logprobs=0)
    for given_prompt in (EMOJI, engine.tokenizer.encode(EMOJI)):
        entries = engine.generate(given_prompt, prompt).prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        offsets = [entry.text_offset for entry in entries if entry]
        added = len(entries) - len(ids)  # a BOS is no text
        assert slices(EMOJI, [0, *offsets]) == [""] * added + shown
    script(monkeypatch, engine, ids)
    done = engine.generate("x", answer)
    assert done.text == EMOJI
    assert done.logprobs is not None
    assert slices(EMOJI, [entry.text_offset for entry in done.logprobs]) == shown


# -- of prompts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@tiny.examples(40)
@given(data=st.data())
def test_ids_of_a_prompt_stand_where_their_text_does(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    ids = data.draw(st.lists(st.integers(0, family.size - 1), min_size=1, max_size=12))
    assert prompt_offsets(family.tokenizer, ids, ids, False) == _certain(family, [], ids)


#: Tokenizers that change no character, and how many they put before a text.
FAITHFUL = {
    "text-gpt2": 0,
    "text-llama3": 0,
    "text-smollm2": 0,
    "text-gemma": 0,
    "text-llama2": 1,
}


@pytest.mark.parametrize("golden", FAITHFUL)
@tiny.examples(60)
@given(data=st.data())
def test_tokens_of_a_text_stand_at_their_first_byte(golden: str, data: st.DataObject) -> None:
    """Or at the character that this byte is a part of; also behind a space that offsets leave out."""
    tokenizer = Tokenizer.load(GOLDENS / golden)
    text = data.draw(st.one_of(texts(), st.text("a 🦙é東\n", max_size=9)))
    ids = tokenizer.encode_prompt(text)
    if not ids:
        return
    encoding = tokenizer.encode_with_offsets(text, parse_special=False)
    before, want = b"", []
    for token, added in zip(ids, encoding.special_tokens_mask, strict=True):
        want.append(max(0, len(before.decode(errors="ignore")) - FAITHFUL[golden]))
        before += b"" if added else tokenizer.token_bytes(token) or b""
    got = prompt_offsets(tokenizer, text, ids, parse_special=False)
    if len(before) == len(text.encode()) + FAITHFUL[golden]:  # every character has a token
        assert got == want
    assert "".join(slices(text, got)) == text


@pytest.mark.parametrize("golden", ["text-qwen2", "text-unigram-bytes", "text-wordpiece"])
@tiny.examples(30)
@given(text=texts())
def test_a_text_that_is_normalised_keeps_its_own_offsets(golden: str, text: str) -> None:
    tokenizer = Tokenizer.load(GOLDENS / golden)
    ids = tokenizer.encode_prompt(text)
    if ids:
        assert "".join(slices(text, prompt_offsets(tokenizer, text, ids, False))) == text


def test_special_tokens_of_a_prompt_have_the_text_that_they_were_written_as(
    engine: Engine,
) -> None:
    """Where they are read as such; a BOS that the text begins with is not added once more."""
    bos = engine.tokenizer.bos_id
    assert bos is not None
    text = f"{engine.tokenizer.id_to_token(bos)}one"
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    done = engine.generate(text, params, parse_special=True)
    assert done.prompt_token_ids.count(bos) == 1
    assert done.prompt_logprobs is not None
    offsets = [entry.text_offset for entry in done.prompt_logprobs if entry]
    assert slices(text, [0, *offsets])[0] == engine.tokenizer.id_to_token(bos)


def test_a_model_without_a_tokenizer_has_no_text_to_stand_in(tmp_path: Path) -> None:
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    params = SamplingParams(max_tokens=3, logprobs=0, prompt_logprobs=0)
    done = engine.generate([3, 7, 11], params)
    assert done.prompt_logprobs is not None and done.logprobs is not None
    entries = [entry for entry in (*done.prompt_logprobs, *done.logprobs) if entry]
    assert [entry.text_offset for entry in entries] == [0] * 5


@pytest.mark.parametrize("cache", ["contiguous", "ring", "paged"])
@pytest.mark.parametrize("length", [1, 2, 20])
def test_a_prompt_has_log_probabilities_without_an_answer(
    tmp_path: Path, cache: str, length: int
) -> None:
    """Of no tokens, which ends at once: also where several are asked for, and beside other requests."""
    folder = tiny.save_folder(tmp_path, tiny.CASE)
    engine = Engine.load(folder, cache=cache, batch_invariant=True)
    engine.step_tokens = 7
    prompt = (tiny.CASE_IDS * 2)[:length]
    want = engine.generate(prompt, SamplingParams(max_tokens=3, prompt_logprobs=2)).prompt_logprobs
    assert want is not None and len(want) == length
    nothing = SamplingParams(max_tokens=0, prompt_logprobs=2, n=2, best_of=3, logprobs=1)
    answers = engine.generate([prompt, prompt], nothing)
    assert len(answers) == 2
    for answer in (answer for two in answers for answer in two):
        assert answer.prompt_logprobs == want
        assert (answer.text, answer.token_ids, answer.logprobs) == ("", [], [])
        assert answer.finish_reason == "length"
        assert answer.usage == {
            "prompt_tokens": length,
            "completion_tokens": 0,
            "total_tokens": length,
        }
    (piece,) = engine.stream(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert (piece.text, piece.token_ids, piece.finish_reason) == ("", (), "length")


# -- what is listed --------------------------------------------------------------------------------


def _listed(entry: TokenLogprob) -> list[int]:
    return [token for token, _ in entry.top]


@pytest.mark.parametrize(
    ("how", "most"),
    [
        ({"temperature": 1.0, "top_k": 3}, 3),
        ({"temperature": 0.7, "top_p": 0.6}, 20),
        ({"temperature": 1.0, "min_p": 0.2}, 20),
        ({"bad_words_ids": [[t] for t in range(45)]}, 5),
        ({"logit_bias": dict.fromkeys(range(40), -math.inf)}, 10),
        ({"forced_bos_token_id": 7}, 50),
    ],
    ids=str,
)
def test_processed_log_probabilities_list_what_can_be_chosen_and_nothing_else(
    tmp_path: Path, how: dict[str, Any], most: int
) -> None:
    """They add up to 1, and the token is one of them; the raw ones list the whole vocabulary."""
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    params = {"max_tokens": 4, "seed": 1, "logprobs": 50, "ignore_eos": True, **how}
    done = engine.generate([5], SamplingParams(logprobs_mode="processed", **params))
    assert done.logprobs is not None
    for entry in done.logprobs:
        assert 1 <= len(entry.top) <= most
        assert entry.token_id in _listed(entry)
        assert sum(math.exp(p) for _, p in entry.top) == pytest.approx(1)
        assert entry.logprob == dict(entry.top)[entry.token_id]
    raw = engine.generate([5], SamplingParams(logprobs_mode="raw", **params))
    assert raw.logprobs is not None
    assert [len(entry.top) for entry in raw.logprobs] == [50] * 4
    json.dumps([done.to_dict(), raw.to_dict()], allow_nan=False)


def test_a_token_that_the_model_rules_out_is_infinitely_unlikely_and_json_says_so(
    tmp_path: Path,
) -> None:
    """Forced upon a model whose own logit for it is -inf; a reader of JSON knows no Infinity."""
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    handle = engine.decoder.logits.register_forward_hook(
        lambda module, args, value: value.index_fill(-1, torch.tensor([7]), -torch.inf)
    )
    params = SamplingParams(
        max_tokens=2, forced_bos_token_id=7, logprobs=50, prompt_logprobs=50, best_of=1
    )
    try:
        done = engine.generate([5], params)
        prompt = engine.generate([5, 7, 3], params)
    finally:
        handle.remove()
    assert done.logprobs is not None and prompt.prompt_logprobs is not None
    assert done.logprobs[0].logprob == -math.inf
    assert done.score == -math.inf
    for entry in (*done.logprobs, *(entry for entry in prompt.prompt_logprobs if entry)):
        assert len(entry.top) == 49
        assert 7 not in _listed(entry)
    document = json_text([done.to_dict(), prompt.to_dict()])
    assert "Infinity" not in document and "NaN" not in document
    assert json.loads(document)[0]["logprobs"][0]["logprob"] == "-inf"
