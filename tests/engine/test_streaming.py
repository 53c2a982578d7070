"""Streaming: the same text, tokens and reasons as in one piece, and nothing kept once it is closed."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.scripted import Scripted
from conformance.strategies import texts
from engine import Engine, SamplingParams
from engine.generate import Completion, Piece
from tests.engine import tiny
from tests.tokenizer.stream_families import FAMILIES


def script(monkeypatch: pytest.MonkeyPatch, engine: Engine, answer: Sequence[int]) -> None:
    """Makes the model say `answer`, whatever it is asked; the rest of the loop stays as it is."""

    logits = torch.nn.functional.one_hot(torch.tensor(answer), engine.spec.vocab_size).float()
    monkeypatch.setattr(engine, "decoder", Scripted(engine, logits))


def joined(pieces: Sequence[Piece]) -> tuple[str, list[int], str | None, list[Any]]:
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    assert all(len(piece.token_ids) == 1 for piece in pieces)
    return (
        "".join(piece.text for piece in pieces),
        [t for piece in pieces for t in piece.token_ids],
        pieces[-1].finish_reason,
        [entry for piece in pieces for entry in piece.logprobs],
    )


def whole(done: Completion) -> tuple[str, list[int], str, list[Any]]:
    return done.text, done.token_ids, done.finish_reason, list(done.logprobs or [])


GRID = [
    {},
    {"temperature": 0.8, "seed": 7},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 1},
    {"logprobs": 2},
    {"stop": ["e", "t"], "temperature": 1.0, "seed": 2},
    {"ignore_eos": True, "max_tokens": 30, "temperature": 3.0, "seed": 4},
]


@pytest.mark.parametrize("params", GRID, ids=str)
def test_a_stream_adds_up_to_the_completion(engine: Engine, params: dict[str, Any]) -> None:
    """Two code paths for the two would drift apart."""
    asked = SamplingParams(**{"max_tokens": 12, **params})
    pieces = list(engine.stream("The capital of", asked))
    assert joined(pieces) == whole(engine.generate("The capital of", asked))


@tiny.examples(60)
@given(text=texts(), stop=st.lists(st.text(min_size=1, max_size=3), max_size=2), data=st.data())
def test_any_text_with_any_stop_strings_ends_where_the_first_is_complete(
    engine: Engine, text: str, stop: list[str], data: st.DataObject
) -> None:
    """Against the whole text: no character after the stop, none before it lost, no half characters."""
    if text and data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(text) - 1))
        stop = [*stop, text[start : start + data.draw(st.integers(1, 5))]]
    answer = engine.tokenizer.encode(text, add_special_tokens=False) or [0]
    full = engine.tokenizer.decode(answer, skip_special_tokens=True)
    found = [(full.find(s) + len(s), full.find(s)) for s in stop if s in full]
    with pytest.MonkeyPatch.context() as patch:
        script(patch, engine, answer)
        params = SamplingParams(max_tokens=len(answer), stop=stop, ignore_eos=True)
        # As long as the answer may be, it fits into the context of the scripted model.
        patch.setattr(engine, "_limit", lambda ids, params: params.max_tokens)
        got, ids, reason, _ = joined(list(engine.stream("x", params)))
    if found:
        assert (got, reason) == (full[: min(found)[1]], "stop")
    else:
        assert (got, reason) == (full, "length")
    assert ids == answer[: len(ids)]


@pytest.mark.parametrize(
    ("said", "cut", "stop", "shown"),
    [
        pytest.param("go STO", 0, ["STOP"], "go STO", id="beginning of a stop string"),
        pytest.param("a🦙", 1, [], "a\ufffd", id="half a character"),
        pytest.param("a🦙", 1, ["a\ufffdb"], "a\ufffd", id="both"),
    ],
)
def test_an_end_token_frees_what_was_held_back_and_does_not_show(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    cut: int,
    stop: list[str],
    shown: str,
) -> None:
    """Lost at the end: the beginning of a stop string that never came, and half a character."""
    end = engine.tokenizer.token_to_id("<|eot|>")
    assert end in engine.eos_ids
    answer = engine.tokenizer.encode(said, add_special_tokens=False)
    answer = [*answer[: len(answer) - cut], end]
    script(monkeypatch, engine, answer)
    pieces = list(engine.stream("x", SamplingParams(stop=stop)))
    assert joined(pieces)[:3] == (shown, answer, "stop")


def test_special_tokens_inside_an_answer_do_not_show(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = engine.tokenizer.token_to_id("<|start|>")
    assert marker is not None and marker not in engine.eos_ids
    words = engine.tokenizer.encode("go on", add_special_tokens=False)
    answer = [words[0], marker, *words[1:]]
    script(monkeypatch, engine, answer)
    done = engine.generate("x", SamplingParams(max_tokens=len(answer)))
    assert (done.text, done.token_ids) == ("go on", answer)


def test_the_text_of_a_stop_token_does_not_show(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does that of one that is no special token, which no detokenizer would skip."""
    answer = engine.tokenizer.encode("go on", add_special_tokens=False)
    script(monkeypatch, engine, answer)
    pieces = list(engine.stream("x", SamplingParams(stop_token_ids=answer[-1:])))
    shown = engine.tokenizer.decode(answer[:-1])
    assert shown != "go on"
    assert joined(pieces)[:3] == (shown, answer, "stop")


def test_a_stop_string_completed_by_the_flush_is_a_stop(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement character of a cut one may be what a stop string waits for."""
    cut = engine.tokenizer.encode("🦙", add_special_tokens=False)[:1]
    assert engine.tokenizer.decode(cut) == "\ufffd"
    script(monkeypatch, engine, cut)
    pieces = list(engine.stream("x", SamplingParams(max_tokens=1, stop="\ufffd")))
    assert joined(pieces)[:3] == ("", cut, "stop")


@pytest.mark.parametrize("k", [1, 2])
def test_a_limit_inside_a_character_gives_one_replacement_character(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """Half a character is never sent as bytes, nor silently lost; both ways agree (A10)."""
    llama = engine.tokenizer.encode("a🦙", add_special_tokens=False)[: 1 + k]
    script(monkeypatch, engine, llama)
    text, ids, reason, _ = joined(list(engine.stream("x", SamplingParams(max_tokens=1 + k))))
    assert (text, ids, reason) == ("a\ufffd", llama, "length")
    assert engine.tokenizer.decode(llama) == text


def test_every_entry_of_logprobs_stays_with_its_token_while_text_is_held_back(
    engine: Engine,
) -> None:
    params = SamplingParams(max_tokens=20, temperature=2.0, seed=5, logprobs=1, ignore_eos=True)
    for piece in engine.stream("x", params):
        assert [entry.token_id for entry in piece.logprobs] == list(piece.token_ids)


def test_pieces_come_one_by_one(engine: Engine) -> None:
    """A stream that computes everything first is none."""
    steps: list[int] = []
    handle = engine.decoder.embed.register_forward_hook(
        lambda module, args, value: steps.append(value.shape[1])
    )
    try:
        stream = engine.stream("x", SamplingParams(max_tokens=5, ignore_eos=True))
        assert steps == []
        next(stream)
        assert len(steps) == 1
        next(stream)
        assert len(steps) == 2
    finally:
        handle.remove()


@pytest.mark.parametrize("how", ["close", "drop", "exhaust"])
def test_a_finished_or_abandoned_stream_frees_its_cache(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A client that goes away must not keep its gigabytes until the garbage collector comes by."""
    made: list[weakref.ref[Any]] = []
    new_cache = engine.new_cache

    def recorded(*args: Any) -> Any:
        cache = new_cache(*args)
        made.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(engine, "new_cache", recorded)
    gc.disable()
    try:
        stream = engine.stream("x", SamplingParams(max_tokens=5, ignore_eos=True))
        next(stream)
        assert made[0]() is not None
        match how:
            case "close":
                stream.close()  # type: ignore[attr-defined]
            case "drop":
                del stream
            case "exhaust":
                list(stream)
        assert made[0]() is None
        assert len(made) == 1
    finally:
        gc.enable()


def test_inference_mode_does_not_leak_to_whoever_reads_the_stream(engine: Engine) -> None:
    """A generator's context manager stays entered between its steps unless care is taken."""
    for _ in engine.stream("x", SamplingParams(max_tokens=3, ignore_eos=True)):
        assert not torch.is_inference_mode_enabled()
        weight = torch.ones(2, requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad is not None


def test_two_streams_at_once_do_not_mix(engine: Engine) -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=3, ignore_eos=True)
    alone = [joined(list(engine.stream(prompt, params))) for prompt in ("one", "two")]
    pairs = list(zip(engine.stream("one", params), engine.stream("two", params), strict=True))
    assert [joined([pair[i] for pair in pairs]) for i in (0, 1)] == alone


@pytest.mark.parametrize("golden", ["text-gpt2", "text-llama3", "text-qwen2", "text-smollm2"])
def test_every_tokenizer_of_the_goldens_speaks(tmp_path: Path, golden: str) -> None:
    engine = Engine.load(tiny.text_folder(tmp_path, golden))
    vocab_size = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    assert engine.spec.vocab_size == vocab_size
    params = SamplingParams(max_tokens=20, temperature=3.0, seed=0, ignore_eos=True)
    pieces = list(engine.stream("héllo wörld 東京", params))
    text, ids, _, _ = joined(pieces)
    assert text == engine.tokenizer.decode(ids, skip_special_tokens=True)
    assert len(ids) == 20


def test_an_answer_goes_on_from_the_text_of_its_prompt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that strips the first space of a text took it off every answer."""
    llama = FAMILIES["llama2"]
    word, begun, rest = (llama.tokens.index(token) for token in ("▁a", "<0xC3>", "<0xA9>"))
    monkeypatch.setattr(engine, "tokenizer", llama.tokenizer)
    script(monkeypatch, engine, [word])
    asked = SamplingParams(max_tokens=1, ignore_eos=True)
    assert engine.generate([word], asked).text == " a"
    assert engine.generate([llama.tokens.index("<s>")], asked).text == "a"
    script(monkeypatch, engine, [rest])
    assert engine.generate([word, begun], asked).text == "é"


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_is_part_of_the_text_on_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, include: bool
) -> None:
    script(monkeypatch, engine, engine.tokenizer.encode("go STOP on", add_special_tokens=False))
    params = SamplingParams(stop="STOP", include_stop_str_in_output=include)
    shown = "go STOP" if include else "go "
    assert engine.generate("x", params).text == shown
    assert joined(list(engine.stream("x", params)))[0::2][:2] == (shown, "stop")
